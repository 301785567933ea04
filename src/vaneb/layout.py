"""The columns of a table of reports, and the arrays they stand for.

    client, n, theta_<name>..., and one of
    se_<name>...        standard errors
    cov_<a>__<b>...     covariance of the estimate, one triangle with its diagonal
    prec_<a>__<b>...    precision of the estimate, likewise; may be singular

in any order.  This module knows names and shapes only; whether the numbers make sense is for ``validation``
and ``noise``, where a table comes from for ``sources``, and what users may call the columns of a file for
``column_choice``.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport

Array = NDArray[np.float64]

CLIENT, SIZE = "client", "n"
ESTIMATE, STANDARD_ERROR, COVARIANCE, PRECISION = "theta_", "se_", "cov_", "prec_"
NOISE = (STANDARD_ERROR, COVARIANCE, PRECISION)
#: Begins the name of a column that has none in the file; its number follows.
UNNAMED = "unnamed "
#: Variances, or confidence limits, of the estimates; only columns of people's own names hold them.
VARIANCE, LIMITS = "variance", "limits"


@dataclass(frozen=True)
class Layout:
    """Which column holds what.

    Attributes
    ----------
    names : tuple of d str
        Parameters, in the order of their columns.
    client : str
    estimates : tuple of d str
    noise : str or None
        ``"se_"``, ``"cov_"``, ``"prec_"``, ``"variance"`` or ``"limits"``; None if the covariance is given
        otherwise.
    noise_columns : tuple of str
        d columns of standard errors or variances, the d (d + 1) / 2 of the upper triangle by rows, or d lower
        limits and then d upper ones.
    size : str or None
    ignored : tuple of str
        Columns that are not used.
    notes : tuple of str
        What was guessed and what was not used, for the user to know.
    limits_level : float, optional
        Probability between the limits.
    """

    names: tuple[str, ...]
    client: str
    estimates: tuple[str, ...]
    noise: str | None
    noise_columns: tuple[str, ...]
    size: str | None
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    limits_level: float | None = None

    @property
    def used(self) -> list[str]:
        """All columns that are read."""
        return [self.client, *([self.size] if self.size else []), *self.estimates, *self.noise_columns]

    def in_own_words(self, message: str) -> str:
        """A message that names columns as they are called in a table of reports, with the user's names."""
        own = {CLIENT: self.client, SIZE: self.size or SIZE}
        own |= {ESTIMATE + a: column for a, column in zip(self.names, self.estimates, strict=True)}
        if self.noise == STANDARD_ERROR:
            own |= {STANDARD_ERROR + a: c for a, c in zip(self.names, self.noise_columns, strict=True)}
        elif self.noise == VARIANCE:
            own |= {f"{COVARIANCE}{a}__{a}": c for a, c in zip(self.names, self.noise_columns, strict=True)}
        for column, name in own.items():
            message = message.replace(f", column {column}: ", f", column {name}: ", 1)
        if self.client != CLIENT and f", column {self.client}: " in message:
            message += " Or name another column for the clients: --client COLUMN."
        return message


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


def find_layout(columns: Sequence[str], *, covariance_given: bool = False) -> Layout:
    """The layout of a table whose columns are called as above.

    Parameters
    ----------
    columns : sequence of str
    covariance_given : bool
        The covariance comes from a function, so that columns for it are not needed and not used.
    """
    refuse_repeated(columns)
    if CLIENT not in columns:
        raise InvalidReport(missing(CLIENT, columns))
    found = reported_estimates(columns)
    size = SIZE if SIZE in columns else None
    noise, noise_columns = (None, []) if covariance_given else reported_noise(columns, tuple(found))
    return make_layout(columns, CLIENT, found, noise, noise_columns, size, covariance_given)


