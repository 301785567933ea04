"""The posterior over Gaussian populations of Gaussian clients, by importance sampling.

Given the root L of the population's covariance, everything else can be integrated: mu is Gaussian and
sigma^2 is inverse gamma.  So only the entries of L are drawn, from a t distribution about their likeliest
values, and weighed by

    exp(-deviance(L) / 2) p(L L') |d(L L') / dL|,

with the restricted deviance of ``mixed_model``.  A priori correlations of any two are uniform, and so is the
share s^2 / (s^2 + b^2) of each standard deviation s, where b is what one client's rows leave open of the
coefficient (Daniels 1999).  Near zero that is flat in the variance, not in s: intervals of clients then hold
what they promise, where a density that is flat in s makes them short.  Draws are independent, where sweeps of
a Gibbs sampler that hold mu fixed while theta moves, and the reverse, need thousands to forget each other.

The average weight is the likelihood of what was assumed of the population: nothing differs, or the intercept,
or all, with or without correlations.  These are averaged over.  That less differs has to be shown by the rows
(``ODDS``); that clients do not differ at all has a probability of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, multigammaln

from vaneb.grouped import mixed_kernels as kernels
from vaneb.grouped.choice import Fitted
from vaneb.grouped.descent import descend
from vaneb.grouped.mixed_model import Moments, deviance
from vaneb.likelihood.base import Array
from vaneb.population.options import Options
from vaneb.population.sampler import Sampling
from vaneb.prior import Prior

#: Coefficients that differ, at most, where they may be correlated: more have too many covariances for this.
MOST = 4
#: Points that are weighed for each population kept, rounds in which their distribution is adapted.
POINTS, ROUNDS = 2, 3
#: Degrees of freedom of the t distribution that proposes.
FREEDOM = 6.0
#: Effective number of points, as a share of all, below which a candidate is left out.
LEAST = 0.1
#: The scale b of a standard deviation's prior is at least so many times the likeliest value.
WIDER = 2.0
#: Before rows are seen: nothing differs, the intercept does, slopes do.  A slope that is wrongly held to be
#: the same for all clients makes intervals too short; the other mistake makes them a little long.  With these
#: intervals hold almost as well as if slopes always differed, and clients that are alike are soon seen to be.
ODDS = np.array([1.0, 2.0, 60.0])
#: Candidates of a smaller probability than this are left out.
UNLIKELY = 0.01
#: Clients whose estimates tell the Monte Carlo error.
WATCHED = 50


class WeighedCandidate(NamedTuple):
    """A candidate with the likeliest root of its covariance."""

    fitted: Fitted
    target: _Target | None
    """``None`` where nothing differs."""
    centre: Array
    half: Array
    """Root of the covariance of a Gaussian that touches the density of L, in coordinates."""
    log_evidence: float
    """log of the likelihood of what is assumed, by Laplace's approximation."""

    @property
    def easy(self) -> bool:
        """Are there few enough coordinates to draw them all at once?"""
        return not self.fitted.correlated or len(self.fitted.model.varying) <= MOST


def weigh_candidate(fitted: Fitted) -> WeighedCandidate | None:
    """``None`` where the rows do not tell what they should."""
    model, moments = fitted.model, fitted.moments
    n, d, r = len(moments.cross), len(model.mean), len(model.varying)
    if n < 3 or not np.isfinite(model.deviance) or np.linalg.matrix_rank(model.inverse) < d:
        return None
    try:
        if not r:
            value = _profiles(moments, model.varying, np.zeros((1, 0, 0)))[0][0]
            return WeighedCandidate(
                fitted, None, np.empty(0), np.empty((0, 0)), fitted.constant - 0.5 * value
            )
        target = _Target(fitted)
        found = target.mode(model.root)
    except np.linalg.LinAlgError:  # a direction of which no client knows anything
        return None
    if found is None:
        return None
    centre, half, height = found
    log_evidence = height + 0.5 * len(centre) * math.log(2 * math.pi) + np.log(np.diagonal(half)).sum()
    return WeighedCandidate(fitted, target, centre, half, float(log_evidence))


