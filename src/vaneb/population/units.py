"""The scale of a population, roughly: what a fit starts from and is expressed in."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vaneb.likelihood.base import Array, Likelihood
from vaneb.likelihood.expansion import modes_under
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.semidefinite import diagonals

#: Width of a population that keeps clients without an estimate within reason, in that of the estimates.
WIDE = 1.0


class Units(NamedTuple):
    """theta = centre + scale * u, in which the population of u has a standard deviation of about one."""

    centre: Array
    scale: Array

    def estimates(self, x: Array) -> Array:
        return np.ascontiguousarray((x - self.centre) / self.scale)

    def precisions(self, precision: Array) -> Array:
        """(K, d, d), or (K, d) where all are diagonal."""
        return precision * (self.scale**2 if precision.ndim == 2 else self.scale[:, None] * self.scale)


def units_of(view: ConstantGaussian) -> Units:
    """Centre and scale of the population, coordinate by coordinate, that no single client can move far."""
    x, precision = view.estimates, view.base_precision
    diagonal = diagonals(precision)
    d = x.shape[1]
    centre, scale = np.zeros(d), np.ones(d)
    for i in range(d):
        known = diagonal[:, i] > 0
        if not known.any():
            continue
        values, noise = x[known, i], 1 / diagonal[known, i]
        middle, usual = np.median(values), np.median(noise)
        reach = 5 * (np.median(np.abs(values - middle)) / 0.6745 + np.sqrt(usual))
        near = np.clip(values - middle, -reach, reach)
        weight = 1 / (noise + usual) if usual > 0 else np.ones(len(noise))
        weight /= weight.sum()
        shift = weight @ near
        total = weight @ (near - shift) ** 2
        own = max(total - weight @ np.minimum(noise, reach**2), 0.05 * total)
        centre[i] = middle + shift
        # What clients do not tell of the spread, a part of their noise: all of it where there is one only.
        least = 0.03 + 1 / len(values) ** 2
        scale[i] = np.sqrt(own + least / np.mean(diagonal[known, i]))
    return Units(centre, np.where((scale > 0) & np.isfinite(scale), scale, 1.0))


def wide_points(likelihood: Likelihood) -> Array:
    """Each client's likeliest theta, (K, d), under a population somewhat wider than their estimates are.

    An estimate from few rows may not exist, or be far out; a population of any reasonable width keeps it near
    the others.
    """
    units = units_of(likelihood.expanded(None))
    points = modes_under(likelihood, units.centre, np.diag((WIDE * units.scale) ** 2))
    units = units_of(likelihood.expanded(points))
    return modes_under(likelihood, units.centre, np.diag((WIDE * units.scale) ** 2))


def wide_view(likelihood: Likelihood) -> ConstantGaussian:
    """The clients expanded there."""
    return likelihood.expanded(wide_points(likelihood))
