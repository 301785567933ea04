"""Gaussian reports whose variance function is diagonal and the same for all clients: Sigma_k(a) = V(a).

    theta_hat_k ~ N(a, diag(V(a)) / n_k + Gamma),    Gamma diagonal.

The fastest case of a parameter-dependent covariance: V is evaluated at the atoms, never at pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks, sum_blocks
from vaneb.covariance.base import SharedDiagonal
from vaneb.likelihood.gaussian import LOG_2PI, ConstantGaussian, is_diagonal, mirror, neighbours_together
from vaneb.likelihood.seam import Array, Ascent, Components, Likelihood


@dataclass(frozen=True)
class SharedGaussian:
    """K reports (K, d) with sample sizes (K,), one variance function, and a diagonal spread or none."""

    cheap: ClassVar[bool] = True
    is_gaussian: ClassVar[bool] = False

    estimates: Array
    n: Array
    covariance: SharedDiagonal
    spread: Array | None = field(default=None)

    @property
    def n_clients(self) -> int:
        return self.estimates.shape[0]

    @property
    def dimension(self) -> int:
        return self.estimates.shape[1]

    @property
    def _spread(self) -> Array:
        return np.zeros(self.dimension) if self.spread is None else np.diagonal(self.spread).copy()

    @property
    def _constant(self) -> Array:
        return np.full(self.n_clients, -0.5 * self.dimension * LOG_2PI)

    @cached_property
    def _clients_last(self) -> tuple[NDArray[np.intp], Array, Array]:
        """An order of clients in which neighbours stand together, estimates (d, K) and 1 / n_k in it."""
        order = neighbours_together(self.estimates)
        return order, np.ascontiguousarray(self.estimates[order].T), 1.0 / self.n[order]

    def _variance(self, points: Array) -> Array:
        """V at points (m, d): (m, d)."""
        return 1 / self.covariance.shared_precision(points)

    def _slope(self, atoms: Array, variance: Array) -> Array:
        """dV_i / da_l at the atoms: (m, d, d), not to be asked for where d may be the size of a network."""
        return -self.covariance.shared_precision_gradient(atoms) * variance[:, :, None] ** 2

    def log_likelihood(self, atoms: Array) -> Array:
        from vaneb.likelihood.shared_kernels import log_likelihood_discrete, log_likelihood_shared

        out = np.empty((self.n_clients, len(atoms)))
        atoms_t = np.ascontiguousarray(np.asarray(atoms, dtype=np.float64).T)
        precision_t = np.ascontiguousarray(self.covariance.shared_precision(atoms).T)
        x, n, constant, spread = self.estimates, self.n, self._constant, self._spread
        if self.spread is None:
            constant = constant + 0.5 * self.dimension * np.log(n)
            base = 0.5 * np.log(precision_t).sum(axis=0)

            def block(rows: slice) -> None:
                log_likelihood_discrete(
                    x[rows], n[rows], constant[rows], precision_t, base, atoms_t, out[rows]
                )

        else:
            inverse_n, variance_t = 1.0 / n, 1.0 / precision_t

            def block(rows: slice) -> None:
                log_likelihood_shared(
                    x[rows], inverse_n[rows], constant[rows], variance_t, spread, atoms_t, out[rows]
                )

        list(map_blocks(block, self.n_clients))
        return out

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> Ascent:
        from vaneb.likelihood.kernels import SKIP
        from vaneb.likelihood.shared_kernels import ascent_frozen, ascent_shared

        atoms = np.ascontiguousarray(atoms, dtype=np.float64)
        variance = self._variance(atoms)
        order, x_t, inverse_n = self._clients_last
        constant, spread = (self._constant + log_weights)[order], self._spread
        floor = SKIP - np.log(self.n_clients)
        if frozen and not curvature:
            value, gradient, precision = sum_blocks(
                lambda rows: ascent_frozen(
                    x_t[:, rows], inverse_n[rows], constant[rows], variance, spread, floor, atoms
                ),
                self.n_clients,
            )
            return Ascent(value, gradient, None, precision)
        slope = np.empty((0, 0, 0)) if frozen else self._slope(atoms, variance)

        def block(rows: slice) -> tuple[Array, ...]:
            return ascent_shared(
                x_t[:, rows],
                inverse_n[rows],
                constant[rows],
                variance,
                slope,
                spread,
                floor,
                atoms,
                frozen,
                curvature,
            )

        value, gradient, products, precision, square = sum_blocks(block, self.n_clients)
        outer = mirror(products) if curvature else None
        if frozen:
            return Ascent(value, gradient, outer, precision)
        # Expected information: diag(1 / var) + 1/2 sum_i (d log var_i)(d log var_i)'
        information = 0.5 * np.einsum("mil,mih,mi->mlh", slope, slope, square)
        information += precision[:, :, None] * np.eye(self.dimension)
        return Ascent(value, gradient, outer, information)

    def _noise(self, atoms: Array) -> Array:
        """V(a_j) / n_k, (K, m, d)."""
        return (1 / self.covariance.shared_precision(atoms)) / self.n[:, None, None]

    def components(self, atoms: Array) -> Components:
        """Mean a + Gamma (theta_hat - a) / (noise + Gamma), covariance Gamma noise / (noise + Gamma)."""
        d = self.dimension
        if self.spread is None:
            return Components(atoms[None], np.zeros((1, 1, d, d)))
        noise = self._noise(atoms)
        gain = self._spread / (noise + self._spread)
        mean = atoms + gain * (self.estimates[:, None, :] - atoms)
        return Components(mean, (gain * noise)[..., None] * np.eye(d))

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        return replace(
            self, estimates=self.estimates[rows], n=self.n[rows], covariance=self.covariance.take(rows)
        )

    def smoothed(self, spread: Array | None) -> Likelihood:
        if spread is not None and not is_diagonal(spread):
            from vaneb.likelihood.gaussian_function import FunctionGaussian

            return FunctionGaussian(self.estimates, self.n, self.covariance, spread)
        return replace(self, spread=spread)

    def peak(self) -> Array:
        variance = self._variance(self.estimates) / self.n[:, None] + self._spread
        return -0.5 * np.log(variance).sum(axis=1) + self._constant

    def at(self, points: Array) -> Array:
        variance = self._variance(points) / self.n[:, None]
        return self._constant - 0.5 * (np.log(variance) + (self.estimates - points) ** 2 / variance).sum(
            axis=1
        )

    def expanded(self, points: Array | None) -> ConstantGaussian:
        from vaneb.likelihood.expansion import by_differences

        return by_differences(self, self.estimates if points is None else points)

    def local_estimates(self) -> Array:
        return self.estimates

    def local_precision(self) -> Array:
        return self.covariance.shared_precision(self.estimates) * self.n[:, None]
