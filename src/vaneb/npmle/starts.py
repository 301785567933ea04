"""Where atoms start: one point for each client."""

from __future__ import annotations

from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.support import completed_estimates
from vaneb.population.units import wide_points


def starting_points(likelihood: Likelihood) -> Array:
    """One point for each client, (K, d).

    Gaussian reports: the client's estimate, completed where it knows nothing.

    Likelihoods of rows, or with covariances that are full functions of the parameter: the client's posterior
    mode under a wide Gaussian population.  Own estimates there may be far out or not exist (separated
    responses), and a likelihood that rises for ever would carry an atom with it.
    """
    if likelihood.cheap:
        return completed_estimates(likelihood)
    return wide_points(likelihood)
