"""The gap D over space: everywhere on a line or in a plane, through its maximum in more dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from vaneb.blocks import map_blocks
from vaneb.likelihood.base import Array, Likelihood
from vaneb.npmle.fit import Certificate, log_mixture
from vaneb.posterior import UNEXPLAINED, Posterior
from vaneb.report.embed import numbers

#: Pairs of client and point that a picture may cost: seconds, where the covariance is a user's function.
PAIRS = 3e6
LINE, SIDE = 241, 61
LINES = 6
MOST_CLIENTS = 20_000


def gap_at(likelihood: Likelihood, log_density: Array, points: Array) -> Array:
    """D(G, theta) = mean_k p_k(theta) / f_k - 1 at ``points`` (q, d)."""

    def block(rows: slice) -> Array:
        with np.errstate(over="ignore"):
            ratio = np.exp(likelihood.take(rows).log_likelihood(points) - log_density[rows, None])
        return ratio.sum(axis=0)

    return np.sum(list(map_blocks(block, likelihood.n_clients)), axis=0) / likelihood.n_clients - 1


def gap_map(posterior: Posterior, certificate: Certificate) -> dict[str, Any]:
    """Lines along each coordinate through the maximum, and for d > 1 the plane of the first two."""
    likelihood, prior = posterior.likelihood, posterior.prior
    everyone = likelihood.n_clients
    if everyone > MOST_CLIENTS:
        likelihood = likelihood.take(np.linspace(0, everyone - 1, MOST_CLIENTS).astype(np.intp))
    d, centre = prior.dimension, np.asarray(certificate.location, dtype=np.float64)
    low, high = _box(posterior, centre)
    if certificate.within is not None:
        low, high = np.maximum(low, certificate.within[0]), np.minimum(high, certificate.within[1])
    log_density = log_mixture(likelihood, prior.atoms, prior.weights)
    budget = PAIRS / likelihood.n_clients
    lines = []
    for i in range(min(d, LINES)):
        count = int(np.clip(budget / (2 * min(d, LINES)), 21, LINE))
        at = np.unique(np.append(np.linspace(low[i], high[i], count), centre[i]))
        points = np.tile(centre, (len(at), 1))
        points[:, i] = at
        values = gap_at(likelihood, log_density, points)
        lines.append({"coordinate": i, "at": numbers(at), "gap": numbers(values)})
    found: dict[str, Any] = {
        "names": list(posterior.names),
        "lines": lines,
        "location": numbers(centre),
        "gap": certificate.gap,
        "atoms": numbers(prior.atoms[:, :2]),
        "weights": numbers(prior.weights),
        "clients": likelihood.n_clients,
        "whole": d <= 2,
        "plane": None,
    }
    if d > 1:
        side = int(np.clip(np.sqrt(budget / 2), 15, SIDE))
        x, y = (np.linspace(low[i], high[i], side) for i in (0, 1))
        points = np.tile(centre, (side * side, 1))
        points[:, 0], points[:, 1] = np.tile(x, side), np.repeat(y, side)
        values = gap_at(likelihood, log_density, points)
        found["plane"] = {"x": numbers(x), "y": numbers(y), "gap": numbers(values)}
    return found


def _box(posterior: Posterior, centre: Array) -> tuple[Array, Array]:
    """Where to look: atoms, the maximum, personalised estimates, and most of the clients' own."""
    own = np.nanquantile(posterior.likelihood.local_estimates(), [0.02, 0.98], axis=0)
    # Neither an estimate that ran away nor a client that stands alone may squeeze all else into a corner.
    usual = np.array([UNEXPLAINED not in flag for flag in posterior.flag])
    shared = posterior.prior.weights * len(posterior) > 1.5
    points = np.vstack([posterior.prior.atoms[shared], posterior.mean[usual], centre[None]])
    reach = np.ptp(points, axis=0)
    low = np.minimum(points.min(0), np.maximum(own[0], points.min(0) - reach))
    high = np.maximum(points.max(0), np.minimum(own[1], points.max(0) + reach))
    margin = 0.08 * np.where(high > low, high - low, 1.0)
    return low - margin, high + margin
