"""One step over clients: a map that returns sums.

``draw_clients`` draws each client's component and theta given the population, ``add_up`` returns what the
population needs to know of them; ``expectation`` returns the same sums as expectations, for a step of EM.
Random numbers are a function of (seed, client, sweep), so results depend neither on blocks nor on threads.

Coordinates of theta are of two kinds.  In ``varying`` ones clients differ: components have centres and roots
there.  The others are the same for all clients; a centre holds their common value, and roots are zero there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from vaneb.likelihood.seam import Array
from vaneb.population.lanes import (
    GOLDEN,
    LANES,
    drawn,
    mixed,
    normals,
    scratch,
    solve,
    spread_out,
    uniform,
    uniforms,
    weigh,
)
from vaneb.vector_math import exponentials


class Sums(NamedTuple):
    """Over the clients of each of J components: how many, and moments of theta about its present centre."""

    clients: Array
    """(J,)"""
    first: Array
    """(J, r)"""
    second: Array
    """(J, r, r)"""


class Moves(NamedTuple):
    """See ``add_up_moves``."""

    square: Array
    cross: Array
    total: Array
    product: Array
    right: Array


class Shared(NamedTuple):
    """What clients say of the coordinates that they share: precision (q, q), and precision times value."""

    precision: Array
    right: Array


@njit(cache=True, nogil=True)
def _shares(x, precision, log_weights, mu, root, room, log_p):
    """Each component's share in LANES clients, (J, LANES), and the logarithm of the sum in its last row."""
    m = len(log_weights)
    for j in range(m):
        weigh(x, precision, mu[j], root[j], room, log_p[j])
        for v in range(LANES):
            log_p[j, v] += log_weights[j]
    top, total = np.empty(LANES), np.zeros(LANES)
    top[:] = log_p[0]
    for j in range(1, m):
        for v in range(LANES):
            top[v] = max(top[v], log_p[j, v])
    for j in range(m):
        for v in range(LANES):
            log_p[j, v] -= top[v]
        exponentials(log_p[j], LANES, log_p[j])
        for v in range(LANES):
            total[v] += log_p[j, v]
    for j in range(m):
        for v in range(LANES):
            log_p[j, v] /= total[v]
    for v in range(LANES):
        log_p[m, v] = top[v] + np.log(total[v])


@njit(cache=True, nogil=True)
def draw_clients(x, precision, keys, sweep, log_weights, centres, roots, component, theta):
    """Draw component (B, LANES) and theta (B, D, LANES) of each client, given the population.

    ``keys`` (B, LANES) are the clients' own; x and precision as in ``lanes.Lanes``.
    """
    m, d, r = roots.shape
    if m > 1:
        mu, root = np.empty((m, d, LANES)), np.empty((m, d * r, LANES))
        spread_out(centres, roots, mu, root)
        room, p = scratch(d, r), np.empty((m + 1, LANES))
        hashes, left = np.empty(LANES, dtype=np.uint64), np.empty(LANES)
        for k in range(len(x)):
            _shares(x[k], precision[k], log_weights, mu, root, room, p)
            for v in range(LANES):
                hashes[v] = mixed(keys[k, v] + np.uint64(sweep) * GOLDEN)
            uniforms(hashes, 0, left)
            _pick(p, left, component[k])
    else:
        component[:] = 0
    draw_thetas(x, precision, keys, sweep, component, centres, roots, theta)


@njit(cache=True, nogil=True)
def _pick(p, left, component):
    """The component into which a uniform number falls; uses up ``left``."""
    for v in range(LANES):
        left[v] -= p[0, v]
        component[v] = 0
    for j in range(1, len(p) - 1):
        for v in range(LANES):
            component[v] = j if left[v] >= 0 else component[v]
            left[v] = left[v] - p[j, v] if left[v] >= 0 else left[v]


