"""A grid of spacing delta over every place an atom can be, and what the NPMLE on it loses at most.

With covariances fixed at S_k / n_k, and P_k the inverse, the NPMLE is supported where some client has

    (theta - theta_hat_k)' P_k (theta - theta_hat_k)  <=  2 log(e K),

since f_k >= |P_k / 2 pi|^{1/2} / (e K) makes D(G, theta) negative everywhere else: the radius lemma, with
tau = 1 because covariances are fixed.  So cubes of side delta cover the balls of radius

    r = sqrt(2 log(e K) / smallest eigenvalue of any P_k)

about the estimates; for diagonal covariances only as far as the box of the estimates, which holds the
ridgeline.  The candidate atoms are the corners of these cubes.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.likelihood.base import Array, Likelihood
from vaneb.theory import discretisation_bound, largest_spacing

#: Corners that a grid may have, and cubes that are looked at to find them.
MOST_CORNERS, MOST_CUBES = 20_000, 5_000_000


class Grid(NamedTuple):
    """Candidate atoms, and what restricting the NPMLE to them costs."""

    corners: Array
    """(m, d)."""
    bound: float
    """(d / s)(1/2 + 2 D^2 / s) delta^2, in average log-likelihood; infinite above ``largest``."""
    largest: float
    """The spacing below which the bound is proved."""


def grid(likelihood: Likelihood, delta: float) -> Grid:
    """Corners of the cubes of side ``delta``, in the units of theta."""
    from scipy.spatial import cKDTree

    if not 0 < delta < np.inf:
        raise InvalidOption(f"delta must be a positive number, not {delta!r}")
    estimates, precision = likelihood.local_estimates(), likelihood.local_precision()
    values = precision if precision.ndim == 2 else np.linalg.eigvalsh(precision)
    n, d = estimates.shape
    if not values.min() > 0:
        raise InvalidOption("delta: a client's precision is singular, so that no grid covers where it may be")
    radius = np.sqrt(2 * np.log(np.e * n) / values.min())
    beyond = 0.0 if precision.ndim == 2 else radius
    low = estimates.min(axis=0) - beyond
    counts = np.ceil((estimates.max(axis=0) + beyond - low) / delta).astype(int).clip(1)
    if np.log(counts).sum() > np.log(MOST_CUBES):
        raise InvalidOption(f"delta = {delta:g} needs more than {MOST_CUBES:,} cubes: give a larger one")
    cubes = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), axis=-1).reshape(-1, d)
    # A cube that meets a ball has its centre within the radius and half its own diagonal.
    reach = radius + delta * np.sqrt(d) / 2
    near = cKDTree(estimates).query(low + delta * (cubes + 0.5), distance_upper_bound=reach)[0] < np.inf
    steps = np.array(list(product((0, 1), repeat=d)))
    corners = low + delta * np.unique((cubes[near][:, None] + steps).reshape(-1, d), axis=0)
    if len(corners) > MOST_CORNERS:
        raise InvalidOption(
            f"delta = {delta:g} gives {len(corners):,} corners, more than {MOST_CORNERS:,}: give a larger one"
        )
    both = np.concatenate([corners, estimates])
    diameter, smallest = float(np.linalg.norm(np.ptp(both, axis=0))), float(1 / values.max())
    largest = largest_spacing(diameter, smallest, d)
    bound = discretisation_bound(delta, diameter, smallest, d) if delta < largest else float("inf")
    return Grid(corners, bound, largest)
