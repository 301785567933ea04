"""What the server knows of a client's noise: the covariance of its estimate as a function of the parameter.

The working model is

    sqrt(n_k) (theta_hat_k - theta_k) ~ N(0, Sigma_k(theta_k)),

so a client's noise is a *function* of the unknown parameter.  A value of one of the classes below
holds that function for K clients at once, as plain numbers.  What a solver needs of it is the unit
precision ``Sigma_k(theta)^{-1}`` (the information in one observation; the estimate of a client with
n_k rows has precision ``n_k Sigma_k(theta)^{-1}``) and how that precision changes with theta.

Precision rather than covariance, because a singular precision is an honest report (a client with
fewer rows than parameters knows nothing in some directions), while its covariance does not exist.

Structure is a type:

``DiagonalCovariance``  precision is a vector of length d
``FullCovariance``      precision is a symmetric d x d matrix
``ConstantDiagonal``, ``ConstantFull`` (in ``constant``)  it does not depend on theta at all
``SharedDiagonal``      diagonal, and the same function for every client (only n_k differs)

Points.  Every method that takes ``points`` takes an array of shape ``(1, m, d)``: the same m points
for every client, or ``(K, m, d)``: every client its own m points.

Letters: K clients, m points, d parameters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport

Array = NDArray[np.float64]
Wire = dict[str, Any]
Value = TypeVar("Value")


class CovarianceFunction(ABC):
    """Sigma_k(theta) of K clients, as data."""

    #: Name of the family on the wire; ``None`` for a family that has no wire form.
    family: ClassVar[str | None] = None
    #: Whether estimates are good places to start from; those of functions made of rows may have run off.
    starts_at_estimates: ClassVar[bool] = False
    #: Whether each client takes a call of its own, so that many points a call are better than single ones.
    called_by_client: ClassVar[bool] = False

    #: Fields that have one entry for each client, the first (K, d, ...); all clients share the others.
    per_client: ClassVar[tuple[str, ...]] = ()

    @property
    def n_clients(self) -> int:
        """K."""
        return getattr(self, self.per_client[0]).shape[0]

    @property
    def dimension(self) -> int:
        """d."""
        return getattr(self, self.per_client[0]).shape[1]

    @abstractmethod
    def precision(self, points: Array) -> Array:
        """Unit precision Sigma_k(theta)^{-1} at ``points``: (K, m, d) if diagonal, else (K, m, d, d)."""

    @abstractmethod
    def precision_gradient(self, points: Array) -> Array:
        """Derivative of ``precision``; the last axis is the coordinate of theta it is taken in.

        Shape (K, m, d, d) if diagonal, else (K, m, d, d, d).
        """

    # The rest follows from the fields of a frozen dataclass whose ``__post_init__`` checks them.

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        """The same function for some of the clients, in the order given."""
        return unchecked(self, **{name: getattr(self, name)[rows] for name in self.per_client})

    def to_wire(self) -> Wire:
        """Plain numbers and strings, fit for JSON, from which ``from_wire`` makes an equal value."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        plain = {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in values.items()}
        return {"family": self.family, **plain}

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        """Inverse of ``to_wire``; raises ``vaneb.errors.InvalidReport`` for anything that is not one."""
        return cls(**{f.name: read_key(wire, f.name) for f in fields(cls) if f.init})  # type: ignore[arg-type]

    @classmethod
    def stack(cls, parts: list[Self]) -> Self:
        """One value for all clients of ``parts``, in order."""
        same_dimension(parts)
        for f in fields(parts[0]):  # type: ignore[arg-type]
            if f.name not in cls.per_client:
                same_field(parts, f.name)
        stacked = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.per_client}
        return unchecked(parts[0], **stacked)


class DiagonalCovariance(CovarianceFunction):
    """A covariance function whose values are diagonal matrices."""


class FullCovariance(CovarianceFunction):
    """A covariance function whose values are symmetric matrices."""


class SharedDiagonal(DiagonalCovariance):
    """Diagonal and the same for every client: Sigma_k(theta) = diag(V(theta)).

    The solver then needs V at m atoms only, never at K x m pairs.
    """

    @abstractmethod
    def shared_precision(self, points: Array) -> Array:
        """1 / V at ``points`` of shape (..., d): the same shape."""

    @abstractmethod
    def shared_precision_gradient(self, points: Array) -> Array:
        """Derivative of 1 / V: shape (..., d, d), the last axis the coordinate of theta."""

    def precision(self, points: Array) -> Array:
        values = self.shared_precision(points)
        return np.broadcast_to(values, (self.n_clients, *values.shape[1:]))

    def precision_gradient(self, points: Array) -> Array:
        values = self.shared_precision_gradient(points)
        return np.broadcast_to(values, (self.n_clients, *values.shape[1:]))


def same_dimension(parts: list[Any]) -> None:
    """Raise unless ``parts`` is not empty and all have the same number of parameters."""
    dimensions = {part.dimension for part in parts}
    if len(dimensions) != 1:
        raise InvalidReport(f"covariance: clients to stack have dimensions {sorted(dimensions)}, need one")


def same_field(parts: list[Any], name: str) -> None:
    """Raise unless the field is equal in all ``parts``: they are to share it."""
    first = getattr(parts[0], name)
    if not all(np.array_equal(first, getattr(part, name)) for part in parts[1:]):
        raise InvalidReport(f"{name}: differs between the clients to stack, which must share it")


def read_key(wire: Any, key: str) -> Any:
    """``wire[key]``, if ``wire`` is a mapping that has it."""
    if not isinstance(wire, dict):
        raise InvalidReport(f"covariance: expected an object with the key {key!r}, got {type(wire).__name__}")
    if key not in wire:
        raise InvalidReport(f"{key}: missing from the covariance of family {wire.get('family')!r}")
    return wire[key]


def symmetric(matrices: NDArray[np.floating[Any]]) -> Array:
    """(M + M') / 2 of matrices (..., d, d)."""
    return np.asarray(matrices / 2 + np.swapaxes(matrices, -1, -2) / 2, dtype=np.float64)


def unchecked(value: Value, **changes: Any) -> Value:
    """A copy of a frozen dataclass with some fields changed and no check repeated.

    Solvers take blocks of clients again and again; what was valid stays valid.
    """
    copy = object.__new__(type(value))
    for field in fields(value):  # type: ignore[arg-type]
        object.__setattr__(copy, field.name, changes.get(field.name, getattr(value, field.name)))
    return copy
