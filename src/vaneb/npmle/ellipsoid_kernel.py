"""Compiled E-step of a mixture whose components have covariances of their own.

For a client with estimate t and precision P, and a component N(c, Gamma) with R = Gamma^{-1}, put
g = P (t - c) and A = P + R.  Then, up to a constant of the client,

    log p = 1/2 log|P| - 1/2 (t - c)' g + 1/2 g' A^{-1} g - 1/2 log|A| - 1/2 log|Gamma|,

and within the component the client's parameter has mean c + A^{-1} g and covariance A^{-1}.  A singular P
needs no special case; 1/2 log|P| matters only where P depends on the component.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

#: A pair this far below the client's best one carries nothing, and is looked at again only now and then.
FAR = -25.0


@njit(cache=True, nogil=True)
def _factorise(matrix, d):
    """Lower Cholesky factor in place."""
    for i in range(d):
        for j in range(i + 1):
            t = matrix[i, j]
            for q in range(j):
                t -= matrix[i, q] * matrix[j, q]
            matrix[i, j] = math.sqrt(max(t, 1e-300)) if i == j else t / matrix[j, j]


@njit(cache=True, nogil=True)
def _set_pair(precision, difference, inverse, d, score, factor):
    """g, the factor of A, and (t - c)' g; ``precision`` is (d, d), or (d, 1) for a diagonal."""
    square = 0.0
    for a in range(d):
        t = 0.0
        if precision.shape[1] == d and d > 1:
            for b in range(d):
                t += precision[a, b] * difference[b]
            for b in range(a + 1):
                factor[a, b] = inverse[a, b] + precision[a, b]
        else:
            t = precision[a, 0] * difference[a]
            for b in range(a + 1):
                factor[a, b] = inverse[a, b]
            factor[a, a] += precision[a, 0]
        score[a] = t
        square += t * difference[a]
    _factorise(factor, d)
    return square


@njit(cache=True, nogil=True)
def expect(
    axes,
    estimates,
    precision,
    half_log_precision,
    centres,
    log_weights,
    inverses,
    half_logs,
    near,
    look,
    sums,
    log_density,
):
    """Sums over clients of r_kj (1, m_kj - c_j, V_kj + (m_kj - c_j)(m_kj - c_j)'), and log densities.

    Parameters
    ----------
    axes : d zeros; a tuple, so that each number of dimensions is compiled for itself, with loops unrolled
    estimates : (K, d)
    precision : (K, m or 1, d, d), or (K, m or 1, d, 1) where diagonal
    half_log_precision : (K, m or 1)
    centres, log_weights, inverses, half_logs : (m, d), (m,), (m, d, d), (m,)
    near : (K, m) bool; pairs to look at, set anew if ``look``
    sums : (m, 1 + d + d d), overwritten
    log_density : (K,), overwritten
    """
    n_clients, d = estimates.shape[0], len(axes)
    m = centres.shape[0]
    shared = precision.shape[1] == 1
    # Of one client: log r up to a constant, then r; g and the factor of A, needed twice.
    terms, scores, factors = np.empty(m), np.empty((m, d)), np.empty((m, d, d))
    half, difference, inverse = np.empty(d), np.empty(d), np.empty((d, d))
    sums[:] = 0.0
    for k in range(n_clients):
        top = -math.inf
        for j in range(m):
            if not (look or near[k, j]):
                continue
            column = 0 if shared else j
            for a in range(d):
                difference[a] = estimates[k, a] - centres[j, a]
            score, factor = scores[j], factors[j]
            square = _set_pair(precision[k, column], difference, inverses[j], d, score, factor)
            root = 1.0
            for a in range(d):
                t = score[a]
                for b in range(a):
                    t -= factor[a, b] * half[b]
                half[a] = t / factor[a, a]
                square -= half[a] * half[a]
                root *= factor[a, a]
            terms[j] = log_weights[j] + half_log_precision[k, column] - 0.5 * square - half_logs[j]
            terms[j] -= math.log(root)
            top = max(top, terms[j])
        total = 0.0
        for j in range(m):
            if look:
                near[k, j] = terms[j] > top + FAR
            if near[k, j]:
                terms[j] = math.exp(terms[j] - top)
                total += terms[j]
        log_density[k] = top + math.log(total)
        for j in range(m):
            if not near[k, j]:
                continue
            share = terms[j] / total
            if share < 1e-9:
                continue
            _add(share, scores[j], factors[j], inverse, half, d, sums[j])


@njit(cache=True, nogil=True)
def _add(share, score, factor, inverse, half, d, sums):
    """Add one pair's r (1, e, V + e e'), V = A^{-1} and e = V g."""
    for c in range(d):
        for a in range(c):
            inverse[a, c] = 0.0
        inverse[c, c] = 1 / factor[c, c]
        for a in range(c + 1, d):
            t = 0.0
            for b in range(c, a):
                t -= factor[a, b] * inverse[b, c]
            inverse[a, c] = t / factor[a, a]
    for a in range(d):
        t = 0.0
        for b in range(d):
            v = 0.0
            for q in range(max(a, b), d):
                v += inverse[q, a] * inverse[q, b]
            t += v * score[b]
            sums[1 + d + a * d + b] += share * v
        half[a] = t
    sums[0] += share
    for a in range(d):
        sums[1 + a] += share * half[a]
        for b in range(d):
            sums[1 + d + a * d + b] += share * half[a] * half[b]
