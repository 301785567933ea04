"""Tables of results: methods in rows, settings in columns, one panel per test protocol.

Run, table and figure are separate steps: everything here is made from results files alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vaneb import text_tables
from vaneb.errors import InvalidOption
from vaneb.fl.methods import METHODS
from vaneb.fl.results import Row
from vaneb.text_tables import padded

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
    published: float | None = None
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
    published: Mapping[tuple[str, str, Column], float] | None = None,
) -> list[Panel]:
    """Panels A and B from the last round of every run.

    Parameters
    ----------
    points : "own", "corrected" or "added"; see ``POINTS``.
    value : "mean", "worst_tenth" or "decile_1" to "decile_9".
    published : numbers from elsewhere to compare with, by (protocol, method, column).
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
        panels.append(_panel(title, protocol, found, published or {}))
    return panels


def _column(row: Row) -> Column:
    return row.data, row.alpha, row.shift, row.clients


def _panel(
    title: str,
    protocol: str,
    found: dict[tuple[str, Column], dict[int, float]],
    published: Mapping[tuple[str, str, Column], float],
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
            published.get((protocol, method, column)),
        )
    return Panel(title, protocol, columns, cells)


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


def _grid(panel: Panel, cell_text: Callable[[Cell | None], str]) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each method."""
    headings = ["Method", *(_heading(panel.columns, column) for column in panel.columns)]
    rows = [
        [method, *(cell_text(row.get(column)) for column in panel.columns)]
        for method, row in panel.cells.items()
    ]
    return headings, rows


def as_text(panels: Sequence[Panel], bold: bool = False) -> str:
    """Plain text; the best of each column carries a star, and is bold on a terminal if ``bold``."""
    lines = []
    for panel in panels:
        headings, rows = _grid(panel, lambda cell: _number(cell) + ("*" if cell and cell.best else " "))
        grid = padded([headings, *rows])
        for texts in grid if bold else []:
            texts[:] = [f"\x1b[1m{text}\x1b[0m" if text.endswith("*") else text for text in texts]
        head, *body = ("  ".join(texts).rstrip() for texts in grid)
        lines += [f"{panel.title} ({_common(panel.columns)})", head, "-" * len(head), *body, ""]
    return "\n".join(lines)


def as_markdown(panels: Sequence[Panel]) -> str:
    """Markdown; the best of each column is bold, a number from elsewhere follows in parentheses."""

    def cell_text(cell: Cell | None) -> str:
        text = f"**{_number(cell)}**" if cell and cell.best else _number(cell)
        return text if cell is None or cell.published is None else f"{text} ({cell.published:.2f})"

    lines = []
    for panel in panels:
        title = f"**{panel.title}** ({_common(panel.columns)})"
        lines += [title, "", text_tables.as_markdown(*_grid(panel, cell_text)), ""]
    return "\n".join(lines)


def as_csv(panels: Sequence[Panel]) -> str:
    """One line per number."""
    head = [
        "protocol",
        "method",
        "data",
        "alpha",
        "shift",
        "clients",
        "accuracy",
        "deviation",
        "seeds",
        "best",
    ]
    return text_tables.as_csv(
        head,
        [
            [panel.protocol, method, *column, f"{cell.value:.4f}", f"{cell.deviation:.4f}", cell.seeds]
            + [int(cell.best)]
            for panel in panels
            for method, row in panel.cells.items()
            for column, cell in sorted(row.items())
        ],
    )


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
