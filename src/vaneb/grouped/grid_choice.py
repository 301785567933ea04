"""Mixture or single Gaussian, for clients whose likelihood takes a sum over rows: decided over fixed points.

Each client's likelihood is computed once at points theta_i that cover the population.  Every population that
is compared is then a set of weights over these points, and f_k = sum_i w_i p_k(theta_i) is a product of
matrices: mixtures with components N(a, c Gamma) are smoothed columns, the clients' halves of rows have
matrices of their own.  The single Gaussian is integrated by quadrature.

Three hurdles, each with the populations fitted without the clients that they are scored on.  The mixture must
give held-out clients the larger likelihood, must predict one half of a client's rows from the other with the
larger likelihood, and with the smaller loss (``choice``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from vaneb.grouped.choice import FEWEST, FOLDS, FOLDS_OF_MANY, HALVINGS, MANY, RowsVerdict, halves_of_rows
from vaneb.grouped.generalised_mixed_model import GaussianPopulation
from vaneb.grouped.marginal import Marginal, Points, root_of
from vaneb.grouped.predictive import average_over_points
from vaneb.grouped.scores import row_losses
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family
from vaneb.local.objective import Array
from vaneb.npmle.ellipsoids import even_normals, weight_steps
from vaneb.npmle.fit import Certificate, Progress
from vaneb.npmle.smooth import AGAINST_THE_GAUSSIAN, MOST, SmoothChoice
from vaneb.npmle.weights import scaled_likelihood

Index = NDArray[np.intp]

#: Points, by the number of parameters; and clients that are compared on, where there are more.
POINTS, POINTS_OF_ONE, LOOKED_AT = 400, 80, 2_000
#: The points are drawn from a Gaussian wider than the population: its variance times the first, and the
#: square of the second in units of the linear index, for covariates of unit variance.
WIDER, AT_LEAST = 1.5, 0.2
#: Shares c of the points' covariance that components have.
SHARES = (0.2, 0.05, 0.0)
#: EM steps on their weights: more would change the comparison no further.
STEPS = 100


@dataclass(frozen=True, eq=False)
class Grid:
    """Points that cover a population."""

    points: Array
    """theta_i, (m, d)."""
    standard: Array
    """The same in coordinates in which they are standard Gaussian, (m, d)."""
    spread: Array
    """Their covariance, (d, d)."""

    def smoothing(self, share: float) -> Array:
        """Weights (m, m) over the points that stand for N(theta_j, share * spread), column j."""
        if share == 0:
            return np.eye(len(self.points))
        log_density = -0.5 * cdist(self.standard, self.standard, "sqeuclidean") / share
        # The points are denser where the Gaussian that they were drawn from is.
        log_density += 0.5 * np.sum(self.standard**2, axis=1)[:, None]
        weights = np.exp(log_density - log_density.max(axis=0))
        return np.asarray(weights / weights.sum(axis=0))


def grid_over(population: GaussianPopulation) -> Grid:
    """Points that cover ``population``."""
    d = len(population.mean)
    standard = even_normals(POINTS_OF_ONE if d == 1 else POINTS, d)
    inner = WIDER * population.inner + AT_LEAST**2 * np.eye(d)
    root = population.basis @ root_of(inner)
    return Grid(population.mean + standard @ root.T, standard, root @ root.T)


def certificate(marginal: Marginal, population: GaussianPopulation, grid: Grid, tol: float) -> Certificate:
    """The largest D of the single Gaussian at the grid's points."""
    density = marginal.value(population.mean, population.root).log_density
    gaps = np.exp(
        logsumexp(marginal.log_likelihood(grid.points) - density[:, None], axis=0) - np.log(len(density))
    )
    best = int(np.argmax(gaps))
    return Certificate(float(gaps[best]) - 1, grid.points[best], "points", tol, len(grid.points))