@njit(cache=True, nogil=True)
def draw_thetas(x, precision, keys, sweep, component, centres, roots, theta):
    """Draw theta (B, D, LANES) of each client, given the population and its component."""
    m, d, r = roots.shape
    room, unused, hashes = scratch(d, r), np.empty(LANES), np.empty(LANES, dtype=np.uint64)
    mu, root, normal = np.empty((d, LANES)), np.empty((d * r, LANES)), np.empty((r, LANES))
    for k in range(len(x)):
        if m > 1 or k == 0:
            for v in range(LANES):
                j = component[k, v]
                for i in range(d):
                    mu[i, v] = centres[j, i]
                    for a in range(r):
                        root[i * r + a, v] = roots[j, i, a]
        for v in range(LANES):
            hashes[v] = mixed(keys[k, v] + np.uint64(sweep) * GOLDEN)
        weigh(x[k], precision[k], mu, root, room, unused)
        for a in range(r):
            normals(hashes, a + 1, normal[a])
        drawn(mu, root, room, normal, theta[k])


@njit(cache=True, nogil=True)
def accept_chances(keys, sweep, out):
    """A uniform number for each client that ``draw_clients`` has not used, (B, LANES)."""
    for k in range(len(keys)):
        for v in range(LANES):
            out[k, v] = uniform(mixed(mixed(keys[k, v] + np.uint64(sweep) * GOLDEN) ^ GOLDEN))


