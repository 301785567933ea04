"""Clients side by side in vector registers: one client and one component, for many clients at a time.

Clients are Gaussian reports in information form, theta_hat_k with precision P_k, which may be singular.
Within a component theta = mu + R eta with eta ~ N(0, I) and S = R R', so that with e = theta_hat - mu

    M = I + R' P R,     b = R' P e,     eta | theta_hat ~ N(M^{-1} b, M^{-1}),

    log of the likelihood integrated over the component = -1/2 log|M| - 1/2 (e' P e - b' M^{-1} b) + constant
    of k.

Nothing is inverted that may be singular: neither P (a client that knows nothing of a direction) nor S (an
atom).  R has D rows and as many columns as there are directions in which clients differ; it is lower
triangular, in the sense that column a is zero in the rows before a.

Arrays end with an axis of ``LANES`` clients.  Loops over that axis become vector instructions, which is an
order of magnitude in speed; the last clients are filled up with ones that know nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numba.extending import overload

from vaneb.likelihood.base import Array
from vaneb.vector_math import _as_float, log

#: Clients side by side.
LANES = 64
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Lanes(NamedTuple):
    """K clients, in blocks of LANES."""

    x: Array
    """(B, D, LANES)"""
    precision: Array
    """(B, D, LANES) where all are diagonal, else (B, D * D, LANES)."""
    clients: int
    """K"""

    def some(self, few: slice) -> Lanes:
        """Some of the blocks; the last one may not be full.

        Contiguous, since kernels would be compiled once more for arrays that are not.
        """
        blocks = np.arange(len(self.x))[few]
        clients = len(blocks) * LANES
        if len(blocks) and blocks[-1] == len(self.x) - 1:
            clients -= len(self.x) * LANES - self.clients
        return Lanes(np.ascontiguousarray(self.x[few]), np.ascontiguousarray(self.precision[few]), clients)


def side_by_side(values: Array) -> Array:
    """(K, ...) as (B, ..., LANES), filled up with zeros; the axes between are made one."""
    n = len(values)
    flat = values.reshape(n, -1)
    filled = np.zeros((-(-n // LANES) * LANES, flat.shape[1]))
    filled[:n] = flat
    return np.ascontiguousarray(filled.reshape(-1, LANES, flat.shape[1]).swapaxes(1, 2))


def lanes_of(x: Array, precision: Array) -> Lanes:
    """From estimates (K, D) and precisions (K, D) or (K, D, D)."""
    return Lanes(side_by_side(x), side_by_side(precision), len(x))


def in_a_row(lanes: Array, n_clients: int) -> Array:
    """(B, D, LANES) as (K, D)."""
    return np.ascontiguousarray(lanes.swapaxes(1, 2).reshape(-1, lanes.shape[1])[:n_clients])


def lane(values, i, v):
    """values[i, v]; or values[i] where all lanes have the same."""
    return values[i, v] if values.ndim == 2 else values[i]


@overload(lane, inline="always")
def _lane(values, i, v):
    if values.ndim == 1:
        return lambda values, i, v: values[i]
    return lambda values, i, v: values[i, v]


@njit(cache=True, nogil=True)
def scratch(d, r, lanes):
    """Room for ``weigh``: e, P e, P R, chol(M), chol^{-1} b, and a product of pivots.

    The number of lanes is an argument, and a constant only where loops run over it: a function is compiled
    anew for each constant that it is given.
    """
    return (
        np.empty((d, lanes)),
        np.empty((d, lanes)),
        np.empty((d * r, lanes)),
        np.empty((r * r, lanes)),
        np.empty((r, lanes)),
        np.empty(lanes),
    )


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def weigh(x, precision, mu, root, room, out):
    """log-likelihood integrated over one component, (LANES,).

    ``mu`` (D,) and ``root`` (D * r,), or with an axis of lanes where each client has a component of its own.

    With e = x - mu, M = I + R'PR and b = R'Pe it is -(log|M| + e'Pe - b'M^{-1}b) / 2, without the client's
    constant.  Leaves C = chol(M), with the inverse of its diagonal, and C^{-1} b in ``room``.
    """
    e, pe, product, factor, b, pivots = room
    d, r = len(x), len(b)
    for v in range(LANES):
        out[v] = 0.0
        pivots[v] = 1.0
    full = len(precision) > d
    for i in range(d):
        for v in range(LANES):
            e[i, v] = x[i, v] - lane(mu, i, v)
    for i in range(d):
        first, last, row = (0, d, i * d) if full else (i, i + 1, 0)
        for v in range(LANES):
            pe[i, v] = 0.0
        for c in range(first, last):
            for v in range(LANES):
                pe[i, v] += precision[row + c, v] * e[c, v]
        for a in range(last if last < r else r):
            for v in range(LANES):
                product[i * r + a, v] = 0.0
            for c in range(first if first > a else a, last):
                for v in range(LANES):
                    product[i * r + a, v] += precision[row + c, v] * lane(root, c * r + a, v)
    for a in range(r):
        for v in range(LANES):
            b[a, v] = 0.0
        for i in range(a, d):
            for v in range(LANES):
                b[a, v] += lane(root, i * r + a, v) * pe[i, v]
        for c in range(a + 1):
            for v in range(LANES):
                factor[a * r + c, v] = 0.0
            for i in range(a, d):
                for v in range(LANES):
                    factor[a * r + c, v] += lane(root, i * r + a, v) * product[i * r + c, v]
        for v in range(LANES):
            factor[a * r + a, v] += 1.0
    for a in range(r):
        for c in range(a):
            for i in range(c):
                for v in range(LANES):
                    factor[a * r + c, v] -= factor[a * r + i, v] * factor[c * r + i, v]
            for v in range(LANES):
                factor[a * r + c, v] *= factor[c * r + c, v]
        for i in range(a):
            for v in range(LANES):
                factor[a * r + a, v] -= factor[a * r + i, v] * factor[a * r + i, v]
                b[a, v] -= factor[a * r + i, v] * b[i, v]
        for v in range(LANES):
            pivot = max(factor[a * r + a, v], 1.0)
            pivots[v] *= pivot
            factor[a * r + a, v] = 1.0 / math.sqrt(pivot)
            b[a, v] *= factor[a * r + a, v]
        if a % 8 == 7 or a == r - 1:  # a product of more pivots might not be a number
            for v in range(LANES):
                out[v] -= 0.5 * log(min(pivots[v], 1e300))
                pivots[v] = 1.0
    # e'Pe - b'M^{-1}b as u'u + (e - Ru)'P(e - Ru): a client far out that knows itself well leaves no digit of
    # the difference.
    u = product
    for a in range(r - 1, -1, -1):
        for v in range(LANES):
            u[a, v] = b[a, v]
        for i in range(a + 1, r):
            for v in range(LANES):
                u[a, v] -= factor[i * r + a, v] * u[i, v]
        for v in range(LANES):
            u[a, v] *= factor[a * r + a, v]
            out[v] -= 0.5 * u[a, v] * u[a, v]
    for i in range(d):
        for a in range(i + 1 if i < r else r):
            for v in range(LANES):
                e[i, v] -= lane(root, i * r + a, v) * u[a, v]
    for i in range(d):
        first, last, row = (0, d, i * d) if full else (i, i + 1, 0)
        for c in range(first, last):
            for v in range(LANES):
                out[v] -= 0.5 * e[i, v] * precision[row + c, v] * e[c, v]


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def solve(mu, root, room, solved, mean):
    """Posterior within a component after ``weigh``: W = C^{-1} R' (r * D, LANES) and mu + W' C^{-1} b.

    The covariance is W' W.
    """
    factor, b = room[3], room[4]
    d, r = len(mu), len(b)
    for i in range(d):
        for v in range(LANES):
            mean[i, v] = lane(mu, i, v)
        for a in range(r):
            w = a * d + i
            for v in range(LANES):
                solved[w, v] = lane(root, i * r + a, v)
            for c in range(a):
                for v in range(LANES):
                    solved[w, v] -= factor[a * r + c, v] * solved[c * d + i, v]
            for v in range(LANES):
                solved[w, v] *= factor[a * r + a, v]
                mean[i, v] += solved[w, v] * b[a, v]


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def drawn(mu, root, room, normal, theta):
    """theta = mu + R eta, eta = C'^{-1} (C^{-1} b + normal), after ``weigh``; uses up ``normal``."""
    factor, b = room[3], room[4]
    d, r = len(mu), len(b)
    for a in range(r - 1, -1, -1):
        for v in range(LANES):
            normal[a, v] += b[a, v]
        for i in range(a + 1, r):
            for v in range(LANES):
                normal[a, v] -= factor[i * r + a, v] * normal[i, v]
        for v in range(LANES):
            normal[a, v] *= factor[a * r + a, v]
    for i in range(d):
        for v in range(LANES):
            theta[i, v] = lane(mu, i, v)
        for a in range(i + 1 if i < r else r):
            for v in range(LANES):
                theta[i, v] += lane(root, i * r + a, v) * normal[a, v]


