"""Where atoms may start: where clients agree, a covering subset of them; and clean-up of atoms."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from vaneb.likelihood.base import Array, Likelihood
from vaneb.npmle.fit import log_mixture
from vaneb.semidefinite import generalised_inverse, solve_ridged
from vaneb.validation import LARGEST


def crossings(
    likelihood: Likelihood, clients: NDArray[np.intp], count: int, rng: np.random.Generator
) -> Array:
    """Where ``count`` of ``clients`` each agree best with another, drawn at random, (count, d).

        (P_j + P_k)^{-1} (P_j theta_hat_j + P_k theta_hat_k)

    Elongated likelihoods cross far from either estimate, in a maximum that no climb from one of them finds.
    """
    if likelihood.n_clients < 2:
        return np.empty((0, likelihood.dimension))
    one = np.resize(clients, count)
    other = (one + rng.integers(1, likelihood.n_clients, count)) % likelihood.n_clients
    estimates, precision = likelihood.local_estimates(), likelihood.local_precision()
    away, total = estimates[other] - estimates[one], precision[one] + precision[other]
    if precision.ndim == 2:
        return estimates[one] + np.where(total > 0, precision[other] / np.maximum(total, 1e-300), 0.0) * away
    towards = np.einsum("kij,kj->ki", precision[other], away)
    return estimates[one] + solve_ridged(total, towards, 1e-12)


def covering_subset(points: Array, size: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Indices of at most ``size`` points that cover all of them: half random, half farthest-point.

    The random half follows the density of clients, the farthest-point half (in units of the coordinates'
    interquartile ranges) reaches the thin regions that a random subset misses.
    """
    n = len(points)
    if n <= size:
        return np.arange(n)
    chosen = rng.choice(n, size // 2, replace=False)
    pool = rng.choice(n, 20_000, replace=False) if n > 20_000 else np.arange(n)
    low, high = np.percentile(points[pool], [25, 75], axis=0)
    scaled = points[pool] / np.where(high > low, high - low, 1.0)
    landmarks = points[chosen] / np.where(high > low, high - low, 1.0)
    distance = np.full(len(pool), np.inf)
    for landmark in landmarks:
        np.minimum(distance, ((scaled - landmark) ** 2).sum(axis=1), out=distance)
    far = []
    for _ in range(size - len(chosen)):
        far.append(int(np.argmax(distance)))
        np.minimum(distance, ((scaled - scaled[far[-1]]) ** 2).sum(axis=1), out=distance)
    return np.unique(np.concatenate([chosen, pool[far]]))


def atom_variances(likelihood: Likelihood, atoms: Array, weights: Array) -> Array:
    """Variances (m, d) of the places of the atoms: the diagonal of (sum_k r_kj I_kj)^{-1}.

    r_kj is the share of client k that atom j explains and I_kj what that client knows of the place.  An atom
    that one client has to itself is as uncertain as that client's own estimate, one that a hundred clients
    share ten times less.  That clients may belong to other atoms is left out, so these are lower bounds.
    """
    density = log_mixture(likelihood, atoms, weights)
    information = likelihood.ascent(atoms, -density, curvature=False).information
    information = information * weights.reshape(-1, *[1] * (information.ndim - 1))
    if information.ndim == 2:
        variances = np.where(information > 0, 1 / np.maximum(information, 1e-300), 0.0)
    else:
        variances = np.diagonal(generalised_inverse(information), axis1=1, axis2=2)
    return np.clip(variances, 0.0, LARGEST**2)


def distinct(
    points: Array, scale: Array, order: NDArray[np.intp], radius: float, always: int = 0
) -> NDArray[np.intp]:
    """Indices, taken in ``order``, of points no closer than ``radius`` to one taken before.

    Distances are measured with the information ``scale``, (m, d, d) or diagonals (m, d), of the point taken
    before.  The first ``always`` in the order are taken whatever their distances.
    """
    kept = np.empty(len(order), dtype=np.intp)
    order = np.ascontiguousarray(order, dtype=np.intp)
    always = min(always, len(order))
    return kept[: _keep_apart(*_measured(points, scale), order, radius**2, always, kept)]


def _measured(points: Array, scale: Array) -> tuple[Array, Array]:
    """Points and scales as the loops over pairs take them."""
    scale = scale[:, None, :] if scale.ndim == 2 else scale
    return np.ascontiguousarray(points, dtype=np.float64), np.ascontiguousarray(scale, dtype=np.float64)


def squared_lengths(vectors: Array, scale: Array) -> Array:
    """v' S v for each v (m, d) and its S, (m, d, d) or a diagonal (m, d)."""
    if scale.ndim == 2:
        return np.asarray((vectors * vectors * scale).sum(axis=1))
    return np.asarray(((vectors[:, None, :] @ scale)[:, 0, :] * vectors).sum(axis=1))


def merged(
    atoms: Array, weights: Array, scale: Array, radius: float
) -> tuple[Array, Array, NDArray[np.intp]]:
    """Atoms closer than ``radius`` (in units of ``scale``) replaced by their weighted mean.

    Returns atoms, weights, and the index of the heaviest of the atoms that went into each.
    """
    heads = distinct(atoms, scale, np.argsort(-weights, kind="stable"), radius)
    if len(heads) == len(atoms):
        return atoms, weights, np.arange(len(atoms))
    owner = np.empty(len(atoms), dtype=np.intp)
    _nearest(*_measured(atoms, scale), heads, owner)
    total: Array = np.bincount(owner, weights, len(heads))  # type: ignore[assignment]
    # As a distance from the head, so that an atom alone, or one far from zero, keeps all its digits.
    away = weights[:, None] * (atoms - atoms[heads[owner]])
    moved = np.stack([np.bincount(owner, column, len(heads)) for column in away.T], axis=1)
    return atoms[heads] + moved / total[:, None], total, heads


@njit(cache=True, nogil=True)
def _squared_distance(points, i, j, scale):
    """v' S_j v, v = x_i - x_j, with scales S (m, d, d), or (m, 1, d) for diagonals."""
    d, total = points.shape[1], 0.0
    for b in range(d):
        away = points[i, b] - points[j, b]
        if scale.shape[1] == 1:
            total += away * away * scale[j, 0, b]
        else:
            row = 0.0
            for a in range(d):
                row += (points[i, a] - points[j, a]) * scale[j, a, b]
            total += row * away
    return total


@njit(cache=True, nogil=True)
def _keep_apart(points, scale, order, least, always, kept):
    """Fill ``kept`` with points, taken in ``order``, no closer than ``least``, squared, to one kept before.

    The first ``always`` are kept in any case.  Returns how many there are.
    """
    count = always
    kept[:always] = order[:always]
    for i in order[always:]:
        apart = True
        for place in range(count):
            if not _squared_distance(points, i, kept[place], scale) >= least:
                apart = False
                break
        if apart:
            kept[count] = i
            count += 1
    return count


@njit(cache=True, nogil=True)
def _nearest(points, scale, heads, owner):
    """Fill ``owner`` (m,) with the place in ``heads`` of the one that each point is nearest to."""
    for i in range(len(points)):
        best = np.inf
        owner[i] = 0
        for place in range(len(heads)):
            length = _squared_distance(points, i, heads[place], scale)
            if length < best:
                best, owner[i] = length, place
