"""Everything that is wrong with a table of reports, at once.

The checks are those of ``read_reports``.  Where one of them refuses a table, it is asked again about halves
of the clients, until each one that it refuses has been named: a check cannot find what a reading would not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from vaneb import layout, validation
from vaneb.column_choice import ColumnChoice, choose_columns
from vaneb.covariance import by_name
from vaneb.dialect import TextOptions
from vaneb.errors import InvalidReport, VanebError
from vaneb.layout import Columns, Layout
from vaneb.limits import as_standard_errors
from vaneb.noise import as_covariance_function
from vaneb.sources import ParquetTable, TextTable, open_table, refuse
from vaneb.tables import client_type_of, refuse_total, reports_of
from vaneb.validation import Place

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Findings:
    """What would be read of a file, and what is wrong with it."""

    kind: str | None = None
    """Format in words; None if the file cannot be opened."""
    columns: tuple[str, ...] = ()
    layout: Layout | None = None
    """None if columns are missing."""
    clients: int = 0
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Smallest and largest number of each column that is read."""
    problems: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    """What was made of confidence limits."""


def find_problems(
    path: str | os.PathLike[str],
    variance_function: str | None = None,
    *,
    choice: ColumnChoice | None = None,
    options: TextOptions | None = None,
) -> Findings:
    """Look at a table of reports; parameters as in ``read_reports``."""
    try:
        opened = open_table(path, options)
    except VanebError as error:
        return Findings(problems=(str(error),))
    problems: list[str] = []
    given = variance_function is not None
    choice = ColumnChoice() if choice is None else choice
    try:
        found = choose_columns(opened.columns, choice, covariance_given=given)
    except VanebError as error:
        if isinstance(opened, TextTable):
            for _ in opened.rows(problems.append):
                pass
        return Findings(opened.kind, opened.columns, problems=(str(error), *problems))
    read = _without_problems(opened, found, variance_function, choice.limits_scale)
    if read is None:
        read = _searched(opened, found, variance_function, problems, choice.limits_scale)
    if read is None:
        return Findings(opened.kind, opened.columns, found, problems=tuple(problems))
    table, used = read
    return Findings(
        opened.kind,
        opened.columns,
        found,
        table.num_rows,
        _ranges(table, found),
        tuple(problems),
        used.notes[len(found.notes) :],
    )


def _without_problems(
    opened: TextTable | ParquetTable, found: Layout, variance_function: str | None, scale: str | None
) -> tuple[pa.Table, Layout] | None:
    """The table and what is used of it, if a reading does not complain.

    A million clients are not looked at one by one.
    """
    try:
        table = opened.numbers(found.used, found.client)
        client_type_of(table[found.client].type, found.client)
        if table.num_rows:
            refuse_total(table[found.client][-1])
        table, found = as_standard_errors(table, found, refuse, scale=scale)
        reports_of(table, found, variance_function)
    except VanebError:
        return None
    return table, found


def _searched(
    opened: TextTable | ParquetTable,
    found: Layout,
    variance_function: str | None,
    problems: list[str],
    scale: str | None,
) -> tuple[pa.Table, Layout] | None:
    """Add to ``problems``; the table and what is used of it, if there is one."""
    try:
        if variance_function is not None:
            by_name(variance_function, len(found.names), 1)
        if isinstance(opened, TextTable):
            table, numbers = opened.numbers_by_cell(found.used, found.client, problems.append)
        else:
            table = opened.numbers(found.used, found.client)
            numbers = list(range(1, table.num_rows + 1))
        client_type_of(table[found.client].type, found.client)
        # Null is what is no number, of which was told; what is missing in a text is NaN.
        told: set[int] = set()
        if isinstance(opened, TextTable):
            told = {int(k) for c in found.used for k in np.flatnonzero(table[c].is_null().to_numpy())}
        table, used = as_standard_errors(table, found, problems.append, scale=scale, told=told)
        made = set(used.used) - set(found.used)
        judged = used.used if isinstance(opened, TextTable) else made
        readable = {c: np.flatnonzero(table[c].is_valid().to_numpy()) for c in judged}
        columns = layout.columns_of(table, used)
    except VanebError as error:
        problems.append(str(error))
        return None
    if table.num_rows:
        said = [*_of_ids(columns.ids, numbers), *_of_numbers(columns, used, readable)]
        problems += [used.in_own_words(message) for message in said]
    elif not problems:
        problems.append(f"{opened.place}: has a header but no rows. Give one row per client.")
    return table, used


