"""Compiled loops for a diagonal variance function that all clients share: var_kji = V_i(a_j) / n_k.

1 / V and its derivative are needed at the m atoms only; everything about a pair follows from them, n_k and
the estimate.  Logarithms belong to a client or to an atom, so a pair needs none: constant_k carries
d/2 log n_k and base_j carries -1/2 sum_i log V_ji.  Laid out as in ``kernels``.

Shapes: x (K, d), x_t (d, K), n (K,), constant (K,), atoms (m, d), precision (m, d) with precision[j, i] =
1 / V_i(a_j), base (m,), slope (m, d, d) with slope[j, i, l] = d log V_i / da_l at atom j.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from vaneb.likelihood.kernels import REORDER, STRIP, add_strip, largest
from vaneb.vector_math import exponentials


@njit(cache=True, nogil=True)
def log_likelihood_shared(x, n, constant, precision_t, base, atoms_t, out):
    """out[k, j] = constant_k + base_j - n_k / 2 sum_i (x_ki - a_ji)^2 / V_ji."""
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


@njit(cache=True, nogil=True, fastmath=REORDER)
def _log_shares(x_t, n, constant, precision, base, atom, start, count, share):
    """Logarithms of r of a strip's clients at one atom; the largest of them."""
    for k in range(count):
        share[k] = 0.0
    for i in range(x_t.shape[0]):
        a, p = atom[i], precision[i]
        for k in range(count):
            t = x_t[i, start + k] - a
            share[k] += p * t * t
    for k in range(count):
        share[k] = constant[start + k] + base - 0.5 * n[start + k] * share[k]
    return largest(share, count)


@njit(cache=True, nogil=True, fastmath=REORDER)
def ascent_frozen(x_t, n, constant, precision, base, floor, atoms):
    """Value and gradient of ``ascent_shared`` with the frozen score, and sum r n: no more than these.

    Nothing about a coordinate is kept between finding r and summing: d may be the number of weights of a
    network, and then computing once more is cheaper than memory.
    """
    d, n_clients = x_t.shape
    m = atoms.shape[0]
    value = np.zeros(m)
    gradient = np.zeros((m, d))
    rows = np.zeros(m)
    share = np.empty(STRIP)
    for start in range(0, n_clients, STRIP):
        count = min(STRIP, n_clients - start)
        for j in range(m):
            top = _log_shares(x_t, n, constant, precision[j], base[j], atoms[j], start, count, share)
            if top < floor:
                continue
            exponentials(share, count, share)
            total = 0.0
            for k in range(count):
                total += share[k]
            value[j] += total
            total = 0.0
            for k in range(count):
                share[k] *= n[start + k]
                total += share[k]
            rows[j] += total
            for i in range(d):
                a = atoms[j, i]
                climb = 0.0
                for k in range(count):
                    climb += share[k] * (x_t[i, start + k] - a)
                gradient[j, i] += precision[j, i] * climb
    return value, gradient, rows


@njit(cache=True, nogil=True, fastmath=REORDER)
def ascent_shared(x_t, n, constant, precision, slope, base, floor, atoms, curvature):
    """Sums over clients: value, gradient, outer (lower) and sum r n.

    score_l = e_l / var_l + 1/2 sum_i (e_i^2 / var_i - 1) d log V_i / da_l; a ``slope`` of length zero leaves
    the second term out.
    """
    d, n_clients = x_t.shape
    m = atoms.shape[0]
    value = np.zeros(m)
    gradient = np.zeros((m, d))
    outer = np.zeros((m if curvature else 0, d, d))
    rows = np.zeros(m)
    # With very many parameters and few clients, a whole strip would be larger than all reports together.
    width = min(STRIP, n_clients)
    share = np.empty(width)
    score = np.empty((d, width))
    surplus = np.empty((d, width))
    for start in range(0, n_clients, STRIP):
        count = min(STRIP, n_clients - start)
        for j in range(m):
            top = _log_shares(x_t, n, constant, precision[j], base[j], atoms[j], start, count, share)
            if top < floor:
                continue
            for i in range(d):
                a, p = atoms[j, i], precision[j, i]
                for k in range(count):
                    t = x_t[i, start + k] - a
                    s = p * n[start + k] * t
                    score[i, k] = s
                    surplus[i, k] = 0.5 * (s * t - 1.0)
            if len(slope) > 0:
                for h in range(d):
                    for i in range(d):
                        g = slope[j, i, h]
                        if g != 0.0:
                            for k in range(count):
                                score[h, k] += g * surplus[i, k]
            add_strip(j, share, score, count, value, gradient, outer)
            weight = 0.0
            for k in range(count):
                weight += share[k] * n[start + k]
            rows[j] += weight
    return value, gradient, outer, rows