def log_odds(found: Sequence[WeighedCandidate], odds: Array = ODDS) -> Array:
    """Before rows are seen: nothing, the intercept (or the least that can) and more than that differ, as
    ``odds`` has it; candidates of a kind share what it has."""
    sizes = np.array([len(one.fitted.model.varying) for one in found])
    least = sizes[sizes > 0].min(initial=len(found[0].fitted.points[0]))
    kind = (sizes > 0) * 1 + (sizes > least)
    return np.log(odds[kind] / np.bincount(kind)[kind])


def likeliest(found: Sequence[WeighedCandidate]) -> WeighedCandidate:
    """The candidate that the rows speak for, without the caution of ``ODDS``."""
    logs = np.array([one.log_evidence for one in found]) + log_odds(found, np.ones(3))
    return found[int(np.argmax(logs))]


def probabilities(found: Sequence[WeighedCandidate]) -> Array:
    """Of each candidate."""
    logs = np.array([one.log_evidence for one in found]) + log_odds(found)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    weight[weight < UNLIKELY] = 0.0
    return np.asarray(weight / weight.sum())


class _WeighedPoints(NamedTuple):
    """Points of one candidate."""

    fitted: Fitted
    roots: Array
    profiles: tuple[Array, ...]
    weight: Array
    """Share of the likelihood, (points,); the sum is the candidate's, times exp of what was taken off."""


def sample_gaussians(
    found: Sequence[WeighedCandidate], *, seed: int, options: Options | None = None
) -> tuple[Prior, Sampling] | None:
    """Gaussian populations drawn from their posterior; ``None`` where too few points of the likeliest
    candidate carry the weight."""
    options = options or Options()
    rng = np.random.default_rng([seed, 4])
    shares = probabilities(found)
    n = len(found[0].fitted.points)
    # These are independent of each other, so fewer do than of a chain.
    draws = int(np.clip(options.work / n, options.fewest_draws, min(options.draws, 400)))
    top = max(one.log_evidence for one in found)
    weighed = []
    for one, share, odds in zip(found, shares, log_odds(found), strict=True):
        if share > 0:
            points = _weighed_points(one, rng, max(int(np.ceil(share * draws)), 20), top - odds)
            if points is not None:
                weighed.append(points)
            elif share == shares.max():
                return None
    totals = np.array([part.weight.sum() for part in weighed])
    counts = np.floor(np.cumsum(np.append(0.0, totals / totals.sum())) * draws + rng.random()).astype(int)
    centres, covariances, effective = [], [], float(draws)
    for part, count in zip(weighed, np.diff(counts), strict=True):
        if not count:
            continue
        places = (np.arange(count) + rng.random()) / count * part.weight.sum()
        kept = np.searchsorted(np.cumsum(part.weight), places)
        kept = np.minimum(kept, len(part.weight) - 1)
        drawn = _populations(part, kept, rng)
        centres.append(drawn[0])
        covariances.append(drawn[1])
        if len(part.fitted.model.varying):
            own = part.weight.sum() ** 2 / np.sum(part.weight**2)
            effective = min(effective, own * draws / count)
    centre, covariance = np.concatenate(centres), np.concatenate(covariances)
    prior = Prior(centre, np.full(draws, 1 / draws), covariance, (), n, None, np.arange(draws))
    error = _error(found[int(np.argmax(shares))].fitted, centre, covariance, effective)
    return prior, Sampling(error, options.accuracy, draws)


def _weighed_points(
    one: WeighedCandidate, rng: np.random.Generator, draws: int, top: float
) -> _WeighedPoints | None:
    """Points of a candidate, of which ``draws`` populations can be kept."""
    fitted, target, centre, half = one.fitted, one.target, one.centre, one.half
    model, moments = fitted.model, fitted.moments
    if target is None:
        roots = np.zeros((1, 0, 0))
        weight = np.array([np.exp(one.log_evidence - top)])
        return _WeighedPoints(fitted, roots, _profiles(moments, model.varying, roots), weight)
    half = half * 1.05
    try:
        for _ in range(ROUNDS):
            points, log_q = _proposed(rng, centre, half, POINTS * draws)
            roots = target.roots(points)
            profiles = _profiles(moments, model.varying, roots)
            log_w = target.log_density(points, roots, profiles[0]) - log_q - top
            weight = np.exp(log_w - log_w.max())
            share = weight / weight.sum()
            if LEAST * len(points) * np.sum(share**2) <= 1:
                return _WeighedPoints(fitted, roots, profiles, np.exp(log_w) / len(log_w))
            centre = share @ points
            away = (points - centre) * np.sqrt(np.minimum(share, 0.05))[:, None]
            half = np.linalg.cholesky(1.5 * away.T @ away + 1e-4 * half @ half.T)
    except np.linalg.LinAlgError:  # a direction of which no client knows anything
        pass
    return None


