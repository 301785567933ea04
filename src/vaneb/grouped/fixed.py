"""Fixed effects: the centre of the population, with standard errors, z and p values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from vaneb.likelihood.base import Array


class FixedEffects(NamedTuple):
    """What the coefficients are on average over clients, and how well that is known.

    Where rows are least squares and the population is Gaussian, estimates and their covariance are those of
    the mixed model, given its variances, as in lme4; else mean and covariance over the populations drawn.
    """

    names: tuple[str, ...]
    estimate: Array
    """(d,)"""
    covariance: Array
    """(d, d); NaN where one population was fitted, not many drawn."""

    @classmethod
    def of_populations(cls, names: tuple[str, ...], means: Array) -> FixedEffects:
        """From the mean of each population, (R, d)."""
        d = means.shape[1]
        covariance = np.atleast_2d(np.cov(means.T)) if len(means) > 1 else np.full((d, d), np.nan)
        return cls(names, means.mean(axis=0), covariance)

    @property
    def standard_error(self) -> Array:
        return np.sqrt(np.maximum(np.diagonal(self.covariance), 0.0))

    @property
    def z(self) -> Array:
        """Estimate over standard error; NaN where there is none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.standard_error > 0, self.estimate / self.standard_error, np.nan)

    @property
    def p_value(self) -> Array:
        """Two-sided, by the normal distribution."""
        return 2 * ndtr(-np.abs(self.z))
