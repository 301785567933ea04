"""One Gaussian population: the prior of a mixed model, fitted by maximum likelihood.

    theta_k ~ N(mu, Gamma)

EM on (mu, Gamma) under the smoothed likelihood: with m_k, V_k client k's posterior mean and covariance,

    mu <- mean m_k,     Gamma <- mean [V_k + (m_k - mu)(m_k - mu)'],

accelerated by squared extrapolation (SQUAREM): EM alone needs thousands of steps when the clients know
little.  Every accepted extrapolation raises the likelihood.  For Gaussian reports and for rows the
likelihood's gradient is at hand, and a quasi-Newton method takes over early: EM crawls where Gamma is
(nearly) singular, and where posterior moments are approximate (Laplace) its fixed point is near the
maximum, not at it.

A Gaussian has no room for a client that is nothing like the others: one of them would own it.  Clients that
the fitted Gaussian leaves alone (``are_alone``) have no part in the fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import chdtri

from vaneb.blocks import sum_blocks
from vaneb.likelihood.exact import ExactLikelihood
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.gaussian_function import FunctionGaussian
from vaneb.likelihood.gaussian_shared import SharedGaussian
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.ascent import FEW_ENOUGH
from vaneb.npmle.fit import log_mixture
from vaneb.npmle.support import completed_estimates
from vaneb.prior import Prior

#: Likelihoods whose ``ascent`` tells the gradient in Gamma.
GAUSSIAN = (ConstantGaussian, SharedGaussian, FunctionGaussian)
#: No client's log-density counts for less than this much below its own peak: ten standard deviations.
ALONE = -50.0
#: A Gaussian population leaves a client alone who is further out than one in a million of its own.
ODD = 1e-6
#: Gain of two steps at which EM hands over to the likelihood's gradient.
HAND_OVER = 1e-3
#: Iterations of the quasi-Newton method, in few dimensions and in many, where one costs d^2 for every client.
MOST_GRADIENTS = 500, 60
#: Times that the clients who are alone are looked for again after a fit without them.
LOOKS = 4


def gaussian_prior(
    likelihood: Likelihood,
    *,
    diagonal: bool = False,
    tol: float = 1e-9,
    max_steps: int = 400,
) -> Prior:
    """The best single Gaussian, N(mu, Gamma).

    Parameters
    ----------
    diagonal : keep Gamma diagonal.
    tol : stop when two steps gain less than this in average log-likelihood.
    """
    gaussian = isinstance(likelihood, GAUSSIAN)
    exact = isinstance(likelihood, ExactLikelihood)
    # The gradient finishes what EM begins: on rows, where both cost the same, after one step.
    em_tol, em_steps = (max(tol, HAND_OVER), max_steps) if gaussian else (tol, 1 if exact else max_steps)
    mean, spread = _robust_start(likelihood)
    coordinates = _Coordinates(mean, np.sqrt(np.diagonal(spread)), diagonal)
    alone = are_alone(likelihood, mean, spread)
    for _ in range(LOOKS):
        others = likelihood.take(np.flatnonzero(~alone)) if alone.any() else likelihood
        # In many dimensions an EM step costs more than several gradients.
        if not (gaussian and len(mean) > FEW_ENOUGH):
            mean, spread = _by_em(others, mean, spread, coordinates, em_tol, em_steps)
        if gaussian or exact:
            mean, spread = _by_gradient(others, mean, spread, coordinates, tol)
        before, alone = alone, are_alone(likelihood, mean, spread)
        if (alone == before).all():
            break
    return Prior(mean[None], np.ones(1), spread)


def are_alone(likelihood: Likelihood, mean: Array, spread: Array) -> NDArray[np.bool_]:
    """Clients that N(mean, spread) does not explain, (K,); nobody, if that is every second one.

    The log-density of a client of the population is below its peak by half a chi-squared variable.
    """
    smoothed = likelihood.smoothed(spread)
    limit = -0.5 * float(chdtri(likelihood.dimension, ODD))
    alone = log_mixture(smoothed, mean[None], np.ones(1)) < smoothed.peak() + limit
    return alone if 2 * alone.sum() < len(alone) else np.zeros_like(alone)


def without_loners(likelihood: Likelihood, single: Prior) -> Likelihood:
    """Clients that the Gaussian explains, or one as wide around the estimate of another client."""
    assert single.spread is not None
    alone = are_alone(likelihood, single.atoms[0], single.spread)
    rows = np.flatnonzero(alone)
    if len(rows) == 0:
        return likelihood
    apart = likelihood.take(rows).smoothed(single.spread)
    others = apart.log_likelihood(completed_estimates(likelihood))
    others[np.arange(len(rows)), rows] = -np.inf
    alone[rows] = others.max(axis=1) < apart.peak() + ALONE
    return likelihood.take(np.flatnonzero(~alone))


def with_lone_clients(prior: Prior, likelihood: Likelihood) -> Prior:
    """One Gaussian, and a component with a client's weight for each of the clients that it leaves alone."""
    assert prior.spread is not None
    alone = are_alone(likelihood, prior.atoms[0], prior.spread)
    if not alone.any():
        return prior
    share = alone.sum() / len(alone)
    own = completed_estimates(likelihood)[alone]
    weights = np.concatenate([prior.weights * (1 - share), np.full(len(own), 1 / len(alone))])
    return Prior(np.concatenate([prior.atoms, own]), weights, prior.spread, prior.names)


