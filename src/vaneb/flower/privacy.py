"""Differentially private reports: clip, add Gaussian noise, and say so in the covariance.

What a client releases is its estimate; nothing else of the report depends on its data.  Two data sets of a
client may differ in every row (client-level privacy), so the sensitivity is the diameter 2 R of the public
ball that the estimate is clipped to, and its noise has standard deviation

    sigma = 2 R tau,

tau the noise that the analytic Gaussian mechanism (Balle and Wang 2018) needs per unit of sensitivity for
(epsilon, delta).  The server knows sigma, so that the released estimate has covariance

    Sigma_k = (se^2 + sigma^2) I,

and the fit accounts for the noise as for any other.  Of the client's own standard errors only a public range
is known, se^2 is their mean square if all of the range are alike: beside sigma they are small, and to tell
them would cost noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from vaneb.covariance.constant import ConstantDiagonal
from vaneb.errors import InvalidOption
from vaneb.reports import ClientReport

Array = NDArray[np.float64]
PRIVATE = "private"


def delta_of(epsilon: float, noise: float) -> float:
    """delta of the Gaussian mechanism with standard deviation ``noise`` and sensitivity one.

    Phi(1 / (2 s) - epsilon s) - exp(epsilon) Phi(-1 / (2 s) - epsilon s)
    """
    half = 1 / (2 * noise)
    return float(ndtr(half - epsilon * noise) - np.exp(epsilon + log_ndtr(-half - epsilon * noise)))


def noise_for(epsilon: float, delta: float) -> float:
    """tau: the smallest noise, for sensitivity one, that is (epsilon, delta) private."""
    if not (0 < epsilon < np.inf and 0 < delta < 1):
        raise InvalidOption(
            f"epsilon {epsilon:g}, delta {delta:g}: epsilon must be positive and delta between 0 and 1."
        )
    low, high = 1e-3, 1.0
    while delta_of(epsilon, high) > delta:
        high *= 2
    while delta_of(epsilon, low) <= delta:
        low /= 2
    root = float(brentq(lambda noise: delta_of(epsilon, noise) - delta, low, high, xtol=1e-12, rtol=1e-12))
    # The private side of the root.
    return root * (1 + 1e-9)


def epsilon_of(noises: Sequence[float], delta: float) -> float:
    """epsilon, at ``delta``, of Gaussian mechanisms with these noises (sensitivity one) taken together.

    They are as private as one of them with noise (sum 1 / tau^2)^(-1/2) (Dong, Roth and Su 2022).
    """
    if not noises:
        return 0.0
    together = float(np.sum(1 / np.square(noises)) ** -0.5)
    high = 1.0
    while delta_of(high, together) > delta:
        high *= 2
    if delta_of(0.0, together) <= delta:
        return 0.0
    return float(brentq(lambda epsilon: delta_of(epsilon, together) - delta, 0.0, high, xtol=1e-9))


@dataclass(frozen=True)
class Mechanism:
    """How reports are made private.  All numbers are public: they must not be read off the data.

    Parameters
    ----------
    epsilon, delta : the guarantee, for a client's whole data set.
    radius, centre : R, and the middle of the ball in every coordinate.
    se_range : smallest and largest standard error that clients may have.
    """

    epsilon: float
    delta: float
    radius: float
    centre: float = 0.0
    se_range: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        if not self.radius > 0:
            raise InvalidOption("radius: a private report needs a public ball; give a positive radius.")
        low, high = self.se_range
        if not 0 < low < high < np.inf:
            raise InvalidOption(
                f"se-low {low:g}, se-high {high:g}: give a public range of standard errors, 0 < low < high."
            )
        noise_for(self.epsilon, self.delta)

    @cached_property
    def noise(self) -> float:
        """sigma, the standard deviation that is added to every coordinate of an estimate."""
        return 2 * self.radius * noise_for(self.epsilon, self.delta)

    def release(self, report: ClientReport, rng: np.random.Generator) -> ClientReport:
        """The report that may leave the client.  ``rng`` must be seeded from the system's entropy."""
        estimate = self._clipped(report.estimate) + self.noise * rng.standard_normal(len(report.estimate))
        low, high = self.se_range
        precision = 1 / ((low**2 + low * high + high**2) / 3 + self.noise**2)
        # n = 1 and a fixed status: the number of rows, and whether anything was clipped, stay at home.
        told = ConstantDiagonal(np.full((1, len(estimate)), precision))
        return ClientReport(report.id, estimate, 1.0, told, PRIVATE)

    def _clipped(self, estimate: Array) -> Array:
        away = estimate - self.centre
        length = float(np.linalg.norm(away))
        return self.centre + away * min(1.0, self.radius / length if length > 0 else 1.0)
