"""One Gaussian population: the prior of a mixed model, fitted by maximum likelihood.

    theta_k ~ N(mu, Gamma)

EM on (mu, Gamma) under the smoothed likelihood: with m_k, V_k client k's posterior mean and covariance,

    mu <- mean m_k,     Gamma <- mean [V_k + (m_k - mu)(m_k - mu)'],

accelerated by squared extrapolation (SQUAREM): EM alone needs thousands of steps when the clients know
little.  Every accepted extrapolation raises the likelihood.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from vaneb.blocks import map_blocks
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.fit import log_mixture
from vaneb.npmle.support import completed_estimates
from vaneb.prior import Prior


def gaussian_prior(
    likelihood: Likelihood,
    *,
    diagonal: bool = False,
    tol: float = 1e-9,
    max_steps: int = 400,
    polish: bool = False,
) -> Prior:
    """The best single Gaussian, N(mu, Gamma).

    Parameters
    ----------
    diagonal : keep Gamma diagonal.
    tol : stop when two steps gain less than this in average log-likelihood.
    polish : climb the likelihood itself from where EM ended; see ``_polished``.
    """
    mean, spread = _robust_start(likelihood, diagonal)
    value = _value(likelihood, mean, spread)
    for _ in range(max_steps):
        first = _em(likelihood, mean, spread, diagonal)
        second = _em(likelihood, *first, diagonal)
        jumped = _extrapolated((mean, spread), first, second, diagonal)
        new_value = -np.inf if jumped is None else _value(likelihood, *jumped)
        new = jumped
        plain = _value(likelihood, *second)
        if new is None or not new_value >= plain:
            new, new_value = second, plain
        gain, value = new_value - value, new_value
        mean, spread = new
        if gain <= tol:
            break
    if polish and not isinstance(likelihood, ConstantGaussian) and not diagonal and len(mean) <= 4:
        mean, spread = _polished(likelihood, mean, spread)
    return Prior(mean[None], np.ones(1), spread)


def _polished(likelihood: Likelihood, mean: Array, spread: Array) -> tuple[Array, Array]:
    """Climb the likelihood itself from where EM ended.

    Where posterior moments are approximate (Laplace) or covariances depend on the mean, EM's fixed point is near
    the maximum, not at it.
    """
    start = _coordinates(mean, spread, False)
    if start is None:
        return mean, spread

    def loss(coordinates: Array) -> float:
        if np.abs(coordinates - start).max() > 5:
            return np.inf
        return -_value(likelihood, *_from_coordinates(coordinates, len(mean), False))

    found = minimize(loss, start, method="BFGS", options={"maxiter": 15, "gtol": 1e-6})
    if not (np.isfinite(found.fun) and found.fun < loss(start)):
        return mean, spread
    return _from_coordinates(found.x, len(mean), False)


def _robust_start(likelihood: Likelihood, diagonal: bool) -> tuple[Array, Array]:
    """Median, and the squared interquartile ranges of the estimates: too wide, never absurd."""
    points = completed_estimates(likelihood)
    low, middle, high = np.percentile(points, [25, 50, 75], axis=0)
    scale = np.where(high > low, (high - low) / 1.349, np.maximum(np.abs(middle), 1.0) * 1e-3)
    return middle, np.diag(scale**2)


def _value(likelihood: Likelihood, mean: Array, spread: Array) -> float:
    return float(log_mixture(likelihood.smoothed(spread), mean[None], np.ones(1)).mean())


def _em(likelihood: Likelihood, mean: Array, spread: Array, diagonal: bool) -> tuple[Array, Array]:
    smoothed = likelihood.smoothed(spread)

    def block(rows: slice) -> tuple[Array, Array, Array]:
        """Sums over clients of m_k, m_k m_k' and V_k, m_k as the distance from the present mean."""
        within = smoothed.take(rows).components(mean[None])
        moved = within.mean[:, 0] - mean
        return moved.sum(axis=0), moved.T @ moved, within.covariance[:, 0].sum(axis=0)

    total, square, own = map(sum, zip(*map_blocks(block, likelihood.n_clients), strict=True))
    shift = total / likelihood.n_clients
    second = (square + own) / likelihood.n_clients - np.outer(shift, shift)
    if diagonal:
        second = np.diag(np.diagonal(second))
    return mean + shift, (second + second.T) / 2


def _coordinates(mean: Array, spread: Array, diagonal: bool) -> Array | None:
    """(mu, log-Cholesky of Gamma): coordinates without constraints."""
    if diagonal:
        variances = np.diagonal(spread)
        return np.concatenate([mean, np.log(variances)]) if (variances > 0).all() else None
    try:
        factor = np.linalg.cholesky(spread)
    except np.linalg.LinAlgError:
        return None
    lower = np.tril_indices(len(mean), -1)
    return np.concatenate([mean, np.log(np.diagonal(factor)), factor[lower]])


def _from_coordinates(coordinates: Array, d: int, diagonal: bool) -> tuple[Array, Array]:
    mean = coordinates[:d]
    if diagonal:
        return mean, np.diag(np.exp(coordinates[d:]))
    factor = np.diag(np.exp(coordinates[d : 2 * d]))
    factor[np.tril_indices(d, -1)] = coordinates[2 * d :]
    return mean, factor @ factor.T


def _extrapolated(
    start: tuple[Array, Array], first: tuple[Array, Array], second: tuple[Array, Array], diagonal: bool
) -> tuple[Array, Array] | None:
    """SQUAREM: x0 - 2 s r + s^2 v, r = x1 - x0, v = x2 - 2 x1 + x0, s = -|r| / |v|, at most 64-fold."""
    x0, x1, x2 = (_coordinates(*pair, diagonal) for pair in (start, first, second))
    if x0 is None or x1 is None or x2 is None:
        return None
    step = x1 - x0
    bend = x2 - 2 * x1 + x0
    size = float(np.linalg.norm(bend))
    if size == 0:
        return None
    length = -min(max(float(np.linalg.norm(step)) / size, 1.0), 64.0)
    jumped = x0 - 2 * length * step + length**2 * bend
    if not np.isfinite(jumped).all() or np.abs(jumped).max() > 700:
        return None
    return _from_coordinates(jumped, len(start[0]), diagonal)
