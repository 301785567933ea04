"""Constants of the covariance functions, and what they say of where atoms can be."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from vaneb.covariance.base import Array, CovarianceFunction, DiagonalCovariance

#: Numbers that a block of clients may take in memory.
BLOCK = 1 << 21


class CovarianceBounds(NamedTuple):
    """Constants of Sigma_k(theta) over clients and a set of points."""

    lower: float
    """s, the smallest eigenvalue of any Sigma_k(theta)."""
    upper: float
    """S, the largest; infinite where some precision is singular."""
    lipschitz: float
    """L, bounding both the derivative of Sigma_k and its derivative relative to Sigma_k."""

    @property
    def condition(self) -> float:
        """tau = S / s."""
        return self.upper / self.lower


def covariance_bounds(covariance: CovarianceFunction, points: Array) -> CovarianceBounds:
    """s, S and L over all clients and the given points (m, d).

    Over a finite set of points these approach the suprema over a region from inside.  For diagonal
    Sigma = diag(v), L = max_i max(|grad v_i|, |grad log v_i|).  For full matrices, with dSigma the
    d x d x d derivative, the operator norms of dSigma and of Sigma^{-1/2} dSigma Sigma^{-1/2} as maps from
    pairs (v, direction): upper bounds on the Lipschitz constants.
    """
    d, m = covariance.dimension, len(points)
    diagonal = isinstance(covariance, DiagonalCovariance)
    lower, upper, lipschitz = np.inf, 0.0, 0.0
    for rows in blocks(covariance.n_clients, m * d ** (2 if diagonal else 3)):
        block = covariance.take(rows)
        precision, gradient = block.precision(points[None]), block.precision_gradient(points[None])
        values = precision if diagonal else np.linalg.eigvalsh(precision)
        lower = min(lower, 1.0 / values.max())
        smallest = values.min()
        upper = max(upper, 1.0 / smallest if smallest > 0 else np.inf)
        if not np.isfinite(upper):
            continue
        if diagonal:
            relative = gradient / precision[..., None]  # -grad log v
            absolute = relative / precision[..., None]  # -grad v
            norms = [np.linalg.norm(part, axis=-1).max() for part in (absolute, relative)]
        else:
            values, vectors = np.linalg.eigh(precision)
            norms = []
            for power in (-1.0, -0.5):  # Sigma dP Sigma = -dSigma, Sigma^{1/2} dP Sigma^{1/2}
                root = (vectors * values[..., None, :] ** power) @ np.swapaxes(vectors, -1, -2)
                moved = np.einsum("kmab,kmbcr,kmcd->kmadr", root, gradient, root, optimize=True)
                norms.append(np.linalg.norm(moved.reshape(*moved.shape[:3], d * d), 2, axis=(-2, -1)).max())
        lipschitz = max(lipschitz, *map(float, norms))
    return CovarianceBounds(float(lower), float(upper), lipschitz if np.isfinite(upper) else np.inf)


def support_radius(bounds: CovarianceBounds, n: Array, dimension: int) -> float:
    """r_K = sqrt((2 S / min n) log(e tau^{d/2} K)): every atom of the NPMLE is so close to some estimate."""
    logarithm = 1.0 + dimension / 2 * math.log(bounds.condition) + math.log(len(n))
    return math.sqrt(2 * bounds.upper / float(np.min(n)) * logarithm)


def distance_to_estimates(points: Array, estimates: Array) -> Array:
    """min_k |theta - theta_hat_k| for each of the points (m, d): compare with ``support_radius``."""
    from scipy.spatial import cKDTree

    distance: Array = cKDTree(estimates).query(points)[0]
    return distance


def likelihood_floor(bounds: CovarianceBounds, n: Array, dimension: int) -> Array:
    """rho_k = (2 pi S / n_k)^{-d/2} / (e K), below which f_k of an NPMLE never falls: (K,).

    In the units of theta, that is of the density of theta_hat_k.
    """
    return (2 * np.pi * bounds.upper / np.asarray(n)) ** (-dimension / 2) / (math.e * len(n))


def blocks(n_clients: int, numbers_per_client: int) -> list[slice]:
    """Slices of clients that take at most ``BLOCK`` numbers."""
    size = max(1, BLOCK // max(1, numbers_per_client))
    return [slice(start, min(start + size, n_clients)) for start in range(0, n_clients, size)]
