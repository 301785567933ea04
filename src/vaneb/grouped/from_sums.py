"""The population from sums of clients' rows (``likelihood.loss_sums``), where the rows are elsewhere.

Given what differs between clients, noise and population come from the same functions as those of rows.  Rows
choose what differs by how well each row is predicted from all others.  That is not in the sums, but its
average is nearly so: with E_k and V_k the posterior mean and covariance of a client and H_k its
Hessian,

    sum_k L_k(E_k) + tr(H_k V_k),

where the trace is what the client's own rows take away from its loss.  For least squares L_k / (1 - h_k)^2
stands for that, h_k the average leverage of its rows, as in generalised cross-validation.

Halves of the rows are needed only to ask whether there are groups of clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vaneb.errors import InvalidReport
from vaneb.estimators import VANEB
from vaneb.grouped import mixed_kernels as kernels
from vaneb.grouped.choice import (
    LEVERAGE,
    WIDEST,
    Fitted,
    Index,
    candidates,
    enough_clients,
    fit_least_squares,
)
from vaneb.grouped.mixed_model import MOST, SMALLEST, TIE_BREAK, Centred, Moments, basis_of, identified
from vaneb.grouped.population import (
    SLIGHT,
    Flags,
    Half,
    Structure,
    learn_population,
    may_have_groups,
    mixture_predicts_better,
    model_basis,
)
from vaneb.grouped.response import CLASSES
from vaneb.likelihood.loss_sums import Columns, LossSums
from vaneb.likelihood.seam import Array
from vaneb.local.families import Family


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
    classes, gaussian = d // p, family.name == "gaussian"
    may_vary = _may_vary(sums, gaussian) if varying is None else varying
    columns, intercept = basis_of(sums.columns, may_vary)
    basis = model_basis(columns, d)
    sets, notes = candidates(may_vary, intercept, classes, sums.of_client), tuple[str, ...]()
    if asked:
        sets = [np.flatnonzero(np.tile(may_vary, classes))]
    elif may_vary.sum() * classes > MOST:
        notes += (
            f"{int(may_vary.sum()) * classes} coefficients might differ between clients, more than {MOST}: "
            "only the intercept does",
        )
    if family.name in CLASSES and sums.whole.n.max() == 1 and not asked:
        sets = sets[:1]
        notes += ("one row of each client says nothing of differences between them: none is assumed",)
    told = not gaussian or known or _told(sums.whole, basis, sets)
    if not told:
        notes += (
            "clients have too few rows to tell noise from differences between clients; "
            "what could be either is taken for noise",
        )
    centred = _centred(sums.whole, basis, family, known, told)
    if centred.exact:
        notes += ("the fit leaves no residuals: there is no noise to be seen",)
    found = [fit_least_squares(centred, one) for one in sets]
    best = found[0] if len(found) == 1 else found[_best(sums, basis, family, found)]
    chosen = best.model.varying
    if gaussian and not known:
        family = family.with_dispersion(best.model.variance)
    flags = np.zeros(d, dtype=bool)
    flags[chosen] = True
    if not asked and len(chosen) < len(sets[-1]):
        what = "slopes do not differ" if flags.any() else "no coefficient differs"
        notes += (f"{what} between clients: rows are predicted best so",)
    return Structure(basis, flags, best, family, notes)


def fit_population_of_sums(
    sums: ClientSums, structure: Structure, names: tuple[str, ...], model: VANEB
) -> None:
    """Fit ``model``, as ``population.fit_population`` does."""
    kind = model.kind
    if model.population == "auto" and not _groups_predict_better(sums, structure, model.seed):
        kind = "gaussian"
    clients = sums.whole.likelihood(structure.family)
    learn_population(clients, structure, kind, names, model, fitted=structure.fitted)


def _may_vary(sums: ClientSums, gaussian: bool) -> Flags:
    """The rule of ``terms.varying_columns`` for formulas without bars."""
    everything = np.ones(len(sums.of_client), dtype=bool)
    if not gaussian:
        return everything
    constant = np.flatnonzero((sums.columns.scale == 0) & (sums.columns.mean != 0))
    of_client = sums.of_client.copy()
    of_client[constant[:1]] = False
    return everything if of_client.all() else ~of_client


def _told(sums: LossSums, basis: Array, sets: list[Index]) -> bool:
    gram = np.ascontiguousarray(basis.T @ sums.hessian @ basis)
    return all(identified(gram, sums.n, one) for one in sets)


def _centred(sums: LossSums, basis: Array, family: Family, known: bool, told: bool) -> Centred:
    centred = centred_sums(sums, basis)
    moments, n, d = centred.moments, int(sums.n.sum()), len(basis)
    if family.name == "gaussian" and not known:
        if n <= d:
            raise InvalidReport(
                f"data: {n} rows cannot tell the noise from {d} coefficients; use fewer terms"
            )
        return centred if told else replace(centred, moments=replace(moments, penalty=TIE_BREAK * n))
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


def _best(sums: ClientSums, basis: Array, family: Family, found: list[Fitted]) -> int:
    """The simplest population that predicts a row from all others hardly worse than the best, as far as sums
    tell.

    Losses that are no sums over rows are compared by their marginal likelihood, as where rows are fitted.
    """
    if not family.by_row:
        sizes = [len(one.model.varying) for one in found]
        free = [r * (r + 1) // 2 if enough_clients(r, sums.whole.n_clients) else r for r in sizes]
        return int(np.argmin([2 * f + one.model.deviance for f, one in zip(free, found, strict=True)]))
    losses = np.array([_left_out_loss(sums.whole, basis, family, fitted) for fitted in found])
    losses = np.where(np.isfinite(losses), losses, np.inf)
    return int(np.flatnonzero(losses <= losses.min() + SLIGHT * np.abs(losses.min()))[0])


def _left_out_loss(whole: LossSums, basis: Array, family: Family, fitted: Fitted) -> float:
    model, gram = fitted.model, fitted.moments.gram
    # Every client has d "rows" here, of which each is one coefficient.
    features = np.tile(np.eye(len(basis)), (whole.n_clients, 1, 1))
    clients = np.arange(whole.n_clients + 1)
    spread = kernels.index_variances(features, clients, gram, model.varying, model.root, model.inverse)
    taken = np.einsum("kij,kji->k", gram, spread)
    losses = whole.at(fitted.points @ basis.T)
    if family.name == "gaussian":
        return float((losses / (1 - np.minimum(taken / whole.n, LEVERAGE)) ** 2).sum())
    return float((losses + family.dispersion * taken).sum())


def _groups_predict_better(sums: ClientSums, structure: Structure, seed: int) -> bool:
    first, second = sums.halves
    if not may_have_groups(structure, first.n_clients):
        return False

    def half(own: LossSums, other: LossSums) -> Half:
        return Half(own.likelihood(structure.family), lambda after: other.at(after.mean) / other.n)

    return mixture_predicts_better((half(first, second), half(second, first)), structure, seed)
