"""Compiled loops over (client, atom) pairs for Gaussian reports whose precision does not depend on the atom.

Every pair costs a quadratic form and, where the pair matters, an exponential and a few products.  The
loops run over clients outside and atoms inside, so that the compiler turns the inner loop into vector
instructions and no K x m x d temporary ever exists.  Differences x_k - a_j are formed before they are
squared: expanding the square would be one matrix product, but loses all digits for a client whose
estimate is many standard errors away from the origin.

The kernels release the interpreter lock and are called on blocks of clients (``vaneb.blocks``).

Shapes: x (K, d), precision (K, d) or (K, d, d), constant (K,), atoms_t (d, m), i.e. transposed.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from vaneb.vector_math import exponentials

#: Pairs whose share r_kj is below exp(SKIP) / K add nothing to a double-precision sum of order one.
SKIP = -28.0
#: Clients handled together: a strip of everything about them stays in the first-level cache.
STRIP = 128
#: Sums may be taken in any order (several at a time); nothing else about arithmetic is loosened.
REORDER = {"reassoc", "contract"}
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@njit(cache=True, inline="always")
def _diagonal_row(x, precision, constant, atoms_t, row):
    """row_j = constant - 1/2 sum_i P_i (x_i - a_ji)^2."""
    d, m = atoms_t.shape
    for j in range(m):
        row[j] = constant
    for i in range(d):
        half = 0.5 * precision[i]
        xi = x[i]
        for j in range(m):
            t = xi - atoms_t[i, j]
            row[j] -= half * t * t


@njit(cache=True, inline="always")
def _full_row(x, precision, constant, atoms_t, row):
    """row_j = constant - 1/2 (x - a_j)' P (x - a_j)."""
    d, m = atoms_t.shape
    for j in range(m):
        row[j] = constant
    for i in range(d):
        half = 0.5 * precision[i, i]
        xi = x[i]
        for j in range(m):
            t = xi - atoms_t[i, j]
            row[j] -= half * t * t
        for h in range(i):
            p = precision[i, h]
            xh = x[h]
            for j in range(m):
                row[j] -= p * (xi - atoms_t[i, j]) * (xh - atoms_t[h, j])


@njit(cache=True, nogil=True)
def log_likelihood_diagonal(x, precision, constant, atoms_t, out):
    for k in range(x.shape[0]):
        _diagonal_row(x[k], precision[k], constant[k], atoms_t, out[k])


@njit(cache=True, nogil=True)
def log_likelihood_full(x, precision, constant, atoms_t, out):
    for k in range(x.shape[0]):
        _full_row(x[k], precision[k], constant[k], atoms_t, out[k])


@njit(cache=True, nogil=True, fastmath=REORDER)
def ascent_diagonal(x_t, precision_t, constant, floor, atoms, curvature):
    """Sums over clients for a diagonal precision: value, gradient, outer, information (diagonal).

    With s_k = P_k (x_k - a) and r_kj = exp(constant_k - 1/2 sum_i P_ki (x_ki - a_ji)^2):
    gradient = sum r s, information = sum r P, outer = sum r s s' (lower triangle, only if ``curvature``).
    Clients are taken STRIP at a time; a strip in which every log r < floor is skipped.
    """
    d, n_clients = x_t.shape
    m = atoms.shape[0]
    value = np.zeros(m)
    gradient = np.zeros((m, d))
    information = np.zeros((m, d))
    outer = np.zeros((m if curvature else 0, d, d))
    share = np.empty(STRIP)
    # With very many parameters and few clients, a whole strip would be larger than all reports together.
    score = np.empty((d, min(STRIP, n_clients)))
    for start in range(0, n_clients, STRIP):
        count = min(STRIP, n_clients - start)
        for j in range(m):
            for k in range(count):
                share[k] = constant[start + k]
            for i in range(d):
                a = atoms[j, i]
                for k in range(count):
                    t = x_t[i, start + k] - a
                    s = precision_t[i, start + k] * t
                    score[i, k] = s
                    share[k] -= 0.5 * s * t
            top = share[0]
            for k in range(count):
                top = max(top, share[k])
            if top < floor:
                continue
            exponentials(share, count, share)
            total = 0.0
            for k in range(count):
                total += share[k]
            value[j] += total
            for i in range(d):
                slope = 0.0
                weight = 0.0
                for k in range(count):
                    slope += share[k] * score[i, k]
                    weight += share[k] * precision_t[i, start + k]
                gradient[j, i] += slope
                information[j, i] += weight
            if curvature:
                for i in range(d):
                    for h in range(i + 1):
                        product = 0.0
                        for k in range(count):
                            product += share[k] * score[i, k] * score[h, k]
                        outer[j, i, h] += product
    return value, gradient, outer, information


