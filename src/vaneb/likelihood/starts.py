"""One point for each client: where to start looking for atoms."""

from __future__ import annotations

import numpy as np

from vaneb.likelihood.base import Array, Box, Likelihood, as_matrices
from vaneb.likelihood.expansion import modes_under
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.semidefinite import covariance_of_estimates, diagonals, has_full_rank, solve_ridged, unknown_part


def completed_estimates(likelihood: Likelihood) -> Array:
    """Each client's estimate, (K, d), with the pooled one in directions that the client knows nothing of."""
    estimates, precision = likelihood.local_estimates(), likelihood.local_precision()
    if has_full_rank(precision):
        return estimates
    some = np.unique(np.linspace(0, len(estimates) - 1, 10_000).astype(np.intp))
    return estimates + unknown_part(precision, pooled_estimate(estimates[some], precision[some]) - estimates)


def pooled_estimate(estimates: Array, precision: Array, rounds: int = 100) -> Array:
    """The point c, (d,), that minimises sum_k sqrt(1 + e_k' P_k e_k), e_k = theta_hat_k - c.

    A median of what clients know, for precisions (K, d) or (K, d, d).  P_k is capped at the typical
    precision, so that neither a client far away nor one with absurd precision pulls harder than others.
    Found by repeating c <- (sum w_k P_k)^{-1} sum w_k P_k theta_hat_k with w_k = 1 / sqrt(1 + e_k' P_k e_k).
    """
    diagonal = diagonals(precision)
    typical = np.array(
        [np.median(column[column > 0]) if (column > 0).any() else 1.0 for column in diagonal.T]
    )
    share = np.minimum(1.0, typical / np.maximum(diagonal, 1e-300)).min(axis=1)
    precision = precision * share.reshape(-1, *[1] * (precision.ndim - 1))
    centre, weight = np.zeros(estimates.shape[1]), np.ones(len(estimates))
    for done in range(rounds):
        away = estimates - centre
        pull = precision * away if precision.ndim == 2 else np.einsum("kij,kj->ki", precision, away)
        if done > 0:
            weight = 1 / np.sqrt(1 + (pull * away).sum(axis=1))
        total = np.tensordot(weight, precision, axes=1)
        matrix = np.diag(total) if precision.ndim == 2 else total
        step = solve_ridged(matrix[None], (weight @ pull)[None], 1e-12)[0]
        centre = centre + step
        if step @ matrix @ step <= 1e-12 * weight.sum():
            break
    return centre


def plausible_points(likelihood: Likelihood) -> Array:
    """Where each client would be, (K, d), if the population were a single Gaussian, roughly fitted.

    Own estimates may be far out or not exist (separated responses, counts that are nearly all zero), and a
    likelihood that rises for ever would carry an atom with it.
    """
    some = np.unique(np.linspace(0, likelihood.n_clients - 1, 500).astype(np.intp))
    return modes_under(likelihood, *single_gaussian(likelihood.take(some).expanded(None)))


def box_of(points: Array) -> Box:
    """The smallest box that holds the points (K, d)."""
    return points.min(axis=0), points.max(axis=0)


def single_gaussian(view: ConstantGaussian, steps: int = 50) -> tuple[Array, Array]:
    """Mean (d,) and covariance (d, d) of the one Gaussian population that fits best, roughly, by EM:

    V_k = (P_k + C^{-1})^{-1},   m_k = V_k (P_k theta_hat_k + C^{-1} mu),
    mu = mean m_k,   C = mean (V_k + (m_k - mu)(m_k - mu)').
    """
    estimates, precision = view.estimates, as_matrices(view.base_precision)
    mean = pooled_estimate(estimates, precision)
    own = np.median(np.diagonal(covariance_of_estimates(precision), axis1=1, axis2=2), axis=0)
    away = np.median((estimates - mean) ** 2, axis=0)
    covariance = np.diag(np.where(np.isfinite(own), np.maximum(away, own), np.maximum(away, 1.0)))
    for _ in range(steps):
        inverse = np.linalg.inv(covariance)
        posterior = np.linalg.inv(precision + inverse)
        right = np.einsum("kij,kj->ki", precision, estimates) + inverse @ mean
        means = np.einsum("kij,kj->ki", posterior, right)
        mean = means.mean(axis=0)
        covariance = posterior.mean(axis=0) + (means - mean).T @ (means - mean) / len(means)
    return mean, covariance
