"""What differs between clients, chosen by what their rows say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.grouped.choice import Candidate, Fitted, candidates, fit_least_squares, fit_others
from vaneb.grouped.gaussian_posterior import (
    UNLIKELY,
    WeighedCandidate,
    likeliest,
    probabilities,
    weigh_candidate,
)
from vaneb.grouped.mixed_model import (
    MOST,
    TIE_BREAK,
    Centred,
    centred_basis,
    centred_rows,
    identified,
)
from vaneb.grouped.models import LocalModel
from vaneb.grouped.summary import FixedEffects
from vaneb.grouped.terms import constant_within
from vaneb.likelihood.base import Array, Likelihood
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.recoded import Recoded
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import CLASSES, Family
from vaneb.local.marginal import chosen

Flags = NDArray[np.bool_]

#: Rounds in which the scatter of counts and the population are fitted in turn.
SCATTER_ROUNDS = 6
#: What least squares may have to say.
NO_NOISE = "the fit leaves no residuals: there is no noise to be seen"
NOT_TOLD = (
    "clients have too few rows to tell noise from differences between clients; what could be either is taken "
    "for noise"
)
#: Bytes that the clients' matrices may take.
MEMORY = 4e9


@dataclass(frozen=True, eq=False)
class Structure:
    """Which coefficients differ between clients, with the Gaussian population that says so."""

    basis: Array
    """B (d, d), theta = B phi: coordinates phi of centred and scaled covariates."""
    varying: Flags
    """Coordinates of phi in which clients differ, (d,)."""
    fitted: Fitted | None
    """In coordinates phi; ``None`` for losses that are no likelihoods or no sums over rows."""
    found: tuple[WeighedCandidate, ...]
    """All candidates; of no length where their likelihoods cannot be compared."""
    family: Family
    """With the dispersion that was found."""
    notes: tuple[str, ...]

    def fixed_effects(self, names: tuple[str, ...]) -> FixedEffects | None:
        """Of the mixed model, in coordinates theta; ``None`` where it is but an approximation."""
        if self.fitted is None or self.family.name != "gaussian":
            return None
        model = self.fitted.model
        covariance = self.basis @ model.covariance_of_mean @ self.basis.T
        return FixedEffects(names, self.basis @ model.mean, covariance)


def find_structure(rows: GroupedRows, local: LocalModel, may_vary: Flags, *, asked: bool) -> Structure:
    """Choose what differs between clients among columns that may (p,), by how well rows are predicted.

    ``asked``: the formula says what differs, so there is nothing to choose.
    """
    family, n_index = local.family, local.family.n_index
    d = n_index * rows.design.shape[1]
    check_size(rows, d, int(may_vary.sum()) * n_index, asked)
    columns, intercept = centred_basis(rows.design, may_vary)
    basis = model_basis(columns, d)
    if not family.is_likelihood:
        return Structure(basis, np.tile(may_vary, n_index), None, (), family, ())
    if not family.by_row:
        return _of_whole_clients(rows, family, basis, may_vary, asked)
    one_trial = family.takes == CLASSES and rows.n_rows.max() == 1 and rows.weight.max() <= 1
    sets = candidates(may_vary, intercept, n_index, constant_within(rows), rows.n_clients)
    sets, notes = to_compare(sets, may_vary, n_index, asked=asked, one_trial=one_trial)
    if family.name == "gaussian":
        fitted, seen_of_noise = by_least_squares(centred_rows(rows, may_vary), rows.n_rows, sets, asked=asked)
        return compared(basis, fitted, family, notes + seen_of_noise, asked=asked)
    found = _fit_all(rows, family, basis, sets, local.pooled.theta[0])
    return compared(basis, found.fitted, found.family, notes + found.notes, asked=asked)


def by_least_squares(
    centred: Centred, n_rows: NDArray[np.intp], sets: list[Candidate], *, asked: bool
) -> tuple[list[Fitted], tuple[str, ...]]:
    """Candidates of Gaussian clients with so many rows (K,), and what to say of their noise."""
    notes: tuple[str, ...] = (NO_NOISE,) if centred.exact else ()
    moments = centred.moments
    if moments.n_rows and not all(identified(moments.gram, n_rows, one.varying) for one in sets):
        notes += (NOT_TOLD,)
        centred = replace(centred, moments=replace(moments, penalty=TIE_BREAK * moments.n_rows))
        if n_rows.max() == 1 and not asked:
            sets = sets[:1]
    return [fit_least_squares(centred, *one) for one in sets], notes


def to_compare(
    sets: list[Candidate], may_vary: Flags, n_index: int, *, asked: bool, one_trial: bool
) -> tuple[list[Candidate], tuple[str, ...]]:
    """Candidates that rows can tell apart, and what to say of the others.

    ``asked``: all that may vary does; ``one_trial``: of each client one row is known, of one trial.
    """
    most = int(may_vary.sum()) * n_index
    if asked:
        return [Candidate(np.flatnonzero(np.tile(may_vary, n_index)), True)], ()
    notes: tuple[str, ...] = ()
    if most > MOST:
        notes += (
            f"{most} coefficients might differ between clients, more than {MOST}: only the intercept does. "
            "Write what else should in the formula, as in (1 + x | group)",
        )
    if one_trial:
        sets = sets[:1]
        notes += ("one row of each client says nothing of differences between them: none is assumed",)
    return sets, notes


class _Candidates(NamedTuple):
    """Candidates of rows that are not least squares, with the scatter of responses about them."""

    fitted: list[Fitted]
    family: Family
    notes: tuple[str, ...]


def _fit_all(
    rows: GroupedRows, family: Family, basis: Array, sets: list[Candidate], pooled: Array
) -> _Candidates:
    """All candidates, with the scatter that the family's name promises not to have.

    Scatter is that about the simplest population in which clients differ, at first: coefficients of their own
    would take scatter for differences.  Where more is found to differ nevertheless, it is that about this.
    """
    start: Array = np.linalg.solve(basis, pooled).astype(np.float64)
    least = min((one for one in sets if len(one.varying)), key=lambda one: len(one.varying), default=sets[0])
    free = family.has_dispersion or family.n_index > 1
    noticed = ""
    for _ in range(1 if free else SCATTER_ROUNDS):
        if not free:
            family, noticed = _with_scatter(rows, family, basis, least, start)
        fitted: list[Fitted] = []
        for one in sets:
            last = fitted[-1] if fitted else None
            fitted.append(fit_others(rows, family, basis, one.varying, start, one.correlated, last))
        if not noticed or len(sets) == 1:
            break
        best = _best(_known(fitted), fitted)
        if len(best.model.varying) <= len(least.varying):
            break
        least = Candidate(best.model.varying, best.correlated)
    return _Candidates(fitted, family, (noticed,) if noticed else ())


def _with_scatter(
    rows: GroupedRows, family: Family, basis: Array, one: Candidate, start: Array
) -> tuple[Family, str]:
    """The family with the scatter about one candidate, and what was noticed.

    Pearson's statistic; its degrees of freedom are rows less what they know of themselves.
    """
    noticed, last = "", None
    for _ in range(SCATTER_ROUNDS):
        last = fit_others(rows, family, basis, one.varying, start, one.correlated, last)
        index = np.einsum("np,np->n", rows.design @ basis, last.points[rows.client_of_row]) + rows.offset
        ratio, noticed = family.scatter(rows, index, len(rows.response) - last.freedom)
        before, family = family.dispersion, family.with_dispersion(ratio)
        if abs(ratio - before) < 0.02 * before:
            break
    return family, noticed


def compared(
    basis: Array, fitted: list[Fitted], family: Family, notes: tuple[str, ...], *, asked: bool
) -> Structure:
    """The candidate that rows speak for, among the others; the largest where they cannot be compared."""
    known = _known(fitted)
    best = _best(known, fitted)
    varying = np.zeros(len(basis), dtype=bool)
    varying[best.model.varying] = True
    if not asked:
        notes += _what_differs(known, int(varying.sum()))
    if family.name == "gaussian" and best.moments.n_rows:
        family = family.with_dispersion(best.model.variance)
    return Structure(basis, varying, best, known, family, notes)


def _known(fitted: list[Fitted]) -> tuple[WeighedCandidate, ...]:
    """All candidates with their likelihoods; of no length where these cannot be compared."""
    known = tuple(found for one in fitted if (found := weigh_candidate(one)) is not None)
    return known if len(known) == len(fitted) else ()


def _best(known: tuple[WeighedCandidate, ...], fitted: list[Fitted]) -> Fitted:
    return likeliest(known).fitted if known else fitted[-1]


def _what_differs(known: tuple[WeighedCandidate, ...], size: int) -> tuple[str, ...]:
    """What to say where rows speak for ``size`` coefficients that differ, fewer than might."""
    sizes = np.array([len(one.fitted.model.varying) for one in known])
    if not known or size == sizes.max():
        return ()
    alike = float(probabilities(known)[sizes == size].sum())
    what = "slopes do not differ" if size else "no coefficient differs"
    if alike > 1 - UNLIKELY:
        return (f"{what} between clients",)
    what = "slopes differ" if size else "any coefficient differs"
    return (
        f"rows do not show that {what} between clients; to be cautious, estimates and intervals give that a "
        f"probability of {1 - alike:.2f}",
    )


def _of_whole_clients(
    rows: GroupedRows, family: Family, basis: Array, may_vary: Flags, asked: bool
) -> Structure:
    """Losses that are no sums over rows: no row can be left out, so the marginal likelihood chooses."""
    if asked:
        return Structure(basis, may_vary, None, (), family, ())
    if may_vary.sum() > MOST:
        note = (
            f"{int(may_vary.sum())} coefficients might differ between clients, more than {MOST}: none does. "
            "Write what should in the formula, as in (x | group)"
        )
        return Structure(basis, np.zeros_like(may_vary), None, (), family, (note,))
    varying = chosen(rows, family, basis, [np.zeros_like(may_vary), may_vary]).varying
    same = "clients do not differ by what their rows say: all have the same coefficients"
    return Structure(basis, varying, None, (), family, () if varying.any() else (same,))


def check_size(rows: GroupedRows, d: int, r: int, asked: bool) -> None:
    """Say before the work starts that it would not end."""
    if asked and r > MOST:
        raise InvalidOption(
            f"formula: {r} coefficients would differ between groups; at most {MOST} can. Put fewer terms, or "
            "fewer levels, before the bar."
        )
    needed = 8.0 * 3 * rows.n_clients * d * d
    if needed > MEMORY:
        raise InvalidOption(
            f"formula: {d:,} coefficients of {rows.n_clients:,} clients need {needed / 1e9:.0f} GB; at most "
            f"{MEMORY / 1e9:.0f} GB are used. Use fewer terms, or factors of fewer levels."
        )


def has_row_factors(structure: Structure) -> bool:
    """Has every row a Gaussian factor of its own?"""
    return structure.fitted is not None and structure.fitted.sites is not None


def through_row_factors(structure: Structure) -> Likelihood:
    """Clients through the Gaussian factors of their rows: sweeps over these cost little."""
    assert structure.fitted is not None
    gram, cross = structure.fitted.moments.gram, structure.fitted.moments.cross
    points = np.einsum("kij,kj->ki", np.linalg.pinv(gram, rcond=1e-10, hermitian=True), cross)
    back = np.linalg.inv(structure.basis)
    return ConstantGaussian(points @ structure.basis.T, back.T @ gram @ back)


def in_phi(clients: Likelihood, basis: Array) -> Any:
    """The clients in coordinates phi: what the sampler of populations needs of a likelihood."""
    return Recoded(clients, basis)


def model_basis(columns_basis: Array, dimension: int) -> Array:
    """B (d, d) from that of the columns of the design: the same for every class."""
    return np.kron(np.eye(dimension // len(columns_basis)), columns_basis).astype(np.float64)
