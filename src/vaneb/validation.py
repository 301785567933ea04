"""Are these numbers reports?  Asked once, at the door, for all clients at once.

Every check is vectorised over clients; only when one fails is the culprit looked for, so that the
message can name the client, the column and the remedy.  Columns are called what they are called in a
table (``theta_<name>``, ``se_<name>``, ``cov_<a>__<b>``, ``prec_<a>__<b>``, ``n``), also for arrays.

Letters: K clients, d parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vaneb.errors import InvalidReport

Array = NDArray[np.float64]
Labels = NDArray[np.object_]

#: Estimates and standard errors beyond this, or standard errors below its inverse, cannot be squared
#: and compared in double precision: a squared z-score must stay below 1e308.
LARGEST = 1e75


@dataclass(frozen=True)
class Place:
    """Who is who, for messages: K client ids and d parameter names."""

    ids: Labels
    names: tuple[str, ...]

    def refuse(self, culprits: NDArray[np.intp], column: str, problem: str, remedy: str) -> NoReturn:
        """Raise for the first of ``culprits`` (rows), and say how many more there are."""
        clients = len(set(culprits.tolist()))
        more = f" (and {clients - 1} more clients)" if clients > 1 else ""
        raise InvalidReport(f"client {self.ids[culprits[0]]!r}, column {column}: {problem}{more}. {remedy}")


def as_numbers(values: ArrayLike, what: str) -> Array:
    """A C-contiguous float64 copy of ``values``; refuses text, complex numbers and ragged nesting."""
    try:
        raw = np.asarray(values)
        if raw.dtype.kind not in "iufO":
            raise TypeError(f"values of type {raw.dtype}")
        return np.array(raw, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidReport(
            f"{what}: not a rectangular array of numbers ({error}). "
            "Give every client the same number of parameters and numbers only."
        ) from None


def as_ids(ids: Sequence[Any] | NDArray[Any] | None, n_clients: int) -> Labels:
    """K distinct, non-empty client ids as strings; row numbers from 0 if ``ids`` is None."""
    if ids is None:
        labels = list(map(str, range(n_clients)))
    else:
        labels = _labels(ids)
        if len(labels) != n_clients:
            raise InvalidReport(
                f"ids: {len(labels)} ids for {n_clients} clients. Give one id for every row of theta_hat."
            )
        if len(set(labels)) != len(labels):
            _refuse_repeated(labels)
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array


def _labels(ids: Sequence[Any] | NDArray[Any]) -> list[str]:
    raw = ids.tolist() if hasattr(ids, "tolist") else ids
    if isinstance(raw, str) or not hasattr(raw, "__iter__"):
        raise InvalidReport("ids: expected a sequence with one id per client.")
    labels = list(raw)
    kinds = set(map(type, labels))
    if not kinds <= {str, int} and not all(issubclass(kind, str | np.integer) for kind in kinds - {int}):
        row, label = next((row, x) for row, x in enumerate(labels) if type(x) not in (str, int))
        raise InvalidReport(
            f"row {row + 1}, column client: {label!r} is not an id. Use text or whole numbers."
        )
    labels = labels if kinds == {str} else list(map(str, labels))
    if not all(map(str.strip, labels)):
        row = next(row for row, label in enumerate(labels) if not label.strip())
        raise InvalidReport(f"row {row + 1}, column client: empty. Give every client an id.")
    return labels


def _refuse_repeated(labels: list[str]) -> NoReturn:
    first: dict[str, int] = {}
    for row, label in enumerate(labels):
        if label in first:
            raise InvalidReport(
                f"client {label!r}, column client: appears in rows {first[label] + 1} and {row + 1}. "
                "Give one row per client: combine the rows, or rename one."
            )
        first[label] = row
    raise AssertionError("no repeated label")


def as_names(names: Sequence[str] | None, dimension: int) -> tuple[str, ...]:
    """d distinct, non-empty parameter names; "1", "2", ... if ``names`` is None."""
    if names is None:
        return tuple(str(j + 1) for j in range(dimension))
    if isinstance(names, str):
        raise InvalidReport("names: expected a sequence of parameter names, got one string.")
    named = tuple(names)
    if len(named) != dimension:
        raise InvalidReport(f"names: {len(named)} names for {dimension} parameters. Give one for each.")
    if not all(isinstance(name, str) and name for name in named):
        raise InvalidReport("names: every parameter needs a name that is text and not empty.")
    if len(set(named)) != len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise InvalidReport(f"names: {twice!r} names two parameters. Rename one of them.")
    return named


def check_estimates(estimate: Array, place: Place) -> None:
    """Finite, and small enough to be squared."""
    if np.isfinite(estimate).all() and np.abs(estimate).max() <= LARGEST:
        return
    rows, columns = np.nonzero(~(np.abs(estimate) <= LARGEST))
    place.refuse(
        rows,
        f"theta_{place.names[columns[0]]}",
        f"the estimate is {describe(estimate[rows[0], columns[0]])}",
        "Leave the client out, or report what it does know as a precision (prec_ columns): "
        "zero in the directions it knows nothing of.",
    )


def as_sample_sizes(n: ArrayLike, place: Place) -> Array:
    """n_k, shape (K,): positive and finite; one number is shared by all."""
    sizes = as_numbers(n, "column n")
    if sizes.ndim == 0:
        sizes = np.full(len(place.ids), float(sizes))
    if sizes.shape != place.ids.shape:
        raise InvalidReport(
            f"column n: shape {sizes.shape} for {len(place.ids)} clients. Give one per client."
        )
    bad = np.flatnonzero(~((sizes > 0) & (sizes <= LARGEST)))
    if bad.size:
        place.refuse(
            bad,
            "n",
            f"the sample size is {describe(sizes[bad[0]])}",
            "It must be positive: leave clients without data out.",
        )
    return sizes


def describe(value: float) -> str:
    """A number for a message."""
    return "missing (NaN)" if np.isnan(value) else f"{value:g}"
