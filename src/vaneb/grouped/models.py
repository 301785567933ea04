"""The family of a grouped fit with its nuisance numbers: residual variance, shape, Huber's threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaneb.grouped.mixed_model import MixedModel, mixed_model_of
from vaneb.grouped.response import ResponseCoding
from vaneb.likelihood.loss_sums import Columns, LossSums
from vaneb.local import families
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family
from vaneb.local.fit import LocalFits, common_dispersion, fit_clients

#: Huber's threshold in units of the residuals' scale: 95% efficiency for Gaussian noise.
HUBER = 1.345
#: Median absolute deviation of a standard Gaussian.
MAD = 0.6745


@dataclass(frozen=True, eq=False)
class LocalModel:
    """A family, ready, with the clients' fits."""

    family: Family
    fits: LocalFits
    pooled: LocalFits
    """Fit of all rows as one client's."""
    notes: tuple[str, ...]
    mixed_model: MixedModel | None = None
    """Gaussian family only: residual variance and Gaussian population."""


def fit_local(rows: GroupedRows, coding: ResponseCoding) -> LocalModel:
    """Fit every client, and all together, with what the family needs estimated from all clients."""
    notes: tuple[str, ...] = ()
    mixed: MixedModel | None = None
    name = coding.family
    if name == "multinomial":
        family = families.multinomial(len(coding.classes), rows.design.shape[1])
    elif name == "huber":
        family = families.huber(HUBER * residual_scale(rows))
    else:
        family = families.SIMPLE_FAMILIES[name]()
    fits = fit_clients(rows, family)
    if name == "gaussian":
        mixed = mixed_model_of(LossSums.of_fits(fits), Columns.of(rows.design))
        family = family.with_dispersion(mixed.variance)
        if not mixed.identified:
            notes += (
                "clients have too few rows to tell noise from differences between clients; "
                "what could be either is taken for noise",
            )
    elif name == "gamma":
        family = family.with_dispersion(max(common_dispersion(rows, family, fits), 1e-12))
    return LocalModel(family, fits, fit_clients(rows.pooled(), family), notes, mixed)


def residual_scale(rows: GroupedRows) -> float:
    """A robust standard deviation of the residuals: within clients where rows are left, else pooled.

    Residuals of a client with n_k rows and d parameters are too small by sqrt(1 - d / n_k) on average.
    """
    d = rows.design.shape[1]
    large = rows.n_rows >= 2 * d
    part = rows.take(np.flatnonzero(large)) if rows.n_rows[large].sum() >= 20 else rows.pooled()
    least_squares = families.gaussian()
    theta = fit_clients(part, least_squares).theta[part.client_of_row]
    residual = part.response - least_squares.index(theta, part.design, part.offset)
    shrunk = np.sqrt(np.maximum(1 - d / part.n_rows, 1e-6))[part.client_of_row]
    scale = float(np.median(np.abs(residual / shrunk)) / MAD)
    if scale > 0:
        return scale
    overall = float(np.std(part.response - part.offset))
    return overall if overall > 0 else 1.0
