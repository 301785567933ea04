"""Loops over clients of the Gaussian mixed model: see ``mixed_model`` for the letters."""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _half(a, varying, root, g, c):
    """Leaves C^{-1/2} (A L)' in ``g`` (r, d) and the lower triangular C^{1/2} in ``c`` (r, r).

    Returns log|C|.
    """
    d, r = len(a), len(varying)
    for j in range(r):
        for i in range(d):
            total = 0.0
            for b in range(r):
                total += a[i, varying[b]] * root[b, j]
            g[j, i] = total
    log_det = 0.0
    for j in range(r):
        for i in range(j, r):
            total = 1.0 if i == j else 0.0
            for b in range(r):
                total += root[b, i] * g[j, varying[b]]
            for b in range(j):
                total -= c[i, b] * c[j, b]
            c[i, j] = math.sqrt(max(total, 1e-300)) if i == j else total / c[j, j]
        log_det += 2 * math.log(c[j, j])
    for i in range(d):
        for j in range(r):
            total = g[j, i]
            for b in range(j):
                total -= c[j, b] * g[b, i]
            g[j, i] = total / c[j, j]
    return log_det


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _half_score(cross, varying, root, c, h):
    """Leaves C^{-1/2} L' Z'y in ``h`` (r,)."""
    r = len(varying)
    for j in range(r):
        total = 0.0
        for b in range(r):
            total += root[b, j] * cross[varying[b]]
        for b in range(j):
            total -= c[j, b] * h[b]
        h[j] = total / c[j, j]


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _add_client(a, cross, varying, root, g, c, h, total, score):
    """Adds a client to T (lower triangle) and its right-hand side, leaves C^{-1/2} L' Z'y in ``h``; returns
    what L explains of its y'y.  ``g`` and ``c`` are those of ``_half``."""
    _half_score(cross, varying, root, c, h)
    explained = 0.0
    for s in h:
        explained += s * s
    for i in range(len(a)):
        s = cross[i]
        for j in range(len(h)):
            s -= g[j, i] * h[j]
        score[i] += s
        for b in range(i + 1):
            w = a[i, b]
            for j in range(len(h)):
                w -= g[j, i] * g[j, b]
            total[i, b] += w
    return explained


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def profile(gram, cross, varying, root):
    """Sums over clients at L: log|C_k|, what L explains of y'y, T (d, d) and its right-hand side (d,); and of
    each client the rows of Z' M^{-1} Z (K, r, d) and Z' M^{-1} y (K, r) in the varying coordinates."""
    n, d = cross.shape
    r = len(varying)
    log_det, explained = 0.0, 0.0
    total, score = np.zeros((d, d)), np.zeros(d)
    rows_of, score_of = np.empty((n, r, d)), np.empty((n, r))
    g, c, h = np.empty((r, d)), np.zeros((r, r)), np.empty(r)
    for k in range(n):
        a = gram[k]
        log_det += _half(a, varying, root, g, c)
        explained += _add_client(a, cross[k], varying, root, g, c, h, total, score)
        for i in range(r):
            v = varying[i]
            s = cross[k, v]
            for j in range(r):
                s -= g[j, v] * h[j]
            score_of[k, i] = s
            for b in range(d):
                w = a[v, b]
                for j in range(r):
                    w -= g[j, v] * g[j, b]
                rows_of[k, i, b] = w
    for i in range(d):
        for b in range(i):
            total[b, i] = total[i, b]
    return log_det, explained, total, score, rows_of, score_of


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def index_variances(design, starts, gram, varying, root, inverse):
    """Posterior variance of each row's index z'theta in units of sigma^2, (N,), theta_k and mu both unknown.

    With M = L C^{-1} L' it is z'M z + q' T^{-1} q, q = z - A M z.
    """
    n_rows, d = design.shape
    r = len(varying)
    out = np.empty(n_rows)
    g, c = np.empty((r, d)), np.zeros((r, r))
    h, q = np.empty(r), np.empty(d)
    for k in range(len(starts) - 1):
        _half(gram[k], varying, root, g, c)
        for n in range(starts[k], starts[k + 1]):
            z = design[n]
            _half_score(z, varying, root, c, h)
            for i in range(d):
                s = z[i]
                for j in range(r):
                    s -= g[j, i] * h[j]
                q[i] = s
            total = 0.0
            for j in range(r):
                total += h[j] * h[j]
            for i in range(d):
                s = 0.0
                for b in range(d):
                    s += inverse[i, b] * q[b]
                total += s * q[i]
            out[n] = total
    return out


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def tilted(values, a, y, offset, weight, mean, variance, t, n, nodes, logs):
    """Each row's factor exp(n e - t e^2 / 2) replaced by the row, under N(mean, variance) of its index e:
    log of the average ratio, new mean and new variance, (N,) each.

    ``values`` is a family's (``vaneb.local.family.losses``), ``a`` its parameter; ``weight`` times the loss
    is minus the log-likelihood.
    """
    count, q = len(y), len(nodes)
    constant, middle, spread = np.empty(count), np.empty(count), np.empty(count)
    index, loss, work = np.empty((1, q)), np.empty(q), np.empty((3, q))
    response, log_p = np.empty(q), np.empty(q)
    for i in range(count):
        sd = math.sqrt(variance[i])
        for j in range(q):
            index[0, j] = mean[i] + sd * nodes[j] + offset[i]
            response[j] = y[i]
        values(a, q, response, index, loss, work)
        top = -np.inf
        for j in range(q):
            e = mean[i] + sd * nodes[j]
            log_p[j] = logs[j] - weight[i] * loss[j] - n[i] * e + 0.5 * t[i] * e * e
            top = max(top, log_p[j])
        total, first, second = 0.0, 0.0, 0.0
        for j in range(q):
            p = math.exp(log_p[j] - top)
            total += p
            first += p * nodes[j]
            second += p * nodes[j] * nodes[j]
        first /= total
        constant[i] = top + math.log(total)
        middle[i] = mean[i] + sd * first
        spread[i] = variance[i] * max(second / total - first * first, 1e-8)
    return constant, middle, spread


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def deviances(gram, cross, square, n_rows, varying, roots):
    """At each of m roots L (m, r, r): restricted deviance (m,), sigma^2 (m,), mu (m, d), and the lower
    triangular root of T (m, d, d)."""
    n, d = cross.shape
    m, r = len(roots), len(varying)
    value, variance = np.empty(m), np.ones(m)
    mean, halves = np.empty((m, d)), np.empty((m, d, d))
    g, c, h = np.empty((r, d)), np.zeros((r, r)), np.empty(r)
    total, score = np.empty((d, d)), np.empty(d)
    for e in range(m):
        log_det, explained = 0.0, 0.0
        total[:] = 0.0
        score[:] = 0.0
        for k in range(n):
            a = gram[k]
            log_det += _half(a, varying, roots[e], g, c)
            explained += _add_client(a, cross[k], varying, roots[e], g, c, h, total, score)
        for i in range(d):
            total[i, i] *= 1 + 1e-12
            for b in range(i):
                total[b, i] = total[i, b]
        half = np.linalg.cholesky(total)
        solved = np.linalg.solve(total, score)
        quadratic = square - explained
        for i in range(d):
            quadratic -= score[i] * solved[i]
            log_det += 2 * math.log(half[i, i])
        if n_rows > 0:
            freedom = n_rows - d
            variance[e] = max(quadratic, 1e-12 * square) / freedom
            value[e] = log_det + freedom * math.log(variance[e])
        else:
            value[e] = log_det + quadratic
        mean[e], halves[e] = solved, half
    return value, variance, mean, halves
