"""One step over clients: a map that returns sums.

``sweep`` draws each client's component and theta given the population, and returns what the population needs
to know of them; ``expectation`` returns such sums as expectations, for a step of EM.  Random numbers are a
function of (seed, client, sweep), so results depend neither on blocks nor on threads, and nothing has to be
kept of a client between two sweeps.

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
    uniform,
    uniforms,
    weigh,
)
from vaneb.vector_math import exponentials


class Sums(NamedTuple):
    """Over the clients of each of J components: v = theta - mu and e = theta_hat - mu, mu its centre.

    The first three say where thetas are; the others how well the estimates agree with them, which tells how
    far centres and spreads may move together with the thetas (``mixtures.draw_moves``).
    """

    clients: Array
    """(J,)"""
    first: Array
    """sum v, (J, r)"""
    second: Array
    """sum v v', (J, r, r)"""
    precision: Array
    """sum P, (J, r, r)"""
    product: Array
    """sum P diag(v), (J, r, r)"""
    square: Array
    """sum diag(v) P diag(v), (J, r, r)"""
    pull: Array
    """sum P e, (J, r)"""
    cross: Array
    """sum diag(v) P e, (J, r)"""


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
    for v in range(LANES):
        top[v] = log_p[0, v]
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
def draw_components(x, precision, keys, number, log_weights, centres, roots, component):
    """Draw the component (B, LANES) of each client, given the population, whatever its theta.

    ``keys`` (B, LANES) are the clients' own, ``number`` is the sweep's; x and precision as in ``Lanes``.
    """
    m, d, r = roots.shape
    if m == 1:
        component[:] = 0
        return
    mu, root = centres, roots.reshape(m, d * r)
    room, p = scratch(d, r), np.empty((m + 1, LANES))
    hashes, left = np.empty(LANES, dtype=np.uint64), np.empty(LANES)
    for k in range(len(x)):
        _shares(x[k], precision[k], log_weights, mu, root, room, p)
        for v in range(LANES):
            hashes[v] = mixed(keys[k, v] + np.uint64(number) * GOLDEN)
        uniforms(hashes, 0, left)
        _pick(p, left, component[k])


def draw_clients(x, precision, keys, number, log_weights, centres, roots, component, theta):
    """Draw component (B, LANES) and theta (B, D, LANES) of each client, given the population."""
    draw_components(x, precision, keys, number, log_weights, centres, roots, component)
    draw_thetas(x, precision, keys, number, component, centres, roots, theta)


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
def draw_thetas(x, precision, keys, number, component, centres, roots, theta):
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
            hashes[v] = mixed(keys[k, v] + np.uint64(number) * GOLDEN)
        weigh(x[k], precision[k], mu, root, room, unused)
        for a in range(r):
            normals(hashes, a + 1, normal[a])
        drawn(mu, root, room, normal, theta[k])


@njit(cache=True, nogil=True)
def accept_chances(keys, number, out):
    """A uniform number for each client that ``draw_clients`` has not used, (B, LANES)."""
    for k in range(len(keys)):
        for v in range(LANES):
            out[k, v] = uniform(mixed(mixed(keys[k, v] + np.uint64(number) * GOLDEN) ^ GOLDEN))


@njit(cache=True, nogil=True, fastmath={"contract"})
def turned(x, precision, theta, basis):
    """x, precision and theta of clients in the coordinates of another basis, the columns of ``basis``."""
    d = x.shape[1]
    full = precision.shape[1] > d
    new_x, new_theta, new = np.zeros(x.shape), np.zeros(x.shape), np.zeros((len(x), d * d, LANES))
    half = np.empty((d, LANES))
    for k in range(len(x)):
        for i in range(d):
            half[:] = 0.0
            for c in range(d):
                w = basis[c, i]
                for v in range(LANES):
                    new_x[k, i, v] += w * x[k, c, v]
                    new_theta[k, i, v] += w * theta[k, c, v]
                if full:
                    for a in range(d):
                        for v in range(LANES):
                            half[a, v] += w * precision[k, c * d + a, v]
                else:
                    for v in range(LANES):
                        half[c, v] = w * precision[k, c, v]
            for a in range(i + 1):
                for c in range(d):
                    w = basis[c, a]
                    for v in range(LANES):
                        new[k, i * d + a, v] += w * half[c, v]
                for v in range(LANES):
                    new[k, a * d + i, v] = new[k, i * d + a, v]
    return new_x, new, new_theta


