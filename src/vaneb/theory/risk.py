"""How well priors and parameters can be estimated: Hellinger distance, van Trees, risk."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vaneb.covariance.base import Array, CovarianceFunction, DiagonalCovariance
from vaneb.errors import InvalidOption
from vaneb.likelihood.gaussian import gaussian_likelihood
from vaneb.theory.bounds import CovarianceBounds


class Estimate(NamedTuple):
    """A Monte Carlo value with its standard error."""

    value: float
    standard_error: float


def average_hellinger(
    first: tuple[Array, Array],
    second: tuple[Array, Array],
    n: Array,
    covariance: CovarianceFunction,
    *,
    rng: np.random.Generator,
    draws: int = 100,
    coordinate: int | None = None,
) -> Estimate:
    """(1/K) sum_k h^2(f_k,G, f_k,H), h^2(f, g) = 1/2 integral (sqrt f - sqrt g)^2, for Gaussian reports.

    With x drawn from (f + g) / 2 the average of (sqrt f - sqrt g)^2 / (f + g) is unbiased, and between 0
    and 1, so that no draw dominates.

    Parameters
    ----------
    first, second : (atoms (m, d), weights (m,)) of the priors G and H.
    n, covariance : sample sizes (K,) and covariance functions of the clients; no singular precision.
    draws : at least 2, for each client.
    coordinate : int, optional
        Compare the variance-weighted densities sum_j w_j Sigma_k(a_j)_ii p_k(x; a_j) of this coordinate,
        which the generalised Tweedie formula rests on.  Diagonal covariances only.
    """
    if draws < 2:
        raise InvalidOption(f"draws: a standard error needs at least 2, got {draws}")
    if coordinate is not None and not isinstance(covariance, DiagonalCovariance):
        raise InvalidOption("coordinate: variance-weighted densities need a diagonal covariance")
    atoms = np.concatenate([first[0], second[0]])
    halves = (
        np.concatenate([first[1], np.zeros(len(second[1]))]),
        np.concatenate([np.zeros(len(first[1])), second[1]]),
    )
    variance: Array | float = 1.0
    if coordinate is not None:
        variance = 1.0 / covariance.precision(atoms[None])[..., coordinate]
    k = covariance.n_clients
    values = np.empty((draws, k))
    for draw in range(draws):
        chosen = atoms[rng.choice(len(atoms), size=k, p=(halves[0] + halves[1]) / 2)]
        x = chosen + _noise(covariance, chosen, n, rng)
        logs = gaussian_likelihood(x, n, covariance).log_likelihood(atoms)
        # densities relative to their largest term: the ratio needs no more
        terms = np.exp(logs - logs.max(axis=1, keepdims=True))
        mixture = terms @ (halves[0] + halves[1])
        f, g = ((terms * variance) @ half for half in halves)
        values[draw] = (np.sqrt(f) - np.sqrt(g)) ** 2 / mixture
    error = math.sqrt(values.var(axis=0, ddof=1).sum() / draws) / k
    return Estimate(float(values.mean()), error)


def _noise(covariance: CovarianceFunction, theta: Array, n: Array, rng: np.random.Generator) -> Array:
    """One draw from N(0, Sigma_k(theta_k) / n_k) for each client: (K, d)."""
    normal = rng.standard_normal(theta.shape)
    precision = covariance.precision(theta[:, None])[:, 0]
    try:
        if precision.ndim == 3:
            factor = np.linalg.cholesky(precision * n[:, None, None])
            return np.asarray(np.linalg.solve(np.swapaxes(factor, 1, 2), normal[..., None])[..., 0])
        if not (precision > 0).all():
            raise np.linalg.LinAlgError
    except np.linalg.LinAlgError:
        raise InvalidOption("covariance: a client's precision is singular, so it has no density") from None
    return np.asarray(normal / np.sqrt(precision * n[:, None]))


def prior_information(
    atoms: Array, weights: Array, spread: Array, *, rng: np.random.Generator, draws: int = 10_000
) -> Array:
    """J_0 = E[grad log g grad log g'] of the density g = sum_j w_j N(a_j, Gamma), by Monte Carlo: (d, d)."""
    d = atoms.shape[1]
    factor = np.linalg.cholesky(spread)
    theta = atoms[rng.choice(len(atoms), size=draws, p=weights)]
    theta = theta + rng.standard_normal((draws, d)) @ factor.T
    difference = atoms - theta[:, None]
    standard = np.linalg.solve(factor, np.swapaxes(difference, 1, 2))
    logs = np.log(np.maximum(weights, 1e-300)) - 0.5 * np.sum(standard**2, axis=1)
    terms = np.exp(logs - logs.max(axis=1, keepdims=True))
    terms /= terms.sum(axis=1, keepdims=True)
    score = np.linalg.solve(spread, np.einsum("qj,qji->iq", terms, difference))
    information: Array = score @ score.T / draws
    return information


def van_trees_bounds(
    bounds: CovarianceBounds, n: Array, prior_fisher_information: ArrayLike
) -> tuple[float, float]:
    """d / (|J_0| + max n / s + d L^2 / 2)  <=  risk of the oracle  <=  d S / min n.

    The risk is (1/K) sum_k E |E[theta_k | theta_hat_k] - theta_k|^2; J_0 (d, d) is the Fisher information of
    the prior's density (``prior_information``), |.| the operator norm.  For diagonal covariances.
    """
    information = np.atleast_2d(np.asarray(prior_fisher_information, dtype=float))
    d = information.shape[0]
    total = np.linalg.norm(information, 2) + np.max(n) / bounds.lower + d * bounds.lipschitz**2 / 2
    return float(d / total), float(d * bounds.upper / np.min(n))


class Risk(NamedTuple):
    """Mean squared errors, averaged over clients."""

    total: float
    excess: float
    oracle: float
    cross: float
    """2 mean (estimate - oracle)'(oracle - truth), zero in expectation: total = excess + oracle + cross."""


def risk_decomposition(estimates: Array, oracle: Array, truth: Array) -> Risk:
    """R(est) = (1/K) sum |est - oracle|^2 + (1/K) sum |oracle - theta|^2 (+ cross), from arrays (K, d)."""

    def mean_square(difference: Array) -> float:
        return float(np.mean(np.sum(difference**2, axis=1)))

    cross = 2.0 * float(np.mean(np.sum((estimates - oracle) * (oracle - truth), axis=1)))
    return Risk(
        mean_square(estimates - truth), mean_square(estimates - oracle), mean_square(oracle - truth), cross
    )
