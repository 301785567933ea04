"""Compiled adaptive quadrature: clients' likelihoods integrated over N(mu, R R').

With theta = mu + R u and h(u) = l_k(theta) - |u|^2 / 2, u* the maximiser of h and F F' = I + R' H R,
H = -l_k''(theta*), points x_j with weights w_j for the standard Gaussian are moved to where the client is,

    u_j = u* + F'^{-1} x_j,     log f_k = h(u*) - log|F| + log sum_j w_j exp(h(u_j) - h(u*) + |x_j|^2 / 2).

One point at the origin is Laplace's approximation.  The terms of the sum, normalised, are the posterior
probabilities r_kj of the points, and by Fisher's identity

    d log f_k / d mu = sum_j r_kj l_k'(theta_j),     d log f_k / d R = sum_j r_kj l_k'(theta_j) u_j'.

Shapes: d parameters, q columns of R, m points; ``data`` as in ``vaneb.likelihood.exact_kernels``.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from vaneb.likelihood.exact_kernels import new_tile, sum_terms, unpack
from vaneb.local.small_matrices import cholesky, cholesky_solve, copy_vector

MAX_ITERATIONS = 80
#: Length of the Newton step, in standard deviations of the population, at which the search ends.
STEP_TOLERANCE = 1e-7
LARGEST = 1e300


@njit(cache=True, nogil=True)
def _set_points(mean, root, u, points_t):
    """points_t (d, m) = mu + R u for each row of ``u`` (m, q)."""
    d, q = root.shape
    for c in range(d):
        for j in range(u.shape[0]):
            t = mean[c]
            for e in range(q):
                t += root[c, e] * u[j, e]
            points_t[c, j] = t


@njit(cache=True, nogil=True)
def _find_mode(data, k, mean, root, u, factor, tile):
    """Overwrite ``u`` (q,) with u* and ``factor`` with F; returns h(u*), -inf if there is no likelihood."""
    d, q = root.shape
    trial = u.copy().reshape((1, q))
    step = np.zeros(q)
    point = np.empty((d, 1))
    loss, first, second = np.empty(1), np.empty((d, 1)), np.empty((d * (d + 1) // 2, 1))
    score, information = np.empty(d), np.empty((d, d))
    best, damping = np.inf, 1.0
    for _ in range(MAX_ITERATIONS):
        _set_points(mean, root, trial, point)
        # Not a literal 1, for which the compiler would make a second copy of all that is called.
        sum_terms(data, k, point, point.shape[1], tile, loss, first, second)
        height = loss[0] / data.dispersion
        for e in range(q):
            height += 0.5 * trial[0, e] ** 2
        if not height <= min(best + 1e-12 * (1.0 + abs(best)), LARGEST):
            # Not a descent: a quarter of the step from the best point, or back towards the origin.
            damping *= 0.25
            if damping < 1e-12:
                break
            for e in range(q):
                trial[0, e] = u[e] - damping * step[e] if best < np.inf else 0.25 * trial[0, e]
            continue
        best, damping = height, 1.0
        unpack(first, second, 0, score, information)
        for e in range(q):
            u[e] = trial[0, e]
            for f in range(e + 1):
                t = 0.0
                for b in range(d):
                    for c in range(d):
                        t += root[b, e] * information[b, c] * root[c, f]
                factor[e, f] = t / data.dispersion + (1.0 if e == f else 0.0)
            step[e] = u[e]
            for c in range(d):
                step[e] += root[c, e] * score[c] / data.dispersion
        if not cholesky(factor):
            # Rows so far out that their information drowns everything else.
            return -np.inf
        cholesky_solve(factor, step)
        largest = 0.0
        for e in range(q):
            largest = max(largest, abs(step[e]))
            trial[0, e] = u[e] - step[e]
        if largest < STEP_TOLERANCE:
            break
    return -best


@njit(cache=True, nogil=True)
def integrate(data, mean, root, x, weights, modes, log_density, mean_slope, root_slope, thetas, shares):
    """log f_k (K,), and the sums over clients of its slopes in mu (d,) and R (d, q): all overwritten.

    ``modes`` (K, q) holds where the searches begin, and then u*.  ``thetas`` (K, m, d) and ``shares`` (K, m)
    are filled with the points and their posterior probabilities unless they are empty.
    """
    d, q = root.shape
    m = x.shape[0]
    tile = new_tile(data.n_index, m)
    points = np.empty((d, m))
    loss, first, second = np.empty(m), np.empty((d, m)), np.empty((d * (d + 1) // 2, m))
    factor, u, share = np.eye(q), np.empty((m, q)), np.empty(m)
    mean_slope[:] = 0.0
    root_slope[:] = 0.0
    for k in range(log_density.shape[0]):
        log_density[k] = -np.inf
        if shares.shape[0] > 0:
            # The population, for a client whose rows are as good as impossible.
            copy_vector(weights, shares[k])
            _set_points(mean, root, x, points)
            for c in range(d):
                for j in range(m):
                    thetas[k, j, c] = points[c, j]
        top = _find_mode(data, k, mean, root, modes[k], factor, tile)
        if top == -np.inf:
            continue
        log_factor = 0.0
        for e in range(q):
            log_factor += math.log(factor[e, e])
        for j in range(m):
            for e in range(q - 1, -1, -1):
                t = x[j, e]
                for f in range(e + 1, q):
                    t -= factor[f, e] * (u[j, f] - modes[k, f])
                u[j, e] = modes[k, e] + t / factor[e, e]
        _set_points(mean, root, u, points)
        sum_terms(data, k, points, m, tile, loss, first, second)
        total = 0.0
        for j in range(m):
            t = -loss[j] / data.dispersion - top
            for e in range(q):
                t += 0.5 * (x[j, e] ** 2 - u[j, e] ** 2)
            share[j] = weights[j] * math.exp(t)
            total += share[j]
        if not 0.0 < total < np.inf:
            continue
        log_density[k] = top - log_factor + math.log(total)
        for j in range(m):
            share[j] /= total
            if shares.shape[0] > 0:
                shares[k, j] = share[j]
                for c in range(d):
                    thetas[k, j, c] = points[c, j]
            if share[j] < 1e-12:
                continue
            for c in range(d):
                slope = -share[j] * first[c, j] / data.dispersion
                mean_slope[c] += slope
                for e in range(q):
                    root_slope[c, e] += slope * u[j, e]