def make_layout(
    columns: Sequence[str],
    client: str,
    found: dict[str, str],
    noise: str | None,
    noise_columns: Sequence[str],
    size: str | None,
    covariance_given: bool,
) -> Layout:
    """The layout of ``columns``, of which these are used; ``found`` are parameters and their columns."""
    if covariance_given and size is None:
        raise InvalidReport(
            missing(SIZE, columns)
            + " A variance function is that of one observation, so n is needed (--n COLUMN)."
        )
    used = {client, size, *found.values(), *noise_columns}
    ignored = tuple(column for column in columns if column not in used)
    notes = (f"ignored columns: {', '.join(ignored)}",) if ignored else ()
    return Layout(
        tuple(found), client, tuple(found.values()), noise, tuple(noise_columns), size, ignored, notes
    )


def refuse_repeated(columns: Sequence[str]) -> None:
    """Raise ``InvalidReport`` if two columns have the same name."""
    repeated = [name for name, count in Counter(columns).items() if count > 1]
    if repeated:
        raise InvalidReport(f"column {repeated[0]}: appears twice. Rename or remove one of them.")


def refuse_other_names(names: Sequence[str], expected: Sequence[str]) -> None:
    """Raise ``InvalidReport`` unless these are the parameters that are expected, in any order."""
    if sorted(names) != sorted(expected):
        raise InvalidReport(
            f"columns of estimates: the table has {', '.join(names)}, but {', '.join(expected)} "
            f"{'is' if len(expected) == 1 else 'are'} expected. Rename, add or remove columns so that the "
            "parameters are the same."
        )


def estimates_alone(frame: Any) -> tuple[Array, tuple[str, ...]] | None:
    """Estimates (K, d) and their names, of a data frame that has nothing else; ``None`` for a whole table."""
    if hasattr(frame, "collect"):  # a query, not a table
        return None
    names = [column for column in getattr(frame, "columns", ()) if isinstance(column, str)]
    if (
        not names
        or len(set(names)) < len(frame.columns)
        or any(name == CLIENT or name.startswith(ESTIMATE) for name in names)
    ):
        return None
    return np.column_stack([numbers_of(frame, name) for name in names]), tuple(names)


def columns_of_frame(frame: Any, *, covariance_given: bool = False) -> Columns:
    """Read a pandas or polars data frame, or a pyarrow table, laid out as a table of reports."""
    import narwhals as nw

    try:
        columns = nw.from_native(frame, eager_only=True).columns
    except TypeError:
        raise InvalidReport(
            f"theta_hat: {type(frame).__name__} is neither an array nor a pandas, polars or pyarrow table in "
            "memory. Convert it, or collect it first."
        ) from None
    except nw.exceptions.DuplicateError as error:
        raise InvalidReport(f"theta_hat: {error}. Rename or remove columns.") from None
    return columns_of(frame, find_layout([str(c) for c in columns], covariance_given=covariance_given))


def columns_of(frame: Any, layout: Layout) -> Columns:
    """The columns that ``layout`` names of a pandas or polars data frame, or a pyarrow table."""
    import narwhals as nw

    def side_by_side(columns: Sequence[str]) -> Array:
        return np.column_stack([numbers_of(frame, column) for column in columns])

    estimate = side_by_side(layout.estimates)
    noise: dict[str, Array] = {}
    if layout.noise in (STANDARD_ERROR, VARIANCE):
        noise[layout.noise] = side_by_side(layout.noise_columns)
    elif layout.noise is not None:
        matrices = noise[layout.noise] = np.empty((*estimate.shape, estimate.shape[1]))
        for first, second, column in zip(*triangle(len(layout.names)), layout.noise_columns, strict=True):
            matrices[:, first, second] = matrices[:, second, first] = numbers_of(frame, column)
    return Columns(
        ids=nw.from_native(frame, eager_only=True)[layout.client].to_list(),
        names=layout.names,
        estimate=estimate,
        n=None if layout.size is None else numbers_of(frame, layout.size),
        standard_errors=noise.get(STANDARD_ERROR),
        covariance=noise.get(VARIANCE, noise.get(COVARIANCE)),
        precision=noise.get(PRECISION),
    )