def _by_em(
    likelihood: Likelihood,
    mean: Array,
    spread: Array,
    coordinates: _Coordinates,
    tol: float,
    max_steps: int,
) -> tuple[Array, Array]:
    value = _value(likelihood, mean, spread)
    for _ in range(max_steps):
        first = _em(likelihood, mean, spread, coordinates.diagonal)
        second = _em(likelihood, *first, coordinates.diagonal)
        jumped = _extrapolated(coordinates, (mean, spread), first, second)
        new_value = -np.inf if jumped is None else _value(likelihood, *jumped)
        new = jumped
        plain = _value(likelihood, *second)
        if new is None or not new_value >= plain:
            new, new_value = second, plain
        gain, value = new_value - value, new_value
        mean, spread = new
        if gain <= tol:
            break
    return mean, spread


def _by_gradient(
    likelihood: Likelihood, mean: Array, spread: Array, coordinates: _Coordinates, tol: float
) -> tuple[Array, Array]:
    """The maximum by L-BFGS in mu and a root R of Gamma = R R', which may become singular on the way."""
    d, scale = len(mean), coordinates.scale
    free = np.eye(d, dtype=bool) if coordinates.diagonal else np.tri(d, dtype=bool)

    def unpack(x: Array) -> tuple[Array, Array]:
        root = np.zeros((d, d))
        root[free] = x[d:]
        return coordinates.centre + scale * x[:d], scale[:, None] * root

    def loss(x: Array) -> tuple[float, Array]:
        at, root = unpack(x)
        if isinstance(likelihood, ExactLikelihood):
            value, of_mean, of_root = likelihood.population_slopes(at, root)
        else:
            value, of_mean, of_root = _gaussian_slopes(likelihood, at, root, coordinates.diagonal)
        return -value, -np.concatenate([scale * of_mean, (scale[:, None] * of_root)[free]])

    unit = spread / scale[:, None] / scale
    root = np.linalg.cholesky(unit + 1e-9 * np.trace(unit) / d * np.eye(d))
    start = np.concatenate([(mean - coordinates.centre) / scale, root[free]])
    most = MOST_GRADIENTS[d > FEW_ENOUGH]
    options = {"maxiter": most, "maxcor": 30, "ftol": 1e-3 * tol, "gtol": 1e-9}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    if not found.fun <= loss(start)[0]:
        return mean, spread
    mean, root = unpack(found.x)
    return mean, _squared(root, coordinates.diagonal)


def _squared(root: Array, diagonal: bool) -> Array:
    return np.diag(np.diagonal(root) ** 2) if diagonal else root @ root.T


