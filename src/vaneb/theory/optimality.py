"""The optimality gap D(G, theta), and what a grid of atoms loses."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from vaneb.blocks import map_blocks
from vaneb.errors import InvalidOption
from vaneb.likelihood.seam import Array, Likelihood
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
    return _per_squared_spacing(diameter, smallest_variance, dimension) * spacing**2


def _per_squared_spacing(diameter: float, s: float, dimension: int) -> float:
    return dimension / s * (0.5 + 2 * diameter**2 / s)


class GridBudget(NamedTuple):
    """A grid as fine as the statistical error makes worthwhile."""

    spacing: float
    atoms: int
    """Corners of a cube of side D filled at that spacing."""


def discretisation_budget(
    n_clients: int, diameter: float, smallest_variance: float, dimension: int, constant: float = 1.0
) -> GridBudget:
    """The delta at which ``discretisation_bound`` equals constant (log K)^{d+1} / K, the error of estimation.

    The constant is not known; finer grids than with its true value do not improve the estimates.
    """
    if n_clients < 2:
        raise InvalidOption(f"n_clients: a budget needs at least two clients, got {n_clients}")
    target = constant * math.log(n_clients) ** (dimension + 1) / n_clients
    wanted = math.sqrt(target / _per_squared_spacing(diameter, smallest_variance, dimension))
    # strictly inside the range in which the bound holds
    spacing = min(wanted, 0.999 * largest_spacing(diameter, smallest_variance, dimension))
    return GridBudget(spacing, (math.ceil(diameter / spacing) + 1) ** dimension)
