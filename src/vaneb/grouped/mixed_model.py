"""The Gaussian mixed model: noise, a Gaussian population and its centre, by restricted likelihood.

    y_k = Z_k theta_k + e_k,    theta_k ~ N(mu, sigma^2 Gamma),    e_k ~ N(0, sigma^2 I)

Clients differ in some coordinates of theta only (``varying``): there Gamma = L L', elsewhere it is zero; mu
holds what clients have in common: the fixed effects.  With M_k = I + Z_k Gamma Z_k', T = sum_k
Z_k' M_k^{-1} Z_k, and mu integrated out, sigma^2 profiled out,

    deviance(Gamma) = sum_k log|M_k| + log|T| + (N - d) log Q,

    Q = sum_k (y_k - Z_k mu)' M_k^{-1} (y_k - Z_k mu),      sigma^2 = Q / (N - d).

sigma^2 T^{-1} is the covariance of the estimate of mu.

Everything is computed from sums over each client's rows, A_k = Z_k'Z_k and Z_k'y_k, so rows are read once:

    Z_k' M_k^{-1} = (I - A_k L C_k^{-1} L') Z_k',      C_k = I + L' A_k L,      |M_k| = |C_k|.

Gaussian reports are the same with A_k their precision, A_k times the estimate for Z_k'y_k, and sigma^2 = 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.grouped import mixed_kernels as kernels
from vaneb.grouped.descent import descend
from vaneb.likelihood.loss_sums import Columns
from vaneb.local.client_sums import outer_sums
from vaneb.local.data import GroupedRows
from vaneb.local.objective import Array

Flags = NDArray[np.bool_]

#: Below this share of the response's mean square, noise is rounding.
SMALLEST = 1e-12
#: Where noise and population look alike: deviance per row and unit of Gamma, so that noise is preferred.
TIE_BREAK = 1e-3
#: Restarts where a standard deviation seems to be zero, and what counts as zero beside the largest.
RESTARTS, ZERO = 3, 0.02
#: Coefficients that may differ between clients.
MOST = 30
#: Steps of conjugate gradients that look for a population that could be mistaken for noise.
STEPS = 60


@dataclass(frozen=True, eq=False)
class Moments:
    """What the deviance needs of the clients."""

    gram: Array
    """A_k, shape (K, d, d)."""
    cross: Array
    """Z_k' y_k, shape (K, d)."""
    square: float = 0.0
    """sum of y^2"""
    n_rows: int = 0
    """N; 0 where sigma^2 = 1 is known."""
    penalty: float = 0.0
    """Of Gamma's trace."""

    @property
    def dimension(self) -> int:
        return self.cross.shape[1]


@dataclass(frozen=True, eq=False)
class MixedModel:
    """A residual variance and a Gaussian population."""

    variance: float
    """sigma^2"""
    mean: Array
    """mu, shape (d,)"""
    root: Array
    """L, shape (r, r), in the varying coordinates."""
    varying: NDArray[np.intp]
    """Coordinates in which clients differ, shape (r,)."""
    inverse: Array
    """T^{-1}, shape (d, d)."""
    deviance: float
    curvature: Array | None = None
    """Inverse of the Hessian in the free entries of L, as far as the fit has learned it."""

    @property
    def spread(self) -> Array:
        """Covariance sigma^2 Gamma of the population, shape (d, d)."""
        d = len(self.mean)
        out = np.zeros((d, d))
        out[np.ix_(self.varying, self.varying)] = self.variance * self.root @ self.root.T
        return out

    @property
    def covariance_of_mean(self) -> Array:
        """Of the estimate of mu, shape (d, d)."""
        return self.variance * self.inverse


def centred_basis(design: Array, varying: Flags | None = None) -> tuple[Array, int | None]:
    """``basis_of`` the columns of a design."""
    return basis_of(Columns.of(design), varying)


