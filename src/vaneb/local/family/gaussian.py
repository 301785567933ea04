"""Least squares: loss (eta - y)^2 / 2; the dispersion is the variance of the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import ndtr

from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Array, Family
from vaneb.local.family.losses import Losses, scalar

if TYPE_CHECKING:
    from vaneb.covariance.base import CovarianceFunction


@scalar
def value(eta, y, a):  # type: ignore[no-untyped-def]
    return 0.5 * (eta - y) ** 2


@scalar
def derivatives(eta, y, a):  # type: ignore[no-untyped-def]
    r = eta - y
    return 0.5 * r * r, r, 1.0


@dataclass(frozen=True, eq=False)
class Gaussian(Family):
    """Least squares; ``dispersion`` is the noise variance, divided by the weight where rows have weights."""

    name: ClassVar[str] = "gaussian"
    losses: ClassVar[Losses] = Losses(value, derivatives)
    has_dispersion: ClassVar[bool] = True
    GLM: ClassVar[str] = "gaussian"

    dispersion: float = 1.0

    def log_constant(self, response: Array, weight: Array) -> Array:
        # A row of weight 0 is none.
        return np.where(
            weight > 0, 0.5 * np.log(np.maximum(weight, 1e-300) / (2 * np.pi * self.dispersion)), 0.0
        )

    def simulate(self, index: Array, rng: np.random.Generator, weight: Array | None = None) -> Array:
        scale = self.dispersion / (1.0 if weight is None else weight)
        return index + np.sqrt(scale) * rng.standard_normal(len(index))

    def below(self, response: Array, mean: Array) -> Array:
        return ndtr((response - mean) / np.sqrt(self.dispersion))

    def information(self, rows: GroupedRows, form: str) -> CovarianceFunction:
        from vaneb.covariance import constant_information

        return constant_information(rows.design, rows.starts, 1 / self.dispersion)
