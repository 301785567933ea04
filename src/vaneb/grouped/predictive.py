"""Expected responses of rows, given what their clients' other rows say.

The squared error, the log-loss and the deviance are smallest for E[y | data], which is the mean of the
response over the client's posterior, not the response at the posterior mean of its coefficients: a
client with two rows is not as sure of a probability as its best guess of the coefficients would have it.

Under a single Gaussian population the posterior is that of the quadrature (``marginal``).  Within a component
of a mixture the index eta = z' theta is taken for Gaussian, with mean e and variance v:

    identity link   E[eta] = e
    log link        E[exp eta] = exp(e + v / 2)
    logit link      Gauss-Hermite quadrature
    softmax         points of a Sobol sequence
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from vaneb.grouped.generalised_mixed_model import model_basis
from vaneb.grouped.marginal import Marginal, Points, gaussian_rule, root_of
from vaneb.grouped.structure import centred_basis
from vaneb.likelihood.exact import ExactLikelihood
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.local import losses
from vaneb.local.families import Family
from vaneb.posterior import Posterior
from vaneb.prior import Prior

NODES, DRAWS = 9, 64
CLIENTS, ROWS = 256, 1024


def expected_response(
    family: Family, after: Posterior, client: NDArray[np.intp], covariates: Array, offset: Array
) -> Array:
    """E[y], shape (N,) or (N, classes).

    Parameters
    ----------
    after : posterior of K clients
    client : position of each row's client, (N,); -1 for one that is not among them, drawn from the prior
    covariates, offset : (N, p), (N,)
    """
    prior = after.prior
    d = prior.dimension
    if isinstance(after.likelihood, ExactLikelihood) and len(prior.weights) == 1 and prior.spread is not None:
        return _by_quadrature(after.likelihood, prior, client, covariates, offset)
    blocks: list[tuple[NDArray[np.intp], Array]] = []
    order = np.argsort(client, kind="stable")
    edges = np.searchsorted(client[order], [-1, *range(0, len(after) + CLIENTS, CLIENTS)])
    strangers = order[edges[0] : edges[1]]
    spread = np.zeros((d, d)) if prior.spread is None else prior.spread
    unseen = (prior.weights[None], prior.atoms[None], spread[None, None])
    for rows in _pieces(strangers):
        z = covariates[rows]
        blocks.append((rows, _average(family, *unseen, np.zeros(len(rows), np.intp), z, offset[rows])))
    for i in range(len(edges) - 2):
        own = order[edges[i + 1] : edges[i + 2]]
        if not len(own):
            continue
        part = after.likelihood.take(slice(i * CLIENTS, min((i + 1) * CLIENTS, len(after))))
        shares = _shares(part, prior)
        within = part.components(prior.atoms)
        for rows in _pieces(own):
            at = client[rows] - i * CLIENTS
            mean = _average(
                family, shares, within.mean, within.covariance, at, covariates[rows], offset[rows]
            )
            blocks.append((rows, mean))
    out = np.empty((len(client), *blocks[0][1].shape[1:])) if blocks else np.empty(0)
    for rows, mean in blocks:
        out[rows] = mean
    return out


def _by_quadrature(
    clients: ExactLikelihood, prior: Prior, client: NDArray[np.intp], covariates: Array, offset: Array
) -> Array:
    assert prior.spread is not None
    root = root_of(prior.spread, model_basis(centred_basis(clients.rows.design)[0], prior.dimension))
    x, weights = gaussian_rule(root.shape[1])
    unseen = Points((prior.atoms[0] + x @ root.T)[None], weights[None])
    out = average_over_points(clients.family, unseen, np.zeros_like(client), covariates, offset)
    for start in range(0, clients.n_clients, CLIENTS):
        own = np.flatnonzero((client >= start) & (client < start + CLIENTS))
        if not len(own):
            continue
        part = slice(start, min(start + CLIENTS, clients.n_clients))
        after = Marginal(clients.rows.take(part), clients.family).points(prior.atoms[0], root)
        out[own] = average_over_points(
            clients.family, after, client[own] - start, covariates[own], offset[own]
        )
    return out


def average_over_points(
    family: Family, after: Points, at: NDArray[np.intp], covariates: Array, offset: Array
) -> Array:
    """Expected response of rows of clients ``at`` (N,) whose posteriors are ``after``: (N,) or (N, classes).

    Points may be the same for all clients, (1, m, d).
    """
    total: Array | float = 0.0
    shape = (-1, 1) if family.code == losses.SOFTMAX else (-1,)
    with np.errstate(over="ignore"):
        for j in range(after.shares.shape[1]):
            theta = after.thetas[at, j] if len(after.thetas) > 1 else after.thetas[0, j]
            mean = family.mean(family.index(theta, covariates, offset))
            total = total + after.shares[at, j].reshape(shape) * mean
    return np.asarray(total, dtype=np.float64)


def _shares(part: Likelihood, prior: Prior) -> Array:
    """Posterior probabilities of the components, (K, m)."""
    return softmax(part.log_likelihood(prior.atoms) + np.log(np.maximum(prior.weights, 1e-300)), axis=1)


def _pieces(rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    return [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]


def _average(
    family: Family,
    shares: Array,
    means: Array,
    covariances: Array,
    at: NDArray[np.intp],
    z: Array,
    offset: Array,
) -> Array:
    """Expected response of rows of clients ``at`` (N,), from the components of their posteriors."""
    p, classes = z.shape[1], family.n_index
    mean = means[at if len(means) > 1 else np.zeros_like(at)]
    weights = shares[at if len(shares) > 1 else np.zeros_like(at)]
    n, m = mean.shape[:2]
    mean = mean.reshape(n, m, classes, p)
    index = np.einsum("nmcp,np->nmc", mean, z) + offset[:, None, None]
    if family.code in (losses.GAUSSIAN, losses.HUBER):
        return np.einsum("nm,nm->n", weights, index[:, :, 0])
    own = covariances[at if len(covariances) > 1 else np.zeros_like(at)]
    own = own.reshape(n, own.shape[1], classes, p, classes, p)
    variance = np.einsum("nmcpbq,np,nq->nmcb", own, z, z)
    if family.code == losses.SOFTMAX:
        return np.einsum("nm,nmc->nc", weights, _softmax(index, variance))
    e, v = index[:, :, 0], np.maximum(variance[:, :, 0, 0], 0.0)
    if family.code != losses.BINOMIAL:
        with np.errstate(over="ignore"):
            return np.einsum("nm,nm->n", weights, np.exp(e + v / 2))
    x, w = np.polynomial.hermite_e.hermegauss(NODES)
    sd = np.sqrt(v)
    probability = np.zeros_like(e)
    for node, share in zip(x, w / w.sum(), strict=True):
        probability += share * expit(e + sd * node)
    return np.einsum("nm,nm->n", weights, probability)


def _softmax(index: Array, variance: Array) -> Array:
    """Average probabilities of all classes, (N, m, classes)."""
    values, vectors = np.linalg.eigh(variance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    root = np.broadcast_to(root, (*index.shape, index.shape[-1]))
    draws = _draws(index.shape[-1])
    total = np.zeros((*index.shape[:2], index.shape[2] + 1))
    zero = np.zeros((*index.shape[:2], 1))
    for x in draws:
        total += softmax(np.concatenate([zero, index + root @ x], axis=2), axis=2)
    return total / len(draws)


@cache
def _draws(dimension: int) -> Array:
    """Gaussian points, spread evenly, with those opposite them: (DRAWS, dimension)."""
    from scipy.special import ndtri
    from scipy.stats.qmc import Sobol

    points = ndtri(Sobol(dimension, scramble=True, rng=np.random.default_rng(0)).random(DRAWS // 2))
    return np.concatenate([points, -points])