def basis_of(columns: Columns, varying: Flags | None = None) -> tuple[Array, int | None]:
    """B (p, p), and the position of the constant column if there is one.

    B phi are the coefficients of the design's columns if phi are those of the centred and scaled ones: so
    neither the units nor the zero of a covariate has a say.  Where the constant's coefficient is the same for
    all clients, columns whose coefficient is not must keep their zero.
    """
    centre, spread = columns.mean, columns.scale
    constant = np.flatnonzero((spread == 0) & (centre != 0))
    one = int(constant[0]) if constant.size else -1
    scale = spread if constant.size else np.hypot(centre, spread)
    basis = np.diag(1 / np.where(scale > 1e-12 * np.abs(centre), scale, 1.0))
    if one < 0:
        return basis, None
    basis[one, one] = 1 / centre[one]
    others = np.arange(len(centre)) != one
    moved = others & (spread > 0)
    if varying is not None and not varying[one]:
        moved &= ~varying
    basis[one, moved] = -centre[moved] * np.diagonal(basis)[moved] / centre[one]
    return basis, one


@dataclass(frozen=True, eq=False)
class Centred:
    """Rows in coordinates phi, theta = B phi, as their moments about a pooled fit."""

    moments: Moments
    basis: Array
    pooled: Array
    """In coordinates phi, shape (d,)."""
    exact: bool
    """The pooled fit leaves no residuals."""
    scale: float
    """Mean square of the response."""

    def model(self, varying: NDArray[np.intp], *, correlated: bool = True) -> MixedModel:
        """The mixed model in which these coordinates differ between clients, in coordinates phi."""
        if self.exact:
            d, r = len(self.pooled), len(varying)
            noise = max(SMALLEST * self.scale, 1e-300)
            return MixedModel(noise, self.pooled, np.zeros((r, r)), varying, np.zeros((d, d)), -np.inf)
        found = fit_moments(self.moments, varying, correlated=correlated)
        return replace(found, mean=self.pooled + found.mean)


def centred_rows(rows: GroupedRows, varying: Flags | None = None) -> Centred:
    """Sums over the rows of each client: all that is needed of rows of least squares."""
    n, d = rows.design.shape
    if n <= d:
        raise InvalidReport(f"data: {n} rows cannot tell the noise from {d} coefficients; use fewer terms")
    basis, _ = centred_basis(rows.design, varying)
    # A row of weight w has noise of variance sigma^2 / w.
    root = np.sqrt(rows.weight)
    design = np.ascontiguousarray(rows.design @ basis * root[:, None])
    response = (rows.response - rows.offset) * root
    gram = outer_sums(design, rows.starts)
    cross = np.add.reduceat(design * response[:, None], rows.starts[:-1], axis=0)
    pooled = np.linalg.lstsq(gram.sum(axis=0), cross.sum(axis=0), rcond=1e-12)[0]
    # Residuals of the pooled fit: the same sigma^2, and no cancellation where the level is large.
    total = float(response @ response)
    response = response - design @ pooled
    square = float(response @ response)
    cross = np.add.reduceat(design * response[:, None], rows.starts[:-1], axis=0)
    moments = Moments(gram, cross, square, n)
    return Centred(moments, basis, pooled, square <= SMALLEST * max(total, 1e-300), total / n)


def identified(gram: Array, n_rows: NDArray[np.intp], varying: NDArray[np.intp]) -> bool:
    """Is there no Gamma with Z_k Gamma Z_k' = I for all k?  If there is, noise looks like population.

    A client with more rows than coefficients that differ settles it.  Otherwise sum_k |Z_k Gamma Z_k' - I|^2
    is made small by conjugate gradients; a step costs as much as K products of r x r matrices.
    """
    r = len(varying)
    if not r or n_rows.max() > r:
        return True
    a = gram[:, varying[:, None], varying]
    gamma, left = np.zeros((r, r)), a.sum(axis=0)
    total = int(n_rows.sum())
    linear, step, size = left.copy(), left.copy(), float(np.sum(left * left))
    for _ in range(STEPS):
        if size <= 1e-24 * total**2:
            break
        image = np.einsum("kij,jl,klm->im", a, step, a, optimize=True)
        length = size / float(np.sum(step * image))
        gamma, left = gamma + length * step, left - length * image
        before, size = size, float(np.sum(left * left))
        step = left + size / before * step
    # |Z Gamma Z' - I|^2 = n - 2 <Gamma, A> + <Gamma, sum A Gamma A>, and the last two are one at the minimum.
    return bool(total - np.sum(gamma * linear) > 1e-8 * total)


