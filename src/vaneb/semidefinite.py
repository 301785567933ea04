"""Precision matrices that may be singular.

What is singular must not depend on the units of theta (a slope per year or per day), so every judgement is
made on U, the matrix scaled to a unit diagonal: P = S U S with S diagonal.

Shapes: precisions (K, d, d), or (K, d) where all are diagonal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Eigenvalues of U below this share of the largest are directions without information.
RANK_TOLERANCE = 1e-12


def unit_diagonal(precision: Array) -> tuple[Array, Array]:
    """U (K, d, d) and S (K, d); where a diagonal entry is zero, so is its row of U, and S is one."""
    diagonal = np.diagonal(precision, axis1=1, axis2=2)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    return precision / scale[:, :, None] / scale[:, None, :], scale


def rank_of(precision: Array) -> NDArray[np.intp]:
    """Directions that each client knows something of, (K,)."""
    if precision.ndim == 2:
        return (precision > 0).sum(axis=1)
    eigenvalues = np.linalg.eigvalsh(unit_diagonal(precision)[0])
    return _informative(np.asarray(eigenvalues, dtype=np.float64)).sum(axis=1)


def log_pseudo_determinant(precision: Array) -> tuple[Array, NDArray[np.intp]]:
    """Log-determinant on the range, and the rank, (K,) each."""
    if precision.ndim == 2:
        return np.log(np.where(precision > 0, precision, 1.0)).sum(axis=1), rank_of(precision)
    unit, scale = unit_diagonal(precision)
    pivots = _pivots(unit)
    if pivots is not None:
        return 2 * np.log(pivots * scale).sum(axis=1), np.full(len(precision), precision.shape[1])
    # With U = V L V', P = (S V) L (S V)', whose determinant on its range is that of L times that of V'SSV.
    eigenvalues, vectors = np.linalg.eigh(unit)
    kept = _informative(eigenvalues)
    basis = scale[:, :, None] * np.where(kept[:, None, :], vectors, 0.0)
    gram = np.swapaxes(basis, 1, 2) @ basis + np.eye(precision.shape[1]) * ~kept[:, :, None]
    logs = np.log(np.where(kept, eigenvalues, 1.0)).sum(axis=1)
    return logs + np.linalg.slogdet(gram)[1], kept.sum(axis=1)


def generalised_inverse(precision: Array) -> Array:
    """C with P C P = P, (K, d, d): the inverse where there is one."""
    unit, scale = unit_diagonal(precision)
    if _pivots(unit) is not None:
        root = np.linalg.inv(unit)
    else:
        eigenvalues, vectors = np.linalg.eigh(unit)
        kept = _informative(eigenvalues)
        inverse = np.where(kept, 1 / np.where(kept, eigenvalues, 1.0), 0.0)
        root = (vectors * inverse[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return np.asarray(root / scale[:, :, None] / scale[:, None, :], dtype=np.float64)


def covariance_of_estimates(precision: Array) -> Array:
    """Covariances (K, d, d) of estimates with these precisions, (K, d) or (K, d, d).

    Where the data leave a coordinate open its variance is infinite and its covariances, undefined, are zero.
    """
    full = precision if precision.ndim == 3 else precision[:, :, None] * np.eye(precision.shape[1])
    eigenvalues, vectors = np.linalg.eigh(unit_diagonal(full)[0])
    # A coordinate is open if its unit vector has a part outside the range of P, that is, of U.
    outside = (vectors**2 * ~_informative(eigenvalues)[:, None, :]).sum(axis=2)
    is_open = outside > 1e-9
    covariance = np.where(is_open[:, :, None] | is_open[:, None, :], 0.0, generalised_inverse(full))
    covariance[:, range(full.shape[1]), range(full.shape[1])] += np.where(is_open, np.inf, 0.0)
    return covariance


def solve_ridged(matrix: Array, right: Array, ridge: float) -> Array:
    """(P + ridge diag(P))^{-1} right for right (K, d); zero in coordinates where P is zero."""
    unit, scale = unit_diagonal(matrix)
    known = np.diagonal(unit, axis1=1, axis2=2) > 0
    unit = unit + np.where(known, ridge, 1.0)[:, :, None] * np.eye(matrix.shape[1])
    solution = np.linalg.solve(unit, np.where(known, right / scale, 0.0)[:, :, None])[:, :, 0]
    return np.asarray(solution / scale, dtype=np.float64)


def _informative(eigenvalues: Array) -> NDArray[np.bool_]:
    return eigenvalues > RANK_TOLERANCE * np.maximum(eigenvalues[:, -1:], 1e-300)


def _pivots(unit: Array) -> Array | None:
    """Diagonals of the Cholesky factors (K, d); ``None`` if any of the matrices is singular."""
    try:
        pivots = np.diagonal(np.linalg.cholesky(unit), axis1=1, axis2=2)
    except np.linalg.LinAlgError:
        return None
    return pivots if np.all(pivots**2 > RANK_TOLERANCE) else None
