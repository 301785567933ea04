"""Each client's posterior given populations: moments, components and points.

Population r has the components starts[r] to starts[r + 1].  Clients come as in ``lanes.Lanes``.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from vaneb.likelihood.seam import Array
from vaneb.population.lanes import LANES, Lanes, drawn, in_a_row, scratch, solve, weigh
from vaneb.vector_math import exponentials


def moments_of(
    clients: Lanes,
    weights: Array,
    centres: Array,
    roots: Array,
    starts: NDArray[np.intp],
    shared: NDArray[np.bool_],
) -> tuple[Array, Array, Array, Array]:
    """``posterior_moments`` of K clients: log f (K,), mean (K, D), covariance (K, D, D), own (K,).

    Components have centres (m, D) and roots (m, D, r).
    """
    b, d, _ = clients.x.shape
    log_f, own = np.empty((b, LANES)), np.empty((b, LANES))
    mean, covariance = np.empty((b, d, LANES)), np.empty((b, d * d, LANES))
    logs = np.log(np.maximum(weights, 1e-300))
    posterior_moments(
        clients.x, clients.precision, logs, centres, roots, starts, shared, log_f, mean, covariance, own
    )
    n = clients.clients
    return (
        log_f.ravel()[:n], in_a_row(mean, n), in_a_row(covariance, n).reshape(n, d, d), own.ravel()[:n],
    )  # fmt: skip


@njit(cache=True, nogil=True)
def posterior_moments(
    x, precision, log_weights, centres, roots, starts, shared, log_f, mean, covariance, own
):
    """Each client's posterior, averaged over populations.

    Leaves the logarithm of the average marginal density in ``log_f`` (B, LANES), without the client's
    constant; mean (B, D, LANES); covariance (B, D * D, LANES); and in ``own`` (B, LANES) the probability of
    components that no other client shares.
    """
    d, r = roots.shape[1:]
    mu, root = centres, roots.reshape(len(roots), d * r)
    n_draws = len(starts) - 1
    most = 0
    for s in range(n_draws):
        most = max(most, starts[s + 1] - starts[s])
    room, p = scratch(d, r), np.empty((most, LANES))
    means, solved = np.empty((most, d, LANES)), np.empty((most, r * d, LANES))
    origin, top, total, w = np.empty((d, LANES)), np.empty(LANES), np.empty(LANES), np.empty(LANES)
    log_sum = np.empty(LANES)
    for k in range(len(x)):
        average, second = mean[k], covariance[k]
        average[:] = 0.0
        second[:] = 0.0
        own[k] = 0.0
        log_sum[:] = -np.inf
        for s in range(n_draws):
            first, m = starts[s], starts[s + 1] - starts[s]
            top[:] = -np.inf
            for i in range(m):
                j = first + i
                weigh(x[k], precision[k], mu[j], root[j], room, p[i])
                solve(mu[j], root[j], room, solved[i], means[i])
                for v in range(LANES):
                    p[i, v] += log_weights[j]
                    top[v] = max(top[v], p[i, v])
            if s == 0:  # moments about a point nearby keep their digits
                for a in range(d):
                    for v in range(LANES):
                        origin[a, v] = means[0, a, v]
            total[:] = 0.0
            for i in range(m):
                for v in range(LANES):
                    p[i, v] -= top[v]
                exponentials(p[i], LANES, p[i])
                for v in range(LANES):
                    total[v] += p[i, v]
            for v in range(LANES):
                log_r = top[v] + math.log(total[v])
                high = max(log_sum[v], log_r)
                log_sum[v] = high + math.log(math.exp(log_sum[v] - high) + math.exp(log_r - high))
            for i in range(m):
                for v in range(LANES):
                    p[i, v] /= total[v] * n_draws
                if not shared[first + i]:
                    for v in range(LANES):
                        own[k, v] += p[i, v]
                _add_moments(p[i], means[i], origin, solved[i], w, average, second)
        for v in range(LANES):
            log_f[k, v] = log_sum[v] - math.log(n_draws)
        for a in range(d):
            for c in range(a + 1):
                for v in range(LANES):
                    second[a * d + c, v] -= average[a, v] * average[c, v]
                    second[c * d + a, v] = second[a * d + c, v]
        for a in range(d):
            for v in range(LANES):
                average[a, v] += origin[a, v]


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _add_moments(p, means, origin, solved, w, average, second):
    """One component's part of the first and second moments about ``origin``."""
    d, r = len(means), len(solved) // len(means)
    for a in range(d):
        for v in range(LANES):
            means[a, v] -= origin[a, v]
            average[a, v] += p[v] * means[a, v]
        for c in range(a + 1):
            for v in range(LANES):
                w[v] = means[a, v] * means[c, v]
            for q in range(r):
                for v in range(LANES):
                    w[v] += solved[q * d + a, v] * solved[q * d + c, v]
            for v in range(LANES):
                second[a * d + c, v] += p[v] * w[v]


