"""Tables of results: methods in rows, settings in columns, one panel per test protocol.

Run, table and figure are separate steps: everything here is made from results files alone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.fl.methods import METHODS
from vaneb.fl.results import Row

Column = tuple[str, float, float, int]
"""Data set, alpha, shift, clients."""
VALUES = ("mean", "worst_tenth", *(f"decile_{i}" for i in range(1, 10)))
#: What a table shows: every method as it is meant to be used, or all of them with the same correction for
#: the client's label proportions (taken away for balanced labels, added for labels like the client's own).
POINTS: dict[str, dict[str, str | None]] = {
    "own": {"balanced": None, "matched": None},
    "corrected": {"balanced": "removed", "matched": "added"},
    "added": {"balanced": None, "matched": "added"},
}
_TITLES = {
    "balanced": "Panel A: balanced test labels",
    "matched": "Panel B: test labels matched to the client",
}
_NOTES: dict[str | None, str] = {
    None: "",
    "removed": ", log-proportions taken away",
    "added": ", log-proportions added",
}


@dataclass(frozen=True)
class Cell:
    """Accuracy of a method in a setting, averaged over seeds."""

    value: float
    seeds: int
    deviation: float
    best: bool
    beside: float | None = None
    """A number from elsewhere to compare with."""


@dataclass(frozen=True)
class Panel:
    """One panel: ``cells[method][column]``, missing where there is no result."""

    title: str
    protocol: str
    columns: list[Column]
    cells: dict[str, dict[Column, Cell]]


def make_panels(
    rows: Sequence[Row],
    *,
    points: str = "own",
    value: str = "mean",
    beside: Mapping[tuple[str, str, Column], float] | None = None,
) -> list[Panel]:
    """Panels A and B from the last round of every run.

    Parameters
    ----------
    points : "own", "corrected" or "added"; see ``POINTS``.
    value : "mean", "worst_tenth" or "decile_1" to "decile_9".
    beside : numbers to set beside ours, by (protocol, method, column).
    """
    if points not in POINTS:
        raise InvalidOption(f"points = {points!r}: use one of {', '.join(POINTS)}.")
    if value not in VALUES:
        raise InvalidOption(f"value = {value!r}: use one of {', '.join(VALUES)}.")
    panels = []
    for protocol, prior in POINTS[points].items():
        chosen = [
            row
            for row in rows
            if row.last and row.protocol == protocol and (row.own if prior is None else row.prior == prior)
        ]
        found: dict[tuple[str, Column], dict[int, float]] = {}
        for row in chosen:
            # A later line replaces an earlier one of the same seed: the run was made again.
            found.setdefault((row.method, _column(row)), {})[row.seed] = getattr(row, value)
        title = _TITLES[protocol] + _NOTES[prior] + ("" if value == "mean" else f" ({value})")
        panels.append(_panel(title, protocol, found, beside or {}))
    return panels


def _column(row: Row) -> Column:
    return row.data, row.alpha, row.shift, row.clients


def _panel(
    title: str,
    protocol: str,
    found: dict[tuple[str, Column], dict[int, float]],
    beside: Mapping[tuple[str, str, Column], float],
) -> Panel:
    columns = sorted({column for _, column in found})
    means = {key: float(np.mean(list(by_seed.values()))) for key, by_seed in found.items()}
    best = {
        column: max(round(mean, 2) for (_, other), mean in means.items() if other == column)
        for column in columns
    }
    order = {label: i for i, (label, _) in enumerate(METHODS.values())}
    methods = sorted({method for method, _ in found}, key=lambda name: (order.get(name, len(order)), name))
    cells: dict[str, dict[Column, Cell]] = {method: {} for method in methods}
    for (method, column), by_seed in found.items():
        mean = means[method, column]
        deviation = float(np.std(list(by_seed.values()), ddof=1)) if len(by_seed) > 1 else 0.0
        cells[method][column] = Cell(
            mean,
            len(by_seed),
            deviation,
            round(mean, 2) == best[column],
            beside.get((protocol, method, column)),
        )
    return Panel(title, protocol, columns, cells)


def read_beside(
    path: Path, data: str, alpha: float | None, shift: float | None
) -> dict[tuple[str, str, Column], float]:
    """Numbers to set beside ours, from a CSV file with protocol, method, clients, accuracy, alpha or shift.

    ``alpha`` and ``shift`` say what holds for all lines of a file that has no such column.
    """
    numbers = {}
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            column = (
                data,
                float(line["alpha"] if alpha is None else alpha),
                float(line["shift"] if shift is None else shift),
                int(line["clients"]),
            )
            numbers[line["protocol"], line["method"], column] = float(line["accuracy"])
    return numbers


# ---------------------------------------------------------------- rendering


def _heading(columns: list[Column], column: Column) -> str:
    """What tells a column from the others: the parts that differ, and always the number of clients."""
    data, alpha, shift, clients = column
    parts = [
        (data, len({c[0] for c in columns}) > 1),
        (f"alpha={alpha:g}", len({c[1] for c in columns}) > 1),
        (f"s={shift:g}", len({c[2] for c in columns}) > 1),
    ]
    return " ".join([*(text for text, differs in parts if differs), f"K={clients}"])


def _common(columns: list[Column]) -> str:
    """What all columns share."""
    names = ("{}", "alpha = {:g}", "shift = {:g}")
    kinds = [{column[i] for column in columns} for i in range(3)]
    return ", ".join(
        name.format(next(iter(kind))) for name, kind in zip(names, kinds, strict=True) if len(kind) == 1
    )


def _number(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    text = f"{cell.value:.2f}"
    if cell.seeds > 1:
        text += f" ± {cell.deviation:.2f}"
    return text


def as_text(panels: Sequence[Panel], bold: bool = False) -> str:
    """Plain text; the best of each column carries a star, and is bold on a terminal if ``bold``."""
    lines = []
    for panel in panels:
        headings = [_heading(panel.columns, column) for column in panel.columns]
        grid = [
            [method, *(_number(row.get(column)) + _star(row.get(column)) for column in panel.columns)]
            for method, row in panel.cells.items()
        ]
        widths = [max(map(len, column)) for column in zip(["Method", *headings], *grid, strict=True)]
        lines += [f"{panel.title} ({_common(panel.columns)})", _line(["Method", *headings], widths)]
        lines.append("-" * len(lines[-1]))
        for (_, row), texts in zip(panel.cells.items(), grid, strict=True):
            marks = [False, *(bool(cell and cell.best) for cell in map(row.get, panel.columns))]
            lines.append(_line(texts, widths, marks if bold else None))
        lines.append("")
    return "\n".join(lines)


def _star(cell: Cell | None) -> str:
    return "*" if cell is not None and cell.best else " "


def _line(texts: list[str], widths: list[int], marks: list[bool] | None = None) -> str:
    padded = [texts[0].ljust(widths[0]), *(t.rjust(w) for t, w in zip(texts[1:], widths[1:], strict=True))]
    if marks is not None:
        padded = [f"\x1b[1m{t}\x1b[0m" if mark else t for t, mark in zip(padded, marks, strict=True)]
    return "  ".join(padded).rstrip()


def as_markdown(panels: Sequence[Panel]) -> str:
    """Markdown; the best of each column is bold, a number from elsewhere follows in parentheses."""
    lines = []
    for panel in panels:
        headings = [_heading(panel.columns, column) for column in panel.columns]
        lines += [f"**{panel.title}** ({_common(panel.columns)})", ""]
        lines.append("| Method | " + " | ".join(headings) + " |")
        lines.append("|---|" + "---:|" * len(headings))
        for method, row in panel.cells.items():
            texts = []
            for cell in map(row.get, panel.columns):
                text = _number(cell)
                if cell is not None and cell.best:
                    text = f"**{text}**"
                if cell is not None and cell.beside is not None:
                    text += f" ({cell.beside:.2f})"
                texts.append(text)
            lines.append(f"| {method} | " + " | ".join(texts) + " |")
        lines.append("")
    return "\n".join(lines)


def as_csv(panels: Sequence[Panel]) -> str:
    """One line per number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["protocol", "method", "data", "alpha", "shift", "clients", "accuracy", "deviation", "seeds", "best"]
    )
    for panel in panels:
        for method, row in panel.cells.items():
            for column, cell in sorted(row.items()):
                writer.writerow(
                    [panel.protocol, method, *column, f"{cell.value:.4f}", f"{cell.deviation:.4f}"]
                    + [cell.seeds, int(cell.best)]
                )
    return text.getvalue()


def evaluated_models(rows: Sequence[Row]) -> list[str]:
    """One line per method: which model was evaluated, after how many rounds, and what they cost."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        if row.last:
            by_method.setdefault(row.method, []).append(row)
    rounds = {
        method: ", ".join(map(str, sorted({row.round for row in own}))) for method, own in by_method.items()
    }
    return [
        f"{method}: {own[0].evaluated}; round {rounds[method]} (the last){_cost(own)}"
        for method, own in by_method.items()
    ]


def _cost(rows: Sequence[Row]) -> str:
    """Means over the runs that have recorded it; the memory is the largest."""
    known = {(row.config, row.seed): row for row in rows if row.cpu_seconds > 0}.values()
    if not known:
        return ""
    cpu, sent = (np.mean([getattr(row, name) for row in known]) for name in ("cpu_seconds", "megabytes"))
    peak = max(row.peak_megabytes for row in known)
    return f"; {cpu:,.1f} CPU seconds, {sent:,.2f} MB sent, {peak:,.0f} MB of memory"
