"""What sums over rows tell of single rows: which of a row's numbers could be read off what leaves.

Sums tell of a combination c of columns the total of x_i' c over the rows, and a row whose leverage among the
columns is 1 is all of some such total.  The columns that count are not those of the model alone:

- with the columns a and b the sum of their products is told.  So a number v that is in the column v f(x) has
  its sums with f(x) g(x) told for each column g(x), and f g may be zero in all rows but one (``products``);
- a family's loss and its derivatives at a place are sums of the response, and of an offset, with weights of
  that place (``weighted_columns``).

Each answer's columns are kept beside it, and looked at together with those of the next one (``jointly``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.grouped.functions import FACTORS, columns_of
from vaneb.grouped.syntax import Call, Name

if TYPE_CHECKING:
    import pandas as pd

    from vaneb.grouped.design import Design
    from vaneb.local.data import GroupedRows
    from vaneb.local.family.base import Family

Array = NDArray[np.float64]

#: By how much of its standard deviation a column is moved to see which sums speak of it.
STEP = 2.0**-10
#: Smaller than this, beside the column that it comes from, is what rounding leaves.
ROUNDING = 1e-8
#: More columns besides the model's than these are not looked at: a server must not say how long a site works.
MOST = 200
#: Columns whose smallest part of their own is below this, and yet not nothing, part in their last digits.
PARTING = 1e-7


# ---------------------------------------------------------------- columns whose sums are told


def products(design: Design, used: pd.DataFrame, columns: Array) -> Array:
    """Columns besides ``columns`` (N, r) with which sums of a number of the table are told: (N, m).

    A number v is moved by a little: products of columns then change by what v is multiplied with.  In a model
    of main effects these are the columns themselves, and nothing is left.
    """
    import pandas as pd

    ones = np.column_stack([np.ones(len(columns)), columns])
    basis = _basis(ones)
    own = basis.shape[1]
    for name in dict.fromkeys([*design.formula.columns, *([design.offset] if design.offset else [])]):
        number = pd.api.types.is_numeric_dtype(used[name].dtype)
        spread = float(np.std(used[name].to_numpy(dtype=np.float64))) if number else 0.0
        if not 0 < spread < np.inf or _only_levels(design, name):
            continue
        step = 2.0 ** np.floor(np.log2(STEP * spread))
        change = np.column_stack([np.zeros(len(columns)), _change(design, used, name, step, columns)])
        for told in _changes_of_products(ones, change):
            basis = np.hstack([basis, _besides(basis, told / step)])
            if basis.shape[1] > own + MOST:
                raise InvalidReport(f"formula: more than {MOST} sums of products. Use fewer interactions.")
    return basis[:, own:]


def weighted_columns(rows: GroupedRows, family: Family, theta: Array) -> Array:
    """Columns with which the response's sums are told at ``theta`` (K, d), and an offset's: (N, m).

    Empty for least squares, whose sums are those of columns and response, and for what is no sum over rows.
    """
    if family.name == "gaussian" or not family.by_row or rows.response.ndim > 1:
        return np.zeros((len(rows.design), 0))
    index = family.index(theta[rows.client_of_row], rows.design, rows.offset).reshape(len(rows.design), -1)
    moved = []
    if family.takes == "numbers" or np.ptp(rows.weight) > 0:  # a share of trials is a number, too
        step = STEP * (float(np.std(rows.response)) or 1.0)
        moved.append((index, rows.response + step, step))
    if np.ptp(rows.offset) > 0:
        step = STEP * float(np.std(rows.offset))
        moved.append((index + step, rows.response, step))
    x = rows.design
    now, columns = family.derivatives(index, rows.response), [np.zeros((len(x), 0))]
    for place, response, step in moved:
        loss, slope, curvature = (
            (after - before) / step * rows.weight.reshape((-1,) + (1,) * (after.ndim - 1))
            for after, before in zip(family.derivatives(place, response), now, strict=True)
        )
        columns.append(loss[:, None])
        columns += [slope[:, [c]] * x for c in range(slope.shape[1])]
        if curvature.any():  # of a canonical family it does not depend on the response
            lower = np.tril_indices(x.shape[1])
            pairs, classes = x[:, lower[0]] * x[:, lower[1]], range(curvature.shape[1])
            columns += [curvature[:, c, [e]] * pairs for c in classes for e in classes]
    return _besides(_basis(np.column_stack([np.ones(len(x)), x])), np.hstack(columns))


def _only_levels(design: Design, name: str) -> bool:
    """Whether a column is a factor, which cannot be moved by a little."""
    if name not in design.levels:
        return False
    formula = design.formula
    factors = [node for term in formula.terms for node in term]
    numbers = [node for node in factors if not _is_level(design, node)]
    if any(name in columns_of(node) for node in (*numbers, *formula.offsets, *formula.responses)):
        raise InvalidReport(f"formula: {name} is a factor and a number at once. Make two columns of it.")
    return True


def _is_level(design: Design, node: Any) -> bool:
    return isinstance(node, Name | Call) and (
        node.function in FACTORS if isinstance(node, Call) else node.name in design.levels
    )


def _change(design: Design, used: pd.DataFrame, name: str, step: float, columns: Array) -> Array:
    """How ``columns`` change with one column of the table; where log(x) ends, to the other side."""
    change = _coded(design, used.assign(**{name: used[name].astype(np.float64) + step}), columns) - columns
    if (other := ~np.isfinite(change).all(axis=1)).any():
        back = _coded(design, used.assign(**{name: used[name].astype(np.float64) - step}), columns) - columns
        change[other] = -back[other]
    return np.where(np.isfinite(change), change, 0.0)


def _coded(design: Design, frame: pd.DataFrame, columns: Array) -> Array:
    """Covariates of these rows, and their response if ``columns`` has it: less an offset, as for gaussian."""
    covariates = design.encoding.matrix(frame)[:, np.isin(design.encoding.names, design.names)]
    if columns.shape[1] == covariates.shape[1]:
        return covariates
    first, *rest = (part.to_numpy(dtype=np.float64) for part in design.encoding.response(frame))
    with np.errstate(all="ignore"):
        response = first / rest[0] if rest else first
    if design.coding.family == "gaussian":
        response = response - design.encoding.offset(frame)
        response = response - (frame[design.offset].to_numpy(dtype=np.float64) if design.offset else 0.0)
    return np.column_stack([covariates, response])


def _changes_of_products(columns: Array, change: Array) -> Iterator[Array]:
    """For each column that changes, what its products with all columns change by."""
    moved = np.flatnonzero(np.abs(change).max(axis=0, initial=0.0) > 0)
    for a in moved:
        later = np.setdiff1d(np.arange(columns.shape[1]), moved[moved < a])
        with np.errstate(all="ignore"):
            other, also = columns[:, later], change[:, later]
            told = change[:, [a]] * (other + also) + columns[:, [a]] * also
        yield told[
            :, np.abs(told).max(axis=0, initial=0.0) > 0
        ]  # two levels of a factor have no rows in common


def _basis(columns: Array) -> Array:
    left, values, _ = np.linalg.svd(_scaled(columns), full_matrices=False)
    kept: Array = left[:, values > values.max(initial=0.0) * max(columns.shape) * np.finfo(float).eps]
    return kept


def _besides(basis: Array, columns: Array) -> Array:
    """An orthonormal basis of what columns have besides those of ``basis``."""
    columns = _scaled(columns[:, np.isfinite(columns).all(axis=0)])
    rest = columns - basis @ (basis.T @ columns)
    rest = rest[:, np.linalg.norm(rest, axis=0) > ROUNDING]
    left, values, _ = np.linalg.svd(rest, full_matrices=False)
    found: Array = left[:, values > ROUNDING]
    return found


def _scaled(columns: Array) -> Array:
    """On a scale on which rounding does not decide what is zero; squares may run over, or vanish."""
    for size in (lambda x: np.abs(x).max(axis=0, initial=0.0), lambda x: np.sqrt((x**2).sum(axis=0))):
        scale = size(columns)
        columns = columns / np.where(scale > 0, scale, 1.0)
    return columns


def largest_leverage(columns: Array) -> float:
    """max_i x_i' (X'X)^+ x_i."""
    # What parts two columns counts down to what their sums cannot show.
    return float((_basis(columns) ** 2).sum(axis=1).max(initial=0.0))


def leverage_together(columns: Array, most: int) -> float:
    """Largest leverage of up to ``most`` rows together: 1 if a combination of columns is zero in all others.

    Found from each row that may be one of them by those with which it goes together most.
    """
    basis = _basis(columns)
    own, found = (basis**2).sum(axis=1), 0.0
    if most < 1:
        return found
    # Of rows that are all of a combination, one has at least their mean leverage.
    for i in np.flatnonzero(own >= (1 - 1e-6) / most):
        near = np.argsort(-np.abs(basis @ basis[i]), kind="stable")[:most]
        found = max(found, float(np.linalg.norm(basis[near], 2) ** 2))
    return found


def part_in_last_digits(columns: Array) -> bool:
    """Whether columns are all but the same: what they tell apart is hidden from ``products``."""
    values = np.linalg.svd(_scaled(columns), compute_uv=False)
    least = values.max(initial=0.0) * max(columns.shape) * np.finfo(float).eps
    return bool(((values > least) & (values < PARTING * values.max(initial=0.0))).any())


def compared(survival: Array) -> tuple[int, int]:
    """Events (of entry, time, event; (N, 3)) at which others are at risk, and rows that are at risk then.

    Sums over times are made of these alone.
    """
    entry, time = np.sort(survival[:, 0]), np.sort(survival[:, 1])
    events = np.sort(survival[survival[:, 2] > 0, 1])
    at_risk = len(time) - np.searchsorted(time, events) - (len(entry) - np.searchsorted(entry, events))
    told = events[at_risk > 1]
    first, last = (np.searchsorted(told, survival[:, k], side="right") for k in (0, 1))
    return len(told), int((last > first).sum())


# ---------------------------------------------------------------- what has left


class Released(NamedTuple):
    """Rows behind a release: their marks, whose they are, their coded columns and response, which are a first
    half, and the columns besides with which sums were told."""

    marks: NDArray[np.uint64]
    clients: NDArray[np.uint64]
    design: Array
    first: NDArray[np.bool_]
    besides: Array = np.zeros((0, 0))

    @property
    def columns(self) -> Array:
        """Those whose sums leave, apart for each half."""
        return self._by_half(self.design)

    @property
    def told(self) -> Array:
        """Those with which sums are told, apart for each half."""
        both = (self.design, self.besides) if len(self.besides) == len(self.design) else (self.design,)
        return self._by_half(np.hstack(both))

    def _by_half(self, columns: Array) -> Array:
        first = self.first[:, None]
        return columns if first.all() else np.hstack([columns * first, columns * ~first])


def jointly(releases: Sequence[Released], columns: Callable[[Released], Array]) -> Iterator[Array]:
    """For each client of the first release its rows in all of them, with the columns of all of them.

    Whoever has the sums of columns with the response has those of all their combinations.
    """
    keys = [_numbered(one.marks) for one in releases]
    for client in np.unique(releases[0].clients):
        whose = [one.clients == client for one in releases]
        rows = np.unique(np.concatenate([key[own] for key, own in zip(keys, whose, strict=True)]))
        parts = []
        for key, own, one in zip(keys, whose, releases, strict=True):
            values = columns(one)
            parts.append(np.zeros((len(rows), values.shape[1])))
            parts[-1][np.searchsorted(rows, key[own])] = values[own]
        yield np.hstack(parts)


def _numbered(marks: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Marks that tell rows apart that are the same, by their number."""
    order = np.argsort(marks, kind="stable")
    ranks = np.empty(len(marks), np.uint64)
    ranks[order] = np.arange(len(marks)) - np.searchsorted(marks[order], marks[order])
    return marks + ranks * np.uint64(0x9E3779B97F4A7C15)


