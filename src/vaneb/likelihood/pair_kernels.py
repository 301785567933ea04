"""Compiled loops over single pairs of client and atom, each with a precision of its own.

With P = n U the precision at the atom, P = L L', e = theta_hat - a, y = L'e and G = L^{-1}, the report's log
density, exact score and expected information are

    l   = log det L - |y|^2 / 2 - d/2 log 2 pi
    s_l = [L y]_l + 1/2 <G'G - e e', dP_l>
    I   = P + 1/2 [tr(G'G dP_l G'G dP_h)]_lh.

No two large numbers are subtracted anywhere.  Pairs are taken in strips that stay in the first-level cache,
and every loop inside runs over the pairs of a strip, in vector instructions.

Shapes: difference e (N, d), unit precision U (N, d, d), n (N,), gradient of U (N, d, d, d) with the
coordinate of theta last.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from vaneb.likelihood.kernels import REORDER, STRIP
from vaneb.semidefinite import RANK_TOLERANCE
from vaneb.vector_math import log

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
#: Pivots up to this carry no information, so that the roots of others can be divided by.
SMALLEST = 1e-280


@njit(cache=True, nogil=True)
def _subtract_logs(numbers, total):
    for k in range(total.shape[0]):
        total[k] -= log(numbers[k])


@njit(cache=True, nogil=True, fastmath=REORDER, error_model="numpy")
def _factor(unit, n, count, lower, inverse):
    """Cholesky factors (d, d, S) of n (S,) times precisions (S, d, d), and 1 / their diagonals (d, S).

    Pivots up to ``RANK_TOLERANCE`` times their diagonal entry carry no information: they leave a column of
    zeros and zero for 1 / 0.  Returns how many there are.
    """
    d = unit.shape[1]
    deficient = 0
    for i in range(d):
        for h in range(i + 1):
            entry = lower[i, h]
            for k in range(count):
                entry[k] = n[k] * unit[k, i, h]
            for c in range(h):
                for k in range(count):
                    entry[k] -= lower[i, c, k] * lower[h, c, k]
            if h < i:
                for k in range(count):
                    entry[k] *= inverse[h, k]
        pivot = lower[i, i]
        for k in range(count):
            known = pivot[k] > max(RANK_TOLERANCE * n[k] * unit[k, i, i], SMALLEST)
            root = math.sqrt(max(pivot[k], SMALLEST))
            pivot[k] = root if known else 0.0
            inverse[i, k] = 1.0 / root if known else 0.0
            deficient += not known
    return deficient


@njit(cache=True, nogil=True, fastmath=REORDER, error_model="numpy")
def _decorrelated(lower, difference, count, e, y):
    """e (d, S) and y = L'e (d, S)."""
    d = lower.shape[0]
    for i in range(d):
        for k in range(count):
            e[i, k] = difference[k, i]
            y[i, k] = 0.0
        for c in range(i + 1):
            for k in range(count):
                y[c, k] += lower[i, c, k] * e[i, k]


@njit(cache=True, nogil=True, fastmath=REORDER, error_model="numpy")
def log_densities(difference, unit, n, out):
    """log N(e; 0, P^{-1}) of all pairs, (N,); where P is singular, the density on its range."""
    d = difference.shape[1]
    lower, inverse = np.empty((d, d, STRIP)), np.empty((d, STRIP))
    e, y, factor = np.empty((d, STRIP)), np.empty((d, STRIP)), np.empty((d, d))
    for start in range(0, len(n), STRIP):
        count = min(STRIP, len(n) - start)
        own, row = unit[start : start + count], out[start : start + count]
        deficient = _factor(own, n[start : start + count], count, lower, inverse)
        _decorrelated(lower, difference[start : start + count], count, e, y)
        row[:] = -d * HALF_LOG_2PI
        for i in range(d):
            _subtract_logs(inverse[i], row)
        for i in range(d):
            for k in range(count):
                row[k] -= 0.5 * y[i, k] * y[i, k]
        if deficient > 0:
            for k in range(count):
                if inverse[:, k].min() == 0.0:
                    row[k] = _singular_log_density(difference[start + k], n[start + k] * own[k], factor)