def numbers_of(frame: Any, column: str) -> Array:
    """A column of a data frame or table as float64, NaN where a value is missing."""
    import narwhals as nw

    series = nw.from_native(frame, eager_only=True)[column]
    if not (series.dtype.is_numeric() or series.dtype == nw.Unknown or series.dtype == nw.Object):
        raise InvalidReport(f"column {column}: holds {series.dtype}, not numbers. Convert it to numbers.")
    try:
        return series.cast(nw.Float64).to_numpy().astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidReport(f"column {column}: not numbers ({error}). Convert it to numbers.") from None


def triangle(dimension: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the upper triangle, row by row: the order in which it is written."""
    return np.triu_indices(dimension)


def reported_estimates(columns: Sequence[str]) -> dict[str, str]:
    """Parameters and their columns, of a table of reports."""
    found = {c.removeprefix(ESTIMATE): c for c in columns if c.startswith(ESTIMATE)}
    if not found:
        raise InvalidReport(missing(f"{ESTIMATE}<name>", columns))
    if "" in found:
        raise InvalidReport("column theta_: has no parameter name. Write theta_<name>.")
    return found


def reported_noise(columns: Sequence[str], names: Sequence[str]) -> tuple[str, list[str]]:
    """The kind of noise that a table of reports has, and its columns."""
    prefixes = [prefix for prefix in NOISE if any(column.startswith(prefix) for column in columns)]
    if len(prefixes) > 1:
        raise InvalidReport(
            f"columns {' and '.join(f'{prefix}...' for prefix in prefixes)}: both present. Keep one: "
            "standard errors (se_), covariance (cov_) or precision (prec_)."
        )
    if not prefixes:
        raise InvalidReport(
            missing("se_<name>, cov_<a>__<b> or prec_<a>__<b>", columns)
            + " Or name a variance function and give n."
        )
    find = _vector_columns if prefixes[0] == STANDARD_ERROR else triangle_columns
    return prefixes[0], find(prefixes[0], names, columns)


def _vector_columns(prefix: str, names: Sequence[str], columns: Sequence[str]) -> list[str]:
    expected = [prefix + name for name in names]
    present = set(columns)
    for column in expected:
        if column not in present:
            raise InvalidReport(missing(column, columns))
    for column in columns:
        if column.startswith(prefix) and column not in expected:
            raise InvalidReport(_stranger(column, column.removeprefix(prefix), names))
    return expected


def triangle_columns(prefix: str, names: Sequence[str], columns: Sequence[str]) -> list[str]:
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


def folded(text: str, keep: str = "") -> str:
    """Small letters and digits without accents, and the characters of ``keep``, which stand for signs."""
    bare = unicodedata.normalize("NFKD", text.lower())
    return re.sub(r"[^a-z0-9]", keep, "".join(c for c in bare if not unicodedata.combining(c)))


def listed(columns: Sequence[str]) -> str:
    """The first of them, for a message."""
    if len(columns) == 1:
        return f"one column, {columns[0][:60]!r} (is what separates columns recognised? See --sep)"
    return (", ".join(columns[:12]) + (", ..." if len(columns) > 12 else "")) or "no columns"


def table_has(column: str, columns: Sequence[str]) -> str:
    """What a message about a column that is not there ends with."""
    near = [c for c in columns if c.lower() == column.lower()]
    near = near or get_close_matches(column, columns, n=1, cutoff=0.6)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"The table has: {listed(columns)}.{hint}"


def missing(column: str, columns: Sequence[str]) -> str:
    """What to say of a column that is not there."""
    return f"column {column}: missing. {table_has(column, columns)}"


def _stranger(column: str, name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return (
        f"column {column}: there is no theta_ column for {name!r}.{hint} Parameters: {', '.join(names[:12])}."
    )
