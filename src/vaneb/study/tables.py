"""Replicates summarised: mean RMSE and its standard error by cell and estimator, as text, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vaneb import text_tables
from vaneb.errors import InvalidOption
from vaneb.study.estimators import ESTIMATORS
from vaneb.study.sweep import Cell

Rows = Sequence[dict[str, str]]
ORACLE = "oracle"
HEADER = (
    *("scenario", "K", "n_min", "estimator", "replicates", "failed"),
    *("RMSE", "s.e.", "median", "to oracle", "coverage", "CPU s", "best"),
)


@dataclass(frozen=True)
class Summary:
    """An estimator in a cell.

    Parameters
    ----------
    replicates, failed : replicates with an RMSE, and those that ended without one.
    rmse, error : mean over replicates, and its standard error (NaN from a single one).
    median : over replicates, which one replicate that has run off does not move.
    ratio : mean RMSE over the oracle's mean RMSE on the same replicates; NaN where it was not run.
    coverage : mean coverage of the 90% intervals; NaN for methods without.
    seconds : median of the CPU seconds.
    best : the smallest mean RMSE of the cell but for the oracle's.
    """

    cell: Cell
    estimator: str
    replicates: int
    failed: int
    rmse: float
    error: float
    median: float
    ratio: float
    coverage: float
    seconds: float
    best: bool = False


def by_replicate(rows: Rows, cell: Cell, estimator: str) -> dict[int, float]:
    """RMSE of an estimator in a cell, by replicate; failures left out."""
    key = (cell.scenario, str(cell.clients), str(cell.n_min), estimator)
    return {
        int(row["replicate"]): float(row["rmse"])
        for row in rows
        if row["rmse"] and (row["scenario"], row["clients"], row["n_min"], row["estimator"]) == key
    }


def cells_of(rows: Rows) -> list[Cell]:
    """The cells that have rows, in order."""
    return sorted({Cell(row["scenario"], int(row["clients"]), int(row["n_min"])) for row in rows})


def summarise(rows: Rows) -> list[Summary]:
    """A line for each cell and estimator that has rows, in the order of cells and of ``ESTIMATORS``."""
    groups: dict[tuple[Cell, str], list[dict[str, str]]] = {}
    for row in rows:
        cell = Cell(row["scenario"], int(row["clients"]), int(row["n_min"]))
        groups.setdefault((cell, row["estimator"]), []).append(row)
    out = []
    for cell in cells_of(rows):
        oracle = by_replicate(rows, cell, ORACLE)
        lines = [
            _summary(cell, name, groups[cell, name], oracle) for name in ESTIMATORS if (cell, name) in groups
        ]
        rivals = [line.rmse for line in lines if line.estimator != ORACLE and line.replicates]
        smallest = min(rivals, default=float("nan"))
        out += [
            Summary(**{**vars(line), "best": line.estimator != ORACLE and line.rmse == smallest})
            for line in lines
        ]
    return out


def _summary(cell: Cell, name: str, rows: Rows, oracle: dict[int, float]) -> Summary:
    values = by_replicate(rows, cell, name)
    both = values.keys() & oracle.keys()
    reference = _mean([oracle[i] for i in both])
    spread = float(np.std(list(values.values()), ddof=1)) if len(values) > 1 else float("nan")
    return Summary(
        cell,
        name,
        len(values),
        len(rows) - len(values),
        _mean(list(values.values())),
        spread / np.sqrt(max(len(values), 1)),
        float(np.median(list(values.values()))) if values else float("nan"),
        _mean([values[i] for i in both]) / reference,
        _mean([float(row["coverage"]) for row in rows if row["coverage"]]),
        float(np.median([float(row["cpu_seconds"]) for row in rows])),
    )


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


#: An estimator further than this from the best of its panel is off the scale.
OFF_SCALE = 3.0


class Panel(NamedTuple):
    """RMSE along one of the two sweeps of a scenario, at the largest value of the other."""

    along: str
    """"clients" or "n_min"."""
    label: str
    lines: list[Summary]

    @property
    def places(self) -> list[int]:
        """Where there are results, in order."""
        return sorted({getattr(line.cell, self.along) for line in self.lines})

    @property
    def ceiling(self) -> float:
        """The top of the panel: one method that falls apart must not flatten all others."""
        smallest = [
            min(line.rmse for line in self.lines if getattr(line.cell, self.along) == place)
            for place in self.places
        ]
        return OFF_SCALE * max(smallest)


def panels_of(lines: Sequence[Summary], scenario: str) -> list[Panel]:
    """Over K and over n_min.  A sweep with one place only is no picture, unless there is nothing else."""
    own = [line for line in lines if line.cell.scenario == scenario and line.replicates]
    if not own:
        return []
    n_min, clients = max(line.cell.n_min for line in own), max(line.cell.clients for line in own)
    panels = [
        Panel("clients", f"clients K (n_min = {n_min})", [x for x in own if x.cell.n_min == n_min]),
        Panel("n_min", f"smallest n_min (K = {clients})", [x for x in own if x.cell.clients == clients]),
    ]
    return [panel for panel in panels if len(panel.places) > 1] or panels[:1]


def _cells_of_line(line: Summary, mark: str = "*") -> list[str]:
    def number(value: float, form: str) -> str:
        return "" if np.isnan(value) else format(value, form)

    return [
        *map(str, line.cell),
        line.estimator,
        str(line.replicates),
        str(line.failed),
        number(line.rmse, ".4f"),
        number(line.error, ".4f"),
        number(line.median, ".4f"),
        number(line.ratio, ".3f"),
        number(line.coverage, ".3f"),
        number(line.seconds, ".2f"),
        mark if line.best else "",
    ]


#: Columns of words.
WORDS = (0, 3, len(HEADER) - 1)


def as_text(summaries: Sequence[Summary]) -> str:
    """A table for the terminal."""
    table = text_tables.padded([HEADER, *map(_cells_of_line, summaries)], WORDS)
    return "\n".join("  ".join(line).rstrip() for line in table)


def as_markdown(summaries: Sequence[Summary]) -> str:
    """Estimators down, the best but the oracle in bold."""
    rows = []
    for line in summaries:
        values = _cells_of_line(line, "best")
        rows.append([f"**{v}**" if line.best and i in (3, 6) else v for i, v in enumerate(values)])
    return text_tables.as_markdown(HEADER, rows, WORDS)


def as_csv(summaries: Sequence[Summary]) -> str:
    """The same as CSV."""
    return text_tables.as_csv(HEADER, map(_cells_of_line, summaries))


FORMS = {"text": as_text, "markdown": as_markdown, "csv": as_csv}


def as_table(rows: Rows, form: str = "text") -> str:
    """``rows`` summarised, as "text", "markdown" or "csv"."""
    if form not in FORMS:
        raise InvalidOption(f"form must be one of {', '.join(FORMS)}, not {form!r}")
    return FORMS[form](summarise(rows))
