"""Compiled information, or squared scores, of regressions with one linear predictor; see ``_row_sums``."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from vaneb.covariance._row_sums import AT_ONCE, EXPONENT_LIMIT, EXPONENT_LIMIT_LOW, FAST, by_points
from vaneb.vector_math import exponentials

POISSON, LOGISTIC, NEGATIVE_BINOMIAL, POISSON_SCORE, LOGISTIC_SCORE, GAUSSIAN_SCORE = range(6)


@njit(cache=True, nogil=True, fastmath=FAST)
def _weights(kind, parameter, derivative, eta, response, n, scratch, e, w):
    """w_i(eta_i), or w_i'(eta_i) if ``derivative``; ``eta`` is overwritten."""
    if kind in (POISSON, POISSON_SCORE):
        for i in range(n):
            eta[i] = min(max(eta[i], -EXPONENT_LIMIT_LOW), EXPONENT_LIMIT)
        exponentials(eta, n, e)
        if derivative:  # nothing changes where the exponent is clipped
            for i in range(n):
                scratch[i] = e[i] if eta[i] < EXPONENT_LIMIT else 0.0
        if kind == POISSON:
            for i in range(n):
                w[i] = scratch[i] if derivative else e[i]
        else:
            for i in range(n):
                residual = response[i] - e[i]
                w[i] = -2.0 * residual * scratch[i] if derivative else residual * residual
    elif kind == GAUSSIAN_SCORE:
        for i in range(n):
            residual = (response[i] - eta[i]) / parameter
            w[i] = -2.0 * residual / parameter if derivative else residual * residual
    else:
        shift = math.log(parameter) if kind == NEGATIVE_BINOMIAL else 0.0
        for i in range(n):
            eta[i] -= shift
            w[i] = max(-abs(eta[i]), -EXPONENT_LIMIT_LOW)
        exponentials(w, n, e)
        # pi = 1 / (1 + e) and 1 - pi = e / (1 + e) for eta >= 0, the other way round below
        if kind == LOGISTIC:
            for i in range(n):
                u = 1.0 / (1.0 + e[i])
                slope = (e[i] - 1.0) * u if derivative else 1.0
                w[i] = e[i] * u * u * (slope if eta[i] >= 0.0 else abs(slope))
        elif kind == NEGATIVE_BINOMIAL:
            for i in range(n):
                u = 1.0 / (1.0 + e[i])
                pi = u if eta[i] >= 0.0 else e[i] * u
                w[i] = parameter * (e[i] * u * u if derivative else pi)
        else:
            for i in range(n):
                u = 1.0 / (1.0 + e[i])
                residual = response[i] - (u if eta[i] >= 0.0 else e[i] * u)
                w[i] = -2.0 * residual * e[i] * u * u if derivative else residual * residual


@njit(cache=True, nogil=True, fastmath=FAST)
def glm_moments(rows, starts, stops, response, points, kind, parameter, tuples, scatter, out):
    """v_i = z_i and w_i = w(z_i' theta): rows (N, d), points (1 or K, m, d), out (K, m, d**order)."""
    if starts.size == 0:
        return
    d = rows.shape[1]
    n_tuples, order = tuples.shape
    longest = (stops - starts).max()
    columns = np.empty((d, longest))
    products = np.empty((n_tuples, longest))
    eta, scratch, e, w = np.empty(longest), np.empty(longest), np.empty(longest), np.empty(longest)
    entries = np.empty(n_tuples)
    for k in range(starts.size):
        start = starts[k]
        n = stops[k] - start
        if k == 0 or start != starts[k - 1]:
            for c in range(d):
                for i in range(n):
                    columns[c, i] = rows[start + i, c]
            for t in range(n_tuples):
                for i in range(n):
                    products[t, i] = 1.0 / n
                for o in range(order):
                    c = tuples[t, o]
                    for i in range(n):
                        products[t, i] *= columns[c, i]
        own = points[k if points.shape[0] > 1 else 0]
        for j in range(own.shape[0]):
            eta[:n] = 0.0
            for c in range(d):
                a = own[j, c]
                for i in range(n):
                    eta[i] += columns[c, i] * a
            _weights(kind, parameter, order == 3, eta, response[start:], n, scratch, e, w)
            for t in range(n_tuples):
                total = 0.0
                for i in range(n):
                    total += w[i] * products[t, i]
                entries[t] = total
            for q in range(scatter.size):
                out[k, j, q] = entries[scatter[q]]


@by_points
def glm_information(rows, starts, stops, points, kind, parameter, tuples, scatter, out):
    """Order 2 of ``glm_moments`` for weights without responses, laid out as ``softmax_information``."""
    m, d = points.shape[1:]
    longest = (stops - starts).max() if starts.size else 0
    products, none = np.empty((longest, tuples.shape[0])), np.empty(0)
    eta, e, weight = np.empty(longest * AT_ONCE), np.empty(longest * AT_ONCE), np.empty(longest * AT_ONCE)
    points_t = np.ascontiguousarray(points.reshape(-1, d).T)
    flat = out.reshape(-1, scatter.size)
    k = 0
    while k < starts.size:
        after = k + 1
        while points.shape[0] > 1 and after < starts.size and starts[after] == starts[k]:
            after += 1
        own = rows[starts[k] : stops[k]]
        n = len(own)
        for i in range(n):
            for t in range(tuples.shape[0]):
                products[i, t] = own[i, tuples[t, 0]] * own[i, tuples[t, 1]] / n
        origin = k * m if points.shape[0] > 1 else 0
        for first in range(0, (after - k) * m, AT_ONCE):
            width = min(AT_ONCE, (after - k) * m - first)
            at = np.ascontiguousarray(points_t[:, origin + first : origin + first + width])
            size = n * width
            np.dot(own, at, eta[:size].reshape(n, width))
            _weights(kind, parameter, False, eta, none, size, none, e, weight)
            entries = np.dot(products[:n].T, weight[:size].reshape(n, width))
            for j in range(width):
                target = flat[k * m + first + j]
                for q in range(scatter.size):
                    target[q] = entries[scatter[q], j]
        k = after