@njit(cache=True, nogil=True, fastmath=REORDER)
def ascent_full(x_t, precision_t, constant, floor, atoms, curvature):
    """As ``ascent_diagonal`` for full precisions (d, d, K); information is (m, d, d), lower triangle only."""
    d, n_clients = x_t.shape
    m = atoms.shape[0]
    value = np.zeros(m)
    gradient = np.zeros((m, d))
    information = np.zeros((m, d, d))
    outer = np.zeros((m if curvature else 0, d, d))
    share = np.empty(STRIP)
    score = np.empty((d, STRIP))
    for start in range(0, n_clients, STRIP):
        count = min(STRIP, n_clients - start)
        for j in range(m):
            for k in range(count):
                share[k] = constant[start + k]
            for i in range(d):
                for k in range(count):
                    score[i, k] = 0.0
                for h in range(d):
                    a = atoms[j, h]
                    for k in range(count):
                        score[i, k] += precision_t[i, h, start + k] * (x_t[h, start + k] - a)
                a = atoms[j, i]
                for k in range(count):
                    share[k] -= 0.5 * score[i, k] * (x_t[i, start + k] - a)
            top = share[0]
            for k in range(count):
                top = max(top, share[k])
            if top < floor:
                continue
            exponentials(share, count, share)
            total = 0.0
            for k in range(count):
                total += share[k]
            value[j] += total
            for i in range(d):
                slope = 0.0
                for k in range(count):
                    slope += share[k] * score[i, k]
                gradient[j, i] += slope
                for h in range(i + 1):
                    weight = 0.0
                    for k in range(count):
                        weight += share[k] * precision_t[i, h, start + k]
                    information[j, i, h] += weight
            if curvature:
                for i in range(d):
                    for h in range(i + 1):
                        product = 0.0
                        for k in range(count):
                            product += share[k] * score[i, k] * score[h, k]
                        outer[j, i, h] += product
    return value, gradient, outer, information


@njit(cache=True, nogil=True)
def log_density_pairs(difference, precision, rank_tolerance, out):
    """log N(difference; 0, precision^{-1}) for a batch, on the range of each precision.

    difference (N, d), precision (N, d, d), out (N,).

    precision = L L' by Cholesky's method.  A pivot below ``rank_tolerance`` times its diagonal entry is a
    direction without information, and its column is left out.  With z = L' difference:

        1/2 log det(L'L) - 1/2 z'z - rank/2 log 2 pi.
    """
    n, d = difference.shape
    factor = np.zeros((d, d))
    for q in range(n):
        rank, log_root = _semidefinite_factor(precision[q], rank_tolerance, factor)
        if 0 < rank < d:
            log_root = _log_volume(factor[:, :rank])
        square = 0.0
        for c in range(rank):
            z = 0.0
            for i in range(d):
                z += factor[i, c] * difference[q, i]
            square += z * z
        out[q] = log_root - 0.5 * square - rank * HALF_LOG_2PI


@njit(cache=True, nogil=True)
def _semidefinite_factor(matrix, rank_tolerance, factor):
    """L with matrix = L L' in the first columns of ``factor``; their number, and the sum of log pivots."""
    d = matrix.shape[0]
    factor[:] = 0.0
    rank = 0
    log_root = 0.0
    for i in range(d):
        pivot = matrix[i, i]
        for c in range(rank):
            pivot -= factor[i, c] * factor[i, c]
        if pivot <= rank_tolerance * matrix[i, i]:
            continue
        root = math.sqrt(pivot)
        factor[i, rank] = root
        for h in range(i + 1, d):
            t = matrix[h, i]
            for c in range(rank):
                t -= factor[h, c] * factor[i, c]
            factor[h, rank] = t / root
        log_root += math.log(root)
        rank += 1
    return rank, log_root


@njit(cache=True, nogil=True)
def _log_volume(columns):
    """1/2 log det(L'L), by QR of the rows sorted by size: it keeps its digits when units differ widely."""
    size = -np.abs(columns).sum(axis=1)
    triangle = np.linalg.qr(np.ascontiguousarray(columns[np.argsort(size)]))[1]
    return np.log(np.abs(np.diag(triangle))).sum()
