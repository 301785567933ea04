"""Expected responses of rows, given what their clients' other rows say.

The squared error, the log-loss and the deviance are smallest for E[y | data], which is the mean of the
response over the client's posterior, not the response at the posterior mean of its coefficients: a
client with two rows is not as sure of a probability as its best guess of the coefficients would have it.

The index eta = z' theta is taken for Gaussian with its posterior mean e and variance v:

    identity link   E[eta] = e
    log link        E[exp eta] = exp(e + v / 2)
    logit link      Gauss-Hermite quadrature
    softmax         points of a Sobol sequence
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from vaneb.likelihood.seam import Array
from vaneb.local import losses
from vaneb.local.families import Family
from vaneb.posterior import Posterior

if TYPE_CHECKING:
    from vaneb.grouped.known import KnownClients

NODES, DRAWS = 9, 64
ROWS = 65_536


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
        for rows in (slice(i, i + ROWS) for i in range(0, len(client), ROWS))
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def _average(family: Family, mean: Array, covariance: Array, z: Array, offset: Array) -> Array:
    """Expected response of rows whose clients have these posterior means (N, d) and covariances."""
    p, classes = z.shape[1], family.n_index
    index = np.einsum("ncp,np->nc", mean.reshape(-1, classes, p), z) + offset[:, None]
    if family.code in (losses.GAUSSIAN, losses.HUBER):
        return index[:, 0]
    own = covariance.reshape(-1, classes, p, classes, p)
    return averaged_response(family, index, np.einsum("ncpbq,np,nq->ncb", own, z, z, optimize=True))


def averaged_response(family: Family, index: Array, variance: Array) -> Array:
    """Expected response where the index has this mean (N, C) and covariance (N, C, C)."""
    if family.code in (losses.GAUSSIAN, losses.HUBER):
        return index[:, 0]
    if family.code == losses.SOFTMAX:
        return _softmax(index, variance)
    e, v = index[:, 0], np.maximum(variance[:, 0, 0], 0.0)
    if family.code != losses.BINOMIAL:
        with np.errstate(over="ignore"):
            return np.exp(e + v / 2)
    x, w = np.polynomial.hermite_e.hermegauss(NODES)
    return expit(e[:, None] + np.sqrt(v)[:, None] * x) @ (w / w.sum())


def _softmax(index: Array, variance: Array) -> Array:
    """Average probabilities of all classes, (N, classes)."""
    values, vectors = np.linalg.eigh(variance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    draws, zero = _draws(index.shape[-1]), np.zeros((len(index), 1))
    total = np.zeros((len(index), index.shape[1] + 1))
    for x in draws:
        total += softmax(np.hstack([zero, index + root @ x]), axis=1)
    return total / len(draws)


@cache
def _draws(dimension: int) -> Array:
    """Gaussian points, spread evenly, with those opposite them: (DRAWS, dimension)."""
    from scipy.special import ndtri
    from scipy.stats.qmc import Sobol

    points = ndtri(Sobol(dimension, scramble=True, rng=np.random.default_rng(0)).random(DRAWS // 2))
    return np.concatenate([points, -points])