@njit(cache=True, inline="always")
def mixed(h):
    """The finaliser of splitmix64: neighbouring numbers become unrelated ones."""
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@njit(cache=True, inline="always")
def uniform(h):
    """Between 0 and 1, neither of which it is: the upper 52 bits as the fraction of a number from 1 to 2."""
    return _as_float(np.int64((h >> np.uint64(12)) | np.uint64(0x3FF0000000000000))) - (1.0 - 1.1e-16)


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def uniforms(hashes, salt, out):
    """A uniform number for each of the hashes (LANES,)."""
    for v in range(LANES):
        out[v] = uniform(mixed(hashes[v] + np.uint64(salt) * GOLDEN))


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def normals(hashes, salt, out):
    """A standard normal number for each of the hashes: the quantile of a uniform one (Wichura 1988, AS 241).

    The approximation is good to 1e-7, for all three ranges at once so that no lane waits for another.
    """
    for v in range(LANES):
        p = uniform(mixed(hashes[v] + np.uint64(salt) * GOLDEN))
        q = p - 0.5
        s = 0.180625 - q * q
        inner = (
            q * (((59.109374720 * s + 159.29113202) * s + 50.434271938) * s + 3.3871327179)
            / (((67.187563600 * s + 78.757757664) * s + 17.895169469) * s + 1.0)
        )  # fmt: skip
        tail = math.sqrt(-log(min(p, 1.0 - p)))
        t = tail - 1.6
        outer = (((0.17023821103 * t + 1.3067284816) * t + 2.7568153900) * t + 1.4234372777) / (
            (0.12021132975 * t + 0.73700164250) * t + 1.0
        )
        t = tail - 5.0
        far = (((0.017337203997 * t + 0.42868294337) * t + 3.0812263860) * t + 6.6579051150) / (
            (0.012258202635 * t + 0.24197894225) * t + 1.0
        )
        outer = outer if tail <= 5.0 else far
        outer = outer if q > 0 else -outer
        out[v] = inner if abs(q) <= 0.425 else outer
