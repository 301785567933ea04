"""A grid that covers every place an atom can be, and the NPMLE over it.

With constant covariances every maximum of a weighted sum of the clients' likelihoods is a
precision-weighted mean of their estimates (the ridgeline), so the grid covers the box of the estimates; and
the support lies within r_K of some estimate, so the rest of the box is left out.  The spacing gives a bound
on what the grid loses (``vaneb.theory.discretisation_bound``).  Means weighted with full matrices may leave
the box; the certificate, which looks everywhere, says what that costs.  In more than three dimensions a grid
fine enough to matter has too many points: use the certified solver.
"""

from __future__ import annotations

import numpy as np

from vaneb.blocks import Progress
from vaneb.errors import InvalidOption
from vaneb.likelihood.base import Array, Likelihood
from vaneb.npmle.fit import Fit, Step
from vaneb.npmle.search import certify
from vaneb.npmle.weights import npmle_weights, scaled_likelihood
from vaneb.semidefinite import diagonals, standard_errors


def ridgeline_grid(likelihood: Likelihood, spacing: float = 0.5, most: int = 20_000) -> Array:
    """Corners of the cubes that cover the neighbourhood of the estimates, (m, d).

    Parameters
    ----------
    most : points that the grid may have.
    spacing : side of a cube in units of the clients' median standard error, coordinate by coordinate.
    """
    if not 0 < spacing < np.inf:
        raise InvalidOption(f"the grid's spacing must be a positive number, not {spacing}")
    estimates, precision = likelihood.starts(), likelihood.local_precision()
    diagonal = diagonals(precision)
    typical = np.median(diagonal, axis=0)
    step = spacing / np.sqrt(np.where(typical > 0, typical, 1.0))
    low = estimates.min(axis=0) - step / 2
    counts = np.ceil((estimates.max(axis=0) - low) / step) + 1
    n, d = estimates.shape
    if np.log(counts).sum() > np.log(50 * most):
        raise InvalidOption(
            f"a grid in {d} dimensions at spacing {spacing} has too many points: use solver='certified', "
            "or a wider spacing"
        )
    axes = [low[i] + step[i] * np.arange(int(counts[i])) for i in range(d)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, d)
    from scipy.spatial import cKDTree

    # r_K, coordinate by coordinate: sqrt(2 log(e K)) of the largest standard errors, infinite for some.
    radius = np.sqrt(2 * np.log(np.e * n)) * standard_errors(precision).max(axis=0)
    distance, _ = cKDTree(estimates / radius).query(grid / radius, p=np.inf, distance_upper_bound=1 + 1e-9)
    grid = grid[distance < np.inf]
    if len(grid) > most:
        raise InvalidOption(
            f"the grid has {len(grid)} points, more than {most}: use solver='certified', or a wider spacing"
        )
    return grid


def grid_npmle(
    likelihood: Likelihood,
    *,
    spacing: float = 0.5,
    tol: float = 1e-4,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> Fit:
    """NPMLE over ``ridgeline_grid``; its certificate says what points off the grid could still add."""
    atoms = ridgeline_grid(likelihood, spacing)
    if progress is not None:
        progress("weights over the grid", 1, 2)
    matrix, top = scaled_likelihood(likelihood.log_likelihood(atoms))
    weights = npmle_weights(matrix, tol=0.1 * tol).weights
    keep = weights > 0
    density = np.log(matrix[:, keep] @ weights[keep]) + top
    atoms, weights = atoms[keep], weights[keep]
    certificate = certify(likelihood, atoms, weights, rng, tol=tol)
    step = Step(float(density.mean()), len(atoms), certificate.gap)
    return Fit(atoms, weights, certificate, (step,), float(density.mean()))
