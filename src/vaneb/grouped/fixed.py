"""Fixed effects: the centre of the population, with standard errors, z and p values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from vaneb.likelihood.seam import Array


class FixedEffects(NamedTuple):
    """What the coefficients are on average over clients, and how well that is known.

    Estimates and their covariance are those of the Gaussian mixed model, given its variances, as in lme4.
    """

    names: tuple[str, ...]
    estimate: Array
    """(d,)"""
    covariance: Array
    """(d, d)"""

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
