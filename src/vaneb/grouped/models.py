"""The family of a grouped fit with its nuisance numbers: residual variance, shape, Huber's threshold."""

from __future__ import annotations

from dataclasses import dataclass

from vaneb.grouped.mixed_model import MixedModel, mixed_model
from vaneb.grouped.response import ResponseCoding
from vaneb.grouped.structure import centred_basis
from vaneb.local.data import GroupedRows
from vaneb.local.family import family_class
from vaneb.local.family.base import Family
from vaneb.local.family.gaussian import Gaussian
from vaneb.local.fit import LocalFits, fit_clients, fit_pooled, within_clients
from vaneb.local.marginal import Population, chosen


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
    population: Population | None = None
    """Of families whose loss is no sum over rows: a Gaussian population, which says what differs."""


def fit_local(rows: GroupedRows, coding: ResponseCoding) -> LocalModel:
    """Fit every client, and all together, with what the family needs estimated from all clients."""
    notes: tuple[str, ...] = ()
    mixed: MixedModel | None = None
    family = family_class(coding.family).for_rows(rows, len(coding.classes))
    fits = fit_clients(rows, family)
    if isinstance(family, Gaussian):
        mixed = mixed_model(rows)
        family = family.with_dispersion(mixed.variance)
        if not mixed.identified:
            notes += (
                "clients have too few rows to tell noise from differences between clients; "
                "what could be either is taken for noise",
            )
    else:
        started, basis = family, centred_basis(rows.design)[0]
        family, notes = started.estimated(rows, fits, basis)
        if family is not started:
            fits = fit_clients(rows, family)
    if noticed := scatter_note(rows, family, fits):
        notes += (noticed,)
    population = None
    if not family.by_row:
        population = chosen(rows, family, centred_basis(rows.design)[0])
        if not population.varying.any():
            notes += ("clients do not differ by what their rows say: all have the same coefficients",)
    return LocalModel(family, fits, fit_pooled(rows, family), notes, mixed, population)


def scatter_note(rows: GroupedRows, family: Family, fits: LocalFits) -> str:
    """What to say where responses scatter more within clients than the family has it, else nothing."""
    if not (fits.exists & (fits.n > fits.theta.shape[1])).any():
        return ""
    return family.excess_scatter(*within_clients(rows, family, fits))
