"""The optimality gap D(G, theta), and what a grid of atoms loses."""

from __future__ import annotations

import math

import numpy as np

from vaneb.blocks import map_blocks
from vaneb.errors import InvalidOption
from vaneb.likelihood.base import Array, Likelihood
from vaneb.npmle.fit import log_mixture


def gap(likelihood: Likelihood, atoms: Array, weights: Array, points: Array) -> Array:
    """D(G, theta) = (1/K) sum_k p_k(theta) / f_k - 1 at ``points`` (q, d), f_k = sum_j w_j p_k(a_j).

    G is the best prior exactly if D <= 0 everywhere; then D = 0 on its support.
    """
    log_density = log_mixture(likelihood, atoms, weights)

    def block(rows: slice) -> Array:
        with np.errstate(over="ignore"):  # a prior may be so bad that D is infinite
            ratio = np.exp(likelihood.take(rows).log_likelihood(points) - log_density[rows, None])
        return ratio.sum(axis=0)

    total = np.sum(list(map_blocks(block, likelihood.n_clients)), axis=0)
    return np.asarray(total / likelihood.n_clients - 1.0)


def largest_spacing(diameter: float, smallest_variance: float, dimension: int) -> float:
    """sqrt(3 / (4 d)) s / D, below which ``discretisation_bound`` holds."""
    return math.sqrt(3 / (4 * dimension)) * smallest_variance / diameter


def discretisation_bound(spacing: float, diameter: float, smallest_variance: float, dimension: int) -> float:
    """(d / s)(1/2 + 2 D^2 / s) delta^2: what the NPMLE on a grid loses in average log-likelihood, at most.

    The argument moves the mass of an atom to the corners of its cube without moving its mean, and is valid
    for covariances that do not depend on theta.

    Parameters
    ----------
    spacing : delta, the width of the grid's cubes.
    diameter : D, of a set that contains the grid, the support and the estimates.
    smallest_variance : s in the units of the grid squared: the smallest eigenvalue of any Sigma_k / n_k.
    """
    limit = largest_spacing(diameter, smallest_variance, dimension)
    if not 0 < spacing < limit:
        raise InvalidOption(f"spacing: the bound holds between 0 and {limit:.3g}, not for {spacing:.3g}")
    return dimension / smallest_variance * (0.5 + 2 * diameter**2 / smallest_variance) * spacing**2
