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

    Build it with ``GroupedRows.from_columns`` (rows in any order, with a column of client ids), which checks
    the numbers.
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
        p = z.shape[1]
        named = tuple(names) if names is not None else tuple(f"x{j + 1}" for j in range(p))
        if len(named) != p:
            raise InvalidReport(f"{len(named)} names for {p} columns of the design")
        ids = tuple(labels[by_appearance].tolist())
        rows = cls(z[order], y[order], shift[order], w[order], starts, ids, named)
        rows._check()
        return rows

    def _check(self) -> None:
        """Refuse numbers that are not finite and negative weights, by client and column."""
        responses = self.response.reshape(len(self.response), -1).T
        for column, values in [
            *zip(self.names, self.design.T, strict=True),
            *(("response", column) for column in responses),
            ("offset", self.offset),
            ("weight", self.weight),
        ]:
            bad = np.flatnonzero(~np.isfinite(values))
            if bad.size:
                raise InvalidReport(
                    f"client {self.owner(bad[0])!r}, column {column!r}: {values[bad[0]]} is not a finite "
                    "number; drop or impute such rows first"
                )
        light = np.flatnonzero(self.weight < 0)
        if light.size:
            raise InvalidReport(
                f"client {self.owner(light[0])!r}: weight {self.weight[light[0]]:g} is negative"
            )

    def owner(self, row: int | np.intp) -> Any:
        """Id of the client that owns a row."""
        return self.ids[int(np.searchsorted(self.starts, row, side="right")) - 1]

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
