"""The columns of a table of reports, and the arrays they stand for.

    client, n, theta_<name>..., and one of
    se_<name>...        standard errors
    cov_<a>__<b>...     covariance of the estimate, one triangle with its diagonal
    prec_<a>__<b>...    precision of the estimate, likewise; may be singular

in any order.  This module knows names and shapes only; whether the numbers make sense is for
``validation`` and ``noise``, and where a table comes from for ``tables``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport

Array = NDArray[np.float64]
#: Reads a column by its name as float64, NaN where a value is missing.
ReadNumbers = Callable[[str], Array]

CLIENT, SIZE = "client", "n"
ESTIMATE, STANDARD_ERROR, COVARIANCE, PRECISION = "theta_", "se_", "cov_", "prec_"
NOISE = (STANDARD_ERROR, COVARIANCE, PRECISION)


@dataclass(frozen=True)
class Layout:
    """Which column holds what.

    Attributes
    ----------
    names : tuple of d str
        Parameters, in the order of their ``theta_`` columns.
    noise : str or None
        ``"se_"``, ``"cov_"`` or ``"prec_"``; None if the covariance is given otherwise.
    noise_columns : tuple of str
        d columns of standard errors, or the d (d + 1) / 2 columns of the upper triangle by rows.
    has_size : bool
    notes : tuple of str
        What was not used, for the user to know.
    """

    names: tuple[str, ...]
    noise: str | None
    noise_columns: tuple[str, ...]
    has_size: bool
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """The arrays that a table of reports holds, not yet judged.  Shapes as in ``Reports``."""

    ids: Sequence[Any]
    names: tuple[str, ...]
    estimate: Array
    n: Array | None
    standard_errors: Array | None
    covariance: Array | None
    precision: Array | None
    notes: tuple[str, ...]


def find_layout(
    columns: Sequence[str], *, covariance_given: bool = False, names: Sequence[str] | None = None
) -> Layout:
    """Recognise the columns of a table by their names.

    Parameters
    ----------
    columns : sequence of str
    covariance_given : bool
        The covariance comes from a function, so that columns for it are not needed and not used.
    names : sequence of str, optional
        The parameters that are expected, in the order that is wanted; by default those of the table.
    """
    repeated = [name for name, count in Counter(columns).items() if count > 1]
    if repeated:
        raise InvalidReport(f"column {repeated[0]}: appears twice. Rename or remove one of them.")
    if CLIENT not in columns:
        raise InvalidReport(_missing(CLIENT, columns))
    names = _parameters(columns, names)
    if covariance_given and SIZE not in columns:
        raise InvalidReport(
            _missing(SIZE, columns) + " A variance function is that of one observation, so n is needed."
        )

    used = {CLIENT, SIZE, *(ESTIMATE + name for name in names)}
    prefixes = [prefix for prefix in NOISE if any(column.startswith(prefix) for column in columns)]
    noise: str | None = None
    noise_columns: list[str] = []
    if not covariance_given:
        if len(prefixes) > 1:
            raise InvalidReport(
                f"columns {' and '.join(f'{prefix}...' for prefix in prefixes)}: both present. Keep one: "
                "standard errors (se_), covariance (cov_) or precision (prec_)."
            )
        if not prefixes:
            raise InvalidReport(
                _missing("se_<name>, cov_<a>__<b> or prec_<a>__<b>", columns)
                + " Or name a variance function and give n."
            )
        noise = prefixes[0]
        find = _vector_columns if noise == STANDARD_ERROR else _triangle_columns
        noise_columns = find(noise, names, columns)
        used.update(noise_columns)
    ignored = [column for column in columns if column not in used]
    notes = (f"ignored columns: {', '.join(ignored)}",) if ignored else ()
    return Layout(names, noise, tuple(noise_columns), SIZE in columns, notes)


def read_columns(layout: Layout, ids: Sequence[Any], numbers: ReadNumbers) -> Columns:
    """Read the columns that ``layout`` names through ``numbers``."""
    estimate = np.column_stack([numbers(ESTIMATE + name) for name in layout.names])
    noise: dict[str, Array] = {}
    if layout.noise == STANDARD_ERROR:
        noise[STANDARD_ERROR] = np.column_stack([numbers(column) for column in layout.noise_columns])
    elif layout.noise is not None:
        noise[layout.noise] = _from_triangle(layout, len(estimate), numbers)
    return Columns(
        ids=ids,
        names=layout.names,
        estimate=estimate,
        n=numbers(SIZE) if layout.has_size else None,
        standard_errors=noise.get(STANDARD_ERROR),
        covariance=noise.get(COVARIANCE),
        precision=noise.get(PRECISION),
        notes=layout.notes,
    )


def columns_of_frame(
    frame: Any, *, covariance_given: bool = False, names: Sequence[str] | None = None
) -> Columns:
    """Read a pandas or polars data frame, or a pyarrow table, laid out as a table of reports."""
    import narwhals as nw

    try:
        table = nw.from_native(frame, eager_only=True)
    except TypeError:
        raise InvalidReport(
            f"theta_hat: {type(frame).__name__} is neither an array nor a pandas, polars or pyarrow table in "
            "memory. Convert it, or collect it first."
        ) from None
    except nw.exceptions.DuplicateError as error:
        raise InvalidReport(f"theta_hat: {error}. Rename or remove columns.") from None
    columns = [str(column) for column in table.columns]
    layout = find_layout(columns, covariance_given=covariance_given, names=names)

    def numbers(column: str) -> Array:
        series = table[column]
        if not (series.dtype.is_numeric() or series.dtype == nw.Unknown or series.dtype == nw.Object):
            raise InvalidReport(f"column {column}: holds {series.dtype}, not numbers. Convert it to numbers.")
        try:
            return series.cast(nw.Float64).to_numpy().astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidReport(f"column {column}: not numbers ({error}). Convert it to numbers.") from None

    return read_columns(layout, table[CLIENT].to_list(), numbers)


def triangle(dimension: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the upper triangle, row by row: the order in which it is written."""
    return np.triu_indices(dimension)


