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
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Wire = dict[str, Any]


class CovarianceFunction(ABC):
    """Sigma_k(theta) of K clients, as data."""

    #: Name of the family on the wire; ``None`` for a family that has no wire form.
    family: ClassVar[str | None] = None
    #: Whether its value for a client at a point is a matter of nanoseconds, whatever the client's size.
    cheap: ClassVar[bool] = False

    @property
    @abstractmethod
    def n_clients(self) -> int:
        """K."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """d."""

    @abstractmethod
    def precision(self, points: Array) -> Array:
        """Unit precision Sigma_k(theta)^{-1} at ``points``: (K, m, d) if diagonal, else (K, m, d, d)."""

    @abstractmethod
    def precision_gradient(self, points: Array) -> Array:
        """Derivative of ``precision``; the last axis is the coordinate of theta it is taken in.

        Shape (K, m, d, d) if diagonal, else (K, m, d, d, d).
        """

    @abstractmethod
    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        """The same function for some of the clients, in the order given."""

    @abstractmethod
    def to_wire(self) -> Wire:
        """Plain numbers and strings, fit for JSON, from which ``from_wire`` makes an equal value."""

    @classmethod
    @abstractmethod
    def from_wire(cls, wire: Wire) -> Self:
        """Inverse of ``to_wire``; raises ``vaneb.errors.InvalidReport`` for anything that is not one."""

    @classmethod
    @abstractmethod
    def stack(cls, parts: list[Self]) -> Self:
        """One value for all clients of ``parts``, in order."""


class DiagonalCovariance(CovarianceFunction):
    """A covariance function whose values are diagonal matrices."""


class FullCovariance(CovarianceFunction):
    """A covariance function whose values are symmetric matrices."""

    def write_clients_last(self, points: Array, precision: Array, gradient: Array | None) -> None:
        """Write the unit precision at points (m, d) into (m, d, d, K), its gradient into (m, d, d, d, K).

        With clients on the last axis, loops over them become vector instructions.  A family that can do
        better than this transposition overrides it.
        """
        precision[...] = np.moveaxis(self.precision(points[None]), 0, -1)
        if gradient is not None:
            gradient[...] = np.moveaxis(self.precision_gradient(points[None]), 0, -1)


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
