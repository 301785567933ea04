"""Small problems that the tests of the NPMLE share."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from vaneb.covariance import ConstantDiagonal, ConstantFull
from vaneb.likelihood.gaussian import gaussian_likelihood
from vaneb.npmle.fit import Fit


def diagonal_problem(n_clients: int, d: int, seed: int = 0, spread: float = 1.5):
    rng = np.random.default_rng(seed)
    errors = rng.uniform(0.3, 1.2, size=(n_clients, d))
    estimates = spread * rng.normal(size=(n_clients, d)) + errors * rng.normal(size=(n_clients, d))
    return gaussian_likelihood(estimates, np.ones(n_clients), ConstantDiagonal(errors**-2.0))


def correlated_problem(n_clients: int, correlation: float, seed: int = 0):
    """Errors with long axes that cross: client by client the sign of the correlation changes."""
    rng = np.random.default_rng(seed)
    sign = correlation * rng.choice([-1.0, 1.0], n_clients)
    covariance = np.ones((n_clients, 2, 2))
    covariance[:, 0, 1] = covariance[:, 1, 0] = sign
    covariance *= rng.uniform(0.3, 1.5, size=(n_clients, 1, 1)) ** 2
    noise = np.linalg.cholesky(covariance) @ rng.normal(size=(n_clients, 2, 1))
    estimates = rng.normal(size=(n_clients, 2)) + noise[:, :, 0]
    return gaussian_likelihood(estimates, np.ones(n_clients), ConstantFull.from_covariances(covariance))


def gaps_at(likelihood, fit: Fit, points: np.ndarray) -> np.ndarray:
    """D(G, theta) = mean_k p_k(theta) / f_k - 1 from its definition."""
    log_density = logsumexp(likelihood.log_likelihood(fit.atoms), b=fit.weights, axis=1)
    return np.exp(likelihood.log_likelihood(points) - log_density[:, None]).mean(axis=0) - 1
