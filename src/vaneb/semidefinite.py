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


def diagonals(precision: Array) -> Array:
    """(K, d) of precisions (K, d) or (K, d, d)."""
    return precision if precision.ndim == 2 else np.diagonal(precision, axis1=1, axis2=2)


def rank_of(precision: Array) -> NDArray[np.intp]:
    """Directions that each client knows something of, (K,)."""
    if precision.ndim == 2:
        return (precision > 0).sum(axis=1)
    eigenvalues = np.linalg.eigvalsh(unit_diagonal(precision)[0])
    return _informative(np.asarray(eigenvalues, dtype=np.float64)).sum(axis=1)


def has_full_rank(precision: Array) -> bool:
    """Does every client know something of every direction?"""
    if precision.ndim == 2:
        return bool((precision > 0).all())
    return _cholesky(unit_diagonal(precision)[0]) is not None


def unknown_part(precision: Array, vectors: Array) -> Array:
    """The part of each client's vector (K, d) that lies in directions of which the client knows nothing.

    S^{-1} V V' S times the vector, V the eigenvectors of U with eigenvalue zero.
    """
    if precision.ndim == 2:
        return np.where(precision > 0, 0.0, vectors)
    unit, scale = unit_diagonal(precision)
    eigenvalues, basis = np.linalg.eigh(unit)
    null = np.where(_informative(eigenvalues)[:, None, :], 0.0, basis)
    return np.einsum("kij,kj->ki", null, np.einsum("kij,ki->kj", null, scale * vectors)) / scale


def log_pseudo_determinant(precision: Array) -> tuple[Array, NDArray[np.intp]]:
    """Log-determinant on the range, and the rank, (K,) each."""
    if precision.ndim == 2:
        return np.log(np.where(precision > 0, precision, 1.0)).sum(axis=1), rank_of(precision)
    unit, scale = unit_diagonal(precision)
    root = _cholesky(unit)
    if root is not None:
        pivots = np.diagonal(root, axis1=1, axis2=2)
        return 2 * np.log(pivots * scale).sum(axis=1), np.full(len(precision), precision.shape[1])
    # With U = V L V', P = (S V) L (S V)', whose determinant on its range is that of L times that of V'SSV.
    eigenvalues, vectors = np.linalg.eigh(unit)
    kept = _informative(eigenvalues)
    logs = np.log(np.where(kept, eigenvalues, 1.0)).sum(axis=1)
    # Rows by size and informative columns first: then QR keeps its digits when units differ widely.
    order = np.argsort(-scale, axis=1)[:, :, None]
    basis = np.take_along_axis(scale[:, :, None] * vectors[:, :, ::-1], order, axis=1)
    triangle = np.abs(np.diagonal(np.linalg.qr(basis, mode="r"), axis1=1, axis2=2))
    logs += 2 * np.log(np.where(kept[:, ::-1], triangle, 1.0)).sum(axis=1)
    return logs, kept.sum(axis=1)


def generalised_inverse(precision: Array) -> Array:
    """C with P C P = P, (K, d, d): the inverse where there is one."""
    unit, scale = unit_diagonal(precision)
    if _cholesky(unit) is not None:
        inverse = np.linalg.inv(unit)
    else:
        eigenvalues, vectors = np.linalg.eigh(unit)
        kept = _informative(eigenvalues)
        reciprocal = np.where(kept, 1 / np.where(kept, eigenvalues, 1.0), 0.0)
        inverse = (vectors * reciprocal[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    return np.asarray(inverse / scale[:, :, None] / scale[:, None, :], dtype=np.float64)


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


def standard_errors(precision: Array) -> Array:
    """Standard errors (K, d) of estimates with these precisions; infinite where the data leave one open."""
    if precision.ndim == 2:
        return np.where(precision > 0, 1 / np.sqrt(np.where(precision > 0, precision, 1.0)), np.inf)
    return np.sqrt(np.diagonal(covariance_of_estimates(precision), axis1=1, axis2=2))


def solve_ridged(matrix: Array, right: Array, ridge: float) -> Array:
    """(P + ridge diag(P))^{-1} right for right (K, d); zero in coordinates where P is zero.

    P (K, d, d), or (K, d) where all are diagonal, which need no ridge.
    """
    if matrix.ndim == 2:
        return np.where(matrix > 0, right / np.where(matrix > 0, matrix, 1.0), 0.0)
    unit, scale = unit_diagonal(matrix)
    known = np.diagonal(unit, axis1=1, axis2=2) > 0
    unit = unit + np.where(known, ridge, 1.0)[:, :, None] * np.eye(matrix.shape[1])
    solution = np.linalg.solve(unit, np.where(known, right / scale, 0.0)[:, :, None])[:, :, 0]
    return np.asarray(solution / scale, dtype=np.float64)


def _informative(eigenvalues: Array) -> NDArray[np.bool_]:
    return eigenvalues > RANK_TOLERANCE * np.maximum(eigenvalues[:, -1:], 1e-300)


def _cholesky(unit: Array) -> Array | None:
    """Cholesky factors (K, d, d); ``None`` if any of the matrices is singular."""
    try:
        root = np.asarray(np.linalg.cholesky(unit), dtype=np.float64)
    except np.linalg.LinAlgError:
        return None
    return root if np.all(np.diagonal(root, axis1=1, axis2=2) ** 2 > RANK_TOLERANCE) else None
