"""Quantiles of each client's posterior, coordinate by coordinate.

A coordinate's posterior is a mixture of normals, sum_j r_kj N(m_kj, v_kj), whose quantile is found by
Newton's method kept inside a shrinking bracket.  Under a discrete prior it is a set of points, whose
quantiles would jump from atom to atom; there ``Posterior`` uses the normal quantile with the posterior's
mean and standard deviation.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
from numba import njit

from vaneb.likelihood.base import Array
from vaneb.vector_math import exponentials

#: Components below this share of a client's posterior do not move a quantile that anyone reads.
NEGLIGIBLE = 1e-7


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")
def _below(x, used, at, width, share, z, bell):
    """Probability below x, and the density there times sqrt(2 pi).

    The normal distribution function to 1e-7 (Abramowitz and Stegun 26.2.17), from the same exponentials.
    """
    for q in range(used):
        z[q] = (x - at[q]) * width[q]
        bell[q] = -0.5 * z[q] * z[q]
    exponentials(bell, used, bell)
    below, density = 0.0, 0.0
    for q in range(used):
        t = 1.0 / (1.0 + 0.2316419 * abs(z[q]))
        tail = (
            0.3989422804014327
            * bell[q]
            * t
            * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
        )
        below += share[q] * (tail if z[q] < 0 else 1.0 - tail)
        density += share[q] * bell[q] * width[q]
    return below, density


@njit(cache=True, nogil=True)
def mixture_quantiles(shares, means, variances, centre, sd, probabilities, starts, out):
    """Quantiles of sum_j shares[k, j] N(means[k, j, i], variances[k, j, i]), to 1e-6 in probability.

    shares (K, m); means, variances (K, m, d); centre, sd (K, d), the mixtures' own; starts: standard normal
    quantiles of the probabilities; out (len(probabilities), K, d).
    """
    n_clients, m = shares.shape
    d = means.shape[2]
    index, at, width = np.empty(m, dtype=np.int64), np.empty(m), np.empty(m)
    share, z, bell = np.empty(m), np.empty(m), np.empty(m)
    for k in range(n_clients):
        used, total = m - m, 0.0  # not the literal 0, for which helpers would be compiled once more
        for j in range(m):
            if shares[k, j] > NEGLIGIBLE:
                index[used] = j
                share[used] = shares[k, j]
                used += 1
                total += shares[k, j]
        for i in range(d):
            low_end, high_end = np.inf, -np.inf
            for q in range(used):
                at[q] = means[k, index[q], i]
                s = math.sqrt(variances[k, index[q], i])
                low_end, high_end = min(low_end, at[q] - 9 * s), max(high_end, at[q] + 9 * s)
                width[q] = 1 / s
            for p in range(len(probabilities)):
                low, high = low_end, high_end
                x = centre[k, i] + starts[p] * sd[k, i]
                if not low < x < high:
                    x = 0.5 * (low + high)
                for _ in range(60):
                    below, density = _below(x, used, at, width, share, z, bell)
                    error = below - probabilities[p] * total
                    if error > 0:
                        high = x
                    else:
                        low = x
                    if abs(error) < 1e-6 * total or high - low <= 1e-12 * max(abs(low), abs(high)):
                        break
                    step = x - 2.5066282746310002 * error / density if density > 0 else low
                    x = step if low < step < high else 0.5 * (low + high)
                out[p, k, i] = x


def quantiles_of_block(
    shares: Array, means: Array, variances: Array, centre: Array, sd: Array, probabilities: Array
) -> Array:
    """Quantiles of a block of clients, (probabilities, K, d)."""
    # A direction without spread is a point; a tiny width makes its quantile that point.
    floor = 1e-24 * (means**2).max(axis=1, keepdims=True) + 1e-290
    starts = np.array([NormalDist().inv_cdf(p) for p in probabilities])
    out = np.empty((len(probabilities), *centre.shape))
    mixture_quantiles(shares, means, np.maximum(variances, floor), centre, sd, probabilities, starts, out)
    return out
