"""One step over clients: a map that returns sums.

``sweep`` draws each client's component and theta given the population, and returns what the population needs
to know of them.  Random numbers are a function of (seed, client, sweep), so results depend neither on blocks
nor on threads, and nothing has to be kept of a client between two sweeps.

Coordinates of theta are of two kinds.  In ``varying`` ones clients differ: components have centres and roots
there.  The others are the same for all clients; a centre holds their common value, and roots are zero there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from vaneb.likelihood.base import Array
from vaneb.population.lanes import (
    GOLDEN,
    LANES,
    drawn,
    mixed,
    normals,
    scratch,
    uniform,
    uniforms,
    weigh,
)
from vaneb.vector_math import exponentials


class ComponentSums(NamedTuple):
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


@njit(cache=True, nogil=True)
def draw_clients(x, precision, keys, number, log_weights, centres, roots, component, theta):
    """Draw component (B, LANES) and theta (B, D, LANES) of each client, given the population.

    The component is drawn whatever the theta; thetas are left out where ``theta`` is empty.
    ``keys`` (B, LANES) are the clients' own, ``number`` is the sweep's; x and precision as in ``Lanes``.
    """
    (m, d, r), lanes = roots.shape, x.shape[2]
    root = roots.reshape(m, d * r)
    room = scratch(d, r, lanes)
    e, pe, product, own_factor, own_b, pivots = room
    factors, bs, p = np.empty((m, r * r, lanes)), np.empty((m, r, lanes)), np.empty((m, lanes))
    own_mu, own_root, normal = np.empty((d, lanes)), np.empty((d * r, lanes)), np.empty((r, lanes))
    hashes, top, left = np.empty(lanes, dtype=np.uint64), np.empty(lanes), np.empty(lanes)
    for k in range(len(x)):
        for v in range(LANES):
            hashes[v] = mixed(keys[k, v] + np.uint64(number) * GOLDEN)
            component[k, v] = 0
            top[v] = -np.inf
        for j in range(m):
            weigh(x[k], precision[k], centres[j], root[j], (e, pe, product, factors[j], bs[j], pivots), p[j])
            for v in range(LANES):
                p[j, v] += log_weights[j]
                top[v] = max(top[v], p[j, v])
        if m > 1:
            total = pivots
            for v in range(LANES):
                total[v] = 0.0
            for j in range(m):
                for v in range(LANES):
                    p[j, v] -= top[v]
                exponentials(p[j], len(top), p[j])
                for v in range(LANES):
                    total[v] += p[j, v]
            # the component into which a uniform number falls
            uniforms(hashes, 0, left)
            for v in range(LANES):
                left[v] = left[v] * total[v] - p[0, v]
            for j in range(1, m):
                for v in range(LANES):
                    component[k, v] = j if left[v] >= 0 else component[k, v]
                    left[v] = left[v] - p[j, v] if left[v] >= 0 else left[v]
        if theta.size == 0:
            continue
        for v in range(LANES):
            j = component[k, v]
            for i in range(d):
                own_mu[i, v] = centres[j, i]
                for a in range(r):
                    own_root[i * r + a, v] = root[j, i * r + a]
            for a in range(r):
                own_b[a, v] = bs[j, a, v]
                for c in range(a + 1):
                    own_factor[a * r + c, v] = factors[j, a * r + c, v]
        for a in range(r):
            normals(hashes, a + 1, normal[a])
        drawn(own_mu, own_root, room, normal, theta[k])


@njit(cache=True, nogil=True)
def accept_chances(keys, number, out):
    """A uniform number for each client that ``draw_clients`` has not used, (B, LANES)."""
    for k in range(len(keys)):
        for v in range(LANES):
            out[k, v] = uniform(mixed(mixed(keys[k, v] + np.uint64(number) * GOLDEN) ^ GOLDEN))


@njit(cache=True, nogil=True, fastmath={"contract"})
def turned(x, precision, theta, basis):
    """x, precision and theta of clients in the coordinates of another basis, the columns of ``basis``."""
    d, lanes = x.shape[1:]
    full = precision.shape[1] > d
    new_x, new_theta, new = np.zeros(x.shape), np.zeros(x.shape), np.zeros((len(x), d * d, LANES))
    half = np.empty((d, lanes))
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


def add_up(n, x, precision, component, theta, varying, centres, basis):
    """``ComponentSums`` of the first ``n`` clients, in the coordinates of ``basis`` unless that is empty."""
    if len(basis):
        x, precision, theta = turned(x, precision, theta, basis)
        centres = centres @ basis
    m, r = len(centres), len(varying)
    shapes = (m,), (m, r), (m, r, r), (m, r, r), (m, r, r), (m, r, r), (m, r), (m, r)
    sums = tuple(np.zeros(shape) for shape in shapes)
    _add(n, x, precision, component, theta, varying, centres, *sums)
    return sums


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add(
    n,
    x,
    precision,
    component,
    theta,
    varying,
    centres,
    count,
    first,
    second,
    total,
    product,
    square,
    pull,
    cross,
):
    d, r = x.shape[1], len(varying)
    full = precision.shape[1] > d
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
            for a in range(r):
                second[j, i, a] += u[i] * u[a]
            force = 0.0
            for a in range(0 if full else c, d if full else c + 1):
                force += precision[b, c * d + a if full else c, v] * away[a]
            for a in range(0 if full else i, r if full else i + 1):
                p = precision[b, c * d + varying[a] if full else c, v]
                total[j, i, a] += p
                product[j, i, a] += p * u[a]
                square[j, i, a] += u[i] * (p * u[a])
            pull[j, i] += force
            cross[j, i] += u[i] * force


def sweep(n, x, precision, keys, number, log_weights, centres, roots, varying, basis):
    """``ComponentSums`` over Gaussian clients whose components and thetas are drawn given the population."""
    component, theta = np.zeros(keys.shape, dtype=np.int64), np.empty(x.shape)
    draw_clients(x, precision, keys, number, log_weights, centres, roots, component, theta)
    return add_up(n, x, precision, component, theta, varying, centres, basis)


@njit(cache=True, nogil=True)
def sweep_shared(n, x, precision, keys, number, log_weights, centres, roots, shared):
    """What clients say of coordinates that they share: precision (q, q), and precision times value, (q,).

    Given components, which are drawn here, whatever the thetas: by W = P - P R M^{-1} R' P.  The value is
    told relative to that in ``centres``.
    """
    d, r, q = x.shape[1], roots.shape[2], len(shared)
    full = precision.shape[1] > d
    component = np.zeros(keys.shape, dtype=np.int64)
    draw_clients(
        x, precision, keys, number, log_weights, centres, roots, component, np.empty((0, 0, x.shape[2]))
    )
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
