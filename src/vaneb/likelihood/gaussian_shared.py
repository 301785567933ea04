"""Gaussian reports whose variance function is diagonal and the same for all clients: Sigma_k(a) = V(a).

    theta_hat_k ~ N(a, diag(V(a)) / n_k).

The fastest case of a parameter-dependent covariance: V is evaluated at the atoms, never at pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks, sum_blocks
from vaneb.covariance.base import SharedDiagonal
from vaneb.likelihood.base import Array, AtomSums
from vaneb.likelihood.gaussian import LOG_2PI, VaryingGaussian, mirror, neighbours_together
from vaneb.likelihood.pairwise import SKIP


@dataclass(frozen=True)
class SharedGaussian(VaryingGaussian):
    """K reports (K, d) with sample sizes (K,) and one variance function."""

    covariance: SharedDiagonal

    @property
    def _constant(self) -> Array:
        """What a client adds to all of its log-likelihoods, (K,)."""
        return 0.5 * self.dimension * (np.log(self.n) - LOG_2PI)

    @cached_property
    def _clients_last(self) -> tuple[NDArray[np.intp], Array, Array]:
        """An order of clients in which neighbours stand together, estimates (d, K) and n_k in it."""
        order = neighbours_together(self.estimates)
        return order, np.ascontiguousarray(self.estimates[order].T), self.n[order]

    def log_likelihood(self, atoms: Array) -> Array:
        from vaneb.likelihood.shared_kernels import log_likelihood_shared

        out = np.empty((self.n_clients, len(atoms)))
        atoms_t = np.ascontiguousarray(np.asarray(atoms, dtype=np.float64).T)
        precision_t = np.ascontiguousarray(self.covariance.shared_precision(atoms).T)
        x, n, constant = self.estimates, self.n, self._constant
        base = 0.5 * np.log(precision_t).sum(axis=0)

        def block(rows: slice) -> None:
            log_likelihood_shared(x[rows], n[rows], constant[rows], precision_t, base, atoms_t, out[rows])

        list(map_blocks(block, self.n_clients))
        return out

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> AtomSums:
        from vaneb.likelihood.shared_kernels import ascent_frozen, ascent_shared

        atoms = np.ascontiguousarray(atoms, dtype=np.float64)
        unit = np.ascontiguousarray(self.covariance.shared_precision(atoms))
        base = 0.5 * np.log(unit).sum(axis=1)
        order, x_t, n = self._clients_last
        constant = (self._constant + log_weights)[order]
        floor = SKIP - np.log(self.n_clients)
        if frozen and not curvature:
            value, gradient, total = sum_blocks(
                lambda rows: ascent_frozen(x_t[:, rows], n[rows], constant[rows], unit, base, floor, atoms),
                self.n_clients,
            )
            return AtomSums(value, gradient, None, unit * total[:, None])
        # d log V, (m, d, d): not to be asked for where d may be the size of a network.
        slope = np.empty((0, 0, 0))
        if not frozen:
            slope = -self.covariance.shared_precision_gradient(atoms) / unit[:, :, None]

        def block(rows: slice) -> tuple[Array, ...]:
            return ascent_shared(
                x_t[:, rows], n[rows], constant[rows], unit, slope, base, floor, atoms, curvature
            )

        value, gradient, products, total = sum_blocks(block, self.n_clients)
        outer = mirror(products) if curvature else None
        precision = unit * total[:, None]
        if frozen:
            return AtomSums(value, gradient, outer, precision)
        # Expected information: diag(1 / var) + 1/2 sum_i (d log var_i)(d log var_i)'
        information = 0.5 * np.einsum("mil,mih,m->mlh", slope, slope, value)
        information += precision[:, :, None] * np.eye(self.dimension)
        return AtomSums(value, gradient, outer, information)

    def peak(self) -> Array:
        return self._constant + 0.5 * np.log(self.covariance.shared_precision(self.estimates)).sum(axis=1)

    def at(self, points: Array) -> Array:
        unit, e = self.covariance.shared_precision(points), self.estimates - points
        return self._constant + 0.5 * (np.log(unit) - self.n[:, None] * unit * e * e).sum(axis=1)
