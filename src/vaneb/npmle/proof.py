"""An upper bound of the gap over all of space, where one can be had: diagonal precisions in few dimensions.

With constant diagonal precisions every likelihood falls when a coordinate of theta leaves the range of that
coordinate's estimates: the largest D is inside the box of the estimates.  The box is cut into cells, in each
of which a bound of D is known (``vaneb.likelihood.cells``).  Cells whose bound is too high are cut in two
along their longest side, in units of the typical standard error, until all are low enough, or a centre is too
high (then there is no proof to be had), or there are too many.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vaneb.likelihood.base import Array, Likelihood
from vaneb.npmle.options import DEFAULT, Options


class Proof(NamedTuple):
    bound: float
    """Upper bound of D everywhere; inf if there is none."""
    best: Array
    """(d,), the highest centre that was seen."""
    value: float
    """D there."""


def prove(
    likelihood: Likelihood, log_weights: Array, target: float, options: Options = DEFAULT
) -> Proof | None:
    """A bound of D that is at most ``target``, if D allows and it does not take too long.

    ``None`` where no proof is known for such clients, or the number of cells is hopeless.
    """
    estimates, precision = likelihood.local_estimates(), likelihood.local_precision()
    n, d = estimates.shape
    if d > 2 or likelihood.bounds_in_cells(log_weights, estimates[:1], np.zeros((1, d))) is None:
        return None
    low, high = estimates.min(axis=0), estimates.max(axis=0)
    unit = 1 / np.sqrt(np.median(precision, axis=0))
    counts = np.maximum(1, np.ceil((high - low) / unit)).astype(int)
    if not counts.prod() * float(n) <= options.proof_pairs:
        return None
    axes = [
        a + (b - a) * (np.arange(count) + 0.5) / count for a, b, count in zip(low, high, counts, strict=True)
    ]
    centres = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
    halves = np.broadcast_to((high - low) / counts / 2, centres.shape)
    best, value, proved, spent = centres[0], -np.inf, -np.inf, 0.0
    while len(centres) > 0:
        spent += float(len(centres)) * n
        found = likelihood.bounds_in_cells(log_weights, centres, halves)
        if spent > options.proof_pairs or found is None:
            return Proof(np.inf, best, value)
        heights, bounds = found
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