@njit(cache=True, nogil=True)
def add_up(n, x, precision, component, theta, varying, centres, basis):
    """``Sums`` over the first ``n`` clients, in the coordinates of ``basis`` unless that is empty."""
    if len(basis):
        new_x, new_precision, new_theta = turned(x, precision, theta, basis)
        return _added(n, new_x, new_precision, component, new_theta, varying, centres @ basis)
    return _added(n, x, precision, component, theta, varying, centres)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _added(n, x, precision, component, theta, varying, centres):
    d, r, m = x.shape[1], len(varying), len(centres)
    full = precision.shape[1] > d
    count, first, second = np.zeros(m), np.zeros((m, r)), np.zeros((m, r, r))
    total, product, square = np.zeros((m, r, r)), np.zeros((m, r, r)), np.zeros((m, r, r))
    pull, cross = np.zeros((m, r)), np.zeros((m, r))
    u, away = np.empty(r), np.empty(d)
    for k in range(n):
        b, v = k // LANES, k % LANES
        j = component[b, v]
        count[j] += 1
        for i in range(d):
            away[i] = x[b, i, v] - centres[j, i]
        for i in range(r):
            u[i] = theta[b, varying[i], v] - centres[j, varying[i]]
        for i in range(r):
            c = varying[i]
            first[j, i] += u[i]
            for a in range(i + 1):
                second[j, i, a] += u[i] * u[a]
            if full:
                force = 0.0
                for a in range(d):
                    force += precision[b, c * d + a, v] * away[a]
                for a in range(r):
                    p = precision[b, c * d + varying[a], v]
                    total[j, i, a] += p
                    p *= u[a]
                    product[j, i, a] += p
                    square[j, i, a] += u[i] * p
            else:
                p = precision[b, c, v]
                force = p * away[c]
                total[j, i, i] += p
                p *= u[i]
                product[j, i, i] += p
                square[j, i, i] += u[i] * p
            pull[j, i] += force
            cross[j, i] += u[i] * force
    for j in range(m):
        for i in range(r):
            for a in range(i):
                second[j, a, i] = second[j, i, a]
    return count, first, second, total, product, square, pull, cross


def sweep(n, x, precision, keys, number, log_weights, centres, roots, varying, basis):
    """``Sums`` over Gaussian clients whose components and thetas are drawn given the population."""
    component, theta = np.zeros(keys.shape, dtype=np.int64), np.empty(x.shape)
    draw_clients(x, precision, keys, number, log_weights, centres, roots, component, theta)
    return add_up(n, x, precision, component, theta, varying, centres, basis)


@njit(cache=True, nogil=True)
def sweep_shared(n, x, precision, keys, number, log_weights, centres, roots, shared):
    """``Shared`` given components, which are drawn here, whatever the thetas: by W = P - P R M^{-1} R' P.

    The value is told relative to that in ``centres``.
    """
    d, r, q = x.shape[1], roots.shape[2], len(shared)
    full = precision.shape[1] > d
    component = np.zeros(keys.shape, dtype=np.int64)
    draw_components(x, precision, keys, number, log_weights, centres, roots, component)
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
    mu, root = centres, roots.reshape(m, d * r)
    room, log_p = scratch(d, r), np.empty((m + 1, LANES))
    solved, mean = np.empty((r * d, LANES)), np.empty((d, LANES))
    count, first, second, log_f = np.zeros(m), np.zeros((m, r)), np.zeros((m, r, r)), 0.0
    u, w = np.empty((r, LANES)), np.empty(LANES)
    for k in range(len(x)):
        here = min(LANES, n - k * LANES)
        _shares(x[k], precision[k], log_weights, mu, root, room, log_p)
        log_p[:m, here:] = 0.0
        log_f += log_p[m, :here].sum()
        for j in range(m):
            p = log_p[j]
            if p.max() < 1e-12:
                continue
            weigh(x[k], precision[k], mu[j], root[j], room, w)
            solve(mu[j], root[j], room, solved, mean)
            count[j] += p.sum()
            for i in range(r):
                for v in range(LANES):
                    u[i, v] = mean[varying[i], v] - mu[j, varying[i]]
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
    mu, root = centres, roots.reshape(m, d * r)
    room, found, out = scratch(d, r), np.empty(LANES), np.empty((n, m))
    for k in range(len(x)):
        for j in range(m):
            weigh(x[k], precision[k], mu[j], root[j], room, found)
            for v in range(min(LANES, n - k * LANES)):
                out[k * LANES + v, j] = found[v]
    return out
