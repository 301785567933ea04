"""The same clients in other coordinates: theta = B phi."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.seam import Array, Likelihood


@dataclass(frozen=True, eq=False)
class Recoded:
    """Clients as functions of phi, for the sampler of populations.

    Parameters
    ----------
    clients : as functions of theta
    basis : B, (d, d)
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
        return self.clients.dimension

    def at(self, points: Array) -> Array:
        return self.clients.at(points @ self.basis.T)

    def expanded(self, points: Array | None) -> ConstantGaussian:
        view = self.clients.expanded(None if points is None else points @ self.basis.T)
        precision = view.base_precision
        if precision.ndim == 2:
            precision = precision[:, :, None] * np.eye(self.dimension)
        estimates = np.asarray(np.linalg.solve(self.basis, view.estimates.T).T, dtype=np.float64)
        made = ConstantGaussian(estimates, self.basis.T @ precision @ self.basis)
        return replace(made, offset=view.at(view.estimates) - made.at(estimates))

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        return replace(self, clients=self.clients.take(rows))
