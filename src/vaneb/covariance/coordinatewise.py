"""What the shared, coordinatewise variance functions have in common: V_i depends on theta_i alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vaneb.covariance.base import Array, SharedDiagonal, same_dimension, same_field, unchecked


class CoordinatewiseVariance(SharedDiagonal):
    """Sigma_k(theta) = diag(V_1(theta_1), ..., V_d(theta_d)) for every client k.

    A subclass is a frozen dataclass with a field ``n_clients`` and says what V and V' are.
    """

    @abstractmethod
    def variance(self, points: Array) -> Array:
        """V_i(theta_i) at ``points`` of shape (..., d): the same shape."""

    @abstractmethod
    def variance_derivative(self, points: Array) -> Array:
        """V_i'(theta_i): the same shape as ``points``."""

    def shared_precision(self, points: Array) -> Array:
        """1 / V_i(theta_i)."""
        return 1.0 / self.variance(points)

    def coordinate_gradient(self, points: Array) -> Array:
        """d(1 / V_i)/d theta_i = -V_i' / V_i^2, shape (..., d): all that is not zero of the gradient.

        Use it instead of ``shared_precision_gradient`` where d is large: the latter is (..., d, d).
        """
        return -self.variance_derivative(points) / self.variance(points) ** 2

    def shared_precision_gradient(self, points: Array) -> Array:
        diagonal = self.coordinate_gradient(points)
        gradient = np.zeros((*diagonal.shape, self.dimension))
        index = np.arange(self.dimension)
        gradient[..., index, index] = diagonal
        return gradient

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        # Indexing a virtual array counts the rows for slices, indices and masks alike.
        return unchecked(self, n_clients=np.broadcast_to(0.0, self.n_clients)[rows].size)

    @classmethod
    def stack(cls, parts: list[Self]) -> Self:
        same_dimension(parts)
        for name in cls.to_wire(parts[0]):
            if name not in ("family", "n_clients"):
                same_field(parts, name)
        return unchecked(parts[0], n_clients=sum(part.n_clients for part in parts))
