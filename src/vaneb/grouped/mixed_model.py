"""The mixed model of least squares: residual variance and Gaussian population, by (restricted) likelihood.

    y_k = Z_k theta_k + e_k,    theta_k ~ N(mu, sigma^2 Gamma),    e_k ~ N(0, sigma^2 I)

Residuals within clients say nothing where clients have no more rows than parameters.  The marginal
likelihood does: with M_k = I + Z_k Gamma Z_k' and mu, sigma^2 profiled out,

    deviance(Gamma) = sum_k log|M_k| + N log Q,

    Q = sum_k (y_k - Z_k mu)' M_k^{-1} (y_k - Z_k mu),      sigma^2 = Q / N.

The restricted likelihood also takes into account that mu is estimated: log|sum_k Z_k' M_k^{-1} Z_k| is
added to the deviance and N - d stands for N.  That matters for few clients only.

Everything is computed from A_k = Z_k'Z_k and Z_k'y_k, with Gamma = L L' and (L triangular or diagonal)

    Z_k' M_k^{-1} = (I - A_k L C_k^{-1} L') Z_k',      C_k = I + L' A_k L,      |M_k| = |C_k|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize

from vaneb.errors import InvalidReport
from vaneb.grouped.structure import Candidate, Free, averaged, centred_basis, choose, enough_clients
from vaneb.likelihood.loss_sums import Columns, LossSums
from vaneb.local.data import GroupedRows
from vaneb.local.families import gaussian
from vaneb.local.fit import fit_clients
from vaneb.local.objective import Array

#: Below this share of the response's mean square, noise is rounding.
SMALLEST = 1e-12
#: Where noise and population look alike: deviance per row and unit of Gamma, so that noise is preferred.
TIE_BREAK = 1e-3
RESTARTS = 10
#: With fewer clients than this, what it costs to estimate mu is worth taking into account.
FEW = 100


@dataclass(frozen=True, eq=False)
class MixedModel:
    """A residual variance and a Gaussian population."""

    variance: float
    """sigma^2"""
    mean: Array
    """mu, shape (d,)"""
    spread: Array
    """Covariance sigma^2 Gamma of the population, shape (d, d)."""
    free: Free
    """Entries of a root of the covariance that may differ from zero (``structure``), shape (d, d)."""
    identified: bool
    """False where no data of this shape could tell noise from differences between clients."""


@dataclass(frozen=True, eq=False)
class _Moments:
    """What the deviance needs of the rows; columns centred and scaled."""

    gram: Array
    """A_k, shape (K, d, d)."""
    cross: Array
    """Z_k' y_k, shape (K, d)."""
    square: float
    """sum of y^2"""
    n_rows: int
    penalty: float
    restricted: bool

    def deviance(self, factor: Array) -> tuple[float, Array, float, Array]:
        """Deviance at L, its gradient in L (d, d), sigma^2 and mu."""
        d = factor.shape[0]
        reduced = self.gram @ factor
        inner = np.eye(d) + factor.T @ reduced
        solved = np.linalg.solve(inner, reduced.transpose(0, 2, 1))
        weighted = self.gram - reduced @ solved
        projected = np.linalg.solve(inner, (self.cross @ factor)[:, :, None])[:, :, 0]
        scores = self.cross - np.einsum("kij,kj->ki", reduced, projected)
        total = weighted.sum(axis=0)
        inverse = np.linalg.pinv(total, hermitian=True)
        mean = inverse @ scores.sum(axis=0)
        quadratic = self.square - float(np.sum((self.cross @ factor) * projected)) - mean @ total @ mean
        freedom = self.n_rows - d * self.restricted
        variance = max(float(quadratic), SMALLEST * self.square) / freedom
        value = (
            np.linalg.slogdet(inner)[1].sum()
            + self.restricted * np.log(np.maximum(np.linalg.eigvalsh(total), SMALLEST)).sum()
            + freedom * np.log(variance)
            + self.penalty * float(np.sum(factor**2))
        )
        left = scores - weighted @ mean
        slope = total - left.T @ left / variance
        if self.restricted:
            slope -= np.einsum("kij,jl,klm->im", weighted, inverse, weighted)
        return float(value), 2 * slope @ factor + 2 * self.penalty * factor, variance, mean


def mixed_model(rows: GroupedRows, *, free: Free | None = None, restricted: bool | None = None) -> MixedModel:
    """``mixed_model_of`` the sums of these rows."""
    sums = LossSums.of_fits(fit_clients(rows, gaussian()))
    return mixed_model_of(sums, Columns.of(rows.design), free=free, restricted=restricted)


