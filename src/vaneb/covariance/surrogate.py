"""A low-order variance function for each coordinate, learnt from the variances that clients report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from vaneb.covariance import _checks
from vaneb.covariance.base import Array
from vaneb.covariance.coordinatewise import CoordinatewiseVariance
from vaneb.errors import InvalidOption, InvalidReport

#: Penalty on the squared coefficients of the standardised regressor, relative to one client's squared
#: error: a slope loses about one percent.
DEFAULT_RIDGE = 0.01
#: A polynomial of higher degree follows noise; it is not a low-order surrogate any more.
HIGHEST_DEGREE = 6


@dataclass(frozen=True, eq=False)
class LogPolynomialVariance(CoordinatewiseVariance):
    """log V_i(t) = sum_q c_iq ((t - center_i) / scale_i)^q, V_i clipped to [low_i, high_i].

    The derivative is 0 where V_i is clipped.

    Parameters
    ----------
    coefficients : array (d, degree + 1)
    center, scale : array (d,)
    low, high : array (d,)
        0 < low <= high.
    n_clients : int
    """

    family: ClassVar[str | None] = "log-polynomial"
    coefficients: Array
    center: Array
    scale: Array
    low: Array
    high: Array
    n_clients: int = 1

    def __post_init__(self) -> None:
        coefficients = _checks.finite_array(self.coefficients, "coefficients", (None, None))
        d, terms = coefficients.shape
        if terms > HIGHEST_DEGREE + 1:
            raise InvalidReport(f"coefficients: degree {terms - 1} is above {HIGHEST_DEGREE}")
        vectors = {name: _checks.finite_array(getattr(self, name), name, (d,)) for name in _VECTORS}
        _checks.positive(vectors["scale"], "scale")
        _checks.positive(vectors["low"], "low")
        if (vectors["high"] < vectors["low"]).any():
            place = int(np.argmax(vectors["high"] < vectors["low"]))
            raise InvalidReport(f"high: below low at coordinate {place}")
        _checks.count(self.n_clients, "n_clients")
        object.__setattr__(self, "coefficients", coefficients)
        for name, vector in vectors.items():
            object.__setattr__(self, name, vector)

    @classmethod
    def fit(cls, estimates: Array, variances: Array, degree: int = 2, ridge: float = DEFAULT_RIDGE) -> Self:
        """Ridge regression of the log of the reported variances on the reported coordinate.

        For every coordinate i, with x_k = (theta_hat_ki - center_i) / scale_i standardised over clients,

            min over c of (1/K) sum_k (log v_ki - sum_q c_q x_k^q)^2 + ridge sum_{q >= 1} c_q^2.

        The intercept is not penalised.  A coordinate that is equal for all clients gets the mean of its
        log-variances.  V_i is clipped to the range of variances seen.

        Parameters
        ----------
        estimates, variances : array (K, d)
            Reported coordinates and their unit variances (n_k times the squared standard errors).
        degree : int
            0 to 6.
        ridge : float
            Positive.
        """
        if not 0 <= degree <= HIGHEST_DEGREE:
            raise InvalidOption(f"degree: must be from 0 to {HIGHEST_DEGREE}, got {degree}")
        if not 0 < ridge < np.inf:
            raise InvalidOption(f"ridge: must be positive and finite, got {ridge}")
        t = _checks.finite_array(estimates, "estimates", (None, None))
        v = _checks.positive(_checks.finite_array(variances, "variances", t.shape), "variances")
        center, deviation = t.mean(axis=0), t.std(axis=0)
        # a spread of rounding size is no spread: its powers would be noise
        scale = np.where(deviation > 1e-12 * np.abs(center), deviation, 1.0)
        powers = ((t - center) / scale)[..., None] ** np.arange(degree + 1)
        penalty = ridge * np.diag([0.0] + [1.0] * degree)
        gram = np.einsum("kip,kiq->ipq", powers, powers) / len(t) + penalty
        right = np.einsum("kip,ki->ip", powers, np.log(v)) / len(t)
        coefficients = np.linalg.solve(gram, right[..., None])[..., 0]
        return cls(coefficients, center, scale, v.min(axis=0), v.max(axis=0), len(t))

    @property
    def dimension(self) -> int:
        return self.coefficients.shape[0]

    def _regressor(self, points: Array) -> Array:
        """Standardised coordinate, bounded so that its powers stay finite: V is clipped long before."""
        return np.clip((points - self.center) / self.scale, -1e6, 1e6)

    def _log_variance(self, points: Array) -> Array:
        """The polynomial before it is clipped."""
        return _horner(self.coefficients.T, self._regressor(points))

    def variance(self, points: Array) -> Array:
        return np.exp(np.clip(self._log_variance(points), np.log(self.low), np.log(self.high)))

    def variance_derivative(self, points: Array) -> Array:
        value = self._log_variance(points)
        inside = (value > np.log(self.low)) & (value < np.log(self.high))
        powers = np.arange(1, self.coefficients.shape[1])
        slope = _horner((self.coefficients[:, 1:] * powers).T, self._regressor(points))
        return np.where(inside, self.variance(points) * slope / self.scale, 0.0)


_VECTORS = ("center", "scale", "low", "high")


def _horner(coefficients: Array, x: Array) -> Array:
    """sum_q coefficients_q x^q, coefficients (terms, d), x (..., d)."""
    value = np.zeros_like(x)
    for column in coefficients[::-1]:
        # In place: x may have as many numbers as a network has weights, for each of many atoms.
        value *= x
        value += column
    return value
