"""Logistic regression: loss log(1 + e^eta) - y eta, y being 0 or 1, or a share of successes among trials.

A share of w trials is a row of weight w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import expit, gammaln

from vaneb.local.data import GroupedRows
from vaneb.local.family.base import CLASSES, Array, Family, Flags
from vaneb.local.family.links import LOGIT, Link
from vaneb.local.family.losses import Losses, scalar
from vaneb.vector_math import exp, log

if TYPE_CHECKING:
    from vaneb.covariance.base import CovarianceFunction

#: Probabilities are kept this far from 0 and 1, so that one sure mistake has a finite score.
CLIP = 1e-15


@scalar
def value(eta, y, a):  # type: ignore[no-untyped-def]
    return max(eta, 0.0) - y * eta + log(1.0 + exp(-abs(eta)))


@scalar
def derivatives(eta, y, a):  # type: ignore[no-untyped-def]
    e = exp(-abs(eta))
    q = 1.0 / (1.0 + e)
    share = q if eta >= 0.0 else e * q
    return max(eta, 0.0) - y * eta + log(1.0 + e), share - y, e * q * q


@dataclass(frozen=True, eq=False)
class Binomial(Family):
    """Logistic regression of a response that is 0 or 1, or of shares whose weights are numbers of trials."""

    name: ClassVar[str] = "binomial"
    losses: ClassVar[Losses] = Losses(value, derivatives)
    link: ClassVar[Link] = LOGIT
    takes: ClassVar[str] = CLASSES
    takes_trials: ClassVar[bool] = True
    rule: ClassVar[str] = "0 or 1, or a share of successes between them"
    score_name: ClassVar[str] = "log-loss"
    GLM: ClassVar[str] = "logistic"
    too_much_scatter: ClassVar[str] = (
        "successes scatter more than binomial ones: within clients their variance is {ratio:.2f} times "
        "what is expected. The fit allows for it; a covariate may be missing"
    )

    @classmethod
    def allowed(cls, response: Array) -> Flags:
        return (response >= 0) & (response <= 1)

    def variance(self, mean: Array) -> Array:
        return mean * (1 - mean)

    def log_constant(self, response: Array, weight: Array) -> Array:
        """log of the number of ways to have y w successes among w trials; 0 for a single trial."""
        successes = response * weight
        several = (response > 0) & (response < 1)
        ways = gammaln(weight + 1) - gammaln(successes + 1) - gammaln(weight - successes + 1)
        return np.where(several, ways, 0.0)

    def simulate(self, index: Array, rng: np.random.Generator, weight: Array | None = None) -> Array:
        trials = np.ones(len(index), dtype=np.int64) if weight is None else weight.astype(np.int64)
        return rng.binomial(trials, expit(index)) / trials

    def below(self, response: Array, mean: Array) -> Array:
        """Of a single trial."""
        return np.where(response < 0, 0.0, np.where(response >= 1, 1.0, 1 - mean))

    def climbs(self, index: Array, response: Array) -> Array:
        """A response that is certain may get surer for ever; a share must stay as it is."""
        along = index[:, 0]
        sure = np.maximum(np.where(response > 0, -along, along), 0)
        return np.where((response > 0) & (response < 1), np.abs(along), sure)

    def information(self, rows: GroupedRows, form: str) -> CovarianceFunction:
        from vaneb import covariance
        from vaneb.local.report import covariate_moments

        if form == "empirical":
            return covariance.EmpiricalGLM(rows.design, rows.starts, "logistic")
        return covariance.MomentSoftmax.logistic(*covariate_moments(rows.design, rows.starts))

    @classmethod
    def row_scores(cls, response: Array, mean: Array) -> Array:
        p = np.clip(mean, CLIP, 1 - CLIP)
        return -(response * np.log(p) + (1 - response) * np.log1p(-p))

    def residual_variance(self, rows: GroupedRows, index: Array) -> Array | None:
        """Var w (y - p)^2 / pq = 2 + (1 / pq - 6) / w.  Single trials say nothing of their scatter."""
        if not ((rows.response > 0) & (rows.response < 1)).any():
            return None
        p = expit(index)
        return np.maximum(2 + (1 / (p * (1 - p)) - 6) / np.maximum(rows.weight, 1e-300), 0.0)
