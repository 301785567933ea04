"""One step over clients: a map that returns sums.

Clients are seen as Gaussian reports in information form, theta_hat_k with precision P_k, which may be
singular. Within component j, theta = mu_j + L_j eta with eta ~ N(0, I) and S_j = L_j L_j', so that with e =
theta_hat - mu_j

    M = I + L' P L,     b = L' P e,     eta | theta_hat ~ N(M^{-1} b, M^{-1}),

    log of the likelihood integrated over the component = -1/2 log|M| - 1/2 (e' P e - b' M^{-1} b) + constant
    of k.

Nothing is inverted that may be singular: neither P_k (a client that knows nothing of a direction) nor S_j (an
atom).  ``draw_clients`` draws each client's component and theta, ``add_up`` returns what the population needs
to know of them.  Random numbers are a function of (seed, client, sweep), so results depend neither on blocks
nor on threads.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from vaneb.likelihood.seam import Array

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Moves(NamedTuple):
    """See ``add_up_moves``."""

    square: Array
    cross: Array
    total: Array
    product: Array
    right: Array

    def plus(self, other: Moves) -> Moves:
        return Moves(*(a + b for a, b in zip(self, other, strict=True)))


class Sums(NamedTuple):
    """Over the clients of each of J components: how many, and moments of theta about its present centre."""

    clients: Array
    """(J,)"""
    first: Array
    """(J, d)"""
    second: Array
    """(J, d, d)"""

    def plus(self, other: Sums) -> Sums:
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))


@njit(cache=True, inline="always")
def _mixed(h):  # the finaliser of splitmix64
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@njit(cache=True, inline="always")
def _uniform(h):
    return (float(h >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True, fastmath=True)
def _weigh(x, precision, full, mu, root, e, pe, product, factor, b):
    """log-likelihood integrated over one component; leaves chol(M) in ``factor``, chol^{-1} b in ``b``."""
    d = len(x)
    q = 0.0
    for i in range(d):
        e[i] = x[i] - mu[i]
    if full:
        for i in range(d):
            s = 0.0
            for c in range(d):
                s += precision[i, c] * e[c]
            pe[i] = s
            q += s * e[i]
        for i in range(d):
            for a in range(d):
                s = 0.0
                for c in range(a, d):
                    s += precision[i, c] * root[c, a]
                product[i, a] = s
    else:
        for i in range(d):
            pe[i] = precision[i, 0] * e[i]
            q += pe[i] * e[i]
            for a in range(i + 1):
                product[i, a] = precision[i, 0] * root[i, a]
    for a in range(d):
        s = 0.0
        for i in range(a, d):
            s += root[i, a] * pe[i]
        b[a] = s
        for c in range(a + 1):
            s = 0.0
            for i in range(a, d):
                s += root[i, a] * product[i, c]
            factor[a, c] = s
        factor[a, a] += 1.0
    log_root, fitted = 0.0, 0.0
    for a in range(d):
        for c in range(a):
            s = factor[a, c]
            for i in range(c):
                s -= factor[a, i] * factor[c, i]
            factor[a, c] = s / factor[c, c]
        s = factor[a, a]
        for i in range(a):
            s -= factor[a, i] * factor[a, i]
        factor[a, a] = math.sqrt(max(s, 1e-300))
        log_root += math.log(factor[a, a])
        s = b[a]
        for i in range(a):
            s -= factor[a, i] * b[i]
        b[a] = s / factor[a, a]
        fitted += b[a] * b[a]
    return -log_root - 0.5 * (q - fitted)


@njit(cache=True, nogil=True, fastmath=True)
def draw_clients(x, precision, keys, sweep, log_weights, centres, roots, component, theta):
    """Draw component (K,) and theta (K, d) of each client, given the population.

    ``precision`` has shape (K, d, d), or (K, d, 1) where all are diagonal.
    """
    n, d = x.shape
    m = len(log_weights)
    full = precision.shape[2] > 1 or d == 1
    factor, b = np.empty((m, d, d)), np.empty((m, d))
    log_p, eta, e, pe, product = np.empty(m), np.empty(d), np.empty(d), np.empty(d), np.empty((d, d))
    for k in range(n):
        top = -np.inf
        for j in range(m):
            log_p[j] = log_weights[j] + _weigh(
                x[k], precision[k], full, centres[j], roots[j], e, pe, product, factor[j], b[j]
            )
            top = max(top, log_p[j])
        total = 0.0
        for j in range(m):
            log_p[j] = math.exp(log_p[j] - top)
            total += log_p[j]
        h = _mixed(keys[k] + np.uint64(sweep) * GOLDEN)
        left = _uniform(h) * total
        pick = m - 1
        for j in range(m):
            left -= log_p[j]
            if left < 0:
                pick = j
                break
        component[k] = pick
        for i in range(0, d, 2):
            h = _mixed(h + GOLDEN)
            radius = math.sqrt(-2 * math.log(_uniform(h)))
            h = _mixed(h + GOLDEN)
            angle = 2 * math.pi * _uniform(h)
            eta[i] = b[pick, i] + radius * math.cos(angle)
            if i + 1 < d:
                eta[i + 1] = b[pick, i + 1] + radius * math.sin(angle)
        for a in range(d - 1, -1, -1):
            s = eta[a]
            for i in range(a + 1, d):
                s -= factor[pick, i, a] * eta[i]
            eta[a] = s / factor[pick, a, a]
        for i in range(d):
            s = centres[pick, i]
            for a in range(i + 1):
                s += roots[pick, i, a] * eta[a]
            theta[k, i] = s


@njit(cache=True, nogil=True)
def uniforms(keys, sweep, out):
    """A uniform number for each client that ``draw_clients`` has not used."""
    for k in range(len(keys)):
        out[k] = _uniform(_mixed(_mixed(keys[k] + np.uint64(sweep) * GOLDEN) ^ GOLDEN))


@njit(cache=True, nogil=True)
def add_up(component, theta, centres):
    """``Sums`` over clients."""
    m, d = centres.shape
    count, first, second = np.zeros(m), np.zeros((m, d)), np.zeros((m, d, d))
    for k in range(len(component)):
        j = component[k]
        count[j] += 1
        for i in range(d):
            u = theta[k, i] - centres[j, i]
            first[j, i] += u
            for a in range(d):
                second[j, i, a] += u * (theta[k, a] - centres[j, a])
    return count, first, second


@njit(cache=True, nogil=True, fastmath=True)
def add_up_moves(x, precision, component, theta, centres):
    """What the clients say of a stretch D = diag(delta) and of new centres, u_k = theta_k - mu_j given:

        theta_hat_k = mu_j + D u_k + noise.

    Returns sum_k U P_k U (d, d) and sum_k U P_k (theta_hat_k - mu_j) (d,), U = diag(u_k), for delta; and for
    each component sum P_k, sum P_k U (J, d, d) and sum P_k theta_hat_k (J, d).
    """
    n, d = x.shape
    m = len(centres)
    full = precision.shape[2] > 1 or d == 1
    square, cross = np.zeros((d, d)), np.zeros(d)
    total, product, right = np.zeros((m, d, d)), np.zeros((m, d, d)), np.zeros((m, d))
    for k in range(n):
        j = component[k]
        for i in range(d):
            u = theta[k, i] - centres[j, i]
            for a in range(d) if full else range(i, i + 1):
                p = precision[k, i, a] if full else precision[k, i, 0]
                v = theta[k, a] - centres[j, a]
                square[i, a] += u * p * v
                cross[i] += u * p * (x[k, a] - centres[j, a])
                total[j, i, a] += p
                product[j, i, a] += p * v
                right[j, i] += p * x[k, a]
    return square, cross, total, product, right


@njit(cache=True, nogil=True, fastmath=True)
def _solve(root, centre, factor, b, solved, mean):
    """Posterior within a component after ``_weigh``: W = chol^{-1} L' in ``solved`` and mu + W' chol^{-1} b.

    The covariance is W' W.
    """
    d = len(centre)
    for i in range(d):
        s = centre[i]
        for a in range(d):
            w = root[i, a] if a <= i else 0.0
            for c in range(a):
                w -= factor[a, c] * solved[c, i]
            w /= factor[a, a]
            solved[a, i] = w
            s += w * b[a]
        mean[i] = s


@njit(cache=True, nogil=True, fastmath=True)
def posterior_moments(
    x, precision, log_weights, centres, roots, starts, shared, log_f, mean, covariance, own
):
    """Each client's posterior, averaged over populations.

    Population r has the components starts[r] to starts[r + 1].  Leaves the logarithm of the average marginal
    density in ``log_f`` (K,), without the client's constant; mean (K, d); covariance (K, d, d); and in
    ``own`` (K,) the probability of components that no other client shares.
    """
    n, d = x.shape
    n_draws = len(starts) - 1
    full = precision.shape[2] > 1 or d == 1
    most = 0
    for r in range(n_draws):
        most = max(most, starts[r + 1] - starts[r])
    log_p, means, solved = np.empty(most), np.empty((most, d)), np.empty((most, d, d))
    factor, b, e, pe, product = np.empty((d, d)), np.empty(d), np.empty(d), np.empty(d), np.empty((d, d))
    second, average, origin = np.empty((d, d)), np.empty(d), np.empty(d)
    for k in range(n):
        log_sum, own[k] = -np.inf, 0.0
        average[:] = 0.0
        second[:] = 0.0
        for r in range(n_draws):
            top = -np.inf
            for j in range(starts[r], starts[r + 1]):
                i = j - starts[r]
                log_p[i] = log_weights[j] + _weigh(
                    x[k], precision[k], full, centres[j], roots[j], e, pe, product, factor, b
                )
                _solve(roots[j], centres[j], factor, b, solved[i], means[i])
                top = max(top, log_p[i])
            if r == 0:
                origin[:] = means[0]  # moments about a point nearby keep their digits
            total = 0.0
            for i in range(starts[r + 1] - starts[r]):
                log_p[i] = math.exp(log_p[i] - top)
                total += log_p[i]
            log_r = top + math.log(total)
            high = max(log_sum, log_r)
            log_sum = high + math.log(math.exp(log_sum - high) + math.exp(log_r - high))
            for i in range(starts[r + 1] - starts[r]):
                p = log_p[i] / total / n_draws
                if p < 1e-14:
                    continue
                if not shared[starts[r] + i]:
                    own[k] += p
                for a in range(d):
                    average[a] += p * (means[i, a] - origin[a])
                    for c in range(a + 1):
                        s = (means[i, a] - origin[a]) * (means[i, c] - origin[c])
                        for q in range(d):
                            s += solved[i, q, a] * solved[i, q, c]
                        second[a, c] += p * s
        log_f[k] = log_sum - math.log(n_draws)
        for a in range(d):
            mean[k, a] = origin[a] + average[a]
            for c in range(a + 1):
                covariance[k, a, c] = second[a, c] - average[a] * average[c]
                covariance[k, c, a] = covariance[k, a, c]


@njit(cache=True, nogil=True, fastmath=True)
def posterior_components(x, precision, log_weights, centres, roots, starts, shares, mean, variance):
    """Shares of components (K, m), averaged over populations, and mean and variances (K, m, d) within
    them."""
    n, d = x.shape
    n_draws = len(starts) - 1
    full = precision.shape[2] > 1 or d == 1
    factor, b, e, pe = np.empty((d, d)), np.empty(d), np.empty(d), np.empty(d)
    product, solved = np.empty((d, d)), np.empty((d, d))
    for k in range(n):
        for r in range(n_draws):
            top = -np.inf
            for j in range(starts[r], starts[r + 1]):
                shares[k, j] = log_weights[j] + _weigh(
                    x[k], precision[k], full, centres[j], roots[j], e, pe, product, factor, b
                )
                top = max(top, shares[k, j])
                _solve(roots[j], centres[j], factor, b, solved, mean[k, j])
                for a in range(d):
                    s = 0.0
                    for q in range(d):
                        s += solved[q, a] * solved[q, a]
                    variance[k, j, a] = s
            total = 0.0
            for j in range(starts[r], starts[r + 1]):
                shares[k, j] = math.exp(shares[k, j] - top)
                total += shares[k, j]
            for j in range(starts[r], starts[r + 1]):
                shares[k, j] /= total * n_draws


@njit(cache=True, nogil=True, fastmath=True)
def posterior_points(x, precision, centres, roots, shares, uniform, normal, theta):
    """Points of each client's posterior, (K, S, d): component by ``uniform`` (S,), place by ``normal`` (S,
    d).

    ``uniform`` ascends, so that one pass over the components is enough.
    """
    n, d = x.shape
    full = precision.shape[2] > 1 or d == 1
    factor, b, e, pe = np.empty((d, d)), np.empty(d), np.empty(d), np.empty(d)
    product, eta = np.empty((d, d)), np.empty(d)
    for k in range(n):
        j, below, ready = 0, shares[k, 0], -1
        for s in range(len(uniform)):
            while uniform[s] > below and j < shares.shape[1] - 1:
                j += 1
                below += shares[k, j]
            if j != ready:
                _weigh(x[k], precision[k], full, centres[j], roots[j], e, pe, product, factor, b)
                ready = j
            for a in range(d - 1, -1, -1):
                v = b[a] + normal[s, a]
                for i in range(a + 1, d):
                    v -= factor[i, a] * eta[i]
                eta[a] = v / factor[a, a]
            for i in range(d):
                v = centres[j, i]
                for a in range(i + 1):
                    v += roots[j, i, a] * eta[a]
                theta[k, s, i] = v
