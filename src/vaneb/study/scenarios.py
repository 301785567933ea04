"""The three scenarios of the simulation study: what K clients with known parameters would observe.

    quadratic   rows N(theta, diag(V)),  V = clip(theta^2, 0.01, 100) coordinate by coordinate
    logistic    z ~ N(0, S_k), class c of 3 with probability proportional to exp((B_c z)' theta)
    poisson     z ~ N(0, 0.1^2 S_k), count y ~ Poisson(exp(theta' z))

S_k = Q_k diag(lambda_k) Q_k' is client k's own, Q_k a uniform rotation, lambda_kj uniform on [0.5, 2].
Client k has n_k rows, n_k a uniform integer on [n_min, 2 n_min].

Letters: K clients, d = 3 parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.local.data import GroupedRows
from vaneb.study.prior_curves import FiveCurves

Array = NDArray[np.float64]

#: B_c, shape (3, 3, 3).
CLASS_PROJECTIONS: Array = np.stack(
    [np.diag(diagonal) for diagonal in ([1.0, -1.0, 0.0], [0.0, 1.0, -1.0], [-1.0, 0.0, 1.0])]
)
VARIANCE_RANGE = (0.01, 100.0)
EIGENVALUE_RANGE = (0.5, 2.0)
POISSON_SCALE = 0.1


@dataclass(frozen=True, eq=False)
class Sample:
    """What one replicate of a scenario draws."""

    scenario: str
    theta: Array
    """The clients' true parameters, shape (K, 3)."""
    n: NDArray[np.int64]
    """Rows per client, shape (K,)."""
    rows: GroupedRows | None = None
    """Covariates and responses (logistic, poisson)."""
    covariate_covariance: Array | None = None
    """Covariance of client k's covariates, shape (K, 3, 3) (logistic, poisson)."""
    means: Array | None = None
    """Sample means, shape (K, 3) (quadratic)."""
    variances: Array | None = None
    """Sample variances of single rows, with n_k - 1 in the denominator, shape (K, 3) (quadratic)."""


def quadratic_variance(theta: Array) -> Array:
    """V(theta) = theta^2 clipped to [0.01, 100], the variance of one row in the quadratic scenario."""
    return np.clip(theta**2, *VARIANCE_RANGE)


def random_covariances(n_clients: int, rng: np.random.Generator) -> Array:
    """K draws of Q diag(lambda) Q', Q uniform on the orthogonal group: shape (K, 3, 3)."""
    q, r = np.linalg.qr(rng.standard_normal((n_clients, 3, 3)))
    # The factor q of a Gaussian matrix is uniform only once the signs of r's diagonal are made positive.
    q = q * np.sign(np.einsum("kii->ki", r))[:, None, :]
    eigenvalues = rng.uniform(*EIGENVALUE_RANGE, size=(n_clients, 1, 3))
    return (q * eigenvalues) @ q.transpose(0, 2, 1)


def _quadratic(theta: Array, n: NDArray[np.int64], rng: np.random.Generator) -> Sample:
    """Means and variances by their exact joint law: normal and chi-square, independent of each other."""
    variance = quadratic_variance(theta)
    means = theta + np.sqrt(variance / n[:, None]) * rng.standard_normal(theta.shape)
    freedom = np.broadcast_to(n[:, None] - 1, theta.shape)
    variances = variance * rng.chisquare(freedom) / freedom
    return Sample("quadratic", theta, n, means=means, variances=variances)


def _covariates(n: NDArray[np.int64], covariance: Array, rng: np.random.Generator) -> Array:
    """n_k draws of N(0, covariance_k) for each client, stacked: shape (N, 3)."""
    root = np.repeat(np.linalg.cholesky(covariance), n, axis=0)
    return np.einsum("nij,nj->ni", root, rng.standard_normal((int(n.sum()), 3)))


def _stacked(z: Array, y: Array, n: NDArray[np.int64]) -> GroupedRows:
    return GroupedRows.from_columns(np.repeat(np.arange(len(n)), n), z, y)


def _logistic(theta: Array, n: NDArray[np.int64], rng: np.random.Generator) -> Sample:
    covariance = random_covariances(len(n), rng)
    z = _covariates(n, covariance, rng)
    scores = np.einsum("nj,cij,ni->nc", z, CLASS_PROJECTIONS, np.repeat(theta, n, axis=0))
    # The largest of scores plus independent Gumbel noise is a draw from their softmax.
    y = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(np.float64)
    return Sample("logistic", theta, n, _stacked(z, y, n), covariance)


def _poisson(theta: Array, n: NDArray[np.int64], rng: np.random.Generator) -> Sample:
    covariance = POISSON_SCALE**2 * random_covariances(len(n), rng)
    z = _covariates(n, covariance, rng)
    rate = np.exp(np.einsum("ni,ni->n", z, np.repeat(theta, n, axis=0)))
    return Sample("poisson", theta, n, _stacked(z, rng.poisson(rate).astype(np.float64), n), covariance)


SCENARIOS: dict[str, Callable[[Array, NDArray[np.int64], np.random.Generator], Sample]] = {
    "quadratic": _quadratic,
    "logistic": _logistic,
    "poisson": _poisson,
}


def simulate(
    name: str,
    n_clients: int,
    n_min: int,
    rng: np.random.Generator,
    prior: FiveCurves | None = None,
) -> Sample:
    """One replicate of a scenario.

    Parameters
    ----------
    name : one of ``SCENARIOS``
    n_clients : K
    n_min : smallest number of rows of a client; the largest is twice that.  At least 2.
    rng : source of all randomness
    prior : where the clients' parameters come from; the five curves by default
    """
    if name not in SCENARIOS:
        raise InvalidOption(f"scenario {name!r} is unknown; choose one of {', '.join(SCENARIOS)}")
    if n_clients < 1 or n_min < 2:
        raise InvalidOption(f"n_clients={n_clients}, n_min={n_min}: need at least 1 client and n_min of 2")
    theta = (prior or FiveCurves()).sample(n_clients, rng)
    n = rng.integers(n_min, 2 * n_min, size=n_clients, endpoint=True)
    return SCENARIOS[name](theta, n, rng)
