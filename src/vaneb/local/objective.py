"""What the solver minimises: K convex (or at least smooth) losses at once, one for each client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.local import losses
from vaneb.local.client_sums import sums
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family
from vaneb.local.small_matrices import solve_each

Array = NDArray[np.float64]
Clients = NDArray[np.intp]
Terms = tuple[Array, Array, Array]

BLOCK = 1024


class Objective(Protocol):
    """L_k(theta), k = 1, ..., K."""

    @property
    def n_clients(self) -> int: ...

    @property
    def dimension(self) -> int: ...

    def terms(self, theta: Array, clients: Clients) -> Terms:
        """Value (A,), gradient (A, d) and Hessian (A, d, d) of ``clients`` (A,) at ``theta`` (A, d)."""
        ...

    def start(self) -> Array:
        """Where to start, shape (K, d)."""
        ...

    @property
    def metric(self) -> Array:
        """(K, d, d): delta' metric delta is the mean square change of the linear index (or of what takes
        its place); singular where the rows do not determine the parameter."""
        ...

    def recedes(self, direction: Array, clients: Clients) -> NDArray[np.bool_]:
        """Whether the loss of no row of a client ever rises along its ``direction`` (A, d), and that of
        some row falls for ever: then the client's loss has no minimum."""
        ...


@dataclass(frozen=True)
class RowsObjective:
    """Sum of a family's losses over each client's rows."""

    rows: GroupedRows
    family: Family

    @property
    def n_clients(self) -> int:
        return self.rows.n_clients

    @property
    def dimension(self) -> int:
        return self.family.dimension(self.rows.design.shape[1])

    def terms(self, theta: Array, clients: Clients) -> Terms:
        return self._terms(self.family.code, theta, clients)

    def _terms(self, code: int, theta: Array, clients: Clients) -> Terms:
        rows, family = self.rows, self.family
        shared = family.n_index, family.index_map

        def block(part: slice) -> Terms:
            columns = rows.design, rows.response, rows.offset, rows.starts
            return sums(code, family.parameter, *columns, *shared, clients[part], theta[part])

        value, gradient, hessian = zip(*map_blocks(block, len(clients), BLOCK), strict=True)
        return np.concatenate(value), np.concatenate(gradient), np.concatenate(hessian)

    @cached_property
    def metric(self) -> Array:
        """Mean of z z'; for softmax the Hessian at theta = 0, where all classes are equally likely."""
        code = losses.SOFTMAX if self.family.code == losses.SOFTMAX else losses.GAUSSIAN
        everyone = np.arange(self.n_clients)
        hessian = self._terms(code, np.zeros((self.n_clients, self.dimension)), everyone)[2]
        return hessian / np.maximum(self.rows.n_rows, 1)[:, None, None]

    def start(self) -> Array:
        """Weighted least squares on the link scale of responses pulled towards the client's mean.

        Better than zero where means are far from 1 (counts, incomes); zero for the other families, whose
        first Newton step from there is already sound.
        """
        zero = np.zeros((self.n_clients, self.dimension))
        code, rows = self.family.code, self.rows
        if code not in (losses.POISSON, losses.GAMMA, losses.NEGATIVE_BINOMIAL, losses.HUBER):
            return zero
        target = rows.response
        if code != losses.HUBER:
            first = rows.starts[:-1]
            mean = np.add.reduceat(rows.response, first) / rows.n_rows
            target = np.log((rows.response + mean[rows.client_of_row]) / 2 + 1e-3)
        working = GroupedRows(rows.design, target, rows.offset, rows.starts, rows.ids, rows.names)
        least_squares = RowsObjective(working, self.family)
        everyone = np.arange(self.n_clients)
        _, gradient, hessian = least_squares._terms(losses.GAUSSIAN, zero, everyone)
        step, definite = solve_each(hessian, gradient)
        candidate = np.where(definite[:, None], -step, 0.0)
        better = self.terms(candidate, everyone)[0] < self.terms(zero, everyone)[0]
        return np.where(better[:, None], candidate, zero)

    def recedes(self, direction: Array, clients: Clients) -> NDArray[np.bool_]:
        rows = self.rows.take(clients)
        index = self.family.index(direction[rows.client_of_row], rows.design).reshape(len(rows.response), -1)
        if self.family.code == losses.SOFTMAX:
            index = np.column_stack([np.zeros(len(index)), index])
        against = _climbs(self.family.code, index, rows.response)
        first = rows.starts[:-1]
        worst = np.maximum.reduceat(against, first)
        scale = np.maximum.reduceat(
            np.ptp(index, axis=1) if index.shape[1] > 1 else np.abs(index[:, 0]), first
        )
        return (scale > 0) & (worst <= RECESSION_TOLERANCE * scale)


#: Share of the largest index change along a direction below which an index is taken not to change.
RECESSION_TOLERANCE = 1e-6


def _climbs(code: int, index: Array, response: Array) -> Array:
    """By how much a row's loss ends up rising along a direction that changes its index by ``index``: (N,).

    Zero means that the loss never rises: a correct label gets surer, a zero count gets smaller, and the
    index of any other count stays as it is.
    """
    along = index[:, 0]
    if code == losses.BINOMIAL:
        return np.maximum(np.where(response > 0, -along, along), 0)
    if code in (losses.POISSON, losses.NEGATIVE_BINOMIAL):
        return np.where(response > 0, np.abs(along), np.maximum(along, 0))
    if code == losses.SOFTMAX:
        own = np.take_along_axis(index, response.astype(np.intp)[:, None], axis=1)[:, 0]
        return index.max(axis=1) - own
    return np.abs(along)
