"""Where atoms may start: the clients' own estimates, a covering subset of them, and clean-up of atoms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.seam import Array, Likelihood

#: Weight, relative to the average client, of the pull towards the pooled estimate in ``completed_estimates``.
PULL = 1e-3


def pooled_estimate(estimates: Array, precision: Array) -> Array:
    """(sum P_k)^{-1} sum P_k theta_hat_k, (d,), for precisions (K, d) or (K, d, d)."""
    if precision.ndim == 2:
        total = precision.sum(0)
        weighted = (precision * estimates).sum(0)
        return np.where(total > 0, weighted / np.where(total > 0, total, 1.0), np.median(estimates, axis=0))
    total = precision.sum(0)
    weighted = np.einsum("kij,kj->i", precision, estimates)
    return np.linalg.lstsq(total, weighted, rcond=1e-12)[0]


def completed_estimates(likelihood: Likelihood) -> Array:
    """Each client's estimate, completed where the client knows nothing by the pooled one, (K, d).

        (P_k + e Pbar)^{-1} (P_k theta_hat_k + e Pbar pooled),   e = PULL, Pbar the median diagonal.

    The median, not the mean, so that one client with absurd precision does not pull the others.
    """
    estimates, precision = likelihood.local_estimates(), likelihood.local_precision()
    diagonal = precision if precision.ndim == 2 else np.diagonal(precision, axis1=1, axis2=2)
    typical = np.median(diagonal, axis=0)
    typical = np.where(typical > 0, typical, diagonal.mean(axis=0))
    typical = np.where(typical > 0, typical, 1.0)
    # Pool with precisions capped at the typical one: no client owns the pooled estimate.
    share = np.minimum(1.0, typical / np.maximum(diagonal, 1e-300)).min(axis=1)
    centre = pooled_estimate(estimates, precision * share.reshape(-1, *[1] * (precision.ndim - 1)))
    if precision.ndim == 2:
        pull = PULL * typical
        return (precision * estimates + pull * centre) / (precision + pull)
    pull_matrix = np.diag(PULL * typical)
    right = np.einsum("kij,kj->ki", precision, estimates) + pull_matrix @ centre
    return np.linalg.solve(precision + pull_matrix, right[:, :, None])[:, :, 0]


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


def distinct(
    points: Array, scale: Array, order: NDArray[np.intp], radius: float, always: int = 0
) -> NDArray[np.intp]:
    """Indices, taken in ``order``, of points no closer than ``radius`` to one taken before.

    Distances are measured with the information matrix ``scale`` (m, d, d) of the point taken before.  The
    first ``always`` in the order are taken whatever their distances.
    """
    kept = np.array(order, dtype=np.intp)
    count = always
    for i in order[always:]:
        before = kept[:count]
        difference = points[i] - points[before]
        squared = ((difference[:, None, :] @ scale[before])[:, 0, :] * difference).sum(axis=1)
        if count == 0 or squared.min() >= radius**2:
            kept[count] = i
            count += 1
    return kept[:count]


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
    for i, atom in enumerate(atoms):
        difference = atom - atoms[heads]
        owner[i] = ((difference[:, None, :] @ scale[heads])[:, 0, :] * difference).sum(axis=1).argmin()
    total: Array = np.bincount(owner, weights, len(heads))  # type: ignore[assignment]
    mean = np.stack(
        [np.bincount(owner, weights * atoms[:, i], len(heads)) for i in range(atoms.shape[1])], axis=1
    )
    return mean / total[:, None], total, heads
