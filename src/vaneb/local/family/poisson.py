"""Counts with log link: loss e^eta - y eta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import betainc, gammaln, pdtr, xlogy

from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Array, Family, Flags, counts, log_of_counts
from vaneb.local.family.links import LOG, Link
from vaneb.local.family.losses import Losses, scalar
from vaneb.vector_math import exp

if TYPE_CHECKING:
    from vaneb.covariance.base import CovarianceFunction


@scalar
def value(eta, y, a):  # type: ignore[no-untyped-def]
    return exp(eta) - y * eta


@scalar
def derivatives(eta, y, a):  # type: ignore[no-untyped-def]
    mean = exp(eta)
    return mean - y * eta, mean - y, mean


@dataclass(frozen=True, eq=False)
class Poisson(Family):
    """Counts with log link; log exposure goes into the offset.

    A dispersion above one stands for counts that scatter more than Poisson's (quasi-likelihood).
    """

    name: ClassVar[str] = "poisson"
    losses: ClassVar[Losses] = Losses(value, derivatives)
    link: ClassVar[Link] = LOG
    rule: ClassVar[str] = "a count (0, 1, 2, ...)"
    score_name: ClassVar[str] = "deviance"
    GLM: ClassVar[str] = "poisson"
    too_much_scatter: ClassVar[str] = (
        "the counts scatter more than Poisson's: within clients their variance is {ratio:.2f} times "
        "their mean. The fit allows for it; family negative-binomial may describe it better"
    )

    @classmethod
    def allowed(cls, response: Array) -> Flags:
        return counts(response)

    def variance(self, mean: Array) -> Array:
        return mean

    def log_constant(self, response: Array, weight: Array) -> Array:
        return -weight * gammaln(response + 1)

    def simulate(self, index: Array, rng: np.random.Generator, weight: Array | None = None) -> Array:
        return rng.poisson(np.exp(index)).astype(np.float64)

    def below(self, response: Array, mean: Array) -> Array:
        """With a dispersion above one, of a negative binomial count of that variance."""
        whole = np.floor(np.maximum(response, 0))
        if self.dispersion > 1:
            found = betainc(mean / (self.dispersion - 1), whole + 1, 1 / self.dispersion)
        else:
            found = pdtr(whole, mean)
        return np.where(response < 0, 0.0, found)

    def working_response(self, rows: GroupedRows) -> Array:
        return log_of_counts(rows)

    def climbs(self, index: Array, response: Array) -> Array:
        """A zero count may get smaller for ever; the index of any other count must stay as it is."""
        along = index[:, 0]
        return np.where(response > 0, np.abs(along), np.maximum(along, 0))

    def information(self, rows: GroupedRows, form: str) -> CovarianceFunction:
        from vaneb import covariance
        from vaneb.local.report import covariate_moments

        if form == "empirical":
            return covariance.EmpiricalGLM(rows.design, rows.starts, "poisson")
        return covariance.MomentPoisson(*covariate_moments(rows.design, rows.starts))

    @classmethod
    def row_scores(cls, response: Array, mean: Array) -> Array:
        return 2 * (xlogy(response, response / mean) - (response - mean))

    def residual_variance(self, rows: GroupedRows, index: Array) -> Array:
        """Var (y - mu)^2 / mu = 2 + 1 / mu for a Poisson count."""
        return 2 + np.exp(-index)
