"""Predictions of rows, given what their clients' other rows say: expected responses and intervals.

The squared error, the log-loss and the deviance are smallest for E[y | data], which is the mean of the
response over the client's posterior, not the response at the posterior mean of its coefficients: a
client with two rows is not as sure of a probability as its best guess of the coefficients would have it.

The index eta = z' theta is taken for Gaussian with its posterior mean and variance; the family says what its
mean response is (``Family.average``).

Intervals of rows: where the expected response of a row lies, and where a new response would.

    confidence   quantiles of eta = x' theta + offset, put through the inverse link, which rises
    prediction   quantiles of y, whose distribution is that of the family averaged over eta:
                 F(y) = E[F(y | eta)] = sum_q w_q F(y | eta_q)

with eta_q the quantile of eta at Phi(z_q), and z_q, w_q the nodes and weights of Gauss and Hermite.  Gaussian
noise is added to the mixture itself, without nodes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from vaneb.errors import InvalidOption
from vaneb.grouped.known import KnownClients
from vaneb.likelihood.base import Array
from vaneb.local.family.base import Family
from vaneb.posterior import Posterior

ROWS = 65_536
KINDS = ("confidence", "prediction")
NODES = 17
#: Halvings of an interval that holds a quantile of a continuous response.
HALVINGS = 60

CONTINUOUS = ("gamma",)


def expected_response(
    family: Family,
    after: Posterior | KnownClients,
    client: NDArray[np.intp],
    covariates: Array,
    offset: Array,
) -> Array:
    """E[y], shape (N,) or (N, classes).

    Parameters
    ----------
    after : posterior of K clients
    client : position of each row's client, (N,); -1 for one that is not among them, drawn from the population
    covariates, offset : (N, p), (N,)
    """
    # The last one is a client of which nothing is known.
    mean = np.vstack([after.mean, after.prior.mean])
    covariance = np.concatenate([after.covariance, after.prior.covariance[None]])
    parts = [
        _average(family, mean[client[rows]], covariance[client[rows]], covariates[rows], offset[rows])
        for rows in (slice(i, i + ROWS) for i in range(0, max(len(client), 1), ROWS))
    ]
    return np.concatenate(parts)


def _average(family: Family, mean: Array, covariance: Array, z: Array, offset: Array) -> Array:
    """Expected response of rows whose clients have these posterior means (N, d) and covariances."""
    p, classes = z.shape[1], family.n_index
    index = np.einsum("ncp,np->nc", mean.reshape(-1, classes, p), z) + offset[:, None]
    own = covariance.reshape(-1, classes, p, classes, p)
    along = (own @ z[:, None, None, :, None])[..., 0]
    return family.average(index, np.einsum("ncpb,np->ncb", along, z))


def interval(
    kind: str,
    level: float,
    family: Family,
    known: KnownClients,
    client: NDArray[np.intp],
    covariates: Array,
    offset: Array,
) -> tuple[Array, Array]:
    """Lower and upper end, (N,) each; ``client`` as in ``KnownClients.index_quantiles``."""
    ends = np.array([(1 - level) / 2, (1 + level) / 2])
    with np.errstate(over="ignore"):
        if kind == "prediction" and family.name == "gaussian":
            lower, upper = known.index_quantiles(client, covariates, ends, family.dispersion) + offset
        elif kind == "prediction":
            nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
            index = known.index_quantiles(client, covariates, ndtr(nodes)) + offset
            means = np.stack([family.mean(row) for row in index])
            lower, upper = (_quantile(family, means, weights / weights.sum(), p) for p in ends)
        else:
            index = known.index_quantiles(client, covariates, ends) + offset
            lower, upper = (family.mean(row) for row in index)
    return lower, upper


def check_interval(kind: str, level: float, family: Family) -> None:
    """Refuse what there is no interval of."""
    if kind not in KINDS:
        raise InvalidOption(f"interval: choose one of {', '.join(KINDS)}, not {kind!r}")
    if not 0 < level < 1:
        raise InvalidOption(f"level must lie between 0 and 1, not {level}: 0.9 is a 90% interval")
    if family.n_index > 1:
        raise InvalidOption(
            f"interval: not for family {family.name}, whose prediction is a probability of each class. "
            "Leave interval out."
        )
    if kind == "prediction" and type(family).below is Family.below:
        raise InvalidOption(
            f"interval: family {family.name} does not say how responses scatter. Ask for interval "
            "'confidence', which is of the expected response."
        )


def _quantile(family: Family, means: Array, weights: Array, p: float) -> Array:
    """Smallest y with sum_q w_q F(y | means_q) >= p, for each row: (N,) from means (Q, N)."""

    def below(y: Array) -> Array:
        return weights @ family.below(y, means)

    low, high = np.zeros(means.shape[1]), np.maximum(means.max(axis=0), 1e-300)
    continuous = family.name in CONTINUOUS
    high = high if continuous else np.ceil(high)
    for _ in range(200):
        short = below(high) < p
        if not short.any():
            break
        high = np.where(short, 2 * high + (0 if continuous else 1), high)
    if continuous:
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            short = below(middle) < p
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        return (low + high) / 2
    low = low - 1.0  # nothing is below 0
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        short = np.where(middle < 0, True, below(np.maximum(middle, 0.0)) < p)
        low, high = np.where(short, middle, low), np.where(short, high, np.maximum(middle, low + 1))
    return high
