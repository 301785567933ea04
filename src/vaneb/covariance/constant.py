"""Covariances that do not depend on the parameter: Sigma_k(theta) = Sigma_k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from vaneb.covariance import _checks
from vaneb.covariance.base import Array, CovarianceFunction, DiagonalCovariance, FullCovariance


@dataclass(frozen=True, eq=False)
class _Constant(CovarianceFunction):
    """What the two structures share: ``unit_precision``, of shape (K, d) or (K, d, d)."""

    per_client: ClassVar[tuple[str, ...]] = ("unit_precision",)
    unit_precision: Array

    def precision(self, points: Array) -> Array:
        shape = (self.n_clients, points.shape[1], *self.unit_precision.shape[1:])
        return np.broadcast_to(self.unit_precision[:, None], shape)

    def precision_gradient(self, points: Array) -> Array:
        return np.broadcast_to(0.0, (*self.precision(points).shape, self.dimension))


@dataclass(frozen=True, eq=False)
class ConstantDiagonal(_Constant, DiagonalCovariance):
    """Sigma_k(theta)^{-1} = diag(p_k).

    Parameters
    ----------
    unit_precision : array (K, d)
        Zero or positive; zero says that a client knows nothing of a coordinate.
    """

    family: ClassVar[str | None] = "constant-diagonal"

    def __post_init__(self) -> None:
        array = _checks.finite_array(
            self.unit_precision, "unit_precision", (None, None), _checks.LARGEST_PRECISION
        )
        _checks.positive(array, "unit_precision", or_zero=True)
        object.__setattr__(self, "unit_precision", array)

    @classmethod
    def from_variances(cls, variances: Array) -> Self:
        """p_k = 1 / v_k from the unit variances v_k (K, d), n_k times the squared standard errors."""
        array = _checks.finite_array(variances, "variances", (None, None), _checks.LARGEST_PRECISION)
        return cls(1.0 / _checks.positive(array, "variances"))


@dataclass(frozen=True, eq=False)
class ConstantFull(_Constant, FullCovariance):
    """Sigma_k(theta)^{-1} = P_k.

    Parameters
    ----------
    unit_precision : array (K, d, d)
        Symmetric positive semidefinite; singular where a client knows nothing of a direction.
    """

    family: ClassVar[str | None] = "constant-full"

    def __post_init__(self) -> None:
        array = _checks.square_matrices(self.unit_precision, "unit_precision", _checks.LARGEST_PRECISION)
        object.__setattr__(self, "unit_precision", _checks.semidefinite(array, "unit_precision"))

    @classmethod
    def from_covariances(cls, covariances: Array) -> Self:
        """P_k = Sigma_k^{-1} from unit covariance matrices (K, d, d), n_k times those of the estimates."""
        array = _checks.square_matrices(covariances, "covariances", _checks.LARGEST_PRECISION)
        return cls(_checks.inverse(_checks.semidefinite(array, "covariances", definite=True)))
