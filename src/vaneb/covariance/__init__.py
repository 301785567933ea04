"""Covariance functions Sigma_k(theta) as values: one family per file, one small interface (``base``)."""

from __future__ import annotations

from vaneb.covariance.base import CovarianceFunction, DiagonalCovariance, FullCovariance, SharedDiagonal
from vaneb.covariance.constant import ConstantDiagonal, ConstantFull

__all__ = [
    "ConstantDiagonal",
    "ConstantFull",
    "CovarianceFunction",
    "DiagonalCovariance",
    "FullCovariance",
    "SharedDiagonal",
]
