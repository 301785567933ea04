"""Where atoms start and what box they stay in: one point for each client."""

from __future__ import annotations

import numpy as np

from vaneb.blocks import blocks
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.gaussian_prior import gaussian_prior
from vaneb.npmle.support import completed_estimates

#: Clients that the scale of the population is taken from.
LOOKED_AT = 500


def starting_points(likelihood: Likelihood) -> Array:
    """One point for each client, (K, d).

    Gaussian reports: the client's estimate, completed where it knows nothing.

    Likelihoods of rows, or with covariances that are full functions of the parameter: the client's posterior mode
    under the best single Gaussian population.  Own estimates there may be far out or not exist (separated
    responses), and a likelihood that rises for ever would carry an atom with it; what the others say of the
    scale of the population keeps it within reason.
    """
    if likelihood.cheap:
        return completed_estimates(likelihood)
    discrete = likelihood.smoothed(None)
    n = likelihood.n_clients
    some = np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(np.intp))
    single = gaussian_prior(discrete.take(some), tol=1e-4)
    smoothed = discrete.smoothed(single.spread)
    return np.concatenate([smoothed.take(rows).components(single.atoms).mean[:, 0] for rows in blocks(n)])
