"""The population from sums of clients' rows (``likelihood.loss_sums``), where the rows are elsewhere.

What differs between clients, noise and population come from the same functions as those of rows.  For least
squares the sums say all that rows say of them.  Whether there are groups is asked of halves of each client's
rows, where sites send them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vaneb.errors import InvalidReport
from vaneb.estimators import VANEB
from vaneb.grouped.choice import WIDEST, candidates
from vaneb.grouped.fit import learn_population
from vaneb.grouped.mixed_model import SMALLEST, Centred, Moments, basis_of
from vaneb.grouped.mixture import Half, may_have_groups, mixture_predicts_better
from vaneb.grouped.population import (
    Flags,
    Structure,
    by_least_squares,
    compared,
    model_basis,
    to_compare,
)
from vaneb.likelihood.base import Array
from vaneb.likelihood.loss_sums import Columns, LossSums
from vaneb.local.families import Family
from vaneb.local.family.base import CLASSES


@dataclass(frozen=True, eq=False)
class ClientSums:
    """What is known of K clients."""

    whole: LossSums
    halves: tuple[LossSums, LossSums]
    """Of the clients whose halves are known."""
    columns: Columns
    """Of all rows."""
    of_client: Flags
    """Columns that are the same in all rows of each client, the intercept too: (p,)."""


def find_structure_of_sums(
    sums: ClientSums, family: Family, *, known: bool, varying: Flags | None = None, asked: bool = False
) -> Structure:
    """Choose what differs between clients, as ``population.find_structure`` does.

    Parameters
    ----------
    family : with its dispersion where that is ``known``; else it is found (least squares)
    varying : columns whose coefficients may differ, (p,); by default as where rows are fitted
    asked : all of these differ, so there is nothing to choose
    """
    d, p = sums.whole.point.shape[1], len(sums.columns.mean)
    classes = d // p
    may_vary = _may_vary(sums, family) if varying is None else varying
    columns, intercept = basis_of(sums.columns, may_vary)
    basis = model_basis(columns, d)
    sets = candidates(may_vary, intercept, classes, sums.of_client, sums.whole.n_clients)
    one_trial = family.takes == CLASSES and sums.whole.n.max() == 1
    sets, notes = to_compare(sets, may_vary, classes, asked=asked, one_trial=bool(one_trial))
    centred = _centred(sums.whole, basis, family, known)
    fitted, seen_of_noise = by_least_squares(centred, sums.whole.n, sets, asked=asked)
    return compared(basis, fitted, family, notes + seen_of_noise, asked=asked)


def fit_population_of_sums(
    sums: ClientSums, structure: Structure, names: tuple[str, ...], model: VANEB
) -> None:
    """Fit ``model``, as ``population.fit_population`` does."""
    kind = model.kind
    if model.population == "auto" and not _groups_predict_better(sums, structure, model.seed):
        kind = "gaussian"
    clients = sums.whole.likelihood(structure.family)
    learn_population(clients, structure, kind, names, model, found=structure.found)


def _may_vary(sums: ClientSums, family: Family) -> Flags:
    """The rule of ``terms.varying_columns`` for formulas without bars."""
    everything = np.ones(len(sums.of_client), dtype=bool)
    if family.n_index > 1 or not family.by_row:
        return everything
    constant = np.flatnonzero((sums.columns.scale == 0) & (sums.columns.mean != 0))
    of_client = sums.of_client.copy()
    of_client[constant[:1]] = False
    return everything if of_client.all() else ~of_client


def _centred(sums: LossSums, basis: Array, family: Family, known: bool) -> Centred:
    centred = centred_sums(sums, basis)
    moments, n, d = centred.moments, int(sums.n.sum()), len(basis)
    if family.name == "gaussian" and not known:
        if n <= d:
            raise InvalidReport(
                f"data: {n} rows cannot tell the noise from {d} coefficients; use fewer terms"
            )
        return centred
    phi, penalty = family.dispersion, 0.0 if family.name == "gaussian" else WIDEST**-2
    moments = Moments(moments.gram / phi, moments.cross / phi, penalty=penalty)
    return replace(centred, moments=moments, exact=False)


def centred_sums(sums: LossSums, basis: Array) -> Centred:
    """What ``mixed_model.centred_rows`` makes of the rows."""
    n, d = int(sums.n.sum()), sums.point.shape[1]
    gram = np.ascontiguousarray(basis.T @ sums.hessian @ basis)
    start, total = sums.point.mean(axis=0), gram.sum(axis=0)
    cross = total @ np.linalg.solve(basis, start) - sums.slope(start).sum(axis=0) @ basis
    pooled = np.linalg.lstsq(total, cross, rcond=1e-12)[0]
    # About the pooled fit: the same sigma^2, and no cancellation where the level is large.
    theta = basis @ pooled
    square, level = 2 * float(sums.at(theta).sum()), 2 * float(sums.at(np.zeros(d)).sum())
    moments = Moments(gram, -sums.slope(theta) @ basis, square, n)
    return Centred(moments, basis, pooled, square <= SMALLEST * max(level, 1e-300), level / n)


def _groups_predict_better(sums: ClientSums, structure: Structure, seed: int) -> bool:
    first, second = sums.halves
    if not may_have_groups(structure, first.n_clients):
        return False

    def half(own: LossSums, other: LossSums) -> Half:
        return Half(own.likelihood(structure.family), lambda after: other.at(after.mean) / other.n)

    return mixture_predicts_better((half(first, second), half(second, first)), structure, seed)
