"""A population of Gaussian components, each with a spread of its own, then made fine atoms.

    G = sum_j w_j N(c_j, Gamma_j)

Where clients know themselves well compared with how the population varies, the discrete NPMLE puts an atom on
every few of them, and one spread Gamma shared by all atoms cannot follow a population that is thin in one
direction here and in another there (curves in space).  Components with their own spread can.

They are fitted by EM (``ellipsoid_kernel``), every client taken for Gaussian: reports as they are, other
likelihoods by a Gaussian around the client's posterior mode under the best single Gaussian population.
Where EM ends depends on where it starts: the population is the average of a few fits from starting points of
their own, each stopped early, which is nearer to the truth than one fit carried on.  What follows uses the
likelihood itself: the mixture is replaced by many atoms of equal weight within each component, with a few
from the single Gaussian beside them, and ``steps`` of EM on the weights of all these atoms correct what the
approximation got wrong.  Many steps lead on to the discrete NPMLE over these atoms, so ``steps`` is again a
matter for held-out clients.

Letters: K clients, m components, d parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.contaminated import ContaminatedGaussian
from vaneb.likelihood.gaussian_shared import SharedGaussian
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.fit import Certificate, Fit, Step
from vaneb.npmle.gaussian_prior import ALONE, gaussian_prior
from vaneb.npmle.support import completed_estimates
from vaneb.npmle.weights import likelihood_matrix
from vaneb.prior import Prior

Rows = NDArray[np.intp]

#: Components of a fit are as many as this times the square root of the number of clients; fits averaged.
PER_ROOT, FITS = 1.0, 4
#: Atoms that stand for the mixture, if a pair of client and atom takes nanoseconds and if it takes longer.
ATOMS, ATOMS_IF_SLOW = 3_000, 1_200
#: Share of the weight, and of the atoms, that comes from the single Gaussian.
BROAD = 0.05
#: Steps on the weights that are tried.
STEPS = (0, 2, 8, 32, 128)
#: EM iterations at most, how often all pairs are looked at, and the gain per client that ends them.
ITERATIONS, LOOK_EVERY, GAIN = 60, 8, 1e-3
#: Of the single Gaussian's covariance: the spread that components start with; and the spread that FLOOR_COUNT
#: clients of every component are taken to have said, so that none shrinks to a point.
FIRST_SPREAD, FLOOR, FLOOR_COUNT = 0.02, 0.001, 0.5
#: Of the variance of a typical client: added to the single Gaussian's, which may be singular.
LEAST = 1e-3
#: Components with fewer clients than this are dropped.
FEWEST = 0.05
#: Clients that are learnt from, where there are more.
LEARN_FROM = 10_000
#: Clients that the single Gaussian is fitted to.
SCALE_FROM = 500


class Summaries(NamedTuple):
    """Clients as the E-step takes them."""

    estimates: Array
    """(K, d)"""
    precision_at: Callable[[Array], Array]
    """Centres (m, d) -> precisions (K, m or 1, d, d), or (K, m or 1, d) where diagonal."""
    starts: Array
    """(K, d), where components may start."""


class Ellipsoids(NamedTuple):
    """Centres (m, d), weights (m,) and covariances (m, d, d)."""

    centres: Array
    weights: Array
    covariances: Array


def summaries(likelihood: Likelihood, single: Prior) -> Summaries:
    """Gaussian stand-ins of the clients; ``single`` is the best single Gaussian population."""
    if isinstance(likelihood, SharedGaussian):
        own = likelihood

        def precision_at(centres: Array) -> Array:
            return own.n[:, None, None] * own.covariance.shared_precision(centres)

        return Summaries(own.estimates, precision_at, own.estimates)
    if likelihood.cheap:
        constant = likelihood.local_precision()[:, None]
        estimates = completed_estimates(likelihood)
        return Summaries(estimates, lambda centres: constant, estimates)
    assert single.spread is not None
    smoothed = likelihood.smoothed(single.spread)
    if isinstance(smoothed, ContaminatedGaussian):
        # No Gaussian stands for a client of two minds; it is taken at its likelier word.
        within = smoothed.likelier(single.atoms)
    else:
        within = smoothed.components(single.atoms)
    modes = within.mean[:, 0]
    prior_precision = np.linalg.inv(single.spread)
    values, vectors = np.linalg.eigh(np.linalg.inv(within.covariance[:, 0]) - prior_precision)
    values = np.maximum(values, 1e-8 * values.max())
    precision = np.einsum("kil,kl,kjl->kij", vectors, values, vectors)
    # At the mode the client's own score is that of the population, with the other sign.
    score = (modes - single.atoms) @ prior_precision
    own_estimates = modes + np.einsum("kil,kl,kjl,kj->ki", vectors, 1 / values, vectors, score, optimize=True)
    return Summaries(own_estimates, lambda centres: precision[:, None], modes)


def averaged_ellipsoids(clients: Summaries, spread: Array, rng: np.random.Generator) -> Ellipsoids:
    """The average of FITS fits: where one of them bends around some clients by chance, the others do not."""
    size = n_components(len(clients.estimates))
    return average([fit_ellipsoids(clients, spread, size, rng) for _ in range(FITS)])


def average(fits: Sequence[Ellipsoids]) -> Ellipsoids:
    """All components, each with its share of the weight."""
    centres, weights, covariances = (np.concatenate(parts) for parts in zip(*fits, strict=True))
    return Ellipsoids(centres, weights / len(fits), covariances)


def fit_ellipsoids(clients: Summaries, spread: Array, size: int, rng: np.random.Generator) -> Ellipsoids:
    """EM from ``size`` of the clients' starting points; ``spread`` is the single Gaussian's."""
    from vaneb.npmle.ellipsoid_kernel import expect

    n_clients, d = clients.estimates.shape
    # A single Gaussian may be thin, or a point; no component may start as one.
    knowledge = np.median(clients.precision_at(clients.starts[:1]).reshape(n_clients, -1).max(axis=1))
    spread = spread + LEAST / max(float(knowledge), 1e-300) * np.eye(d)
    centres = clients.starts[rng.choice(n_clients, min(size, n_clients), replace=False)]
    weights = np.full(len(centres), 1 / len(centres))
    covariances = np.repeat(FIRST_SPREAD * spread[None], len(centres), axis=0)
    log_density, before, near = np.empty(n_clients), -np.inf, np.empty((0, 0), dtype=np.bool_)
    estimates = np.ascontiguousarray(clients.estimates)
    for iteration in range(ITERATIONS):
        m = len(centres)
        precision = clients.precision_at(centres)
        half_logs = np.zeros(precision.shape[:2])
        if precision.ndim == 3:
            if precision.shape[1] > 1:
                half_logs = 0.5 * np.log(np.maximum(precision, 1e-300)).sum(axis=2)
            precision = precision[..., None]
        look = iteration % LOOK_EVERY == 0 or near.shape[1] != m
        near = np.empty((n_clients, m), dtype=np.bool_) if look else near
        sums = np.empty((m, 1 + d + d * d))
        expect(
            (0,) * d,
            estimates,
            np.ascontiguousarray(precision),
            half_logs,
            centres,
            np.log(weights),
            np.linalg.inv(covariances),
            0.5 * np.linalg.slogdet(covariances)[1],
            near,
            look,
            sums,
            log_density,
        )
        count = sums[:, 0]
        kept = count > FEWEST
        sums, count = sums[kept], count[kept]
        moves = sums[:, 1 : 1 + d] / count[:, None]
        squares = sums[:, 1 + d :].reshape(-1, d, d) / count[:, None, None]
        inside = count[:, None, None] * (squares - moves[:, :, None] * moves[:, None, :])
        covariances = (inside + FLOOR_COUNT * FLOOR * spread) / (count + FLOOR_COUNT)[:, None, None]
        centres, weights = centres[kept] + moves, count / count.sum()
        near = near[:, kept]
        value = float(log_density.mean())
        # The sums of pairs that are not looked at are missing: only steps of one kind compare.
        if value - before < GAIN and not look:
            break
        before = value
    return Ellipsoids(centres, weights, covariances)


def fine_atoms(mixture: Ellipsoids, single: Prior, size: int) -> tuple[Array, Array]:
    """About ``size`` atoms and their weights that stand for the mixture and, with BROAD of it, ``single``."""
    assert single.spread is not None
    centres = np.concatenate([mixture.centres, single.atoms[:1]])
    weights = np.concatenate([(1 - BROAD) * mixture.weights, [BROAD]])
    covariances = np.concatenate([mixture.covariances, single.spread[None]])
    values, vectors = np.linalg.eigh(covariances)
    # The longest axis first: the first coordinate of the points is the most evenly spread.
    roots = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])[:, :, ::-1]
    counts = np.maximum(1, np.round(size * weights)).astype(int)
    atoms = [
        centre + even_normals(count, centres.shape[1]) @ root.T
        for centre, root, count in zip(centres, roots, counts, strict=True)
    ]
    return np.concatenate(atoms), np.repeat(weights / counts, counts)


def even_normals(count: int, d: int) -> Array:
    """``count`` points that stand for N(0, I), (count, d): quantiles of the sequence i alpha modulo 1.

    alpha_l = phi^{-l}, phi the root of x^{d+1} = x + 1; the first coordinate has exact quantiles.
    """
    from scipy.special import ndtri

    if count == 1:
        return np.zeros((1, d))
    phi = 2.0
    for _ in range(60):
        phi = (1 + phi) ** (1 / (d + 1))
    uniform = (0.5 + np.outer(np.arange(1, count + 1), phi ** -np.arange(1.0, d + 1))) % 1.0
    uniform[:, 0] = (np.argsort(np.argsort(uniform[:, 0])) + 0.5) / count
    return np.asarray(ndtri(uniform), dtype=np.float64)


def weight_steps(matrix: Array, weights: Array, steps: int) -> Array:
    """``steps`` EM steps w_j <- w_j mean_k L_kj / f_k."""
    for _ in range(steps):
        weights = weights * ((1 / (matrix @ weights)) @ matrix) / len(matrix)
    return weights


def n_components(n_clients: int) -> int:
    return max(2, round(PER_ROOT * n_clients**0.5))


def held_out(
    likelihood: Likelihood, single: Prior, inside: Rows, outside: Rows, rng: np.random.Generator
) -> Array:
    """Log-densities (steps, clients) of those ``outside`` after each of STEPS, fitted to ``inside``."""
    assert single.spread is not None
    clients = likelihood.take(inside)
    mixture = averaged_ellipsoids(summaries(clients, single), single.spread, rng)
    atoms, weights = fine_atoms(mixture, single, ATOMS if likelihood.cheap else ATOMS_IF_SLOW)
    matrix, _ = likelihood_matrix(clients, atoms)
    other, top = likelihood_matrix(likelihood.take(outside), atoms)
    scores, done = [], 0
    for steps in STEPS:
        weights, done = weight_steps(matrix, weights, steps - done), steps
        scores.append(np.log(np.maximum(other @ weights, 1e-300)) + top)
    return np.array(scores)


def ellipsoids(
    likelihood: Likelihood, steps: int, *, diagonal: bool, tol: float, rng: np.random.Generator
) -> Fit:
    """The mixture as atoms and weights.

    The certificate looks at the atoms only, and is not what the fit aims for: it says how much likelihood
    was given up for a smooth population.
    """
    part = likelihood
    if likelihood.n_clients > LEARN_FROM:
        part = likelihood.take(np.sort(rng.choice(likelihood.n_clients, LEARN_FROM, replace=False)))
    n = part.n_clients
    some = np.unique(np.linspace(0, n - 1, min(n, SCALE_FROM)).astype(np.intp))
    single = gaussian_prior(part.take(some), diagonal=diagonal, tol=1e-4)
    assert single.spread is not None
    mixture = averaged_ellipsoids(summaries(part, single), single.spread, rng)
    atoms, weights = fine_atoms(mixture, single, ATOMS if likelihood.cheap else ATOMS_IF_SLOW)
    matrix, top = likelihood_matrix(part, atoms)
    weights = weight_steps(matrix, weights, steps)
    density = matrix @ weights
    value = float((np.log(np.maximum(density, 1e-300)) + top).mean())
    alone = np.log(np.maximum(density, 1e-300)) + top < part.peak() + ALONE
    gap = (1 / np.maximum(density[~alone], 1e-300)) @ matrix[~alone] / part.n_clients - 1
    best = int(np.argmax(gap))
    certificate = Certificate(float(gap[best]), atoms[best], "atoms", tol, len(atoms))
    if alone.any():
        share = float(alone.mean())
        atoms = np.concatenate([atoms, completed_estimates(part)[alone]])
        weights = np.concatenate([weights * (1 - share), np.full(int(alone.sum()), 1 / part.n_clients)])
    kept = weights > 1e-12
    atoms, weights = atoms[kept], weights[kept] / weights[kept].sum()
    return Fit(atoms, weights, certificate, (Step(value, len(atoms), certificate.gap),), value)
