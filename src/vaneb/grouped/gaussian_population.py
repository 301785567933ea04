"""One Gaussian as a mixture of narrower ones, for likelihoods whose integral over it is approximate.

    N(mu, Gamma) = integral of N(a, c Gamma) over a ~ N(mu, (1 - c) Gamma)  ~  sum_q w_q N(a_q, c Gamma)

with Gauss-Hermite nodes a_q.  Laplace's approximation is then made within each component, where it is
close, instead of once over the whole population: for clients with a few binary rows that one is too low by
0.006 per client, enough to make any mixture of narrow components look better than the Gaussian it mimics.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from vaneb.prior import Prior

#: c, and nodes in each direction, by the number of parameters; more parameters would need too many nodes.
SHARE = 0.25
NODES = {1: 15, 2: 9, 3: 7}
#: Nodes of less weight are left out.
LEAST = 1e-6


def as_mixture(prior: Prior) -> Prior:
    """``prior`` itself if it is not a single Gaussian of few parameters."""
    d = prior.dimension
    if len(prior.weights) > 1 or prior.spread is None or d not in NODES:
        return prior
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES[d])
    grid = np.array(list(product(nodes, repeat=d)))
    weight = np.prod(list(product(weights / weights.sum(), repeat=d)), axis=1)
    kept = weight > LEAST
    eigenvalues, vectors = np.linalg.eigh((1 - SHARE) * prior.spread)
    root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))
    atoms = prior.atoms[0] + grid[kept] @ root.T
    return Prior(atoms, weight[kept], SHARE * prior.spread, prior.names, prior.clients)