def row_marks(frame: Any) -> NDArray[np.uint64]:
    """One number for each row, by which the rows of two releases are compared."""
    import pandas as pd

    if not len(frame.columns):
        raise InvalidReport("data: has no columns.")
    objects = [name for name, kind in frame.dtypes.items() if pd.api.types.is_object_dtype(kind)]
    plain = frame.astype(dict.fromkeys(objects, str))
    return pd.util.hash_pandas_object(plain, index=False).to_numpy(np.uint64)


def rows_apart(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> int:
    """Rows that are in one of two releases and not in the other."""
    marks, place = np.unique(np.concatenate([first, second]), return_inverse=True)
    signs = np.concatenate([np.ones(len(first)), -np.ones(len(second))])
    return int(np.abs(np.bincount(place, signs, len(marks))).sum())


def fewest_apart(first: Released, second: Released) -> int:
    """Of the clients that are in both, and differ, the fewest rows by which one does; 0 if none differs.

    Sums are told of each client: few rows in each of many are no more than few rows.
    """
    apart = [rows_apart(first.marks, second.marks)]
    apart += [
        rows_apart(first.marks[first.clients == client], second.marks[second.clients == client])
        for client in np.intersect1d(first.clients, second.clients)
    ]
    return min((rows for rows in apart if rows), default=0)
