"""Positive responses with log link: loss y e^-eta + eta; the variance is dispersion * mean^2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import gammainc, gammaln

from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Array, Family, Flags, log_of_counts
from vaneb.local.family.links import LOG, Link
from vaneb.local.family.losses import Losses, scalar
from vaneb.vector_math import exp

if TYPE_CHECKING:
    from vaneb.covariance.base import CovarianceFunction


@scalar
def value(eta, y, a):  # type: ignore[no-untyped-def]
    return y * exp(-eta) + eta


@scalar
def derivatives(eta, y, a):  # type: ignore[no-untyped-def]
    ratio = y * exp(-eta)
    return ratio + eta, 1.0 - ratio, ratio


@dataclass(frozen=True, eq=False)
class Gamma(Family):
    """Positive response with log link; variance ``dispersion`` * mean^2 (divided by the weight)."""

    name: ClassVar[str] = "gamma"
    losses: ClassVar[Losses] = Losses(value, derivatives)
    link: ClassVar[Link] = LOG
    rule: ClassVar[str] = "a positive number"
    score_name: ClassVar[str] = "deviance"
    has_dispersion: ClassVar[bool] = True

    dispersion: float = 1.0

    @classmethod
    def allowed(cls, response: Array) -> Flags:
        return (response > 0) & np.isfinite(response)

    def variance(self, mean: Array) -> Array:
        return mean**2

    def log_constant(self, response: Array, weight: Array) -> Array:
        shape = np.maximum(weight, 1e-300) / self.dispersion
        constant = (shape - 1) * np.log(response) + shape * np.log(shape) - gammaln(shape)
        return np.where(weight > 0, constant, 0.0)

    def simulate(self, index: Array, rng: np.random.Generator, weight: Array | None = None) -> Array:
        shape = (1.0 if weight is None else weight) / self.dispersion
        return rng.gamma(shape, np.exp(index) / shape)

    def below(self, response: Array, mean: Array) -> Array:
        return gammainc(1 / self.dispersion, np.maximum(response, 0) / mean / self.dispersion)

    def working_response(self, rows: GroupedRows) -> Array:
        return log_of_counts(rows)

    def information(self, rows: GroupedRows, form: str) -> CovarianceFunction:
        from vaneb.covariance import constant_information

        return constant_information(rows.design, rows.starts, 1 / self.dispersion)

    @classmethod
    def row_scores(cls, response: Array, mean: Array) -> Array:
        return 2 * (response / mean - 1 - np.log(response / mean))
