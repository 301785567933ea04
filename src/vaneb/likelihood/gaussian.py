"""Gaussian reports as a likelihood: theta_hat_k ~ N(theta, Sigma_k(theta) / n_k).

With P_k(a) = n_k Sigma_k(a)^{-1} and e = theta_hat_k - a,

    l_k(a) = 1/2 log det P_k(a) - 1/2 e' P_k(a) e - d/2 log 2 pi;

and where P_k is singular, determinant and density are those on its range.

``gaussian_likelihood`` picks the implementation by the *type* of the covariance function:
``ConstantGaussian`` here and ``SharedGaussian`` in ``gaussian_shared`` (fused kernels), ``FunctionGaussian``
in ``gaussian_function`` for all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks, sum_blocks
from vaneb.covariance.base import CovarianceFunction, SharedDiagonal
from vaneb.covariance.constant import ConstantDiagonal, ConstantFull
from vaneb.likelihood import kernels
from vaneb.likelihood.base import Array, AtomSums, Likelihood
from vaneb.likelihood.pairwise import SKIP
from vaneb.semidefinite import log_pseudo_determinant

LOG_2PI = float(np.log(2 * np.pi))


def gaussian_likelihood(estimates: Array, n: Array, covariance: CovarianceFunction) -> Likelihood:
    """Likelihood of K Gaussian reports.

    Parameters
    ----------
    estimates : (K, d)
    n : (K,)
        Sample sizes; the precision of an estimate is ``n`` times the unit precision.
    covariance : Sigma_k(theta) of the K clients.
    """
    if isinstance(covariance, ConstantDiagonal):
        return ConstantGaussian(estimates, covariance.unit_precision * n[:, None])
    if isinstance(covariance, ConstantFull):
        return ConstantGaussian(estimates, covariance.unit_precision * n[:, None, None])
    if isinstance(covariance, SharedDiagonal):
        from vaneb.likelihood.gaussian_shared import SharedGaussian

        return SharedGaussian(estimates, np.asarray(n, dtype=float), covariance)
    from vaneb.likelihood.gaussian_function import FunctionGaussian

    return FunctionGaussian(estimates, n, covariance)


def neighbours_together(points: Array) -> NDArray[np.intp]:
    """An order of points (K, d) in which neighbours stand together, so that loops can skip whole strips."""
    n, d = points.shape
    if n < 256 or d > 20:
        return np.arange(n)
    from scipy.spatial import cKDTree

    return cKDTree(points, leafsize=64, balanced_tree=False).indices


def mirror(lower: Array) -> Array:
    """Symmetric matrices from their lower triangles."""
    return np.tril(lower) + np.swapaxes(np.tril(lower, -1), -1, -2)


@dataclass(frozen=True)
class GaussianReports(Likelihood):
    """What all Gaussian reports share: K of them, as estimates (K, d)."""

    is_report: ClassVar[bool] = True

    estimates: Array

    @property
    def n_clients(self) -> int:
        return self.estimates.shape[0]

    @property
    def dimension(self) -> int:
        return self.estimates.shape[1]

    def local_estimates(self) -> Array:
        return self.estimates


@dataclass(frozen=True)
class ConstantGaussian(GaussianReports):
    """Gaussian reports whose precision does not depend on the atom.

    Parameters
    ----------
    estimates : (K, d)
    base_precision : (K, d) if all are diagonal, else (K, d, d).
    offset : (K,)
        Added to every client's log-likelihood; what the estimate's density leaves out of the density of
        the client's rows.
    """

    is_gaussian: ClassVar[bool] = True

    base_precision: Array
    offset: Array | float = 0.0

    @cached_property
    def _clients_last(self) -> tuple[NDArray[np.intp], Array, Array]:
        """An order of clients, and in that order estimates (d, K) and precisions (d, K) or (d * d, K).

        What a loop over clients reads in a row; neighbours in space are neighbours in the loop.
        """
        order = neighbours_together(self.estimates)
        return order, transposed(self.estimates[order]), transposed(self._flat_precision[order])

    @property
    def _flat_precision(self) -> Array:
        return self.base_precision.reshape(self.n_clients, -1)

    @cached_property
    def constant(self) -> Array:
        """1/2 log det P_k - rank/2 log 2 pi + offset."""
        log_determinant, rank = log_pseudo_determinant(self.base_precision)
        return 0.5 * (log_determinant - rank * LOG_2PI) + self.offset

    def log_likelihood(self, atoms: Array) -> Array:
        out, atoms_t = np.empty((self.n_clients, len(atoms))), transposed(atoms)
        x, precision, constant = self.estimates, self._flat_precision, self.constant

        def block(rows: slice) -> None:
            kernels.log_likelihood(x[rows], precision[rows], constant[rows], atoms_t, out[rows])

        list(map_blocks(block, self.n_clients))
        return out

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> AtomSums:
        floor = SKIP - np.log(self.n_clients)
        order, x_t, precision_t = self._clients_last
        constant = (self.constant + log_weights)[order]
        atoms = np.ascontiguousarray(atoms, dtype=np.float64)

        def block(rows: slice) -> tuple[Array, ...]:
            return kernels.ascent(x_t[:, rows], precision_t[:, rows], constant[rows], floor, atoms, curvature)

        value, gradient, products, information = sum_blocks(block, self.n_clients)
        information = information.reshape(len(atoms), *self.base_precision.shape[1:])
        return AtomSums(value, gradient, mirror(products) if curvature else None, information)

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        offset = self.offset if np.ndim(self.offset) == 0 else np.asarray(self.offset)[rows]
        part = replace(
            self, estimates=self.estimates[rows], base_precision=self.base_precision[rows], offset=offset
        )
        # What was computed for all clients need not be computed again for some of them.
        if "constant" in self.__dict__:
            part.__dict__["constant"] = self.constant[rows]
        return part

    def peak(self) -> Array:
        return self.constant

    def at(self, points: Array) -> Array:
        e = self.estimates - points
        if self.base_precision.ndim == 2:
            return self.constant - 0.5 * (self.base_precision * e * e).sum(axis=1)
        return self.constant - 0.5 * np.einsum("ki,kij,kj->k", e, self.base_precision, e)

    def expanded(self, points: Array | None) -> Self:
        return self

    def local_precision(self) -> Array:
        return self.base_precision

    def region(self, starts: Array) -> None:
        """D falls off in all directions that anybody knows of.

        And a maximum may lie outside the box of the estimates, where elongated likelihoods cross.
        """

    def bounds_in_cells(
        self, log_weights: Array, centres: Array, halves: Array
    ) -> tuple[Array, Array] | None:
        """For diagonal precisions; see ``vaneb.likelihood.cells``."""
        if self.base_precision.ndim == 3 or not (self.base_precision > 0).all():
            return None
        from vaneb.likelihood.cells import cell_bounds

        heights, bounds = np.empty(len(centres)), np.empty(len(centres))
        logs = self.constant + log_weights
        cell_bounds(self.estimates, self.base_precision, logs, centres, halves, heights, bounds)
        return heights, bounds


@dataclass(frozen=True)
class VaryingGaussian(GaussianReports):
    """Gaussian reports whose covariance Sigma_k(theta) / n_k is a function of the atom; ``n`` is (K,)."""

    is_gaussian: ClassVar[bool] = False

    n: Array
    covariance: CovarianceFunction

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        return replace(
            self, estimates=self.estimates[rows], n=self.n[rows], covariance=self.covariance.take(rows)
        )

    def precision_at(self, points: Array) -> Array:
        """P_k at each client's own point (K, d): (K, d) or (K, d, d)."""
        unit = self.covariance.precision(points[:, None, :])[:, 0]
        return unit * self.n.reshape(-1, *[1] * (unit.ndim - 1))

    def expanded(self, points: Array | None) -> ConstantGaussian:
        """The report with its covariance at ``points``; where it depends on theta, a fair proposal."""
        points = self.estimates if points is None else points
        made = ConstantGaussian(self.estimates, self.precision_at(points))
        return replace(made, offset=self.at(points) - made.at(points))

    def local_precision(self) -> Array:
        return self.precision_at(self.estimates)


def transposed(atoms: Array) -> Array:
    """Atoms (m, d) as the loops over them take them, (d, m)."""
    return np.ascontiguousarray(np.asarray(atoms, dtype=np.float64).T)
