"""Quadratic variance functions: sample means of the natural exponential families of Morris (1982)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from vaneb.covariance import _checks
from vaneb.covariance.base import Array
from vaneb.covariance.coordinatewise import CoordinatewiseVariance
from vaneb.errors import InvalidOption, InvalidReport

#: Floor and ceiling of the named families' variances.  The floor keeps an atom at the edge of the
#: parameter space (a mean of zero, a proportion of 0 or 1) from claiming infinite precision.
LOW, HIGH = 1e-4, 1e8
#: A number for all coordinates or one for each; ``__post_init__`` makes it the second.
Bound = Any


@dataclass(frozen=True, eq=False)
class QuadraticVariance(CoordinatewiseVariance):
    """V_i(t) = v_i0 + v_i1 t + v_i2 t^2, clipped to [low_i, high_i]; the derivative is 0 where clipped.

    Parameters
    ----------
    coefficients : array (d, 3)
        v_0, v_1, v_2 of each coordinate.
    low, high : float or array (d,)
        0 < low <= high.
    n_clients : int
    """

    family: ClassVar[str | None] = "quadratic-variance"
    coefficients: Array
    low: Array
    high: Array
    n_clients: int = 1

    def __post_init__(self) -> None:
        coefficients = _checks.finite_array(self.coefficients, "coefficients", (None, 3))
        d = coefficients.shape[0]
        low = _positive(self.low, "low", d)
        high = _checks.per_coordinate(self.high, "high", d)
        if (high < low).any():
            raise InvalidReport(f"high: below low at coordinate {int(np.argmax(high < low))}")
        _checks.count(self.n_clients, "n_clients")
        object.__setattr__(self, "coefficients", coefficients)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    @classmethod
    def normal(cls, variance: ArrayLike, dimension: int, n_clients: int) -> Self:
        """V(t) = variance (a number, or one per coordinate)."""
        v0 = _positive(variance, "variance", dimension)
        return cls(_columns(dimension, v0, 0.0, 0.0), v0, v0, n_clients)

    @classmethod
    def poisson(cls, dimension: int, n_clients: int, low: Bound = LOW, high: Bound = HIGH) -> Self:
        """V(t) = t, the variance of a count with mean t."""
        return cls(_columns(dimension, 0.0, 1.0, 0.0), low, high, n_clients)

    @classmethod
    def binomial(cls, dimension: int, n_clients: int, low: Bound = LOW, high: Bound = 0.25) -> Self:
        """V(t) = t (1 - t), the variance of one trial with success probability t."""
        return cls(_columns(dimension, 0.0, 1.0, -1.0), low, high, n_clients)

    @classmethod
    def gamma(
        cls, shape: ArrayLike, dimension: int, n_clients: int, low: Bound = LOW, high: Bound = HIGH
    ) -> Self:
        """V(t) = t^2 / shape."""
        v2 = 1.0 / _positive(shape, "shape", dimension)
        return cls(_columns(dimension, 0.0, 0.0, v2), low, high, n_clients)

    @classmethod
    def negative_binomial(
        cls, size: ArrayLike, dimension: int, n_clients: int, low: Bound = LOW, high: Bound = HIGH
    ) -> Self:
        """V(t) = t + t^2 / size."""
        v2 = 1.0 / _positive(size, "size", dimension)
        return cls(_columns(dimension, 0.0, 1.0, v2), low, high, n_clients)

    @classmethod
    def squared(cls, dimension: int, n_clients: int, low: Bound = 0.01, high: Bound = 100.0) -> Self:
        """V(t) = t^2 clipped to [0.01, 100], as in the quadratic scenario of the simulation study."""
        return cls(_columns(dimension, 0.0, 0.0, 1.0), low, high, n_clients)

    @property
    def dimension(self) -> int:
        return self.coefficients.shape[0]

    def _quadratic(self, points: Array) -> Array:
        v0, v1, v2 = self.coefficients.T
        values: Array = v0 + points * (v1 + points * v2)
        return values

    def variance(self, points: Array) -> Array:
        return np.clip(self._quadratic(points), self.low, self.high)

    def variance_derivative(self, points: Array) -> Array:
        _, v1, v2 = self.coefficients.T
        values = self._quadratic(points)
        inside = (values > self.low) & (values < self.high)
        return np.where(inside, v1 + 2.0 * v2 * points, 0.0)


def _positive(value: ArrayLike, key: str, dimension: int) -> Array:
    return _checks.positive(_checks.per_coordinate(value, key, dimension), key)


def _columns(dimension: int, v0: ArrayLike, v1: ArrayLike, v2: ArrayLike) -> Array:
    """Coefficients (d, 3) from scalars or vectors."""
    return np.stack([np.broadcast_to(np.asarray(v, dtype=float), (dimension,)) for v in (v0, v1, v2)], axis=1)


_CLIP = ("low", "high")
#: Names for the command line: constructor, the numbers it needs, the numbers that may follow.
NAMED: dict[str, tuple[Callable[..., QuadraticVariance], tuple[str, ...], tuple[str, ...]]] = {
    "normal": (QuadraticVariance.normal, ("variance",), ()),
    "poisson": (QuadraticVariance.poisson, (), _CLIP),
    "binomial": (QuadraticVariance.binomial, (), _CLIP),
    "gamma": (QuadraticVariance.gamma, ("shape",), _CLIP),
    "negative-binomial": (QuadraticVariance.negative_binomial, ("size",), _CLIP),
    "squared": (QuadraticVariance.squared, (), _CLIP),
}


def by_name(name: str, dimension: int, n_clients: int) -> QuadraticVariance:
    """The variance function that ``name`` stands for, its numbers after colons.

    ``"poisson"``, ``"binomial"``, ``"normal:2"`` (variance), ``"gamma:3"`` (shape),
    ``"negative-binomial:5"`` (size), ``"squared"``; where the family is clipped, floor and ceiling
    may follow: ``"squared:0.01:100"``.

    Examples
    --------
    >>> by_name("gamma:2", dimension=1, n_clients=10).variance(np.array([4.0])).tolist()
    [8.0]
    """
    head, *tail = name.split(":")
    if head not in NAMED:
        raise InvalidOption(f"variance function {name!r} is unknown; choose one of {', '.join(NAMED)}")
    constructor, required, optional = NAMED[head]
    names = required + optional
    if not len(required) <= len(tail) <= len(names):
        usage = head + "".join(f":{n}" for n in required) + "".join(f"[:{n}]" for n in optional)
        raise InvalidOption(f"variance function {name!r}: expected {usage}")
    try:
        numbers = {key: float(text) for key, text in zip(names, tail, strict=False)}
        return constructor(dimension=dimension, n_clients=n_clients, **numbers)
    except ValueError as error:
        raise InvalidOption(f"variance function {name!r}: {error}") from None