def _of_ids(ids: Sequence[object], numbers: Sequence[int]) -> Iterator[str]:
    first: dict[str, int] = {}
    for row, label in zip(numbers, ids, strict=True):
        try:
            name = str(validation.as_ids([label], 1)[0])
        except InvalidReport as error:
            yield str(error).replace("row 1,", f"row {row},", 1)
            continue
        if name in first:
            yield (
                f"client {name!r}, column client: appears in rows {first[name]} and {row}. "
                "Give one row per client: combine the rows, or rename one."
            )
        first.setdefault(name, row)
    try:
        refuse_total(ids[-1])
    except InvalidReport as error:
        yield str(error)


def _of_numbers(columns: Columns, found: Layout, readable: dict[str, Indices]) -> Iterator[str]:
    """Estimates, sample sizes and noise, each by itself: one message for each cell or matrix.

    ``readable``: rows whose cell of a column is to be judged; all by default.
    """
    ids = np.array([str(label) for label in columns.ids], dtype=object)
    everyone = np.arange(len(ids))

    def rows_of(*used: str) -> Indices:
        rows = everyone
        for column in used:
            rows = np.intersect1d(rows, readable.get(column, everyone))
        return rows

    for j, column in enumerate(found.estimates):

        def finite(rows: Indices, j: int = j) -> None:
            place = Place(ids[rows], found.names[j : j + 1])
            validation.check_estimates(columns.estimate[rows, j : j + 1], place)

        yield from _refused(finite, rows_of(column))
    if columns.n is not None and found.size is not None:
        sizes = columns.n
        yield from _refused(
            lambda rows: validation.as_sample_sizes(sizes[rows], Place(ids[rows], found.names)),
            rows_of(found.size),
        )
    forms = {"covariance": columns.covariance, "standard_errors": columns.standard_errors}
    forms["precision"] = columns.precision
    for form, noise in forms.items():
        if noise is None:
            continue
        parts = [(noise, found.names, found.noise_columns)]
        if noise.ndim == 2:
            names, used = found.names, found.noise_columns
            parts = [(noise[:, j : j + 1], names[j : j + 1], used[j : j + 1]) for j in range(len(names))]
        for values, names, used in parts:

            def positive(
                rows: Indices, form: str = form, values: Array = values, names: tuple[str, ...] = names
            ) -> None:
                given: dict[str, Any] = {**dict.fromkeys(forms), form: values[rows]}
                as_covariance_function(**given, n=np.ones(len(rows)), place=Place(ids[rows], names))

            yield from _refused(positive, rows_of(*used))


def _refused(judge: Callable[[Indices], object], rows: Indices) -> Iterator[str]:
    """What ``judge`` says of each client that it refuses."""
    if not rows.size:
        return
    try:
        judge(rows)
    except InvalidReport as error:
        if rows.size == 1:
            yield str(error)
            return
        half = rows.size // 2
        yield from _refused(judge, rows[:half])
        yield from _refused(judge, rows[half:])


def _ranges(table: pa.Table, found: Layout) -> dict[str, tuple[float, float]]:
    ranges = {}
    for column in found.used[1:]:
        values = table[column].to_numpy().astype(np.float64)
        known = values[np.isfinite(values)]
        if known.size:
            ranges[column] = (float(known.min()), float(known.max()))
    return ranges
