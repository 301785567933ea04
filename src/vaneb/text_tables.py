"""Tables of text: for a terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence

Line = Sequence[str]


def padded(table: Sequence[Line], left: Collection[int] = (0,)) -> list[list[str]]:
    """Cells as wide as their column; those of the columns ``left`` keep to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in table
    ]


def as_markdown(head: Line, rows: Iterable[Line], left: Collection[int] = (0,)) -> str:
    """A table of Markdown."""
    rule = "|" + "|".join("---" if i in left else "---:" for i in range(len(head))) + "|"
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])


def as_csv(head: Line, rows: Iterable[Sequence[object]]) -> str:
    """The same as CSV."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()