@njit(cache=True, nogil=True)
def _singular_log_density(difference, precision, factor):
    """With the columns of L that are not zero: 1/2 log det(L'L) - 1/2 y'y - rank/2 log 2 pi."""
    d = len(difference)
    factor[:] = 0.0
    rank = 0
    for i in range(d):
        pivot = precision[i, i]
        for c in range(rank):
            pivot -= factor[i, c] * factor[i, c]
        if pivot <= RANK_TOLERANCE * precision[i, i]:
            continue
        for h in range(i, d):
            t = precision[h, i]
            for c in range(rank):
                t -= factor[h, c] * factor[i, c]
            factor[h, rank] = t / math.sqrt(pivot)
        rank += 1
    if rank == 0:
        return 0.0
    columns = factor[:, :rank]
    # By QR of the rows sorted by size: it keeps its digits when units differ widely.
    order = np.argsort(-np.abs(columns).sum(axis=1))
    triangle = np.linalg.qr(np.ascontiguousarray(columns[order]))[1]
    out = -rank * HALF_LOG_2PI
    for c in range(rank):
        y = 0.0
        for i in range(d):
            y += columns[i, c] * difference[i]
        out += math.log(abs(triangle[c, c])) - 0.5 * y * y
    return out


@njit(cache=True, nogil=True, fastmath=REORDER, error_model="numpy")
def scores(difference, unit, n, gradient, score, information):
    """Fill s (N, d) and I (N, d, d); s is NaN for pairs whose precision is not of full rank."""
    d = difference.shape[1]
    lower, inverse = np.empty((d, d, STRIP)), np.empty((d, STRIP))
    e, y, s = np.empty((d, STRIP)), np.empty((d, STRIP)), np.empty((d, STRIP))
    g_rows = np.empty((d, d, STRIP))  # G_ci at [i, c]
    noise, relative = np.empty((d, d, STRIP)), np.empty((d, d, d, STRIP))
    slope, entry = np.empty((d, d, d, STRIP)), np.empty(STRIP)
    for start in range(0, len(n), STRIP):
        count = min(STRIP, len(n) - start)
        own, scale = unit[start : start + count], n[start : start + count]
        deficient = _factor(own, scale, count, lower, inverse)
        _decorrelated(lower, difference[start : start + count], count, e, y)
        for i in range(d):
            s[i] = 0.0
            for c in range(i + 1):
                for k in range(count):
                    s[i, k] += lower[i, c, k] * y[c, k]
            for c in range(d):
                row = g_rows[i, c]
                row[:] = 1.0 if c == i else 0.0
                for b in range(c):
                    for k in range(count):
                        row[k] -= lower[c, b, k] * g_rows[i, b, k]
                for k in range(count):
                    row[k] *= inverse[c, k]
        for a in range(d):
            for b in range(a + 1):
                row = noise[a, b]
                row[:] = 0.0
                for c in range(a, d):
                    for k in range(count):
                        row[k] += g_rows[a, c, k] * g_rows[b, c, k]
                noise[b, a] = row
        for a in range(d):
            for b in range(d):
                for h in range(d):
                    for k in range(count):
                        slope[h, a, b, k] = scale[k] * gradient[start + k, a, b, h]
        for h in range(d):
            for a in range(d):
                for b in range(d):
                    row = relative[h, a, b]  # (G'G dP_h)_ab
                    row[:] = 0.0
                    for c in range(d):
                        for k in range(count):
                            row[k] += noise[a, c, k] * slope[h, c, b, k]
            for a in range(d):
                for k in range(count):
                    s[h, k] += 0.5 * relative[h, a, a, k]
                for b in range(d):
                    for k in range(count):
                        s[h, k] -= 0.5 * e[a, k] * e[b, k] * slope[h, a, b, k]
            for i in range(h + 1):
                for k in range(count):
                    entry[k] = scale[k] * own[k, h, i]
                for a in range(d):
                    for b in range(d):
                        for k in range(count):
                            entry[k] += 0.5 * relative[i, a, b, k] * relative[h, b, a, k]
                for k in range(count):
                    information[start + k, h, i] = entry[k]
                    information[start + k, i, h] = entry[k]
        for i in range(d):
            for k in range(count):
                score[start + k, i] = s[i, k]
        if deficient > 0:
            for k in range(count):
                if inverse[:, k].min() == 0.0:
                    score[start + k] = np.nan


@njit(cache=True, nogil=True)
def add_pairs(atom, share, score, information, value, gradient, outer, total):
    """Add r, r s, r s s' and r I of each pair to the sums of its atom; ``outer`` may be ``None``."""
    d = score.shape[1]
    for k in range(len(atom)):
        j, r = atom[k], share[k]
        value[j] += r
        for i in range(d):
            rs = r * score[k, i]
            gradient[j, i] += rs
            for h in range(d):
                total[j, i, h] += r * information[k, i, h]
                if outer is not None:
                    outer[j, i, h] += rs * score[k, h]