@njit(cache=True, nogil=True)
def posterior_components(n, x, precision, log_weights, centres, roots, starts, shares, mean, covariance):
    """Shares of components (K, m), averaged over populations, and mean (K, m, D) and covariance in them.

    ``covariance`` is (K, m, D) for variances or (K, m, D * D); moments are left out where ``mean`` is empty.
    Without populations (``starts`` has one entry) shares are left as log-likelihoods plus ``log_weights``.
    """
    d, r = roots.shape[1:]
    root = roots.reshape(len(roots), d * r)
    room, p = scratch(d, r), np.empty(LANES)
    solved, means, w = np.empty((r * d, LANES)), np.empty((d, LANES)), np.empty(LANES)
    full = covariance.shape[2] > d
    for k in range(len(x)):
        at, here = k * LANES, min(LANES, n - k * LANES)
        for j in range(len(root)):
            weigh(x[k], precision[k], centres[j], root[j], room, p)
            for v in range(here):
                shares[at + v, j] = p[v] + log_weights[j]
            if mean.size == 0:
                continue
            solve(centres[j], root[j], room, solved, means)
            for i in range(d):
                for v in range(here):
                    mean[at + v, j, i] = means[i, v]
                for c in range(0 if full else i, i + 1):
                    for v in range(LANES):
                        w[v] = 0.0
                    for q in range(r):
                        for v in range(LANES):
                            w[v] += solved[q * d + i, v] * solved[q * d + c, v]
                    for v in range(here):
                        covariance[at + v, j, i * d + c if full else i] = w[v]
                        if full:
                            covariance[at + v, j, c * d + i] = w[v]
        for v in range(here):
            for s in range(len(starts) - 1):
                part, top, total = shares[at + v, starts[s] : starts[s + 1]], -np.inf, 0.0
                for j in range(len(part)):
                    top = max(top, part[j])
                for j in range(len(part)):
                    part[j] -= top
                exponentials(part, len(part), part)
                for j in range(len(part)):
                    total += part[j]
                total *= len(starts) - 1
                for j in range(len(part)):
                    part[j] /= total


@njit(cache=True, nogil=True)
def posterior_points(n, x, precision, centres, roots, shares, uniform, normal, theta):
    """Points of each client's posterior, (K, S, D): component by ``uniform`` (K or 1, S), place by ``normal``
    (K or 1, S, r).

    Each row of ``uniform`` ascends, so that one pass over the components is enough.
    """
    d, r = roots.shape[1:]
    mu, root = centres, roots.reshape(len(roots), d * r)
    room, unused = scratch(d, r), np.empty(LANES)
    own_mu, own_root = np.empty((d, LANES)), np.empty((d * r, LANES))
    step, place = np.empty((r, LANES)), np.empty((d, LANES))
    at, below = np.zeros(LANES, dtype=np.int64), np.empty(LANES)
    for k in range(len(x)):
        here = min(LANES, n - k * LANES)
        for v in range(here):
            at[v], below[v] = 0, shares[k * LANES + v, 0]
        for s in range(uniform.shape[1]):
            changed = s == 0
            for v in range(here):
                c = k * LANES + v
                u = uniform[c if len(uniform) > 1 else 0, s]
                while u > below[v] and at[v] < shares.shape[1] - 1:
                    at[v] += 1
                    below[v] += shares[c, at[v]]
                    changed = True
            if changed:
                for v in range(LANES):
                    j = at[v] if v < here else 0
                    for i in range(d):
                        own_mu[i, v] = mu[j, i]
                    for i in range(d * r):
                        own_root[i, v] = root[j, i]
                weigh(x[k], precision[k], own_mu, own_root, room, unused)
            for v in range(LANES):
                c = min(k * LANES + v, n - 1) if len(normal) > 1 else 0
                for a in range(r):
                    step[a, v] = normal[c, s, a]
            drawn(own_mu, own_root, room, step, place)
            for v in range(here):
                for i in range(d):
                    theta[k * LANES + v, s, i] = place[i, v]
