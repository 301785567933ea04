"""The population in the coordinates of a picture: parameters, and principal components beyond three."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaneb.likelihood.base import Array
from vaneb.prior import Prior

COMPONENTS = 3


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Linear coordinates theta -> map @ (theta - centre) of a picture.

    Parameters
    ----------
    names : (q,)
    centre : (q, d), what is taken off before each row of ``map`` is applied; zero for parameters.
    map : (q, d)
    shown : (p,), numbers of the parameters that come first; the rest of the q are principal components.
    """

    names: tuple[str, ...]
    centre: Array
    map: Array
    shown: tuple[int, ...]

    def of(self, points: Array) -> Array:
        """Coordinates (K, q) of points (K, d)."""
        return points @ self.map.T - np.sum(self.map * self.centre, axis=1)


def coordinates(prior: Prior, means: Array, most: int) -> Coordinates:
    """The first ``most`` parameters; with more than three, also principal components of the population.

    Components are those of the correlation matrix: parameters may have different units.
    """
    d = prior.dimension
    shown = tuple(range(min(d, most)))
    names = [prior.names[i] for i in shown]
    rows = [np.eye(d)[i] for i in shown]
    centres = [np.zeros(d) for _ in shown]
    covariance = prior.covariance if prior.covariance.any() else np.atleast_2d(np.cov(means.T))
    scale = np.sqrt(np.diagonal(covariance))
    if d > COMPONENTS and (scale > 0).all():
        values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
        for c in range(1, COMPONENTS + 1):
            share = max(values[-c], 0.0) / values.sum()
            names.append(f"component {c} ({share:.0%})")
            rows.append(vectors[:, -c] / scale)
            centres.append(prior.mean)
    return Coordinates(tuple(names), np.array(centres), np.array(rows), shown)


def window(means: Array, own: Array) -> Array:
    """Where a picture looks, (2, q): at all personalised estimates, and at own ones that have not run away.

    An own estimate counts up to four interquartile ranges from the middle half.
    """
    low, high = means.min(axis=0), means.max(axis=0)
    for i, column in enumerate(own.T):
        known = column[np.isfinite(column)]
        if len(known):
            first, third = np.quantile(known, [0.25, 0.75])
            reach = 4 * (third - first)
            near = known[(known >= first - reach) & (known <= third + reach)]
            low[i], high[i] = min(low[i], near.min()), max(high[i], near.max())
    margin = 0.06 * np.where(high > low, high - low, np.maximum(np.abs(high), 1.0))
    return np.stack([low - margin, high + margin])
