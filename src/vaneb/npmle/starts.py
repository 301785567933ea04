"""Where atoms start: one point for each client, and the first atoms chosen from those points."""

from __future__ import annotations

import numpy as np

from vaneb.blocks import blocks
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.gaussian_prior import gaussian_prior
from vaneb.npmle.support import completed_estimates, covering_subset
from vaneb.npmle.weights import npmle_weights, scaled_likelihood

#: Clients that the scale of the population is taken from.
LOOKED_AT = 500


def starting_points(likelihood: Likelihood) -> Array:
    """One point for each client, (K, d).

    Gaussian reports: the client's estimate, completed where it knows nothing.

    Likelihoods of rows, or with covariances that are full functions of the parameter: the client's posterior
    mode under the best single Gaussian population.  Own estimates there may be far out or not exist
    (separated responses), and a likelihood that rises for ever would carry an atom with it; what the others
    say of the scale of the population keeps it within reason.
    """
    if likelihood.cheap:
        return completed_estimates(likelihood)
    discrete = likelihood.smoothed(None)
    n = likelihood.n_clients
    some = np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(np.intp))
    single = gaussian_prior(discrete.take(some), tol=1e-4)
    smoothed = discrete.smoothed(single.spread)
    return np.concatenate([smoothed.take(rows).components(single.atoms).mean[:, 0] for rows in blocks(n)])


def first_atoms(likelihood: Likelihood, points: Array, size: int, rng: np.random.Generator) -> Array:
    """At most ``size`` of the starting ``points`` (K, d) that cover all of them.

    Smoothing a slow likelihood (Laplace's approximation for every pair) is the most expensive thing there is;
    for such only the atoms are taken that the discrete NPMLE, far cheaper, gives weight to.
    """
    atoms = points[covering_subset(points, size, rng)]
    if likelihood.cheap or likelihood.spread is None:
        return atoms
    matrix, _ = scaled_likelihood(likelihood.smoothed(None).log_likelihood(atoms))
    return atoms[npmle_weights(matrix, tol=1e-3).weights > 0]
