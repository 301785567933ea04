"""The rows of many clients in one ragged array.

Letters: K clients, N rows in all, n_k of them client k's, p columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vaneb.errors import InvalidReport

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """Rows of K clients, one client after the other: client k owns rows ``starts[k]:starts[k+1]``.

    Build it with ``GroupedRows.from_columns`` (rows in any order, with a column of client ids) or
    ``GroupedRows.from_lists`` (one block of rows per client); both check the numbers.
    """

    design: Array
    """Covariates z, shape (N, p)."""
    response: Array
    """y, shape (N,); for softmax families the class, counted from 0; for survival (N, 3): time of entry, time
    of leaving, and 1 where it ended in an event."""
    offset: Array
    """Known part of the linear index (log exposure for counts), shape (N,)."""
    weight: Array
    """What a row counts for: its log-likelihood is multiplied by it.  Shape (N,), ones as a rule."""
    starts: NDArray[np.intp]
    """Shape (K + 1,)."""
    ids: tuple[Any, ...]
    """K client ids."""
    names: tuple[str, ...]
    """p column names."""

    @property
    def n_clients(self) -> int:
        """K."""
        return len(self.starts) - 1

    @property
    def n_rows(self) -> NDArray[np.intp]:
        """n_k, shape (K,)."""
        return np.diff(self.starts)

    @property
    def client_of_row(self) -> NDArray[np.intp]:
        """Position of the client that owns each row, shape (N,)."""
        return np.repeat(np.arange(self.n_clients), self.n_rows)

    @classmethod
    def from_columns(
        cls,
        clients: ArrayLike,
        design: ArrayLike,
        response: ArrayLike,
        *,
        offset: ArrayLike | None = None,
        weight: ArrayLike | None = None,
        names: tuple[str, ...] | None = None,
    ) -> Self:
        """Group rows by client; clients keep the order of their first row, rows their order within it.

        Parameters
        ----------
        clients : (N,) ids of any kind that numpy can sort
        design : (N, p)
        response : (N,), or (N, 3) for survival
        offset, weight : (N,), optional
        """
        keys = np.asarray(clients)
        labels, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        by_appearance = np.argsort(first, kind="stable")
        rank = np.empty(len(labels), dtype=np.intp)
        rank[by_appearance] = np.arange(len(labels))
        group = rank[inverse]
        order = np.argsort(group, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=len(labels)))])
        z, y, shift, w = _columns(design, response, offset, weight, len(keys))
        ids = tuple(labels[by_appearance].tolist())
        return cls._checked(z[order], y[order], shift[order], w[order], starts, ids, names)

    @classmethod
    def from_lists(
        cls,
        designs: list[ArrayLike],
        responses: list[ArrayLike],
        *,
        offsets: list[ArrayLike] | None = None,
        weights: list[ArrayLike] | None = None,
        ids: tuple[Any, ...] | None = None,
        names: tuple[str, ...] | None = None,
    ) -> Self:
        """One design (n_k, p) and one response (n_k,) for each client."""
        if not designs or len(designs) != len(responses):
            raise InvalidReport(
                f"{len(designs)} designs and {len(responses)} responses: give one of each per client"
            )
        starts = np.concatenate([[0], np.cumsum([len(np.asarray(y)) for y in responses])])
        columns = _columns(
            np.concatenate([np.atleast_2d(np.asarray(d, dtype=np.float64)) for d in designs]),
            np.concatenate([np.asarray(r, dtype=np.float64) for r in responses]),
            None if offsets is None else np.concatenate([np.asarray(o) for o in offsets]),
            None if weights is None else np.concatenate([np.asarray(w) for w in weights]),
            int(starts[-1]),
        )
        return cls._checked(*columns, starts, ids or tuple(range(len(designs))), names)

    @classmethod
    def _checked(
        cls,
        design: Array,
        response: Array,
        offset: Array,
        weight: Array,
        starts: Any,
        ids: Any,
        names: Any,
    ) -> Self:
        p = design.shape[1]
        names = tuple(names) if names is not None else tuple(f"x{j + 1}" for j in range(p))
        if len(names) != p:
            raise InvalidReport(f"{len(names)} names for {p} columns of the design")
        rows = cls(design, response, offset, weight, np.asarray(starts, dtype=np.intp), tuple(ids), names)
        if len(rows.ids) != rows.n_clients:
            raise InvalidReport(f"{len(rows.ids)} ids for {rows.n_clients} clients")
        if not rows.n_rows.all():
            empty = rows.ids[int(np.argmin(rows.n_rows))]
            raise InvalidReport(f"client {empty!r} has no rows; leave it out")
        for column, values in [
            *zip(names, design.T, strict=True),
            *(("response", column) for column in response.reshape(len(response), -1).T),
            ("offset", offset),
            ("weight", weight),
        ]:
            bad = np.flatnonzero(~np.isfinite(values))
            if bad.size:
                client = rows.ids[int(np.searchsorted(rows.starts, bad[0], side="right")) - 1]
                raise InvalidReport(
                    f"client {client!r}, column {column!r}: {values[bad[0]]} is not a finite number; "
                    "drop or impute such rows first"
                )
        light = np.flatnonzero(weight < 0)
        if light.size:
            client = rows.ids[int(np.searchsorted(rows.starts, light[0], side="right")) - 1]
            raise InvalidReport(f"client {client!r}: weight {weight[light[0]]:g} is negative")
        return rows

    def take(self, clients: NDArray[np.intp] | slice) -> Self:
        """Some of the clients, in the order given; views for a slice of step 1, copies otherwise."""
        if isinstance(clients, slice) and clients.step in (None, 1):
            low, high, _ = clients.indices(self.n_clients)
            high = max(low, high)
            first, last = self.starts[low], self.starts[high]
            part = slice(first, last)
            starts = self.starts[low : high + 1] - first
            return type(self)(*self._at(part), starts, self.ids[low:high], self.names)
        index = np.arange(self.n_clients)[clients]
        counts = self.n_rows[index]
        starts = np.concatenate([[0], np.cumsum(counts)])
        row = np.repeat(self.starts[index] - starts[:-1], counts) + np.arange(starts[-1])
        return type(self)(*self._at(row), starts, tuple(self.ids[i] for i in index), self.names)

    def some_rows(self, mask: NDArray[np.bool_] | NDArray[np.intp]) -> Self:
        """Some of the rows (flags, or positions in rising order), of the clients that have any of them."""
        counts = np.bincount(self.client_of_row[mask], minlength=self.n_clients)
        there = np.flatnonzero(counts)
        starts = np.concatenate([[0], np.cumsum(counts[there])])
        return type(self)(*self._at(mask), starts, tuple(self.ids[k] for k in there), self.names)

    def _at(self, rows: Any) -> tuple[Array, Array, Array, Array]:
        return self.design[rows], self.response[rows], self.offset[rows], self.weight[rows]

    def pooled(self) -> Self:
        """All rows as the rows of one client."""
        starts = np.array([0, len(self.response)])
        return type(self)(*self._at(slice(None)), starts, ("all",), self.names)


def _columns(
    design: ArrayLike, response: ArrayLike, offset: ArrayLike | None, weight: ArrayLike | None, n: int
) -> tuple[Array, Array, Array, Array]:
    z = np.ascontiguousarray(design, dtype=np.float64)
    y = np.ascontiguousarray(response, dtype=np.float64)
    shift = np.zeros(n) if offset is None else np.ascontiguousarray(offset, dtype=np.float64)
    w = np.ones(n) if weight is None else np.ascontiguousarray(weight, dtype=np.float64)
    if n == 0:
        raise InvalidReport("there are no rows; a client needs at least one")
    if z.ndim != 2 or z.shape[0] != n:
        raise InvalidReport(f"design has shape {z.shape}; it needs one row for each of the {n} responses")
    if y.shape != (n,) and not (y.ndim == 2 and len(y) == n):
        raise InvalidReport(f"response has shape {y.shape}; it needs shape ({n},)")
    for name, values in (("offset", shift), ("weight", w)):
        if values.shape != (n,):
            raise InvalidReport(f"{name} has shape {values.shape}; it needs shape ({n},)")
    return z, y, shift, w
