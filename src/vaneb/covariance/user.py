"""A covariance function that the user wrote."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.covariance import _checks
from vaneb.covariance.base import (
    Array,
    CovarianceFunction,
    DiagonalCovariance,
    FullCovariance,
    Wire,
    same_dimension,
    unchecked,
)
from vaneb.errors import InvalidReport

Function = Callable[[Array, int], Array]
#: Central differences step by this much, times |theta_i| where that is above one: the cube root of the
#: machine's precision balances their two errors.
STEP = float(np.cbrt(np.finfo(float).eps))


@dataclass(frozen=True, eq=False)
class _CallableCovariance(CovarianceFunction):
    """What the two structures share; ``clients`` are the indices that the function is called with."""

    function: Function
    gradient: Function | None
    clients: NDArray[np.intp]
    parameters: int
    called_by_client: ClassVar[bool] = True
    starts_at_estimates: ClassVar[bool] = True

    @property
    def n_clients(self) -> int:
        return self.clients.size

    @property
    def dimension(self) -> int:
        return self.parameters

    @abstractmethod
    def _inverse(self, covariance: Array, client: int) -> Array:
        """Sigma^{-1} of covariances (m, ...) of one client."""

    @abstractmethod
    def _inverse_gradient(self, precision: Array, gradient: Array) -> Array:
        """Derivative of Sigma^{-1} from that of Sigma."""

    def _covariance(self, points: Array, client: int) -> Array:
        value = np.asarray(self.function(points, client), dtype=np.float64)
        return _expect(value, points, isinstance(self, FullCovariance), client, "the covariance")

    def _derivative(self, points: Array, client: int) -> Array:
        """Derivative of Sigma, last axis the coordinate of theta: given, or by central differences."""
        if self.gradient is not None:
            value = np.asarray(self.gradient(points, client), dtype=np.float64)
            return _expect(value, points, isinstance(self, FullCovariance), client, "the gradient", extra=1)
        columns = []
        for i in range(self.dimension):
            step = np.zeros_like(points)
            step[:, i] = STEP * np.maximum(1.0, np.abs(points[:, i]))
            above, below = self._covariance(points + step, client), self._covariance(points - step, client)
            columns.append((above - below) / (2 * step[:, i]).reshape(-1, *[1] * (above.ndim - 1)))
        return np.stack(columns, axis=-1)

    def precision(self, points: Array) -> Array:
        out = np.empty(self._shape(points))
        for k, client, own in self._each(points):
            out[k] = self._inverse(self._covariance(own, client), client)
        return out

    def precision_gradient(self, points: Array) -> Array:
        out = np.empty((*self._shape(points), self.dimension))
        for k, client, own in self._each(points):
            precision = self._inverse(self._covariance(own, client), client)
            out[k] = self._inverse_gradient(precision, self._derivative(own, client))
        return out

    def _shape(self, points: Array) -> tuple[int, ...]:
        matrix = (self.dimension,) * (2 if isinstance(self, FullCovariance) else 1)
        return (self.n_clients, points.shape[1], *matrix)

    def _each(self, points: Array) -> Iterator[tuple[int, int, Array]]:
        """Position, index and points (m, d) of each client."""
        own = np.broadcast_to(points, (self.n_clients, *points.shape[1:]))
        for k, client in enumerate(self.clients.tolist()):
            yield k, client, own[k]

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        return unchecked(self, clients=self.clients[rows])

    def to_wire(self) -> Wire:
        _refuse_wire()

    @classmethod
    def from_wire(cls, wire: Wire) -> Self:
        _refuse_wire()

    @classmethod
    def stack(cls, parts: list[Self]) -> Self:
        same_dimension(parts)
        if any(part.function is not parts[0].function for part in parts):
            raise InvalidReport("function: clients to stack have different functions of the user's own")
        return unchecked(parts[0], clients=np.concatenate([part.clients for part in parts]))


class CallableDiagonal(_CallableCovariance, DiagonalCovariance):
    """Variances by a function of the user's own."""

    def _inverse(self, covariance: Array, client: int) -> Array:
        if not (covariance > 0).all():
            raise InvalidReport(f"function: a variance of client {client} is not positive")
        return 1.0 / covariance

    def _inverse_gradient(self, precision: Array, gradient: Array) -> Array:
        """-p^2 dv."""
        return -(precision[..., None] ** 2) * gradient


class CallableFull(_CallableCovariance, FullCovariance):
    """Covariance matrices by a function of the user's own."""

    def _inverse(self, covariance: Array, client: int) -> Array:
        return _checks.inverse(_checks.semidefinite(covariance, f"function, client {client}", definite=True))

    def _inverse_gradient(self, precision: Array, gradient: Array) -> Array:
        """-Sigma^{-1} dSigma Sigma^{-1}."""
        return -np.einsum("mab,mbcr,mcd->madr", precision, gradient, precision, optimize=True)


def callable_covariance(
    function: Function,
    n_clients: int,
    dimension: int,
    *,
    diagonal: bool,
    gradient: Function | None = None,
) -> CallableDiagonal | CallableFull:
    """A covariance function from a Python function.

    It has no wire form, and is called once per client: for many clients, a family of its own in
    compiled code or in array operations is faster.

    Parameters
    ----------
    function : callable
        ``function(points, client)`` with points (m, d) and the index of a client returns its unit
        variances (m, d) if ``diagonal``, else its unit covariance matrices (m, d, d).
    n_clients, dimension : int
    diagonal : bool
    gradient : callable, optional
        ``gradient(points, client)``: the derivative of what ``function`` returns, with the coordinate of
        theta as one more, last axis.  Central differences if not given.

    Examples
    --------
    >>> exponential = callable_covariance(lambda points, client: points**2, 3, 1, diagonal=True)
    >>> exponential.precision(np.array([[[2.0]]]))[:, 0, 0].tolist()
    [0.25, 0.25, 0.25]
    """
    family = CallableDiagonal if diagonal else CallableFull
    clients = np.arange(_checks.count(n_clients, "n_clients"))
    return family(function, gradient, clients, _checks.count(dimension, "dimension"))


def _expect(value: Array, points: Array, full: bool, client: int, what: str, extra: int = 0) -> Array:
    m, d = points.shape
    shape = (m, d) + (d,) * (int(full) + extra)
    if value.shape != shape:
        raise InvalidReport(f"function: {what} of client {client} has shape {value.shape}, expected {shape}")
    if not np.isfinite(value).all():
        raise InvalidReport(f"function: {what} of client {client} is not finite at some point")
    return value


def _refuse_wire() -> NoReturn:
    raise InvalidReport(
        "covariance: a function of the user's own cannot be sent; "
        "fit a surrogate to it, or use one of the named families"
    )
