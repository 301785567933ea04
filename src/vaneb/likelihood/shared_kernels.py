"""Compiled loops for a diagonal variance function that all clients share: var_kji = V_i(a_j) / n_k + Gamma_i.

V and its derivative are needed at the m atoms only; everything about a pair follows from them, n_k and the
estimate.  Laid out as in ``kernels``.  The logarithm of a product of variances is taken once per eight
coordinates, which keeps the product in range.

Shapes: x_t (d, K), inverse_n (K,), constant (K,), atoms (m, d), variance (m, d), slope (m, d, d) with
slope[j, i, l] = dV_i / da_l at atom j (empty where nothing asks for it), spread (d,).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from vaneb.likelihood.kernels import REORDER, STRIP
from vaneb.vector_math import exponentials, log

EVERY = 8


@njit(cache=True, nogil=True)
def _subtract_half_logs(row, product, count):
    for k in range(count):
        row[k] -= 0.5 * log(product[k])


@njit(cache=True, nogil=True)
def log_likelihood_discrete(x, n, constant, precision_t, base, atoms_t, out):
    """Without a spread: out[k, j] = constant_k + base_j - n_k / 2 sum_i (x_ki - a_ji)^2 / V_ji.

    constant_k carries d/2 log n_k and base_j carries -1/2 sum_i log V_ji, so a pair needs no logarithm and no
    division.
    """
    d, m = atoms_t.shape
    for k in range(x.shape[0]):
        row = out[k]
        for j in range(m):
            row[j] = constant[k] + base[j]
        for i in range(d):
            xi, half = x[k, i], 0.5 * n[k]
            for j in range(m):
                t = xi - atoms_t[i, j]
                row[j] -= half * precision_t[i, j] * t * t


@njit(cache=True, nogil=True)
def log_likelihood_shared(x, inverse_n, constant, variance_t, spread, atoms_t, out):
    """out[k, j] = constant_k - 1/2 sum_i [log var_kji + (x_ki - a_ji)^2 / var_kji]."""
    d, m = atoms_t.shape
    product = np.empty(m)
    for k in range(x.shape[0]):
        row = out[k]
        for j in range(m):
            row[j] = constant[k]
            product[j] = 1.0
        for i in range(d):
            xi, scale, add = x[k, i], inverse_n[k], spread[i]
            for j in range(m):
                variance = variance_t[i, j] * scale + add
                t = xi - atoms_t[i, j]
                row[j] -= 0.5 * t * t / variance
                product[j] *= variance
            if i % EVERY == EVERY - 1:
                _subtract_half_logs(row, product, m)
                for j in range(m):
                    product[j] = 1.0
        _subtract_half_logs(row, product, m)


@njit(cache=True, nogil=True, fastmath=REORDER)
def ascent_frozen(x_t, inverse_n, constant, variance, spread, floor, atoms):
    """Value, gradient and sum r / var of ``ascent_shared`` with the frozen score, and no more than these.

    Nothing about a coordinate is kept between finding r and summing: d may be the number of weights of a
    network, and then dividing once more is cheaper than memory.
    """
    d, n_clients = x_t.shape
    m = atoms.shape[0]
    value = np.zeros(m)
    gradient = np.zeros((m, d))
    precision_sum = np.zeros((m, d))
    share = np.empty(STRIP)
    product = np.empty(STRIP)
    for start in range(0, n_clients, STRIP):
        count = min(STRIP, n_clients - start)
        for j in range(m):
            for k in range(count):
                share[k] = constant[start + k]
                product[k] = 1.0
            for i in range(d):
                a, v, add = atoms[j, i], variance[j, i], spread[i]
                for k in range(count):
                    t = x_t[i, start + k] - a
                    w = v * inverse_n[start + k] + add
                    share[k] -= 0.5 * t * t / w
                    product[k] *= w
                if i % EVERY == EVERY - 1:
                    _subtract_half_logs(share, product, count)
                    for k in range(count):
                        product[k] = 1.0
            _subtract_half_logs(share, product, count)
            top = share[0]
            for k in range(count):
                top = max(top, share[k])
            if top < floor:
                continue
            exponentials(share, count, share)
            total = 0.0
            for k in range(count):
                total += share[k]
            value[j] += total
            for i in range(d):
                a, v, add = atoms[j, i], variance[j, i], spread[i]
                climb = 0.0
                weight = 0.0
                for k in range(count):
                    r = share[k] / (v * inverse_n[start + k] + add)
                    climb += r * (x_t[i, start + k] - a)
                    weight += r
                gradient[j, i] += climb
                precision_sum[j, i] += weight
    return value, gradient, precision_sum


@njit(cache=True, nogil=True, fastmath=REORDER)
def ascent_shared(x_t, inverse_n, constant, variance, slope, spread, floor, atoms, frozen, curvature):
    """Sums over clients: value, gradient, outer (lower), sum r / var and sum r (1 / (n var))^2.

    score_l = e_l / var_l + 1/2 sum_i (e_i^2 / var_i - 1) (dV_i / da_l) / (n var_i); the second term is
    left out if ``frozen``.
    """
    d, n_clients = x_t.shape
    m = atoms.shape[0]
    value = np.zeros(m)
    gradient = np.zeros((m, d))
    outer = np.zeros((m if curvature else 0, d, d))
    precision_sum = np.zeros((m, d))
    square_sum = np.zeros((m, d))
    # With very many parameters and few clients, a whole strip would be larger than all reports together.
    width = min(STRIP, n_clients)
    share = np.empty(width)
    product = np.empty(width)
    pull = np.empty((d, width))
    scaled = np.empty((d, width))
    surplus = np.empty((d, width))
    precision = np.empty((d, width))
    for start in range(0, n_clients, STRIP):
        count = min(STRIP, n_clients - start)
        for j in range(m):
            for k in range(count):
                share[k] = constant[start + k]
                product[k] = 1.0
            for i in range(d):
                a, v, add = atoms[j, i], variance[j, i], spread[i]
                for k in range(count):
                    t = x_t[i, start + k] - a
                    w = v * inverse_n[start + k] + add
                    p = 1.0 / w
                    s = p * t
                    precision[i, k] = p
                    pull[i, k] = s
                    scaled[i, k] = p * inverse_n[start + k]
                    surplus[i, k] = 0.5 * (s * t - 1.0) * scaled[i, k]
                    share[k] -= 0.5 * s * t
                    product[k] *= w
                if i % EVERY == EVERY - 1:
                    _subtract_half_logs(share, product, count)
                    for k in range(count):
                        product[k] = 1.0
            _subtract_half_logs(share, product, count)
            top = share[0]
            for k in range(count):
                top = max(top, share[k])
            if top < floor:
                continue
            exponentials(share, count, share)
            total = 0.0
            for k in range(count):
                total += share[k]
            value[j] += total
            if not frozen:
                for h in range(d):
                    for i in range(d):
                        g = slope[j, i, h]
                        if g != 0.0:
                            for k in range(count):
                                pull[h, k] += g * surplus[i, k]
            for i in range(d):
                climb = 0.0
                weight = 0.0
                square = 0.0
                for k in range(count):
                    climb += share[k] * pull[i, k]
                    weight += share[k] * precision[i, k]
                    square += share[k] * scaled[i, k] * scaled[i, k]
                gradient[j, i] += climb
                precision_sum[j, i] += weight
                square_sum[j, i] += square
            if curvature:
                for i in range(d):
                    for h in range(i + 1):
                        both = 0.0
                        for k in range(count):
                            both += share[k] * pull[i, k] * pull[h, k]
                        outer[j, i, h] += both
    return value, gradient, outer, precision_sum, square_sum
