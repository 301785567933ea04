"""Huber's loss: r^2 / 2 if |r| <= a, else a (|r| - a / 2), with r = eta - y.

Its second derivative is not continuous; its place is taken by the weight of iteratively reweighted least
squares, min(1, a / |r|), whose quadratic lies above the loss and so never overshoots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Array, Family
from vaneb.local.family.losses import Losses, scalar

#: Threshold in units of the residuals' scale: 95% efficiency for Gaussian noise.
THRESHOLD = 1.345
#: Median absolute deviation of a standard Gaussian.
MAD = 0.6745


@scalar
def value(eta, y, a):  # type: ignore[no-untyped-def]
    r = abs(eta - y)
    inner = min(r, a)
    return inner * (r - 0.5 * inner)


@scalar
def derivatives(eta, y, a):  # type: ignore[no-untyped-def]
    r = eta - y
    inner = min(abs(r), a)
    return inner * (abs(r) - 0.5 * inner), max(-a, min(a, r)), a / max(abs(r), a)


@dataclass(frozen=True, eq=False)
class Huber(Family):
    """Huber's loss, quadratic up to ``threshold`` (in units of the response) and linear beyond."""

    name: ClassVar[str] = "huber"
    losses: ClassVar[Losses] = Losses(value, derivatives)
    is_likelihood: ClassVar[bool] = False
    parameter_name: ClassVar[str] = "threshold"

    threshold: float

    @classmethod
    def for_rows(cls, rows: GroupedRows, n_classes: int = 0) -> Self:
        return cls(THRESHOLD * residual_scale(rows))

    def working_response(self, rows: GroupedRows) -> Array:
        return rows.response

    def hessian_weight(self, index: Array, response: Array) -> Array:
        return (np.abs(index - response) <= self.threshold).astype(np.float64)


def residual_scale(rows: GroupedRows) -> float:
    """A robust standard deviation of the residuals: within clients where rows are left, else pooled.

    Residuals of a client with n_k rows and d parameters are too small by sqrt(1 - d / n_k) on average.
    """
    from vaneb.local.family.gaussian import Gaussian
    from vaneb.local.fit import fit_clients

    d = rows.design.shape[1]
    large = rows.n_rows >= 2 * d
    part = rows.take(np.flatnonzero(large)) if rows.n_rows[large].sum() >= 20 else rows.pooled()
    least_squares = Gaussian()
    theta = fit_clients(part, least_squares).theta[part.client_of_row]
    residual = part.response - least_squares.index(theta, part.design, part.offset)
    shrunk = np.sqrt(np.maximum(1 - d / part.n_rows, 1e-6))[part.client_of_row]
    scale = float(np.median(np.abs(residual / shrunk)) / MAD)
    if scale > 0:
        return scale
    overall = float(np.std(part.response - part.offset))
    return overall if overall > 0 else 1.0
