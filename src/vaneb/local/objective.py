"""What the solver minimises: K convex (or at least smooth) losses at once, one for each client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.local.client_sums import losses, sums
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family
from vaneb.local.family.gaussian import Gaussian
from vaneb.local.family.losses import Losses
from vaneb.local.small_matrices import solve_each

Array = NDArray[np.float64]
Clients = NDArray[np.intp]
Terms = tuple[Array, Array, Array]


class Objective(ABC):
    """L_k(theta), k = 1, ..., K."""

    @property
    @abstractmethod
    def n_clients(self) -> int:
        """K."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """d."""

    @property
    @abstractmethod
    def metric(self) -> Array:
        """(K, d, d): delta' metric delta is the mean square change of the linear index (or of what takes
        its place); singular where the rows do not determine the parameter."""

    @abstractmethod
    def terms(self, theta: Array, clients: Clients) -> Terms:
        """Value (A,), gradient (A, d) and Hessian (A, d, d) of ``clients`` (A,) at ``theta`` (A, d)."""

    @abstractmethod
    def take(self, clients: Clients | slice) -> Self:
        """Some of the clients, in the order given."""

    def values(self, theta: Array, clients: Clients) -> Array:
        """Values alone, (A,)."""
        return self.terms(theta, clients)[0]

    def start(self) -> Array:
        """Where to start, shape (K, d)."""
        return np.zeros((self.n_clients, self.dimension))

    def recedes(self, direction: Array, clients: Clients) -> NDArray[np.bool_]:
        """Whether the loss of no row of a client ever rises along its ``direction`` (A, d), and that of
        some row falls for ever: then the client's loss has no minimum.  Nothing is proved here."""
        return np.zeros(len(clients), dtype=bool)


@dataclass(frozen=True)
class RowsObjective(Objective):
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
        return self._terms(self.family.losses, theta, clients)

    @property
    def _data(self) -> tuple[Any, ...]:
        """Rows and index of the family, as the kernels take them."""
        rows, family = self.rows, self.family
        columns = rows.design, rows.response, rows.offset, rows.weight, rows.starts
        return family.parameter, *columns, family.n_index, family.index_map

    def values(self, theta: Array, clients: Clients) -> Array:
        values, data, value = self.family.losses.values, self._data, np.zeros(len(clients))

        def block(part: slice) -> None:
            arguments = values, *data, clients[part], theta[part], value[part]
            losses(*arguments)

        list(map_blocks(block, len(clients)))
        return value

    def take(self, clients: Clients | slice) -> Self:
        return replace(self, rows=self.rows.take(clients))

    def _terms(self, losses: Losses, theta: Array, clients: Clients) -> Terms:
        derivatives, data, d = losses.derivatives, self._data, theta.shape[1]
        value, gradient = np.zeros(len(clients)), np.zeros((len(clients), d))
        hessian = np.zeros((len(clients), d, d))

        def block(part: slice) -> None:
            out = value[part], gradient[part], hessian[part]
            arguments = derivatives, *data, clients[part], theta[part], *out
            sums(*arguments)

        list(map_blocks(block, len(clients)))
        return value, gradient, hessian

    @cached_property
    def metric(self) -> Array:
        """Mean of z z'; for softmax the Hessian at theta = 0, where all classes are equally likely."""
        losses = Gaussian.losses if self.family.n_index == 1 else self.family.losses
        everyone = np.arange(self.n_clients)
        hessian = self._terms(losses, np.zeros((self.n_clients, self.dimension)), everyone)[2]
        total = np.add.reduceat(self.rows.weight, self.rows.starts[:-1]) if self.n_clients else np.zeros(0)
        return hessian / np.where(total > 0, total, 1.0)[:, None, None]

    def start(self) -> Array:
        """Least squares of the family's working response, where that is better than zero."""
        zero = super().start()
        target = self.family.working_response(self.rows)
        if target is None:
            return zero
        least_squares = RowsObjective(replace(self.rows, response=target), self.family)
        everyone = np.arange(self.n_clients)
        _, gradient, hessian = least_squares._terms(Gaussian.losses, zero, everyone)
        step, definite = solve_each(hessian, gradient)
        candidate = np.where(definite[:, None], -step, 0.0)
        better = self.terms(candidate, everyone)[0] < self.terms(zero, everyone)[0]
        return np.where(better[:, None], candidate, zero)

    def recedes(self, direction: Array, clients: Clients) -> NDArray[np.bool_]:
        rows = self.rows.take(clients)
        index = self.family.index(direction[rows.client_of_row], rows.design).reshape(len(rows.response), -1)
        against = self.family.climbs(index, rows.response)
        first = rows.starts[:-1]
        worst = np.maximum.reduceat(against, first)
        # Of classes, by how much the scores come apart; the first one's does not change.
        zero = np.zeros(len(index)) if index.shape[1] > 1 else index[:, 0]
        apart = np.maximum(index.max(axis=1), zero) - np.minimum(index.min(axis=1), zero)
        scale = np.maximum.reduceat(apart if index.shape[1] > 1 else np.abs(index[:, 0]), first)
        return (scale > 0) & (worst <= RECESSION_TOLERANCE * scale)


#: Share of the largest index change along a direction below which an index is taken not to change.
RECESSION_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Together(Objective):
    """All clients of an objective with one parameter: sum_k L_k(theta), as the loss of one client."""

    objective: Objective

    @property
    def n_clients(self) -> int:
        return 1

    @property
    def dimension(self) -> int:
        return self.objective.dimension

    def terms(self, theta: Array, clients: Clients) -> Terms:
        """Only ever asked for the one client there is."""
        everyone = np.arange(self.objective.n_clients)
        value, gradient, hessian = self.objective.terms(np.tile(theta[:1], (len(everyone), 1)), everyone)
        return value.sum(keepdims=True), gradient.sum(0, keepdims=True), hessian.sum(0, keepdims=True)

    def take(self, clients: Clients | slice) -> Self:
        return self

    @cached_property
    def metric(self) -> Array:
        return self.objective.metric.mean(axis=0, keepdims=True)

    def recedes(self, direction: Array, clients: Clients) -> NDArray[np.bool_]:
        """Does no client's loss ever rise along the direction, and some client's fall?

        A client that the direction does not change is none that falls.
        """
        n = self.objective.n_clients
        everyone = np.arange(n)
        falls = self.objective.recedes(np.tile(direction[:1], (n, 1)), everyone)
        still = np.einsum("i,kij,j->k", direction[0], self.objective.metric, direction[0])
        return np.array([bool(falls.any() and (falls | (still <= RECESSION_TOLERANCE**2)).all())])
