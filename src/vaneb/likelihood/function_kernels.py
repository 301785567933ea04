"""Compiled loops for Gaussian reports whose precision is a full matrix that depends on the atom.

The covariance function writes the unit precision of a strip of clients at some atoms, and its derivative
where that is needed, with clients on the last axis; every loop here runs over the clients of the strip
inside, in vector instructions on numbers that stay in the first-level cache.

With P = n_k times the unit precision, P = L L', e = theta_hat - a and

    y = L'e,    G = L^{-1},

the report's log density, exact score and expected information are

    l   = log det L - |y|^2 / 2 - d/2 log 2 pi
    s_l = [L y]_l + 1/2 <G'G - e e', dP_l>
    I   = P + 1/2 [tr(G'G dP_l G'G dP_h)]_lh.

No two large numbers are subtracted anywhere.  The *frozen* score and information keep the first terms only.

Shapes: x_t (d, S), n (S,), atoms (m, d), precision (m, d, d, S), gradient (m, d, d, d, S) with the coordinate
of theta on the fourth axis.

A precision that is not of full rank has zero columns in L.  Then log det L and G are not right: ``density``
says which log-likelihoods are missing, and ``add_strip`` needs full rank.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from vaneb.likelihood.kernels import REORDER
from vaneb.semidefinite import RANK_TOLERANCE
from vaneb.vector_math import exponentials, log

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
#: Pivots up to this carry no information, so that the roots of others can be divided by.
SMALLEST = 1e-280


@njit(cache=True, nogil=True)
def _subtract_logs(numbers, total):
    for k in range(numbers.shape[0]):
        total[k] -= log(numbers[k])


@njit(cache=True, nogil=True, fastmath=REORDER, error_model="numpy")
def _factor(matrix, scale, tolerance, lower, inverse):
    """Cholesky factors of scale_k * matrix_k, and 1 / their diagonals; how many pivots carry no information.

    Such a pivot, at most ``tolerance`` times its diagonal entry, leaves a column of zeros and zero for 1 / 0.
    """
    d, count = matrix.shape[0], matrix.shape[2]
    deficient = 0
    for i in range(d):
        for h in range(i + 1):
            entry = lower[i, h]
            for k in range(count):
                entry[k] = scale[k] * matrix[i, h, k]
            for c in range(h):
                for k in range(count):
                    entry[k] -= lower[i, c, k] * lower[h, c, k]
            if h < i:
                for k in range(count):
                    entry[k] *= inverse[h, k]
        pivot = lower[i, i]
        for k in range(count):
            known = pivot[k] > max(tolerance * scale[k] * matrix[i, i, k], SMALLEST)
            root = math.sqrt(max(pivot[k], SMALLEST))
            pivot[k] = root if known else 0.0
            inverse[i, k] = 1.0 / root if known else 0.0
            deficient += not known
    return deficient


@njit(cache=True, nogil=True, fastmath=REORDER, error_model="numpy")
def _solve_lower(lower, inverse, right):
    """right <- lower^{-1} right, (d, S)."""
    d, count = right.shape
    for c in range(d):
        row = right[c]
        for b in range(c):
            for k in range(count):
                row[k] -= lower[c, b, k] * right[b, k]
        for k in range(count):
            row[k] *= inverse[c, k]


@njit(cache=True, nogil=True, fastmath=REORDER, error_model="numpy")
def density(x_t, n, atoms, precision, out):
    """out[j, k] = l_k(a_j), NaN where the precision is not of full rank; whether there are such pairs."""
    m, d = atoms.shape
    count = len(n)
    lower, inverse = np.empty((d, d, count)), np.empty((d, count))
    y = np.empty((d, count))
    missing = False
    for j in range(m):
        row = out[j]
        deficient = _factor(precision[j], n, RANK_TOLERANCE, lower, inverse)
        y[:] = 0.0
        for i in range(d):
            for c in range(i + 1):
                for k in range(count):
                    y[c, k] += lower[i, c, k] * (x_t[i, k] - atoms[j, i])
        for k in range(count):
            row[k] = -d * HALF_LOG_2PI
        for i in range(d):
            _subtract_logs(inverse[i], row)
        for i in range(d):
            for k in range(count):
                row[k] -= 0.5 * y[i, k] * y[i, k]
        if deficient > 0:
            missing = True
            for i in range(d):
                for k in range(count):
                    if inverse[i, k] == 0.0:
                        row[k] = np.nan
    return missing


@njit(cache=True, nogil=True, fastmath=REORDER, error_model="numpy")
def add_frozen(x_t, n, atoms, where, precision, share, value, climb, outer, information):
    """As ``add_strip`` for the frozen score P e with information P: of any rank."""
    d, count = x_t.shape
    score = np.empty((d, count))
    for q in range(len(where)):
        j, r = where[q], share[q]
        exponentials(r, count, r)
        total = 0.0
        for k in range(count):
            total += r[k]
        value[j] += total
        for i in range(d):
            row = score[i]
            row[:] = 0.0
            for h in range(d):
                for k in range(count):
                    row[k] += precision[q, i, h, k] * (x_t[h, k] - atoms[q, h])
            total = 0.0
            for k in range(count):
                row[k] *= n[k]
                total += r[k] * row[k]
            climb[j, i] += total
            for h in range(i + 1):
                total = 0.0
                for k in range(count):
                    total += r[k] * n[k] * precision[q, i, h, k]
                information[j, i, h] += total
                if len(outer) > 0:
                    total = 0.0
                    for k in range(count):
                        total += r[k] * score[i, k] * score[h, k]
                    outer[j, i, h] += total


@njit(cache=True, nogil=True, fastmath=REORDER, error_model="numpy")
def add_strip(x_t, n, atoms, where, precision, gradient, share, value, climb, outer, information):
    """Add the clients of a strip to the sums over clients at the atoms ``where`` (q,) of m.

    ``atoms``, ``precision``, ``gradient`` and ``share`` (q, S), the logarithms of r_kj, are given for those q
    atoms only; ``share`` is overwritten.  value (m,), climb (m, d), outer and information (m, d, d), lower
    triangles, are added to.  An ``outer`` of length zero is not wanted.
    """
    d, count = x_t.shape
    lower, inverse = np.empty((d, d, count)), np.empty((d, count))
    g_rows = np.empty((d, d, count))  # G_ci at [i, c]
    e, y, score = np.empty((d, count)), np.empty((d, count)), np.empty((d, count))
    noise, relative = np.empty((d, d, count)), np.empty((d, d, d, count))
    entry = np.empty(count)
    for q in range(len(where)):
        j, r = where[q], share[q]
        exponentials(r, count, r)
        _factor(precision[q], n, RANK_TOLERANCE, lower, inverse)
        y[:] = 0.0
        score[:] = 0.0
        for i in range(d):
            for k in range(count):
                e[i, k] = x_t[i, k] - atoms[q, i]
            for c in range(i + 1):
                for k in range(count):
                    y[c, k] += lower[i, c, k] * e[i, k]
        for i in range(d):
            for c in range(i + 1):
                for k in range(count):
                    score[i, k] += lower[i, c, k] * y[c, k]
        for i in range(d):
            for c in range(d):
                g_rows[i, c, :] = 1.0 if c == i else 0.0
            _solve_lower(lower, inverse, g_rows[i])
        for a in range(d):
            for b in range(a + 1):
                row = noise[a, b]
                row[:] = 0.0
                for c in range(a, d):
                    for k in range(count):
                        row[k] += g_rows[a, c, k] * g_rows[b, c, k]
                for k in range(count):
                    row[k] *= n[k]
                if b < a:
                    noise[b, a, :] = row
        g = gradient[q]
        for h in range(d):
            for a in range(d):
                for b in range(d):
                    row = relative[h, a, b]  # (G'G dP_h)_ab
                    row[:] = 0.0
                    for c in range(d):
                        for k in range(count):
                            row[k] += noise[a, c, k] * g[c, b, h, k]
        for h in range(d):
            row = score[h]
            for a in range(d):
                for k in range(count):
                    row[k] += 0.5 * relative[h, a, a, k]
                for b in range(a + 1):
                    half = 0.5 if a == b else 1.0
                    for k in range(count):
                        row[k] -= half * n[k] * e[a, k] * e[b, k] * g[a, b, h, k]
        total = 0.0
        for k in range(count):
            total += r[k]
        value[j] += total
        for i in range(d):
            total = 0.0
            for k in range(count):
                total += r[k] * score[i, k]
            climb[j, i] += total
            for h in range(i + 1):
                for k in range(count):
                    entry[k] = n[k] * precision[q, i, h, k]
                for a in range(d):
                    for b in range(d):
                        for k in range(count):
                            entry[k] += 0.5 * relative[i, a, b, k] * relative[h, b, a, k]
                total = 0.0
                for k in range(count):
                    total += r[k] * entry[k]
                information[j, i, h] += total
                if len(outer) > 0:
                    total = 0.0
                    for k in range(count):
                        total += r[k] * score[i, k] * score[h, k]
                    outer[j, i, h] += total
