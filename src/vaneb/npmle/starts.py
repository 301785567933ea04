"""Where atoms start: one point for each client."""

from __future__ import annotations

import numpy as np

from vaneb.likelihood.expansion import modes_under
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.support import completed_estimates
from vaneb.population.options import QUICK
from vaneb.population.sampler import sample_populations

#: Clients that the scale of the population is taken from.
LOOKED_AT = 500


def starting_points(likelihood: Likelihood) -> Array:
    """One point for each client, (K, d).

    Gaussian reports: the client's estimate, completed where it knows nothing.

    Likelihoods of rows, or with covariances that are full functions of the parameter: the client's posterior
    mode under a single Gaussian population, quickly fitted.  Own estimates there may be far out or not exist
    (separated responses), and a likelihood that rises for ever would carry an atom with it.
    """
    if likelihood.cheap:
        return completed_estimates(likelihood)
    some = np.unique(np.linspace(0, likelihood.n_clients - 1, LOOKED_AT).astype(np.intp))
    single, _ = sample_populations(likelihood.take(some), single=True, options=QUICK)
    return modes_under(likelihood, single.mean, single.covariance)
