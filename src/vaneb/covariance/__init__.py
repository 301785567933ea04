"""Covariance functions Sigma_k(theta) as values: one family per file, one small interface (``base``)."""

from __future__ import annotations

from vaneb.covariance.base import CovarianceFunction, DiagonalCovariance, FullCovariance, SharedDiagonal
from vaneb.covariance.constant import ConstantDiagonal, ConstantFull
from vaneb.covariance.coordinatewise import CoordinatewiseVariance
from vaneb.covariance.empirical import EmpiricalGLM, EmpiricalSoftmax, constant_information
from vaneb.covariance.quadratic import QuadraticVariance, by_name

__all__ = [
    "ConstantDiagonal",
    "ConstantFull",
    "CoordinatewiseVariance",
    "CovarianceFunction",
    "DiagonalCovariance",
    "EmpiricalGLM",
    "EmpiricalSoftmax",
    "FullCovariance",
    "QuadraticVariance",
    "SharedDiagonal",
    "by_name",
    "constant_information",
]