def mixed_model_of(
    sums: LossSums, columns: Columns, *, free: Free | None = None, restricted: bool | None = None
) -> MixedModel:
    """sigma^2, mu and the population's covariance.

    Parameters
    ----------
    sums : least squares of K clients
    columns : of all their rows
    free : entries that may differ from zero in a root of the covariance of the centred and scaled columns'
        coefficients (``structure``); chosen from the data if not given
    restricted : use the restricted likelihood; by default with fewer than ``FEW`` clients
    """
    n, d = int(sums.n.sum()), sums.point.shape[1]
    restricted = sums.n_clients < FEW if restricted is None else restricted
    if n <= d:
        raise InvalidReport(f"data: {n} rows cannot tell the noise from {d} coefficients; use fewer terms")
    basis, intercept = centred_basis(columns)
    gram = basis.T @ sums.hessian @ basis
    # About the pooled fit: the same sigma^2, and no cancellation where the level is large.
    start = sums.point.mean(axis=0)
    step = np.linalg.lstsq(gram.sum(axis=0), -basis.T @ sums.slope(start).sum(axis=0), rcond=None)[0]
    pooled = start + basis @ step
    square, total = 2 * float(sums.at(pooled).sum()), 2 * float(sums.at(np.zeros(d)).sum())
    if square <= SMALLEST * max(total, 1e-300):
        return MixedModel(
            max(SMALLEST * total / n, 1e-300), pooled, np.zeros((d, d)), np.eye(d, dtype=bool), True
        )
    cross = -sums.slope(pooled) @ basis
    identified = _identified(gram, n)
    moments = _Moments(gram, cross, square, n, 0.0 if identified else TIE_BREAK * n, False)
    final = replace(moments, restricted=True) if restricted else moments
    if free is None:
        free, factor = _chosen(moments, final, intercept, sums.n_clients)
    else:
        factor = _factor(final, free)
    _, _, variance, mean = final.deviance(factor)
    root = basis @ factor
    return MixedModel(variance, pooled + basis @ mean, variance * root @ root.T, free, identified)


def _chosen(moments: _Moments, final: _Moments, intercept: int | None, n_clients: int) -> tuple[Free, Array]:
    """Entries of L that differ from zero, and L: chosen by ``moments``, fitted by ``final``.

    With fewer clients than entries there is no covariance of all coefficients to choose: candidates are
    averaged.
    """
    d = moments.gram.shape[1]
    terms = [np.array([j]) for j in range(d)]

    def fit(free: Free, _: Candidate | None) -> Candidate:
        factor = _factor(moments, free)
        deviance, _slope, _variance, mean = moments.deviance(factor)
        return Candidate(mean, factor @ factor.T, -deviance / 2, free)

    if enough_clients(d, n_clients):
        free = choose(fit, terms, intercept, n_clients).free
        return free, _factor(final, free)
    found = averaged(fit, terms, intercept, n_clients)
    values, vectors = np.linalg.eigh(found.spread)
    return found.best.free, vectors * np.sqrt(np.maximum(values, 0.0))


def _factor(moments: _Moments, free: Free) -> Array:
    """L with the smallest deviance among those whose ``free`` entries alone differ from zero."""
    d, n = len(free), moments.n_rows

    def loss(coordinates: Array) -> tuple[float, Array]:
        factor = np.zeros((d, d))
        factor[free] = coordinates
        value, gradient, _, _ = moments.deviance(factor)
        return value / n, gradient[free] / n

    factor = np.zeros((d, d))
    if free.any():
        factor[free] = _minimised(loss, 0.5 * np.eye(d)[free])
    return factor


def _minimised(loss: Callable[[Array], tuple[float, Array]], start: Array) -> Array:
    """The minimiser, by BFGS from ``start`` and again from beside where it ended.

    The gradient in L vanishes wherever a column of L does, also where the deviance falls to both sides.
    """
    best, best_value = start, np.inf
    for _ in range(RESTARTS):
        found = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9})
        if not found.fun < best_value - 1e-10:
            break
        best, best_value = found.x, found.fun
        start = best + 0.05
    return best


def _identified(gram: Array, n_rows: int) -> bool:
    """Is there no Gamma with Z_k Gamma Z_k' = I for all k?  If there is, noise looks like population.

    Least squares over symmetric Gamma: sum_k |Z_k Gamma Z_k' - I|^2 is quadratic, with matrix
    sum_k A_k kron A_k and linear term sum_k A_k.
    """
    d = gram.shape[1]
    linear = gram.sum(axis=0).ravel()
    matrix = np.einsum("kjl,kmi->ijlm", gram, gram).reshape(d * d, d * d)
    explained = linear @ np.linalg.lstsq(matrix, linear, rcond=1e-10)[0]
    return bool(n_rows - explained > 1e-8 * n_rows)