def _from_triangle(layout: Layout, n_clients: int, numbers: ReadNumbers) -> Array:
    """Symmetric matrices (K, d, d) from the columns of their upper triangle."""
    dimension = len(layout.names)
    matrices = np.empty((n_clients, dimension, dimension))
    for first, second, column in zip(*triangle(dimension), layout.noise_columns, strict=True):
        matrices[:, first, second] = matrices[:, second, first] = numbers(column)
    return matrices


def _parameters(columns: Sequence[str], expected: Sequence[str] | None) -> tuple[str, ...]:
    found = tuple(column.removeprefix(ESTIMATE) for column in columns if column.startswith(ESTIMATE))
    if not found:
        raise InvalidReport(_missing(f"{ESTIMATE}<name>", columns))
    if "" in found:
        raise InvalidReport("column theta_: has no parameter name. Write theta_<name>.")
    if expected is None:
        return found
    if sorted(found) != sorted(expected):
        raise InvalidReport(
            f"columns theta_...: the table has {', '.join(found)}, but {', '.join(expected)} are expected. "
            "Rename, add or remove columns so that the parameters are the same."
        )
    return tuple(expected)


def _vector_columns(prefix: str, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    expected = [prefix + name for name in names]
    present = set(columns)
    for column in expected:
        if column not in present:
            raise InvalidReport(_missing(column, columns))
    for column in columns:
        if column.startswith(prefix) and column not in expected:
            raise InvalidReport(_stranger(column, column.removeprefix(prefix), names))
    return expected


def _triangle_columns(prefix: str, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The column of each entry of the upper triangle, whichever triangle the table has."""
    pair_of: dict[str, tuple[int, int]] = {}
    for first, a in enumerate(names):
        for second, b in enumerate(names):
            column, pair = f"{prefix}{a}__{b}", (min(first, second), max(first, second))
            if pair_of.setdefault(column, pair) != pair:
                raise InvalidReport(
                    f"column {column}: could be two pairs of parameters, because names contain '__'. "
                    "Rename the parameters."
                )
    column_of: dict[tuple[int, int], str] = {}
    for column in columns:
        if not column.startswith(prefix):
            continue
        if column not in pair_of:
            raise InvalidReport(_stranger(column, column.removeprefix(prefix), names))
        if pair_of[column] in column_of:
            raise InvalidReport(
                f"columns {column_of[pair_of[column]]} and {column}: the same entry twice. Keep one triangle."
            )
        column_of[pair_of[column]] = column
    found = []
    for first, second in zip(*triangle(len(names)), strict=True):
        if (first, second) not in column_of:
            wanted = f"{prefix}{names[first]}__{names[second]}"
            raise InvalidReport(
                f"column {wanted}: missing, the triangle is incomplete. Add it (zeros, if the entry is zero)."
            )
        found.append(column_of[first, second])
    return found


def _missing(column: str, columns: Sequence[str]) -> str:
    found = ", ".join(columns[:12]) + (", ..." if len(columns) > 12 else "")
    near = get_close_matches(column, columns, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"column {column}: missing. The table has: {found or 'no columns'}.{hint}"


def _stranger(column: str, name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"column {column}: there is no theta_ column for {name!r}.{hint} Parameters: {', '.join(names[:12])}."
    )