def _populations(
    one: _WeighedPoints, kept: NDArray[np.intp], rng: np.random.Generator
) -> tuple[Array, Array]:
    """Centres (draws, d) and covariances (draws, d, d) of the populations of some points."""
    model, moments = one.fitted.model, one.fitted.moments
    d, draws = len(model.mean), len(kept)
    roots, variance, mean, halves = (column[kept] for column in (one.roots, *one.profiles[1:]))
    if moments.n_rows:
        freedom = moments.n_rows - d
        variance = variance * freedom / rng.chisquare(freedom, draws)
    noise = np.linalg.solve(np.swapaxes(halves, 1, 2), rng.standard_normal((draws, d, 1)))[:, :, 0]
    centres = one.fitted.centre + mean + np.sqrt(variance)[:, None] * noise
    covariances = np.zeros((draws, d, d))
    inside = np.ix_(np.arange(draws), model.varying, model.varying)
    covariances[inside] = variance[:, None, None] * roots @ np.swapaxes(roots, 1, 2)
    return centres, covariances


def _profiles(moments: Moments, varying: NDArray[np.intp], roots: Array) -> tuple[Array, Array, Array, Array]:
    """Restricted deviance, sigma^2, mu and a root of T at each of some roots."""
    return kernels.deviances(moments.gram, moments.cross, moments.square, moments.n_rows, varying, roots)


class _Target:
    """The posterior density of L, in coordinates: logarithms of standard deviations (the norms of its rows),
    and what is below the diagonal in units of the row's diagonal."""

    def __init__(self, fitted: Fitted) -> None:
        self.fitted, self.moments, self.varying = fitted, fitted.moments, fitted.model.varying
        known = np.einsum("kii->ki", self.moments.gram)[:, self.varying].mean(axis=0)
        likeliest = np.linalg.norm(fitted.model.root, axis=1)
        self.log_reach = 0.5 * np.log((WIDER * likeliest) ** 2 + 1 / known)
        self.r = r = len(self.varying)
        self.lower = np.tril_indices(r, -1) if fitted.correlated else (np.empty(0, int), np.empty(0, int))
        # What makes the density of correlations integrate to one.
        half = (r + 1) / 2
        self.log_constant = r * math.lgamma(half) - float(multigammaln(half, r)) if fitted.correlated else 0.0

    def roots(self, points: Array) -> Array:
        """(m, r, r)"""
        out = np.zeros((len(points), self.r, self.r))
        at = np.arange(self.r)
        out[:, at, at] = 1.0
        out[:, self.lower[0], self.lower[1]] = points[:, self.r :]
        out /= np.linalg.norm(out, axis=2, keepdims=True)
        return out * np.exp(np.clip(points[:, : self.r, None], -50, 50))

    def log_prior(self, points: Array) -> Array:
        """Density of the coordinates, (m,)."""
        share = 2 * (points[:, : self.r] - self.log_reach)
        log_p = self.log_constant + (math.log(2.0) + share - 2 * np.logaddexp(0.0, share)).sum(axis=1)
        if len(self.lower[0]):
            roots = self.roots(points)
            logs = np.log(np.diagonal(roots, axis1=1, axis2=2))
            inverse = np.sum(np.linalg.inv(roots) ** 2, axis=1)  # the diagonal of (L L')^{-1}
            log_p -= (self.r + 1) * (logs + 0.5 * np.log(inverse)).sum(axis=1)
        return log_p

    def log_density(self, points: Array, roots: Array, value: Array) -> Array:
        """``value`` is the deviance."""
        extra = 0.5 * self.moments.penalty * np.sum(roots**2, axis=(1, 2))
        found = self.fitted.constant - 0.5 * value - extra + self.log_prior(points)
        return np.where(np.isfinite(found), found, -np.inf)

    def mode(self, root: Array) -> tuple[Array, Array, float] | None:
        """The likeliest point, a root of the covariance of a Gaussian that touches the density there, and the
        logarithm of the density."""
        root = root * np.where(np.diagonal(root) < 0, -1.0, 1.0)
        diagonal = np.maximum(np.diagonal(root), 0.05 * np.exp(self.log_reach))
        below = np.clip(root[self.lower] / diagonal[self.lower[0]], -3, 3)
        start = np.concatenate([np.log(diagonal), below])
        start[: self.r] -= np.log(np.diagonal(self.roots(start[None])[0]) / diagonal)
        q = len(start)
        nudges = 1e-5 * np.vstack([np.eye(q), -np.eye(q), np.zeros((1, q))])

        def loss(point: Array) -> tuple[float, Array]:
            one = self.roots(point[None])[0]
            value, gradient = deviance(self.moments, self.varying, one)[:2]
            along = np.sum(np.tril(gradient) * one, axis=1)
            units, (i, j) = np.diagonal(one), self.lower
            turn = gradient[i, j] * units[i] - along[i] * point[self.r :] * (units[i] / np.exp(point[i])) ** 2
            priors = self.log_prior(point + nudges)
            slope = 0.5 * np.concatenate([along, turn])
            return 0.5 * value - priors[-1], slope - (priors[:q] - priors[q : 2 * q]) / 2e-5

        found = descend(loss, start, 1e-2)
        if not np.isfinite(found.value) or np.abs(found.x - start).max() > 50:
            return None
        hessian = np.empty((q, q))
        for i in range(q):
            step = 0.02 * np.eye(q)[i]
            hessian[i] = (loss(found.x + step)[1] - loss(found.x - step)[1]) / 0.04
        values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
        half = vectors / np.sqrt(np.maximum(values, 0.1))
        return found.x, np.linalg.cholesky(half @ half.T), self.fitted.constant - found.value


