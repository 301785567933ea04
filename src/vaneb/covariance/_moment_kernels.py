"""Compiled information of Poisson regression from covariate moments."""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, error_model="numpy")
def moment_poisson(mean, covariance, points, limit, derivative, out):
    """The formulas of ``MomentPoisson`` at points (1 or K, m, d): out (K, m, d, d) or, of the ``derivative``,
    (K, m, d, d, d) as (K, m, d, d * d)."""
    d = mean.shape[1]
    v = np.empty(d)
    for k in range(len(mean)):
        own, s = points[k if len(points) > 1 else 0], covariance[k]
        for j in range(len(own)):
            exponent = 0.0
            for i in range(d):
                v[i] = mean[k, i]
                for h in range(d):
                    v[i] += s[i, h] * own[j, h]
                exponent += 0.5 * own[j, i] * (mean[k, i] + v[i])
            scale = math.exp(min(exponent, limit))
            free = scale if exponent < limit else 0.0
            for a in range(d):
                for b in range(d):
                    if derivative:
                        for r in range(d):
                            cross = s[a, r] * v[b] + v[a] * s[b, r]
                            out[k, j, a, b * d + r] = free * v[r] * (s[a, b] + v[a] * v[b]) + scale * cross
                    else:
                        out[k, j, a, b] = scale * (s[a, b] + v[a] * v[b])
