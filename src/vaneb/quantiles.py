"""Quantiles of each client's posterior, coordinate by coordinate.

Under a smooth prior a coordinate's posterior is a mixture of normals, sum_j r_kj N(m_kj, v_kj), whose
quantile is found by Newton's method kept inside a shrinking bracket.  Under a discrete prior it is a set of
points, whose quantiles would jump from atom to atom and claim no error at all where one atom has all the
weight; there the normal quantile with the posterior's mean and standard deviation is used.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from vaneb.likelihood.seam import Array

#: Components below this share of a client's posterior do not move a quantile that anyone reads.
NEGLIGIBLE = 1e-7


@njit(cache=True, nogil=True)
def mixture_quantiles(shares, means, variances, probabilities, out):
    """Quantiles of sum_j shares[k, j] N(means[k, j, i], variances[k, j, i]).

    shares (K, m); means (K, m, d); variances (K, m or 1, d); out (len(probabilities), K, d).
    """
    n_clients, m = shares.shape
    d = means.shape[2]
    index = np.empty(m, dtype=np.int64)
    for k in range(n_clients):
        used = 0
        for j in range(m):
            if shares[k, j] > NEGLIGIBLE:
                index[used] = j
                used += 1
        for i in range(d):
            low_end = np.inf
            high_end = -np.inf
            total = 0.0
            for q in range(used):
                j = index[q]
                sd = math.sqrt(variances[k, j if variances.shape[1] > 1 else 0, i])
                low_end = min(low_end, means[k, j, i] - 9 * sd)
                high_end = max(high_end, means[k, j, i] + 9 * sd)
                total += shares[k, j]
            for p in range(len(probabilities)):
                low, high = low_end, high_end
                x = 0.5 * (low + high)
                for _ in range(60):
                    below = 0.0
                    density = 0.0
                    for q in range(used):
                        j = index[q]
                        v = variances[k, j if variances.shape[1] > 1 else 0, i]
                        z = (x - means[k, j, i]) / math.sqrt(v)
                        below += shares[k, j] * 0.5 * math.erfc(-z * 0.7071067811865476)
                        density += shares[k, j] * math.exp(-0.5 * z * z) / math.sqrt(6.283185307179586 * v)
                    error = below - probabilities[p] * total
                    if error > 0:
                        high = x
                    else:
                        low = x
                    if abs(error) < 1e-9 or high - low <= 1e-12 * max(abs(low), abs(high)):
                        break
                    step = x - error / density if density > 0 else low
                    x = step if low < step < high else 0.5 * (low + high)
                out[p, k, i] = x


def quantiles_of_block(shares: Array, means: Array, variances: Array, probabilities: Array) -> Array:
    """Quantiles of a block of clients, (probabilities, K, d).

    shares (K, m), means and variances (K or 1, m or 1, d).
    """
    k, m = shares.shape
    means = np.ascontiguousarray(np.broadcast_to(means, (k, m, means.shape[2])))
    variances = np.ascontiguousarray(np.broadcast_to(variances, (k, *variances.shape[1:])))
    # A direction in which the spread is zero is a point; a tiny width makes its quantile that point.
    floor = 1e-24 * (means**2).max(axis=1, keepdims=True) + 1e-290
    out = np.empty((len(probabilities), k, means.shape[2]))
    mixture_quantiles(shares, means, np.maximum(variances, floor), probabilities, out)
    return out