def choose_on_grid(
    marginal: Marginal,
    population: GaussianPopulation,
    grid: Grid,
    *,
    rng: np.random.Generator,
    progress: Progress | None = None,
) -> SmoothChoice:
    """The spread of a mixture's components, or the single Gaussian."""
    single = SmoothChoice(population.spread, True, (1.0,), (float("nan"),), 0)
    if np.sum(marginal.rows.n_rows >= 2) < FEWEST:
        return single
    if marginal.rows.n_clients > LOOKED_AT:
        marginal = marginal.take(np.sort(rng.choice(marginal.rows.n_clients, LOOKED_AT, replace=False)))
    n = marginal.rows.n_clients
    fold = rng.permutation(n) % (FOLDS if n <= MANY else FOLDS_OF_MANY)
    matrix, top = scaled_likelihood(marginal.log_likelihood(grid.points))
    scores = np.empty((1 + len(SHARES), n))
    gaussians = list[tuple[Array, Array]]()
    mixtures = [list[Array]() for _ in SHARES]
    smoothed = [(smoothing, matrix @ smoothing) for smoothing in map(grid.smoothing, SHARES)]
    equal = np.full(len(grid.points), 1 / len(grid.points))
    for i in range(int(fold.max()) + 1):
        if progress is not None:
            progress("comparing populations", i + 1, int(fold.max()) + 1)
        inside, outside = np.flatnonzero(fold != i), np.flatnonzero(fold == i)
        gaussians.append(population.refitted(marginal.take(inside)))
        scores[0, outside] = marginal.take(outside).value(*gaussians[-1]).log_density
        for j, (smoothing, columns) in enumerate(smoothed):
            weights = smoothing @ weight_steps(columns[inside], equal, STEPS)
            mixtures[j].append(weights)
            scores[1 + j, outside] = np.log(matrix[outside] @ weights) + top[outside]
    # No client decides alone, and one that is as good as impossible has no say.
    usable = np.isfinite(scores).all(axis=0)
    whole, scores = scores, scores[:, usable]
    scores = scores[0] + np.clip(scores - scores[0], -MOST, MOST)
    averages = scores.mean(axis=1)
    best = int(np.argmax(averages[1:]))
    lead = scores[1 + best] - scores[0]
    shares, held_out = (1.0, *SHARES), tuple(float(a) for a in averages)
    won = lead.mean() > AGAINST_THE_GAUSSIAN * lead.std() / np.sqrt(len(lead))
    if won:
        both = whole[[0, 1 + best]]
        won = usable.all() and _on_rows(marginal, fold, gaussians, grid, mixtures[best], both, rng).mixture
    if not won:
        return SmoothChoice(population.spread, True, shares, held_out, 0)
    chosen = grid.spread * SHARES[best] if SHARES[best] > 0 else None
    return SmoothChoice(chosen, False, shares, held_out, 1 + best)


def _on_rows(
    marginal: Marginal,
    fold: Index,
    gaussians: list[tuple[Array, Array]],
    grid: Grid,
    mixtures: list[Array],
    whole: Array,
    rng: np.random.Generator,
) -> RowsVerdict:
    """Compare populations, one of each kind for every fold, on halves of rows.

    ``whole`` (2, K) are the log densities of all rows under the Gaussian and the mixture.
    """
    several = np.flatnonzero(marginal.rows.n_rows >= 2)
    part, fold = marginal.rows.take(several), fold[several]
    density, loss = np.zeros((2, len(several))), np.zeros((2, len(several)))
    for _ in range(HALVINGS):
        halves = halves_of_rows(part, rng)
        for one, other in (halves, halves[::-1]):
            for i, (gaussian, weights) in enumerate(zip(gaussians, mixtures, strict=True)):
                outside = np.flatnonzero(fold == i)
                given = Marginal(one.take(outside), marginal.family)
                rest = other.take(outside)
                density[0, outside] += given.value(*gaussian).log_density
                loss[0, outside] += _losses(marginal.family, given.points(*gaussian), rest)
                terms = given.log_likelihood(grid.points) + np.log(np.maximum(weights, 1e-300))
                total = logsumexp(terms, axis=1)
                density[1, outside] += total
                after = Points(grid.points[None], np.exp(terms - total[:, None]))
                loss[1, outside] += _losses(marginal.family, after, rest)
    gain = np.diff(whole[:, several] - density / (2 * HALVINGS), axis=0)[0]
    saved = -np.diff(loss, axis=0)[0] / (2 * HALVINGS)
    errors = [float(v.std() / np.sqrt(len(v))) for v in (gain, saved)]
    return RowsVerdict(float(gain.mean()), errors[0], float(saved.mean()), errors[1])


def _losses(family: Family, after: Points, rows: GroupedRows) -> Array:
    """Average loss of each client's rows when they are predicted from its posterior, (K,)."""
    mean = average_over_points(family, after, rows.client_of_row, rows.design, rows.offset)
    losses = row_losses(family.name, rows.response, mean)
    return np.asarray(np.add.reduceat(losses, rows.starts[:-1]) / rows.n_rows)
