"""Clients whose likelihood is not Gaussian, seen through the Gaussian that touches it.

``expanded`` likelihoods have, at a point of each client's own, the value, slope and curvature of the
likelihood.  They serve as proposals (``vaneb.population``), never as the last word.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from vaneb.likelihood.base import Array, Likelihood, as_matrices
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.semidefinite import covariance_of_estimates, diagonals

if TYPE_CHECKING:
    from vaneb.prior import Prior

#: Step of a difference, in standard errors; curvature below this share of the largest is none.
STEP, FLAT = 0.05, 1e-6
#: Newton steps towards the clients' likeliest points, and halvings of one that overshoots.
STEPS, HALVINGS = 8, 4
#: Times that a view's moments are matched, points for it, and how much wider than the posterior these lie.
MATCHES, MATCHING_POINTS, WIDER = 2, 64, 1.4
#: How far from the posterior the centre of a view may be, in about posterior standard deviations.
FURTHEST = 10.0

#: Variance, in that of an average client's own estimate, with which clients see what they all share.
NEAR = 0.1


def from_slopes(points: Array, value: Array, gradient: Array, curvature: Array) -> ConstantGaussian:
    """The Gaussian with this value, gradient (K, d) and minus Hessian (K, d, d) at ``points``."""
    diagonal = np.abs(np.diagonal(curvature, axis1=1, axis2=2))
    # A coordinate of which the client says nothing must not turn rounding of the slope into an estimate.
    largest = diagonal.max(axis=1, keepdims=True)
    scale = np.sqrt(np.maximum(diagonal, np.where(largest > 1e-200, 1e-10 * largest, 1.0)))
    values, vectors = np.linalg.eigh(curvature / scale[:, :, None] / scale[:, None, :])
    values = np.maximum(np.abs(values), FLAT * np.abs(values).max(axis=1, keepdims=True) + 1e-300)
    slope = np.einsum("kia,ki->ka", vectors, gradient / scale)
    estimates = points + np.einsum("kia,ka->ki", vectors, slope / values) / scale
    precision = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    precision = precision * scale[:, :, None] * scale[:, None, :]
    made = ConstantGaussian(estimates, precision)
    return ConstantGaussian(estimates, precision, value - made.at(points))


def by_differences(likelihood: Likelihood, points: Array) -> ConstantGaussian:
    """``from_slopes`` by differences of ``likelihood.at``."""
    n, d = points.shape
    variances = np.diagonal(covariance_of_estimates(likelihood.local_precision()), axis1=1, axis2=2)
    typical = np.sqrt(np.median(np.where(np.isfinite(variances), variances, 1.0), axis=0))
    h = STEP * np.where(typical > 0, typical, 1.0)
    moves = np.eye(d) * h
    value = likelihood.at(points)
    up = np.stack([likelihood.at(points + move) for move in moves], axis=1)
    down = np.stack([likelihood.at(points - move) for move in moves], axis=1)
    hessian = np.empty((n, d, d))
    for i in range(d):
        hessian[:, i, i] = (up[:, i] - 2 * value + down[:, i]) / h[i] ** 2
        for j in range(i):
            both = likelihood.at(points + moves[i] + moves[j]) + likelihood.at(points - moves[i] - moves[j])
            mixed = both - up[:, i] - down[:, i] - up[:, j] - down[:, j] + 2 * value
            hessian[:, i, j] = hessian[:, j, i] = mixed / (2 * h[i] * h[j])
    return from_slopes(points, value, (up - down) / (2 * h), -hessian)


def modes_under(likelihood: Likelihood, mean: Array, covariance: Array) -> Array:
    """Where each client would be, (K, d), if the population were N(mean, covariance).

    Its likeliest theta; for reports the posterior mean with the covariance that the report has there, since
    a variance that vanishes at the edge of a range (0 of 12) puts the likeliest theta on the edge.
    """
    inverse = np.linalg.inv(covariance)

    def aim_of(view: ConstantGaussian) -> Array:
        precision = as_matrices(view.base_precision)
        right = np.einsum("kij,kj->ki", precision, view.estimates) + inverse @ mean
        total = precision + inverse
        scale = 1 / np.sqrt(np.maximum(np.diagonal(total, axis1=1, axis2=2), 1e-300))
        unit = total * scale[:, :, None] * scale[:, None, :] + 1e-12 * np.eye(len(mean))
        try:
            return scale * np.linalg.solve(unit, (scale * right)[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:  # separated rows have next to no curvature in any direction
            return scale * np.einsum("kij,kj->ki", np.linalg.pinv(np.nan_to_num(unit)), scale * right)

    if likelihood.is_report:
        points = np.tile(mean, (likelihood.n_clients, 1))
        for _ in range(STEPS):
            points = aim_of(likelihood.expanded(points))
        return points

    def height(points: Array) -> Array:
        away = points - mean
        return likelihood.at(points) - 0.5 * np.einsum("ki,ij,kj->k", away, inverse, away)

    # From its own estimate or from the mean, whichever is likelier: there may be other modes.
    points, own = np.tile(mean, (likelihood.n_clients, 1)), likelihood.expanded(None).estimates
    best, other = height(points), height(own)
    points = np.where((other > best)[:, None], own, points)
    best = np.maximum(best, np.where(np.isfinite(other), other, -np.inf))
    for _ in range(STEPS):
        step, rising = aim_of(likelihood.expanded(points)) - points, np.ones(len(points), dtype=bool)
        for _ in range(HALVINGS):
            found = height(points + step)
            rising = found >= best - 1e-9 * np.abs(best)
            step = np.where(rising[:, None], step, step / 2)
            if rising.all():
                break
        step = np.where(rising[:, None], step, 0.0)
        points = points + step
        before, best = best, np.where(rising, found, best)
        if np.max(best - before) < 1e-3:
            break
    return points


def view_under(likelihood: Likelihood, mean: Array, covariance: Array) -> ConstantGaussian:
    """The Gaussian of each client that gives it the right posterior moments under N(mean, covariance).

    It starts as the one that touches the likelihood at the posterior mode.
    """
    if likelihood.is_gaussian:
        return likelihood.expanded(None)
    known = np.mean(diagonals(likelihood.expanded(None).base_precision), axis=0)
    unit = np.sqrt(NEAR / np.maximum(known, 1e-12))
    values, vectors = np.linalg.eigh(covariance / np.outer(unit, unit))
    fixed = values <= 1e-10 * max(values[-1], 1.0)
    if fixed.any():  # what all clients share is seen from near the common value
        covariance = covariance + np.outer(unit, unit) * (vectors[:, fixed] @ vectors[:, fixed].T)
    view = likelihood.expanded(modes_under(likelihood, mean, covariance))
    for _ in range(MATCHES):
        try:
            view = _matched(likelihood, view, mean, covariance)
        except np.linalg.LinAlgError:  # clients that say next to nothing, as after separation
            break
    return view


def _matched(
    likelihood: Likelihood, view: ConstantGaussian, mean: Array, covariance: Array
) -> ConstantGaussian:
    """``view`` with the posterior moments that the likelihood has under N(mean, covariance).

    Moments by points around the view's posterior, weighed by likelihood; clients for whom few points count
    keep their view.
    """
    n, d = view.estimates.shape
    inverse, precision = np.linalg.inv(covariance), as_matrices(view.base_precision)
    spread = np.linalg.inv(precision + inverse)
    right = np.einsum("kij,kj->ki", precision, view.estimates) + inverse @ mean
    centre = np.einsum("kij,kj->ki", spread, right)
    root = WIDER * np.linalg.cholesky((spread + np.swapaxes(spread, 1, 2)) / 2)
    normal = even_normals(d, max(MATCHING_POINTS, 16 * d))
    log_weight = np.empty((n, len(normal)))
    for s, z in enumerate(normal):
        theta = centre + root @ z
        away = theta - mean
        height = likelihood.at(theta) - 0.5 * np.einsum("ki,ij,kj->k", away, inverse, away)
        log_weight[:, s] = height + 0.5 * z @ z
    log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
    weight = np.exp(log_weight - log_weight.max(axis=1, keepdims=True))
    weight = np.minimum(weight, len(normal) ** 0.5 * weight.mean(axis=1, keepdims=True))
    weight /= weight.sum(axis=1, keepdims=True)
    shift = weight @ normal
    squares = (normal[:, :, None] * normal[:, None, :]).reshape(len(normal), d * d)
    second = (weight @ squares).reshape(n, d, d) - shift[:, :, None] * shift[:, None, :]
    # in coordinates in which the posterior under the old view is N(0, I / WIDER^2)
    values, vectors = np.linalg.eigh(second)
    enough = (1 / (weight**2).sum(axis=1) > 4 * d + 4) & (values[:, 0] > 1e-3)
    values = np.maximum(values, 1e-3)
    inverse_here = np.swapaxes(root, 1, 2) @ inverse @ root
    posterior = (vectors / values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    own, basis = np.linalg.eigh(posterior - inverse_here)
    to_mean = np.linalg.solve(root, (mean - centre)[:, :, None])[:, :, 0]
    right = np.einsum("kij,kj->ki", posterior, shift) - np.einsum("kij,kj->ki", inverse_here, to_mean)
    # A slope without curvature would draw clients to infinity in a population with heavy tails.
    slope = np.einsum("kia,ki->ka", basis, right)
    own = np.maximum(own, np.maximum(np.abs(slope) / FURTHEST, FLAT * own.max(axis=1, keepdims=True) + 1e-9))
    site = np.einsum("kia,ka->ki", basis, slope / own)
    back = np.linalg.inv(root)
    new = np.swapaxes(back, 1, 2) @ ((basis * own[:, None, :]) @ np.swapaxes(basis, 1, 2)) @ back
    x = np.where(enough[:, None], centre + np.einsum("kij,kj->ki", root, site), view.estimates)
    p = np.where(enough[:, None, None], new, precision)
    points = np.where(enough[:, None], centre + np.einsum("kij,kj->ki", root, shift), centre)
    made = ConstantGaussian(x, (p + np.swapaxes(p, 1, 2)) / 2)
    value = likelihood.at(points)
    return ConstantGaussian(
        x, made.base_precision, np.where(np.isfinite(value), value, 0.0) - made.at(points)
    )


@cache
def even_normals(dimension: int, count: int) -> Array:
    """Normal numbers (count, d) that are spread evenly."""
    from scipy.special import ndtri
    from scipy.stats.qmc import Sobol

    size = 1 << (count - 1).bit_length()
    return ndtri(Sobol(dimension, scramble=True, rng=np.random.default_rng(0)).random(size))


def view_of(likelihood: Likelihood, prior: Prior) -> ConstantGaussian:
    """The clients as Gaussians, where ``prior`` and their likelihood put them."""
    return view_under(likelihood, prior.mean, prior.covariance)