def fit_moments(
    moments: Moments,
    varying: NDArray[np.intp],
    *,
    correlated: bool = True,
    start: Array | None = None,
    tolerance: float = 1e-7,
    inverse: Array | None = None,
) -> MixedModel:
    """L with the smallest deviance, and what follows from it.

    ``correlated``: L is lower triangular, else diagonal.  ``start``: where to look first.  ``tolerance``: of
    the gradient of the deviance per row.  ``inverse``: ``MixedModel.curvature`` of a fit that is near.
    """
    r = len(varying)
    free = np.tri(r, dtype=bool) if correlated else np.eye(r, dtype=bool)
    n = max(moments.n_rows, len(moments.cross))
    root = np.zeros((r, r))

    def loss(coordinates: Array) -> tuple[float, Array]:
        factor = np.zeros((r, r))
        factor[free] = coordinates
        value, gradient = deviance(moments, varying, factor)[:2]
        return value / n, gradient[free] / n

    if r:
        first = (0.5 * np.eye(r) if start is None else start)[free]
        best = descend(loss, first, tolerance, inverse)
        for _ in range(RESTARTS - 1):
            root[free] = best.x
            if np.abs(np.diagonal(root)).min() > ZERO * np.abs(root).max():
                break
            # The gradient in L vanishes wherever a column does, also where the deviance falls as Gamma grows.
            slope = deviance(moments, varying, root)[5]
            falls = np.linalg.eigvalsh(slope) if correlated else np.diagonal(slope)
            if falls.min() >= -tolerance * n:
                break
            best = min(best, descend(loss, best.x + 0.05, tolerance), key=lambda one: one.value)
        root[free], inverse = best.x, best.inverse
    value, _, variance, mean, known, _ = deviance(moments, varying, root)
    return MixedModel(variance, mean, root, varying, known, value, inverse)


def deviance(
    moments: Moments, varying: NDArray[np.intp], root: Array
) -> tuple[float, Array, float, Array, Array, Array]:
    """Deviance at L, its gradient in L (r, r), sigma^2, mu, T^{-1} and its gradient in Gamma (r, r)."""
    log_det, explained, total, score, rows_of, score_of = kernels.profile(
        moments.gram, moments.cross, varying, root
    )
    values, vectors = np.linalg.eigh(total)
    floor = SMALLEST * max(values[-1], 1e-300)
    known = values > floor
    inverse = (vectors[:, known] / values[known]) @ vectors[:, known].T
    mean = inverse @ score
    quadratic = moments.square - explained - float(score @ mean)
    if moments.n_rows:
        freedom = max(moments.n_rows - int(known.sum()), 1)
        variance = max(quadratic, SMALLEST * moments.square) / freedom
        value = log_det + freedom * np.log(variance)
    else:
        variance, value = 1.0, log_det + quadratic
    value += float(np.log(np.maximum(values, floor)).sum())
    value += moments.penalty * float(np.sum(root**2))
    left = score_of - rows_of @ mean
    slope = total[np.ix_(varying, varying)] + moments.penalty * np.eye(len(root)) - left.T @ left / variance
    slope -= np.einsum("kid,kjd->ij", rows_of @ inverse, rows_of)
    return float(value), 2 * slope @ root, float(variance), mean, inverse, slope


def posterior_means(moments: Moments, varying: NDArray[np.intp], root: Array, mean: Array) -> Array:
    """E[theta_k | data] = mu + L C_k^{-1} L' Z_k'(y_k - Z_k mu), (K, d)."""
    inner = np.eye(len(root)) + root.T @ moments.gram[:, varying[:, None], varying] @ root
    left = (moments.cross - moments.gram @ mean)[:, varying] @ root
    out = np.tile(mean, (len(left), 1))
    out[:, varying] += np.linalg.solve(inner, left[:, :, None])[:, :, 0] @ root.T
    return out
