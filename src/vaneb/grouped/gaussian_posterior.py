"""The posterior over Gaussian populations of Gaussian clients, by importance sampling.

Given the root L of the population's covariance, everything else can be integrated: mu is Gaussian and
sigma^2 is inverse gamma.  So only the r (r + 1) / 2 entries of L are drawn, from a t distribution about
their likeliest values, and weighed by

    exp(-deviance(L) / 2) p(L L') |d(L L') / dL|,

with the restricted deviance of ``mixed_model`` and the prior of ``vaneb.population.mixtures`` (half-t
standard deviations, correlations as in Huang and Wand 2013).  Draws are independent, where sweeps of a
Gibbs sampler that hold mu fixed while theta moves, and the reverse, need thousands to forget each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import gammaln

from vaneb.grouped import mixed_kernels as kernels
from vaneb.grouped.choice import Fitted
from vaneb.grouped.mixed_model import Moments, deviance
from vaneb.likelihood.seam import Array
from vaneb.population.mixtures import REACH
from vaneb.population.options import Options
from vaneb.population.sampler import Sampling
from vaneb.prior import Prior

#: Coefficients that differ, at most; more have too many covariances for this.
MOST = 4
#: Points that are weighed for each population kept, rounds in which their distribution is adapted.
POINTS, ROUNDS = 2, 3
#: Degrees of freedom of the t distribution that proposes.
FREEDOM = 6.0
#: Effective number of populations, as a share of those kept, below which another method has to do it.
LEAST = 0.3
#: Clients whose estimates tell the Monte Carlo error.
WATCHED = 50


def sample_gaussians(
    fitted: Fitted,
    *,
    seed: int,
    options: Options | None = None,
    names: tuple[str, ...] = (),
    most: int = MOST,
) -> tuple[Prior, Sampling] | None:
    """Gaussian populations drawn from their posterior; ``None`` where too few points carry the weight.

    ``most``: coefficients that may differ.
    """
    if len(fitted.model.varying) > most:
        return None
    try:
        return _sampled(fitted, seed, options or Options(), names)
    except np.linalg.LinAlgError:  # a direction of which no client knows anything
        return None


def _sampled(
    fitted: Fitted, seed: int, options: Options, names: tuple[str, ...]
) -> tuple[Prior, Sampling] | None:
    model, moments = fitted.model, fitted.moments
    r, d, n = len(model.varying), len(model.mean), len(moments.cross)
    if n < 3 or not np.isfinite(model.deviance) or np.linalg.matrix_rank(model.inverse) < d:
        return None
    rng = np.random.default_rng([seed, 4])
    draws = int(np.clip(options.work / n, options.fewest_draws, options.draws))
    if r == 0:
        roots, effective = np.zeros((1, 0, 0)), float(draws)
        profiles = _profiles(moments, model.varying, roots)
        kept = np.zeros(draws, dtype=np.intp)
    else:
        target = _Target(moments, model.varying, _reach(fitted))
        start = target.mode(model.root)
        if start is None:
            return None
        centre, half = start
        for _ in range(ROUNDS):
            points, log_q = _proposed(rng, centre, half, POINTS * draws)
            roots = target.roots(points)
            profiles = _profiles(moments, model.varying, roots)
            log_w = target.log_density(points, roots, profiles[0]) - log_q
            weight = np.exp(log_w - log_w.max())
            weight /= weight.sum()
            effective = 1 / float(np.sum(weight**2))
            if effective >= POINTS * LEAST * draws:
                break
            centre = weight @ points
            away = (points - centre) * np.sqrt(np.minimum(weight, 0.05))[:, None]
            half = np.linalg.cholesky(1.5 * away.T @ away + 1e-4 * half @ half.T)
        if effective < LEAST * draws:
            return None
        kept = np.searchsorted(np.cumsum(weight), (np.arange(draws) + rng.random()) / draws)
        kept = np.minimum(kept, len(points) - 1)
    roots, variance, mean, halves = (column[kept] for column in (roots, *profiles[1:]))
    if moments.n_rows:
        freedom = moments.n_rows - d
        variance = variance * freedom / rng.chisquare(freedom, draws)
    noise = np.linalg.solve(np.swapaxes(halves, 1, 2), rng.standard_normal((draws, d, 1)))[:, :, 0]
    centres = fitted.centre + mean + np.sqrt(variance)[:, None] * noise
    covariances = np.zeros((draws, d, d))
    inside = np.ix_(np.arange(draws), model.varying, model.varying)
    covariances[inside] = variance[:, None, None] * roots @ np.swapaxes(roots, 1, 2)
    prior = Prior(centres, np.full(draws, 1 / draws), covariances, names, n, None, np.arange(draws))
    error = _error(fitted, roots, centres - fitted.centre, min(effective, draws))
    return prior, Sampling(error, options.accuracy, draws)


def _profiles(moments: Moments, varying: NDArray[np.intp], roots: Array) -> tuple[Array, Array, Array, Array]:
    """Restricted deviance, sigma^2, mu and a root of T at each of some roots."""
    return kernels.deviances(moments.gram, moments.cross, moments.square, moments.n_rows, varying, roots)


def _reach(fitted: Fitted) -> Array:
    """Scale of the half-t prior of standard deviations, in those of the noise, (r,): the sampler's."""
    model = fitted.model
    diagonal = np.diagonal(model.root @ model.root.T)
    information = np.diagonal(fitted.moments.gram, axis1=1, axis2=2).mean(axis=0)[model.varying]
    return REACH * np.sqrt(diagonal + 0.03 / np.maximum(information, 1e-300))


