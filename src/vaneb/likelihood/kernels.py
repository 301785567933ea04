"""Compiled loops over (client, atom) pairs for Gaussian reports whose precision does not depend on the atom.

Every pair costs a quadratic form and, where the pair matters, an exponential and a few products.  The
loops run over clients outside and atoms inside, so that the compiler turns the inner loop into vector
instructions and no K x m x d temporary ever exists.  Differences x_k - a_j are formed before they are
squared: expanding the square would be one matrix product, but loses all digits for a client whose
estimate is many standard errors away from the origin.

The kernels release the interpreter lock and are called on blocks of clients (``vaneb.blocks``).

Shapes: x (K, d), precision (K, d) where it is diagonal, else (K, d * d), constant (K,), atoms_t (d, m); with
``_t`` transposed.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from vaneb.vector_math import exponentials

#: Clients handled together: a strip of everything about them stays in the first-level cache.
STRIP = 128
#: Sums may be taken in any order (several at a time); nothing else about arithmetic is loosened.
REORDER = {"reassoc", "contract"}


@njit(cache=True, nogil=True)
def log_likelihood(x, precision, constant, atoms_t, out):
    """out_kj = constant_k - 1/2 (x_k - a_j)' P_k (x_k - a_j)."""
    d, m = atoms_t.shape
    full = precision.shape[1] > d
    for k in range(x.shape[0]):
        row = out[k]
        for j in range(m):
            row[j] = constant[k]
        for i in range(d):
            xi, half = x[k, i], 0.5 * precision[k, i * d + i if full else i]
            for j in range(m):
                t = xi - atoms_t[i, j]
                row[j] -= half * t * t
            for h in range(i if full else 0):
                p, xh = precision[k, i * d + h], x[k, h]
                for j in range(m):
                    row[j] -= p * (xi - atoms_t[i, j]) * (xh - atoms_t[h, j])


@njit(cache=True, nogil=True, fastmath=REORDER)
def largest(share, count):
    """The largest of the first ``count``."""
    top = share[0]
    for k in range(count):
        top = max(top, share[k])
    return top


@njit(cache=True, nogil=True, fastmath=REORDER)
def add_strip(j, share, score, count, value, gradient, outer):
    """Add a strip's sums of r, r s and r s s' (lower triangle, unless ``outer`` is empty) to those of atom j.

    ``share`` holds log r and is left with r; ``score`` is s (d, S).
    """
    exponentials(share, count, share)
    total = 0.0
    for k in range(count):
        total += share[k]
    value[j] += total
    for i in range(score.shape[0]):
        slope = 0.0
        for k in range(count):
            slope += share[k] * score[i, k]
        gradient[j, i] += slope
    if len(outer) > 0:
        for i in range(score.shape[0]):
            for h in range(i + 1):
                product = 0.0
                for k in range(count):
                    product += share[k] * score[i, k] * score[h, k]
                outer[j, i, h] += product


@njit(cache=True, nogil=True, fastmath=REORDER)
def ascent(x_t, precision_t, constant, floor, atoms, curvature):
    """Sums over clients: value, gradient, outer (lower triangle), and information as ``precision_t``.

    With s_k = P_k (x_k - a) and r_kj = exp(constant_k - 1/2 (x_k - a_j)' P_k (x_k - a_j)):
    gradient = sum r s, information = sum r P, outer = sum r s s' (only if ``curvature``).
    Clients are taken STRIP at a time; a strip in which every log r < floor is skipped.
    """
    d, n_clients = x_t.shape
    m, full = atoms.shape[0], len(precision_t) > d
    value = np.zeros(m)
    gradient = np.zeros((m, d))
    information = np.zeros((m, len(precision_t)))
    outer = np.zeros((m if curvature else 0, d, d))
    # With very many parameters and few clients, a whole strip would be larger than all reports together.
    width = min(STRIP, n_clients)
    share, away, score = np.empty(width), np.empty((d, width)), np.empty((d, width))
    for start in range(0, n_clients, STRIP):
        count = min(STRIP, n_clients - start)
        for j in range(m):
            for k in range(count):
                share[k] = constant[start + k]
            for i in range(d):
                a = atoms[j, i]
                for k in range(count):
                    away[i, k] = x_t[i, start + k] - a
            for i in range(d):
                row = i * d if full else 0
                for k in range(count):
                    score[i, k] = 0.0
                for h in range(0 if full else i, d if full else i + 1):
                    for k in range(count):
                        score[i, k] += precision_t[row + h, start + k] * away[h, k]
                for k in range(count):
                    share[k] -= 0.5 * score[i, k] * away[i, k]
            if largest(share, count) < floor:
                continue
            add_strip(j, share, score, count, value, gradient, outer)
            for i in range(len(precision_t)):
                weight = 0.0
                for k in range(count):
                    weight += share[k] * precision_t[i, start + k]
                information[j, i] += weight
    return value, gradient, outer, information