@njit(cache=True, nogil=True)
def add_up(n, component, theta, varying, centres):
    """``Sums`` over the first ``n`` clients."""
    m, r = len(centres), len(varying)
    count, first, second = np.zeros(m), np.zeros((m, r)), np.zeros((m, r, r))
    u = np.empty(r)
    for k in range(n):
        j = component[k // LANES, k % LANES]
        count[j] += 1
        for i in range(r):
            u[i] = theta[k // LANES, varying[i], k % LANES] - centres[j, varying[i]]
        for i in range(r):
            first[j, i] += u[i]
            for a in range(i + 1):
                second[j, i, a] += u[i] * u[a]
    for j in range(m):
        for i in range(r):
            for a in range(i):
                second[j, a, i] = second[j, i, a]
    return count, first, second


@njit(cache=True, nogil=True, fastmath=True)
def add_up_moves(n, x, precision, component, theta, varying, centres):
    """What the clients say of a stretch D = diag(delta) and of new centres, u_k = theta_k - mu_j given:

        theta_hat_k = mu_j + D u_k + noise.

    Returns sum_k U P_k U (r, r) and sum_k U P_k (theta_hat_k - mu_j) (r,), U = diag(u_k), for delta; and for
    each component sum P_k, sum P_k U (J, r, r) and sum P_k (theta_hat_k - mu_j) (J, r).
    """
    d, r, m = x.shape[1], len(varying), len(centres)
    full = precision.shape[1] > d
    square, cross = np.zeros((r, r)), np.zeros(r)
    total, product, right = np.zeros((m, r, r)), np.zeros((m, r, r)), np.zeros((m, r))
    u, away = np.empty(d), np.empty(d)
    for k in range(n):
        b, v = k // LANES, k % LANES
        j = component[b, v]
        for i in range(d):
            u[i] = theta[b, i, v] - centres[j, i]
            away[i] = x[b, i, v] - centres[j, i]
        for i in range(r):
            c = varying[i]
            if full:
                pull = 0.0
                for a in range(d):
                    pull += precision[b, c * d + a, v] * away[a]
                for a in range(r):
                    p = precision[b, c * d + varying[a], v]
                    square[i, a] += u[c] * p * u[varying[a]]
                    total[j, i, a] += p
                    product[j, i, a] += p * u[varying[a]]
            else:
                p = precision[b, c, v]
                pull = p * away[c]
                square[i, i] += u[c] * p * u[c]
                total[j, i, i] += p
                product[j, i, i] += p * u[c]
            cross[i] += u[c] * pull
            right[j, i] += pull
    return square, cross, total, product, right


@njit(cache=True, nogil=True)
def add_up_shared(n, x, precision, component, shared, centres, roots):
    """``Shared``, given clients' components, whatever their thetas: by W = P - P R M^{-1} R' P.

    The value is told relative to that in ``centres``.
    """
    d, r, q = x.shape[1], roots.shape[2], len(shared)
    full = precision.shape[1] > d
    total, right = np.zeros((q, q)), np.zeros(q)
    p, e = np.zeros((d, d)), np.empty(d)
    for k in range(n):
        b, v = k // LANES, k % LANES
        j = component[b, v]
        for i in range(d):
            e[i] = x[b, i, v] - centres[j, i]
            if full:
                for a in range(d):
                    p[i, a] = precision[b, i * d + a, v]
            else:
                p[i, i] = precision[b, i, v]
        product = p @ roots[j]
        weight = p.copy()
        if r > 0:
            weight -= product @ np.linalg.solve(np.eye(r) + roots[j].T @ product, product.T)
        pull = weight @ e
        for i in range(q):
            right[i] += pull[shared[i]]
            for a in range(q):
                total[i, a] += weight[shared[i], shared[a]]
    return total, right


@njit(cache=True, nogil=True)
def expectation(n, x, precision, log_weights, varying, centres, roots):
    """The sum of log f_k over clients, and ``Sums`` as expectations over components and thetas."""
    m, d, r = roots.shape
    mu, root = np.empty((m, d, LANES)), np.empty((m, d * r, LANES))
    spread_out(centres, roots, mu, root)
    room, log_p = scratch(d, r), np.empty((m + 1, LANES))
    solved, mean = np.empty((r * d, LANES)), np.empty((d, LANES))
    count, first, second, log_f = np.zeros(m), np.zeros((m, r)), np.zeros((m, r, r)), 0.0
    u, p, w = np.empty((r, LANES)), np.empty(LANES), np.empty(LANES)
    for k in range(len(x)):
        here = min(LANES, n - k * LANES)
        _shares(x[k], precision[k], log_weights, mu, root, room, log_p)
        log_p[:m, here:] = 0.0
        log_f += log_p[m, :here].sum()
        for j in range(m):
            p[:] = log_p[j]
            if p.max() < 1e-12:
                continue
            weigh(x[k], precision[k], mu[j], root[j], room, w)
            solve(mu[j], root[j], room, solved, mean)
            count[j] += p.sum()
            for i in range(r):
                for v in range(LANES):
                    u[i, v] = mean[varying[i], v] - mu[j, varying[i], v]
            for i in range(r):
                s = 0.0
                for v in range(LANES):
                    s += p[v] * u[i, v]
                first[j, i] += s
                for a in range(i + 1):
                    for v in range(LANES):
                        w[v] = u[i, v] * u[a, v]
                    for c in range(r):
                        for v in range(LANES):
                            w[v] += solved[c * d + varying[i], v] * solved[c * d + varying[a], v]
                    s = 0.0
                    for v in range(LANES):
                        s += p[v] * w[v]
                    second[j, i, a] += s
    for j in range(m):
        for i in range(r):
            for a in range(i):
                second[j, a, i] = second[j, i, a]
    return log_f, count, first, second


@njit(cache=True, nogil=True)
def pair_log_likelihoods(n, x, precision, centres, roots):
    """log-likelihood of each client integrated over each component, (K, J), without the client's constant."""
    m, d, r = roots.shape
    mu, root = np.empty((m, d, LANES)), np.empty((m, d * r, LANES))
    spread_out(centres, roots, mu, root)
    room, found, out = scratch(d, r), np.empty(LANES), np.empty((n, m))
    for k in range(len(x)):
        for j in range(m):
            weigh(x[k], precision[k], mu[j], root[j], room, found)
            for v in range(min(LANES, n - k * LANES)):
                out[k * LANES + v, j] = found[v]
    return out
