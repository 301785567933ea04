"""Rates of the theory: how fast a measure falls along K and along n, and a resumable run that tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.study.sweep import append_jobs, checked_rows
from vaneb.study.workers import Job
from vaneb.text_tables import as_markdown

if TYPE_CHECKING:
    from vaneb.blocks import Progress

Array = NDArray[np.float64]
Rows = Sequence[dict[str, str]]

#: Sweep -> the column that varies along it.
ALONG = {"K": "clients", "n": "n"}


@dataclass(frozen=True)
class Study:
    """A study of rates.

    Parameters
    ----------
    kind : name of its jobs.
    priors, estimators : names; a study of one prior has no such column.
    columns : of its file.
    expected : the theory's exponents along K and along n, up to logarithms, by (measure, estimator).
    """

    kind: str
    priors: tuple[str, ...]
    estimators: tuple[str, ...]
    columns: tuple[str, ...]
    expected: Mapping[tuple[str, str], tuple[float, float]]
    clients: tuple[int, ...]
    n: tuple[int, ...]


def run_rates(
    study: Study,
    path: Path,
    *,
    replicates: int,
    seed: int = 0,
    workers: int = 1,
    clients: Sequence[int] = (),
    n: Sequence[int] = (),
    progress: Progress | None = None,
) -> None:
    """Append what is missing to ``path``: K varies at the middle ``n``, n at the middle of ``clients``."""
    if replicates < 1:
        raise InvalidOption(f"replicates: at least 1 is needed, not {replicates}")
    clients, n = clients or study.clients, n or study.n
    for name, values in (("clients", clients), ("n", n)):
        if len(values) < 2 or min(values) < 2:
            raise InvalidOption(
                f"{name}: a slope needs two values or more, of at least 2, not {list(values)}"
            )
    middle_n, middle_clients = sorted(n)[len(n) // 2], sorted(clients)[len(clients) // 2]
    places = [("K", k, middle_n) for k in clients] + [("n", middle_clients, each) for each in n]
    keys = study.columns[: study.columns.index("estimator") + 1]
    present = {tuple(row[name] for name in keys) for row in checked_rows(path, study.columns, seed)}
    jobs: list[Job] = []
    for replicate in range(replicates):
        for prior in study.priors:
            for sweep, k, each in places:
                job = {"sweep": sweep, "clients": k, "n": each, "replicate": replicate, "seed": seed}
                job |= {"prior": prior} if "prior" in keys else {}
                key = tuple(str(job[name]) for name in keys[:-1])
                missing = [name for name in study.estimators if (*key, name) not in present]
                if missing:
                    title = f"{prior} K={k} n={each} #{replicate + 1}"
                    jobs.append({"kind": study.kind, "title": title, "estimators": missing, **job})
    append_jobs(path, study.columns, jobs, workers, progress)


def curve(rows: Rows, prior: str, sweep: str, measure: str, estimator: str) -> tuple[Array, Array]:
    """Places (q,) along a sweep and the measure there, (replicates, q); incomplete replicates left out."""
    table: dict[int, dict[int, float]] = {}
    for row in rows:
        place = row.get("prior", prior), row["sweep"], row["estimator"]
        if place == (prior, sweep, estimator) and row[measure]:
            table.setdefault(int(row["replicate"]), {})[int(row[ALONG[sweep]])] = float(row[measure])
    places = sorted({place for values in table.values() for place in values})
    full = [[values[p] for p in places] for _, values in sorted(table.items()) if len(values) == len(places)]
    return np.array(places, dtype=float), np.array(full, dtype=float).reshape(len(full), len(places))


@dataclass(frozen=True)
class Slope:
    """How fast a measure falls along a sweep, on logarithmic scales.

    Parameters
    ----------
    value, error : mean over replicates of the least-squares slope, and its standard error.
    expected : the theory's, up to logarithms.
    """

    prior: str
    sweep: str
    measure: str
    estimator: str
    value: float
    error: float
    expected: float
    replicates: int


def slopes(study: Study, rows: Rows) -> list[Slope]:
    """Fitted slopes of everything that the theory has a rate for."""
    out = []
    for prior in study.priors:
        for (measure, estimator), expected in study.expected.items():
            for sweep, power in zip(ALONG, expected, strict=True):
                places, values = curve(rows, prior, sweep, measure, estimator)
                if len(places) < 2 or not len(values):
                    continue
                # Zero is what a risk that underflows, or no difference in any draw, leaves.
                logs = np.log(np.maximum(values, 1e-300)).T
                fitted = np.polyfit(np.log(places), logs, 1)[0]
                place = (prior, sweep, measure, estimator)
                out.append(Slope(*place, float(fitted.mean()), standard_error(fitted), power, len(fitted)))
    return out


def standard_error(values: Array) -> float:
    """Of the mean; NaN from a single value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


#: Of a table of slopes.
HEADER = ("prior", "measure", "estimator", "along", "slope", "s.e.", "theory, up to logs", "replicates")


def slope_cells(s: Slope) -> list[str]:
    """A line of the table."""
    error = "" if np.isnan(s.error) else f"{s.error:.2f}"
    numbers = [f"{s.value:.2f}", error, f"{s.expected:g}", str(s.replicates)]
    return [s.prior, s.measure, s.estimator, s.sweep, *numbers]


def slopes_as_markdown(found: Sequence[Slope]) -> str:
    """The slopes as a table."""
    return as_markdown(HEADER, map(slope_cells, found), left=range(4))