def _proposed(rng: np.random.Generator, centre: Array, half: Array, count: int) -> tuple[Array, Array]:
    """Points (count, q) of a t distribution, and its log density there."""
    q = len(centre)
    normal = rng.standard_normal((count, q))
    stretch = np.sqrt(FREEDOM / rng.chisquare(FREEDOM, count))
    log_q = -0.5 * (FREEDOM + q) * np.log1p(np.sum((normal * stretch[:, None]) ** 2, axis=1) / FREEDOM)
    log_q += gammaln((FREEDOM + q) / 2) - gammaln(FREEDOM / 2) - 0.5 * q * np.log(FREEDOM * np.pi)
    log_q -= np.log(np.diagonal(half)).sum()
    return centre + (normal * stretch[:, None]) @ half.T, log_q


def _error(fitted: Fitted, centres: Array, covariances: Array, effective: float) -> float:
    """The 95% point over clients of the Monte Carlo error of their estimates, in posterior sds."""
    model, moments = fitted.model, fitted.moments
    some = np.arange(0, len(moments.cross), max(1, len(moments.cross) // WATCHED))
    gram = moments.gram[some] / model.variance
    cross = moments.cross[some] / model.variance + gram @ fitted.centre
    eye = np.eye(len(model.mean))
    few = slice(0, None, max(1, len(centres) // 100))
    # (I + S A)^{-1} S is the posterior covariance; it needs no inverse of S.
    means, spreads = [], []
    for centre, spread in zip(centres[few], covariances[few], strict=True):
        own = np.linalg.solve(eye + spread @ gram, np.broadcast_to(spread, gram.shape))
        means.append(centre + np.einsum("kij,kj->ki", own, cross - gram @ centre))
        spreads.append(np.diagonal(own, axis1=1, axis2=2))
    between, within = np.var(means, axis=0), np.mean(spreads, axis=0)
    share = between / np.maximum(between + within, 1e-300)
    share = share[:, model.varying] if len(model.varying) else share
    return float(np.quantile(np.sqrt(share / effective), 0.95))
