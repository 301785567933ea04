"""Bounds of a sum of Gaussian likelihoods in boxes: diagonal precisions.

With F(theta) = sum_k u_k p_k(theta), in a cell with centre c and half sides h, by Taylor's theorem,

    F(theta) <= F(c) + sum_i |dF(c)/dtheta_i| h_i + 1/2 sum_k u_k q_k,
    q_k = |h|_k^2 max { z^2 p_k : z in the cell },     |h|_k^2 = sum_i P_ki h_i^2,

z the distance from the client's estimate in its standard errors; since the second derivative of p_k in a
direction delta is p_k ((s'delta)^2 - delta'P delta) <= p_k z^2 |delta|_k^2.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from vaneb.vector_math import exp


@njit(cache=True, nogil=True)
def cell_bounds(estimates, precision, logs, centres, halves, heights, bounds):
    """F at the centres of the cells, and the bound of F in each."""
    n_clients, d = estimates.shape
    gradient = np.empty(d)
    for j in range(len(centres)):
        height, curved = 0.0, 0.0
        gradient[:] = 0.0
        for k in range(n_clients):
            square, length = 0.0, 0.0
            for i in range(d):
                t = estimates[k, i] - centres[j, i]
                square += precision[k, i] * t * t
                length += precision[k, i] * halves[j, i] * halves[j, i]
            distance, reach = math.sqrt(square), math.sqrt(length)
            if logs[k] - 0.5 * max(distance - reach, 0.0) ** 2 < -745.0:
                continue
            share = exp(logs[k] - 0.5 * square) if logs[k] - 0.5 * square > -700.0 else 0.0
            height += share
            for i in range(d):
                gradient[i] += share * precision[k, i] * (estimates[k, i] - centres[j, i])
            # z^2 exp(-z^2 / 2) rises up to z = sqrt 2 and falls from there.
            nearest, farthest = max(distance - reach, 0.0), distance + reach
            worst = min(max(math.sqrt(2.0), nearest), farthest)
            curved += length * worst * worst * math.exp(logs[k] - 0.5 * worst * worst)
        bound = height + 0.5 * curved
        for i in range(d):
            bound += abs(gradient[i]) * halves[j, i]
        heights[j] = height
        bounds[j] = bound