def _gaussian_slopes(
    likelihood: Likelihood, mean: Array, root: Array, diagonal: bool
) -> tuple[float, Array, Array]:
    """Average log-density of Gaussian reports under N(mean, R R'), and its gradients in mean and R:

        dl/dmu = mean_k (score at mu),    dl/dGamma = 1/2 mean_k (s_k s_k' - Q_k),    dl/dR = 2 (dl/dGamma) R,

    with Q_k = (Sigma_k / n_k + Gamma)^{-1} and s_k = Q_k (theta_hat_k - mu): the sums that ``ascent`` forms,
    if clients are weighted by the inverse of their likelihoods.
    """
    smoothed = likelihood.smoothed(_squared(root, diagonal))
    values = smoothed.log_likelihood(mean[None])[:, 0]
    weights = -values - np.log(len(values))
    sums = smoothed.ascent(mean[None], weights, frozen=True)
    exact = smoothed.ascent(mean[None], weights, curvature=False).gradient[0]
    assert sums.outer is not None
    information = sums.information[0] if sums.information.ndim == 3 else np.diag(sums.information[0])
    excess = sums.outer[0] - information
    # No products of matrices in many dimensions.
    of_root = np.diag(np.diagonal(excess) * np.diagonal(root)) if diagonal else excess @ root
    return float(values.mean()), exact, of_root


def _robust_start(likelihood: Likelihood) -> tuple[Array, Array]:
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

    total, square, own = sum_blocks(block, likelihood.n_clients)
    shift = total / likelihood.n_clients
    second = (square + own) / likelihood.n_clients - np.outer(shift, shift)
    if diagonal:
        second = np.diag(np.diagonal(second))
    return mean + shift, (second + second.T) / 2


class _Coordinates(NamedTuple):
    """(mu, log-Cholesky of Gamma): coordinates without constraints, in units of the first guess.

    Steps of EM are compared in them, so that the units of theta must not matter.
    """

    centre: Array
    scale: Array
    diagonal: bool

    def of(self, mean: Array, spread: Array) -> Array | None:
        """The coordinates of (mu, Gamma); ``None`` where Gamma is singular."""
        position = (mean - self.centre) / self.scale
        unit = spread / self.scale[:, None] / self.scale
        if self.diagonal:
            variances = np.diagonal(unit)
            return np.concatenate([position, np.log(variances)]) if (variances > 0).all() else None
        try:
            factor = np.linalg.cholesky(unit)
        except np.linalg.LinAlgError:
            return None
        lower = np.tril_indices(len(mean), -1)
        return np.concatenate([position, np.log(np.diagonal(factor)), factor[lower]])

    def back(self, point: Array) -> tuple[Array, Array]:
        """(mu, Gamma) from coordinates."""
        d = len(self.centre)
        mean = self.centre + self.scale * point[:d]
        if self.diagonal:
            return mean, np.diag(self.scale**2 * np.exp(point[d:]))
        factor = np.diag(np.exp(point[d : 2 * d]))
        factor[np.tril_indices(d, -1)] = point[2 * d :]
        factor = self.scale[:, None] * factor
        return mean, factor @ factor.T


def _extrapolated(
    coordinates: _Coordinates,
    start: tuple[Array, Array],
    first: tuple[Array, Array],
    second: tuple[Array, Array],
) -> tuple[Array, Array] | None:
    """SQUAREM: x0 - 2 s r + s^2 v, r = x1 - x0, v = x2 - 2 x1 + x0, s = -|r| / |v|, at most 64-fold."""
    x0, x1, x2 = (coordinates.of(*pair) for pair in (start, first, second))
    if x0 is None or x1 is None or x2 is None:
        return None
    step = x1 - x0
    bend = x2 - 2 * x1 + x0
    size = float(np.linalg.norm(bend))
    if size == 0:
        return None
    length = -min(max(float(np.linalg.norm(step)) / size, 1.0), 64.0)
    jumped = x0 - 2 * length * step + length**2 * bend
    if not np.isfinite(jumped).all() or np.abs(jumped).max() > 300:
        return None
    return coordinates.back(jumped)
