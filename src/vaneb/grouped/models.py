"""The family of a grouped fit with its nuisance numbers: residual variance, shape, Huber's threshold."""

from __future__ import annotations

from dataclasses import dataclass

from vaneb.grouped.mixed_model import centred_basis
from vaneb.grouped.response import ResponseCoding
from vaneb.local.data import GroupedRows
from vaneb.local.family import family_class
from vaneb.local.family.base import Family
from vaneb.local.family.gaussian import Gaussian
from vaneb.local.fit import LocalFits, fit_clients, fit_pooled


@dataclass(frozen=True, eq=False)
class LocalModel:
    """A family, ready, with the clients' fits."""

    family: Family
    fits: LocalFits
    pooled: LocalFits
    """Fit of all rows as one client's."""
    notes: tuple[str, ...] = ()
    """What was noticed while fitting."""


def fit_local(rows: GroupedRows, coding: ResponseCoding) -> LocalModel:
    """Fit every client, and all together, with what the family needs estimated from all clients.

    The noise of least squares is left at one; ``population.find_structure`` finds it.
    """
    family = family_class(coding.family).for_rows(rows, len(coding.classes))
    fits = fit_clients(rows, family)
    notes: tuple[str, ...] = ()
    if not isinstance(family, Gaussian):
        started, basis = family, centred_basis(rows.design)[0]
        family, notes = started.estimated(rows, fits, basis)
        if family is not started:
            fits = fit_clients(rows, family)
    return LocalModel(family, fits, fit_pooled(rows, family), notes)
