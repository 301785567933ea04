"""Compiled information of Poisson regression from covariate moments, clients on the last axis."""

from __future__ import annotations

import numpy as np
from numba import njit

from vaneb.vector_math import exp


@njit(cache=True, nogil=True)
def _clipped_exponentials(exponent, limit, scale, free):
    for k in range(len(exponent)):
        scale[k] = exp(min(exponent[k], limit))
        free[k] = 1.0 if exponent[k] < limit else 0.0


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def moment_poisson(mean, covariance, points, limit, precision, gradient):
    """The formulas of ``MomentPoisson``; a gradient of length zero is not written.

    mean (d, K), covariance (d, d, K), points (m, d), precision (m, d, d, K), gradient (m, d, d, d, K).
    """
    d, count = mean.shape
    v, exponent = np.empty((d, count)), np.empty(count)
    scale, free = np.empty(count), np.empty(count)
    for j in range(points.shape[0]):
        exponent[:] = 0.0
        for i in range(d):
            row = v[i]
            row[:] = mean[i]
            for h in range(d):
                a = points[j, h]
                for k in range(count):
                    row[k] += covariance[i, h, k] * a
            half = 0.5 * points[j, i]
            for k in range(count):
                exponent[k] += half * (mean[i, k] + row[k])
        _clipped_exponentials(exponent, limit, scale, free)
        for i in range(d):
            for h in range(i + 1):
                entry = precision[j, i, h]
                for k in range(count):
                    entry[k] = scale[k] * (covariance[i, h, k] + v[i, k] * v[h, k])
                if h < i:
                    precision[j, h, i] = entry
        if len(gradient) == 0:
            continue
        for i in range(d):
            for h in range(i + 1):
                for r in range(d):
                    entry = gradient[j, i, h, r]
                    for k in range(count):
                        cross = covariance[i, r, k] * v[h, k] + v[i, k] * covariance[h, r, k]
                        entry[k] = free[k] * v[r, k] * precision[j, i, h, k] + scale[k] * cross
                    if h < i:
                        gradient[j, h, i, r] = entry
