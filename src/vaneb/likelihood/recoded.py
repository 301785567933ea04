"""The same clients in other coordinates: theta_k = B_k phi_k."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.base import Array, Likelihood, as_matrices
from vaneb.likelihood.gaussian import ConstantGaussian


@dataclass(frozen=True, eq=False)
class Recoded:
    """Clients as functions of phi, for the sampler of populations.

    Parameters
    ----------
    clients : as functions of theta
    basis : B, (d, D) for all clients or (K, d, D); its first d columns are invertible
    """

    clients: Likelihood
    basis: Array

    @property
    def is_gaussian(self) -> bool:
        return self.clients.is_gaussian

    @property
    def is_report(self) -> bool:
        return self.clients.is_report

    @property
    def n_clients(self) -> int:
        return self.clients.n_clients

    @property
    def dimension(self) -> int:
        return self.basis.shape[-1]

    def theta(self, points: Array) -> Array:
        """theta (K, ..., d) of phi (K, ..., D)."""
        if self.basis.ndim == 2:
            return points @ self.basis.T
        return np.einsum("kij,k...j->k...i", self.basis, points)

    def at(self, points: Array) -> Array:
        return self.clients.at(self.theta(points))

    def expanded(self, points: Array | None) -> ConstantGaussian:
        view = self.clients.expanded(None if points is None else self.theta(points))
        # Of all phi with the theta of the view, one near the point.
        estimates = np.zeros((self.n_clients, self.dimension)) if points is None else points.copy()
        d = self.clients.dimension
        away = view.estimates - self.theta(estimates)
        estimates[:, :d] += np.linalg.solve(self.basis[..., :d], away[..., None])[..., 0]
        made = ConstantGaussian(estimates, self._precision(view.base_precision))
        return replace(made, offset=view.at(view.estimates) - made.at(estimates))

    def local_precision(self) -> Array:
        return self._precision(self.clients.local_precision())

    def _precision(self, precision: Array) -> Array:
        """B' P B."""
        return np.asarray(np.swapaxes(self.basis, -1, -2) @ as_matrices(precision) @ self.basis)

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        basis = self.basis if self.basis.ndim == 2 else self.basis[rows]
        return replace(self, clients=self.clients.take(rows), basis=basis)
