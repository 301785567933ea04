"""Covariance functions Sigma_k(theta) as values: one family per file, one small interface (``base``)."""

from __future__ import annotations

from typing import Any

from vaneb.covariance.base import CovarianceFunction, DiagonalCovariance, FullCovariance, SharedDiagonal
from vaneb.covariance.constant import ConstantDiagonal, ConstantFull
from vaneb.covariance.coordinatewise import CoordinatewiseVariance
from vaneb.covariance.empirical import EmpiricalGLM, EmpiricalSoftmax, constant_information
from vaneb.covariance.moments import MomentPoisson, MomentSoftmax
from vaneb.covariance.quadratic import QuadraticVariance, by_name
from vaneb.covariance.sandwich import EmpiricalScores, SandwichCovariance
from vaneb.covariance.surrogate import LogPolynomialVariance
from vaneb.covariance.user import CallableDiagonal, CallableFull, callable_covariance
from vaneb.errors import InvalidReport

__all__ = [
    "FAMILIES",
    "CallableDiagonal",
    "CallableFull",
    "ConstantDiagonal",
    "ConstantFull",
    "CoordinatewiseVariance",
    "CovarianceFunction",
    "DiagonalCovariance",
    "EmpiricalGLM",
    "EmpiricalScores",
    "EmpiricalSoftmax",
    "FullCovariance",
    "LogPolynomialVariance",
    "MomentPoisson",
    "MomentSoftmax",
    "QuadraticVariance",
    "SandwichCovariance",
    "SharedDiagonal",
    "by_name",
    "callable_covariance",
    "constant_information",
    "from_wire",
]

#: Families that can be sent, by their name on the wire.
FAMILIES: dict[str, type[CovarianceFunction]] = {
    str(cls.family): cls
    for cls in (
        ConstantDiagonal,
        ConstantFull,
        QuadraticVariance,
        LogPolynomialVariance,
        MomentPoisson,
        MomentSoftmax,
        EmpiricalGLM,
        EmpiricalSoftmax,
        EmpiricalScores,
        SandwichCovariance,
    )
}


def from_wire(wire: Any) -> CovarianceFunction:
    """The covariance function that ``to_wire`` of any family wrote.

    Raises
    ------
    InvalidReport
        Naming the offending key, for anything else.
    """
    if not isinstance(wire, dict):
        raise InvalidReport(f"covariance: expected an object, got {type(wire).__name__}")
    family = wire.get("family")
    if not isinstance(family, str) or family not in FAMILIES:
        raise InvalidReport(f"family: {family!r:.40} is unknown; choose one of {', '.join(FAMILIES)}")
    return FAMILIES[family].from_wire(wire)
