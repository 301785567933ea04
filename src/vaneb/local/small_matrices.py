"""Compiled linear algebra for small matrices, one per client.

Written as loops, also what numpy has a word for: for matrices of this size they are as fast, and the
compiler takes seconds for each such word.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

#: A pivot below this share of its diagonal entry means that the matrix is singular to working precision.
PIVOT_TOLERANCE = 1e-14


@njit(cache=True, nogil=True)
def cholesky(matrix):
    """Overwrite the lower triangle of a symmetric matrix with its Cholesky factor; False if it has none."""
    d = matrix.shape[0]
    for i in range(d):
        for j in range(i + 1):
            t = matrix[i, j]
            for h in range(j):
                t -= matrix[i, h] * matrix[j, h]
            if j < i:
                matrix[i, j] = t / matrix[j, j]
            elif t > PIVOT_TOLERANCE * matrix[i, i]:
                matrix[i, i] = math.sqrt(t)
            else:
                return False
    return True


@njit(cache=True, nogil=True)
def cholesky_solve(factor, vector):
    """Overwrite ``vector`` with (L L')^{-1} vector."""
    d = vector.shape[0]
    for i in range(d):
        t = vector[i]
        for h in range(i):
            t -= factor[i, h] * vector[h]
        vector[i] = t / factor[i, i]
    for i in range(d - 1, -1, -1):
        t = vector[i]
        for h in range(i + 1, d):
            t -= factor[h, i] * vector[h]
        vector[i] = t / factor[i, i]


@njit(cache=True, nogil=True)
def solve_each(matrices, vectors):
    """x_k with A_k x_k = b_k for positive definite A_k: (K, d), and whether each A_k was one: (K,)."""
    n = matrices.shape[0]
    out = vectors.copy()
    definite = np.empty(n, dtype=np.bool_)
    for k in range(n):
        factor = matrices[k].copy()
        definite[k] = cholesky(factor)
        if definite[k]:
            cholesky_solve(factor, out[k])
        else:
            out[k] = 0.0
    return out, definite
