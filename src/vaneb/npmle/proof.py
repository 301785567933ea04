"""An upper bound of the gap over all of space, where one can be had: diagonal precisions in few dimensions.

With F(theta) = D(theta) + 1 = sum_k u_k p_k(theta) and constant diagonal precisions P_k, every p_k falls when
a coordinate of theta leaves the range of that coordinate's estimates: the largest F is inside the box of the
estimates.  The box is cut into cells.  In a cell with centre c and half sides h, by Taylor's theorem,

    F(theta) <= F(c) + sum_i |dF(c)/dtheta_i| h_i + 1/2 sum_k u_k q_k,
    q_k = |h|_k^2 max { z^2 p_k : z in the cell },     |h|_k^2 = sum_i P_ki h_i^2,

z the distance from the client's estimate in its standard errors; since the second derivative of p_k in a
direction delta is p_k ((s'delta)^2 - delta'P delta) <= p_k z^2 |delta|_k^2.  Cells whose bound is too high
are cut in two along their longest side, in units of the typical standard error, until all are low enough, or
a centre is too high (then there is no proof to be had), or there are too many.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.vector_math import exp

#: Pairs of client and cell that a proof may take, about three seconds' work.
MOST_PAIRS = 1e8
#: Beyond, the number of cells is hopeless.
MOST_DIMENSIONS = 2


class Proof(NamedTuple):
    bound: float
    """Upper bound of D everywhere; inf if there is none."""
    best: Array
    """(d,), the highest centre that was seen."""
    value: float
    """D there."""


def prove(likelihood: Likelihood, log_weights: Array, target: float) -> Proof | None:
    """A bound of D that is at most ``target``, if D allows and it does not take too long.

    ``None`` where the clients are not of the kind that a proof is known for.
    """
    if not isinstance(likelihood, ConstantGaussian) or likelihood.dimension > MOST_DIMENSIONS:
        return None
    precision = likelihood.base_precision
    if precision.ndim != 2 or not (precision > 0).all():
        return None
    estimates, logs = likelihood.estimates, likelihood.peak() + log_weights
    low, high = estimates.min(axis=0), estimates.max(axis=0)
    unit = 1 / np.sqrt(np.median(precision, axis=0))
    counts = np.maximum(1, np.ceil((high - low) / unit)).astype(int)
    if not counts.prod() * float(len(estimates)) <= MOST_PAIRS:
        return None
    axes = [
        a + (b - a) * (np.arange(count) + 0.5) / count for a, b, count in zip(low, high, counts, strict=True)
    ]
    centres = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    halves = np.broadcast_to((high - low) / counts / 2, centres.shape)
    best, value, proved, spent = centres[0], -np.inf, -np.inf, 0.0
    while len(centres) > 0:
        spent += float(len(centres)) * len(estimates)
        if spent > MOST_PAIRS:
            return Proof(np.inf, best, value)
        heights, bounds = np.empty(len(centres)), np.empty(len(centres))
        cell_bounds(estimates, precision, logs, centres, halves, heights, bounds)
        top = int(np.argmax(heights))
        if heights[top] - 1 > value:
            best, value = centres[top], float(heights[top] - 1)
        if value > target:
            return Proof(np.inf, best, value)
        open_ = bounds - 1 > target
        proved = max(proved, float((bounds[~open_] - 1).max(initial=-np.inf)))
        centres, halves = _halved(centres[open_], halves[open_], unit)
    return Proof(proved, best, value)


def _halved(centres: Array, halves: Array, unit: Array) -> tuple[Array, Array]:
    """Every cell cut in two along its longest side."""
    everyone = np.arange(len(centres))
    side = np.argmax(halves / unit, axis=1) if len(centres) else everyone
    smaller = halves.copy()
    smaller[everyone, side] /= 2
    move = np.zeros_like(centres)
    move[everyone, side] = smaller[everyone, side]
    return np.concatenate([centres - move, centres + move]), np.concatenate([smaller, smaller])


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
