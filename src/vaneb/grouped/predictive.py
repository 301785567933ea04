"""Expected responses of rows, given what their clients' other rows say.

The squared error, the log-loss and the deviance are smallest for E[y | data], which is the mean of the
response over the client's posterior, not the response at the posterior mean of its coefficients: a
client with two rows is not as sure of a probability as its best guess of the coefficients would have it.

The index eta = z' theta is taken for Gaussian with its posterior mean and variance; the family says what its
mean response is (``Family.average``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.base import Array
from vaneb.local.family.base import Family
from vaneb.posterior import Posterior

if TYPE_CHECKING:
    from vaneb.grouped.known import KnownClients

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
    own = covariance.reshape(-1, classes, p, classes, p)
    along = (own @ z[:, None, None, :, None])[..., 0]
    return family.average(index, np.einsum("ncpb,np->ncb", along, z))