class _Target:
    """The posterior density of L, in coordinates: logarithms of its diagonal, and what is below."""

    def __init__(self, moments: Moments, varying: NDArray[np.intp], reach: Array) -> None:
        self.moments, self.varying, self.reach = moments, varying, reach
        self.r = len(varying)
        self.lower = np.tril_indices(self.r, -1)

    def roots(self, points: Array) -> Array:
        """(m, r, r)"""
        out = np.zeros((len(points), self.r, self.r))
        at = np.arange(self.r)
        out[:, at, at] = np.exp(np.clip(points[:, : self.r], -200, 50))
        out[:, self.lower[0], self.lower[1]] = points[:, self.r :]
        return out

    def log_prior(self, points: Array) -> Array:
        """Huang and Wand's density of L L', nu = 2, and the derivative of L L' in the coordinates, (m,)."""
        r = self.r
        logs, roots = points[:, :r], self.roots(points)
        inverse = np.linalg.inv(roots)
        diagonal = np.sum(inverse**2, axis=1)  # of (L L')^{-1}
        log_p = -(2 + 2 * r) * logs.sum(axis=1)
        log_p -= 0.5 * (2 + r) * np.log(2 * diagonal + self.reach**-2.0).sum(axis=1)
        return log_p + ((r - np.arange(r)) + 1) @ logs.T

    def log_density(self, points: Array, roots: Array, value: Array) -> Array:
        extra = 0.5 * self.moments.penalty * np.sum(roots**2, axis=(1, 2))
        found = -0.5 * value - extra + self.log_prior(points)
        return np.where(np.isfinite(found), found, -np.inf)

    def mode(self, root: Array) -> tuple[Array, Array] | None:
        """The likeliest point, and a root of the covariance of a Gaussian that touches the density there."""
        signs = np.where(np.diagonal(root) < 0, -1.0, 1.0)
        root = root * signs
        diagonal = np.maximum(np.diagonal(root), 0.02 * self.reach / REACH)
        start = np.concatenate([np.log(diagonal), root[self.lower]])
        scale = np.concatenate([np.ones(self.r), np.maximum(diagonal[self.lower[0]], 1e-300)])

        def loss(u: Array) -> tuple[float, Array]:
            point = start + scale * u
            one = self.roots(point[None])[0]
            value, gradient = deviance(self.moments, self.varying, one, True)[:2]
            slope = np.concatenate([np.diagonal(gradient) * np.diagonal(one), gradient[self.lower]])
            steps = point + 1e-5 * np.vstack([np.diag(scale), -np.diag(scale), np.zeros((1, len(scale)))])
            priors = self.log_prior(steps)
            q = len(scale)
            prior_slope = (priors[:q] - priors[q : 2 * q]) / 2e-5
            return 0.5 * value - priors[-1], 0.5 * slope * scale - prior_slope

        found = minimize(loss, np.zeros(len(start)), jac=True, method="BFGS", options={"gtol": 1e-2})
        if not np.isfinite(found.fun) or np.abs(found.x).max() > 50:
            return None
        q = len(start)
        hessian = np.empty((q, q))
        for i in range(q):
            step = 0.02 * np.eye(q)[i]
            hessian[i] = (loss(found.x + step)[1] - loss(found.x - step)[1]) / 0.04
        values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
        half = scale[:, None] * vectors / np.sqrt(np.maximum(values, 0.1))
        return start + scale * found.x, np.linalg.cholesky(half @ half.T * 1.1)


def _proposed(rng: np.random.Generator, centre: Array, half: Array, count: int) -> tuple[Array, Array]:
    """Points (count, q) of a t distribution, and its log density there."""
    q = len(centre)
    normal = rng.standard_normal((count, q))
    stretch = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, count))
    log_q = -0.5 * (FREEDOM + q) * np.log1p(np.sum((normal * stretch[:, None]) ** 2, axis=1) / FREEDOM)
    log_q += gammaln((FREEDOM + q) / 2) - gammaln(FREEDOM / 2) - 0.5 * q * np.log(FREEDOM * np.pi)
    log_q -= np.log(np.diagonal(half)).sum()
    return centre + (normal * stretch[:, None]) @ half.T, log_q


def _error(fitted: Fitted, roots: Array, centres: Array, effective: float) -> float:
    """The 95% point over clients of the Monte Carlo error of their estimates, in posterior sds."""
    gram, cross, varying = fitted.moments.gram, fitted.moments.cross, fitted.model.varying
    some = np.arange(0, len(cross), max(1, len(cross) // WATCHED))
    means = np.stack(
        [
            kernels.posterior_means(gram[some], cross[some], varying, root, centre)
            for root, centre in zip(roots[:100], centres[:100], strict=True)
        ]
    )
    between = means.var(axis=0)
    within = np.zeros_like(between)
    model = fitted.model
    for i, j in enumerate(varying):
        own = (model.root @ model.root.T)[i, i]
        within[:, j] = model.variance * own / (1 + own * gram[some, j, j])
    share = between / np.maximum(between + within, 1e-300)
    share = share[:, varying] if len(varying) else share
    return float(np.quantile(np.sqrt(share / effective), 0.95))
