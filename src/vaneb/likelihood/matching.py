"""Clients seen through the Gaussian that does the same to a population as their likelihood does.

Under a population N(c, S) a client's posterior has mean m and covariance V.  The Gaussian factor that gives
the same two,

    precision P = V^{-1} - S^{-1},      precision-weighted estimate h = V^{-1} m - S^{-1} c,

stands for the likelihood where that population puts the client (a step of expectation propagation).  An
expansion at a point knows nothing of how far the likelihood leans to one side; this does.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from vaneb.likelihood.base import Array, Likelihood
from vaneb.likelihood.expansion import even_normals, modes_under

#: Points at which a posterior is weighed.
POINTS = 2048
#: Effective number of points from which on they say more than the Gaussian that proposed them.
FEWEST = 20.0
#: Least precision in any direction, as a share of the population's: none is negative, none vanishes.
LEAST = 1e-2


class Matched(NamedTuple):
    """Gaussian factors of K clients."""

    middle: Array
    """m, (K, d)"""
    precision: Array
    """P, (K, d, d)"""
    weighted: Array
    """h, (K, d)"""


def matched(likelihood: Likelihood, centres: Array, spread: Array) -> Matched:
    """The factors of K clients, each under the population N(its row of ``centres``, ``spread``)."""
    inverse, root = np.linalg.inv(spread), np.linalg.cholesky(spread)
    z = _points(len(spread))
    found = []
    for k, centre in enumerate(centres):
        own = likelihood.take(slice(k, k + 1))
        view = own.expanded(modes_under(own, centre, spread))
        precision = view.base_precision[0] + inverse
        covariance = np.linalg.inv(precision)
        mode = covariance @ (view.base_precision[0] @ view.estimates[0] + inverse @ centre)
        points = mode + z @ np.linalg.cholesky(covariance).T
        away = points - centre
        log_weight = own.log_likelihood(points)[0] + 0.5 * (
            (z**2).sum(axis=1) - np.einsum("si,ij,sj->s", away, inverse, away)
        )
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        mean = weight @ points
        away = points - mean
        if 1 / (weight**2).sum() < FEWEST:
            mean, after = mode, precision
        else:
            after = np.linalg.inv((away * weight[:, None]).T @ away)
        values, vectors = np.linalg.eigh(root.T @ (after - inverse) @ root)
        half = np.linalg.solve(root.T, vectors * np.sqrt(np.maximum(values, LEAST)))
        told_by_client = half @ half.T
        # With this precision, whatever its least, the posterior mean is as it was found.
        found.append((mean, told_by_client, told_by_client @ mean + inverse @ (mean - centre)))
    return Matched(*(np.array(part) for part in zip(*found, strict=True)))


@cache
def _points(d: int) -> Array:
    """Points (POINTS, d) of a standard Gaussian, whose own mean and covariance are exactly 0 and I."""
    half = even_normals(d, POINTS // 2)
    points = np.concatenate([half, -half])
    return np.asarray(np.linalg.solve(np.linalg.cholesky(points.T @ points / POINTS), points.T).T)
