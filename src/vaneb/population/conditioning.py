"""Each client's posterior given populations: moments, components and points.

Population r has the components starts[r] to starts[r + 1].  Clients come as in ``lanes.Lanes``.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from vaneb.likelihood.base import Array, log_of
from vaneb.population.lanes import LANES, Lanes, drawn, in_a_row, scratch, solve, weigh
from vaneb.vector_math import exponentials

NOTHING = np.empty((0, 0, 0))
NO_SHARES = np.empty((0, 0))


def moments_of(
    clients: Lanes,
    weights: Array,
    centres: Array,
    roots: Array,
    starts: NDArray[np.intp] | None = None,
    shared: NDArray[np.bool_] | None = None,
) -> tuple[Array, Array, Array, Array]:
    """log f (K,), mean (K, D), covariance (K, D, D), own (K,) of ``posteriors``.

    Components have centres (m, D) and roots (m, D, r); unless told they are one population, and all shared.
    """
    starts = np.array([0, len(weights)]) if starts is None else starts
    shared = np.ones(len(weights), dtype=np.bool_) if shared is None else shared
    n, (b, d, lanes) = clients.clients, clients.x.shape
    log_f, own = np.empty((b, lanes)), np.empty((b, lanes))
    mean, covariance = np.empty((b, d, lanes)), np.empty((b, d * d, lanes))
    posteriors(
        *clients, log_of(weights), centres, roots, starts, shared, log_f, mean, covariance, own, NO_SHARES,
        NOTHING, NOTHING,
    )  # fmt: skip
    return (
        log_f.ravel()[:n], in_a_row(mean, n), in_a_row(covariance, n).reshape(n, d, d), own.ravel()[:n],
    )  # fmt: skip


def components_of(
    clients: Lanes,
    weights: Array,
    centres: Array,
    roots: Array,
    starts: NDArray[np.intp] | None = None,
    full: bool = False,
) -> tuple[Array, Array, Array, Array]:
    """log f (K,), shares (K, m), and in components mean (K, m, D) and variances (K, m, D) of ``posteriors``.

    With ``full`` these are covariances, (K, m, D * D).
    """
    starts = np.array([0, len(weights)]) if starts is None else starts
    n, (m, d, _), shape = clients.clients, roots.shape, (len(clients.x), clients.x.shape[2])
    log_f, own, shared = np.empty(shape), np.empty(shape), np.ones(m, dtype=np.bool_)
    shares, means, variances = np.empty((n, m)), np.empty((n, m, d)), np.empty((n, m, d * d if full else d))
    posteriors(
        *clients, log_of(weights), centres, roots, starts, shared, log_f, NOTHING, NOTHING, own, shares,
        means, variances,
    )  # fmt: skip
    return log_f.ravel()[:n], shares, means, variances


@njit(cache=True, nogil=True)
def posteriors(
    x, precision, n, log_weights, centres, roots, starts, shared, log_f, mean, covariance, own, shares, means,
    variances,
):  # fmt: skip
    """Each client's posterior, averaged over populations, and its components.

    Leaves the logarithm of the average marginal density in ``log_f`` (B, LANES), without the client's
    constant; mean (B, D, LANES); covariance (B, D * D, LANES); and in ``own`` (B, LANES) the probability of
    components that no other client shares.  Of components: shares (n, m), means (n, m, D), and variances
    (n, m, D) or covariances (n, m, D * D).  Moments are left out where their arrays are empty.
    """
    (_, d, r), lanes = roots.shape, x.shape[2]
    root = roots.reshape(len(roots), d * r)
    n_draws, most, full = len(starts) - 1, 0, variances.shape[2] > d
    for s in range(n_draws):
        m = starts[s + 1] - starts[s]
        most = m if m > most else most
    room, p = scratch(d, r, lanes), np.empty((most, lanes))
    inner, solved = np.empty((most, d, lanes)), np.empty((most, r * d, lanes))
    origin, top, total, w = np.empty((d, lanes)), np.empty(lanes), np.empty(lanes), np.empty(lanes)
    log_sum = np.empty(lanes)
    for k in range(len(x)):
        for v in range(LANES):
            own[k, v] = 0.0
            log_sum[v] = -np.inf
        if mean.size:
            for v in range(LANES):
                for a in range(d):
                    mean[k, a, v] = 0.0
                for a in range(d * d):
                    covariance[k, a, v] = 0.0
        for s in range(n_draws):
            first, m = starts[s], starts[s + 1] - starts[s]
            for v in range(LANES):
                top[v] = -np.inf
                total[v] = 0.0
            for i in range(m):
                j = first + i
                weigh(x[k], precision[k], centres[j], root[j], room, p[i])
                solve(centres[j], root[j], room, solved[i], inner[i])
                for v in range(LANES):
                    p[i, v] += log_weights[j]
                    top[v] = max(top[v], p[i, v])
            if s == 0:  # moments about a point nearby keep their digits
                for a in range(d):
                    for v in range(LANES):
                        origin[a, v] = inner[0, a, v]
            for i in range(m):
                for v in range(LANES):
                    p[i, v] -= top[v]
                exponentials(p[i], len(top), p[i])
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
                if means.size:
                    _keep(k, first + i, n, p[i], inner[i], solved[i], w, full, shares, means, variances)
                if mean.size:
                    _add_moments(p[i], inner[i], origin, solved[i], w, mean[k], covariance[k])
        for v in range(LANES):
            log_f[k, v] = log_sum[v] - math.log(n_draws)
        if mean.size:
            for a in range(d):
                for c in range(a + 1):
                    for v in range(LANES):
                        covariance[k, a * d + c, v] -= mean[k, a, v] * mean[k, c, v]
                        covariance[k, c * d + a, v] = covariance[k, a * d + c, v]
            for a in range(d):
                for v in range(LANES):
                    mean[k, a, v] += origin[a, v]


@njit(cache=True, nogil=True)
def _keep(k, j, n, p, inner, solved, w, full, shares, means, variances):
    """One component of a block of clients, client by client."""
    at, d = k * LANES, len(inner)
    here = LANES if n - at > LANES else n - at
    for v in range(here):
        shares[at + v, j] = p[v]
    for i in range(d):
        for v in range(here):
            means[at + v, j, i] = inner[i, v]
        for c in range(0 if full else i, i + 1):
            for v in range(LANES):
                w[v] = 0.0
            for q in range(len(solved) // d):
                for v in range(LANES):
                    w[v] += solved[q * d + i, v] * solved[q * d + c, v]
            for v in range(here):
                variances[at + v, j, i * d + c if full else i] = w[v]
                if full:
                    variances[at + v, j, c * d + i] = w[v]


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
def posterior_points(n, x, precision, centres, roots, shares, uniform, normal, theta):
    """Points of each client's posterior, (K, S, D): component by ``uniform`` (K or 1, S), place by ``normal``
    (K or 1, S, r).

    Each row of ``uniform`` ascends, so that one pass over the components is enough.
    """
    (_, d, r), lanes = roots.shape, x.shape[2]
    mu, root = centres, roots.reshape(len(roots), d * r)
    room, unused = scratch(d, r, lanes), np.empty(lanes)
    own_mu, own_root = np.empty((d, lanes)), np.empty((d * r, lanes))
    step, place = np.empty((r, lanes)), np.empty((d, lanes))
    at, below = np.zeros(lanes, dtype=np.int64), np.empty(lanes)
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
