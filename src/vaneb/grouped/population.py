"""From local fits to the population and back to every client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.estimators import VANEB
from vaneb.grouped import mixed_kernels as kernels
from vaneb.grouped.choice import Candidate, Fitted, candidates, fit_least_squares, fit_others
from vaneb.grouped.fixed import FixedEffects
from vaneb.grouped.gaussian_posterior import UNLIKELY, Likely, likely, probabilities, sample_gaussians, shown
from vaneb.grouped.halves import first_halves
from vaneb.grouped.mixed_model import (
    MOST,
    TIE_BREAK,
    Moments,
    centred_basis,
    centred_rows,
    fit_moments,
    identified,
)
from vaneb.grouped.models import LocalModel
from vaneb.grouped.predictive import expected_response
from vaneb.grouped.terms import constant_within
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.recoded import Recoded
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import CLASSES, Family
from vaneb.local.marginal import chosen
from vaneb.local.report import report
from vaneb.npmle.fit import Progress
from vaneb.population.options import QUICK, Options
from vaneb.population.sampler import Sampling, sample_populations
from vaneb.posterior import Posterior, posterior
from vaneb.prior import Prior
from vaneb.reports import OK, Reports

Flags = NDArray[np.bool_]

#: With fewer clients than this, rows cannot tell a mixture from one Gaussian.
FEWEST = 20
#: Skewness or tails beyond this many standard errors make it worth asking whether there are groups.
ODD = 2.5
#: Standard errors by which a mixture must predict better.
SURELY = 2.0
#: Rows that keep their own likelihood make sweeps dear: this is accurate enough.
ROWS = Options(accuracy=0.05)
#: Rounds in which the scatter of counts and the population are fitted in turn.
SCATTER_ROUNDS = 6
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
    found: tuple[Likely, ...]
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
    sets = candidates(may_vary, intercept, n_index, constant_within(rows), rows.n_clients)
    if asked:
        sets = [Candidate(np.flatnonzero(np.tile(may_vary, n_index)), True)]
    notes: tuple[str, ...] = ()
    if not asked and may_vary.sum() * n_index > MOST:
        notes += (
            f"{int(may_vary.sum()) * n_index} coefficients might differ between clients, more than {MOST}: "
            "only the intercept does. Write what else should in the formula, as in (1 + x | group)",
        )
    one_trial = family.takes == CLASSES and rows.n_rows.max() == 1 and rows.weight.max() <= 1
    if one_trial and not asked:
        sets = sets[:1]
        notes += ("one row of each client says nothing of differences between them: none is assumed",)
    if family.name == "gaussian":
        centred = centred_rows(rows, may_vary)
        if centred.exact:
            notes += ("the fit leaves no residuals: there is no noise to be seen",)
        told = all(identified(centred.moments.gram, rows.n_rows, one.varying) for one in sets)
        if not told:
            notes += (
                "clients have too few rows to tell noise from differences between clients; "
                "what could be either is taken for noise",
            )
            moments = replace(centred.moments, penalty=TIE_BREAK * len(rows.response))
            centred = replace(centred, moments=moments)
            if rows.n_rows.max() == 1 and not asked:
                sets = sets[:1]
        fitted = [fit_least_squares(centred, *one) for one in sets]
    else:
        found = _fit_all(rows, family, basis, sets, local.pooled.theta[0])
        fitted, family = found.fitted, found.family
        notes += found.notes
    structure = compared(basis, fitted, family)
    if not asked:
        notes += what_differs(structure, len(sets[-1].varying))
    if family.name == "gaussian":
        assert structure.fitted is not None
        family = family.with_dispersion(structure.fitted.model.variance)
    return replace(structure, family=family, notes=notes)


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
        best = compared(basis, fitted, family).fitted
        assert best is not None
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


def compared(basis: Array, fitted: list[Fitted], family: Family) -> Structure:
    """The candidate that rows speak for, among the others; the largest where they cannot be compared."""
    known = tuple(found for one in fitted if (found := likely(one)) is not None)
    if len(known) < len(fitted):
        known = ()
    best = shown(known).fitted if known else fitted[-1]
    varying = np.zeros(len(basis), dtype=bool)
    varying[best.model.varying] = True
    return Structure(basis, varying, best, known, family, ())


def what_differs(structure: Structure, most: int) -> tuple[str, ...]:
    """What to say where fewer coefficients than ``most`` differ."""
    size = int(structure.varying.sum())
    if size == most or not structure.found:
        return ()
    chances = probabilities(structure.found)
    alike = sum(
        c for c, one in zip(chances, structure.found, strict=True) if len(one.fitted.model.varying) == size
    )
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


def client_reports(rows: GroupedRows, local: LocalModel, names: tuple[str, ...]) -> Reports:
    """What clients would send to a server: estimates, and precisions at them (sandwich for Huber)."""
    made = report(rows, local.family, local.fits, dispersion=local.family.dispersion)
    status = list(made.status)
    return Reports(
        made.estimate, n=made.n, covariance=made.covariance, ids=made.ids, names=names, status=status
    )


def fit_population(
    rows: GroupedRows,
    local: LocalModel,
    structure: Structure,
    names: tuple[str, ...],
    likelihood: str,
    model: VANEB,
    progress: Progress | None,
) -> tuple[VANEB, Posterior]:
    """Fit the population with ``model``'s options, and condition every client on it.

    The population is sampled in coordinates phi of covariates that are centred and scaled: the intercept at
    an average row, and changes by a standard deviation.  So neither the units nor the zero of a covariate
    has a say.

    With ``population="auto"`` it is one Gaussian, as in a mixed model, unless a mixture predicts rows better
    (``predicts_better``): where noise is not what the family says, a mixture would take it for groups.
    """
    exact = likelihood == "exact" and local.family.is_likelihood
    clients: Likelihood
    if exact:
        clients = exact_likelihood(rows, local.family, local.fits)
        status = [OK if e else str(o) for e, o in zip(local.fits.exists, local.fits.outcome, strict=True)]
    else:
        reports = client_reports(rows, local, names)
        clients, status = reports.likelihood(), list(reports.status)
    kind = model.kind
    if exact and model.population == "auto" and not predicts_better(rows, structure, model.seed):
        kind = "gaussian"
    found = structure.found if exact else ()
    plain = not exact or clients.is_gaussian or kind == "discrete"
    seen = clients if plain or not _is_seen(structure) else _seen(structure)
    learn_population(seen, structure, kind, names, model, progress, found=found)
    return model, posterior(clients, model.prior_, ids=rows.ids, names=names, status=tuple(status))


def learn_population(
    clients: Likelihood,
    structure: Structure,
    kind: str,
    names: tuple[str, ...],
    model: VANEB,
    progress: Progress | None = None,
    *,
    found: tuple[Likely, ...],
) -> None:
    """Fit ``model`` to these clients, with a population of this kind.

    ``found``: the structure's candidates, if they are those of these very clients.
    """
    if kind == "discrete":
        model.fit(clients, progress=progress)
        model.prior_ = replace(model.prior_, names=names)
        return
    drawn = None
    if kind == "gaussian" and found:
        drawn = _averaged(structure, found, model)
    recoded = in_phi(clients, structure.basis)
    prior, model.sampling_ = drawn or sample_populations(
        recoded, single=kind == "gaussian", seed=model.seed, options=model.options or ROWS,
        progress=progress, varying=structure.varying,
    )  # fmt: skip
    model.prior_ = prior.mapped(structure.basis, names)
    model.certificate_, model.trace_ = None, ()


def _averaged(structure: Structure, found: tuple[Likely, ...], model: VANEB) -> tuple[Prior, Sampling] | None:
    """Populations of the candidates; of the likeliest alone where that has too many covariances to draw."""
    best = found[int(np.argmax(probabilities(found)))]
    if best.easy:
        few = [one for one in found if one.easy]
        return sample_gaussians(few, seed=model.seed, options=model.options)
    return None


def _is_seen(structure: Structure) -> bool:
    """Has every row a Gaussian factor of its own?"""
    return structure.fitted is not None and structure.fitted.sites is not None


def _seen(structure: Structure) -> Likelihood:
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


def looks_odd(fitted: Fitted) -> bool:
    """Are clients skewed, or their tails not Gaussian, beyond what chance may do?

    Hermite polynomials of each client's score in the directions of L; standard normal under the Gaussian
    population.  A client counts as much as it knows.
    """
    model, moments = fitted.model, fitted.moments
    scores, reliability = kernels.standard_scores(
        moments.gram, moments.cross, model.varying, model.root, model.mean - fitted.centre, model.variance
    )
    t, rho = scores, reliability
    with np.errstate(invalid="ignore", divide="ignore"):
        skewness = (rho**1.5 * (t**3 - 3 * t)).sum(axis=0) / np.sqrt(6 * (rho**3).sum(axis=0))
        tails = (rho**2 * (t**4 - 6 * t**2 + 3)).sum(axis=0) / np.sqrt(24 * (rho**4).sum(axis=0))
    return bool((np.abs(np.nan_to_num([skewness, tails])) > ODD).any())


def predicts_better(rows: GroupedRows, structure: Structure, seed: int) -> bool:
    """Does a mixture predict half of each client's rows from the other half better than one Gaussian?

    By ``SURELY`` standard errors of the average over clients, whose losses are compared one by one; and only
    where clients are skewed or have other tails than one Gaussian.
    """
    rows = rows.take(np.flatnonzero(rows.n_rows >= 2))
    if not may_have_groups(structure, rows.n_clients):
        return False
    family, fitted = structure.family, structure.fitted

    def half(first: GroupedRows, second: GroupedRows) -> Half:
        clients = exact_likelihood(first, family)
        if fitted is not None and _is_seen(structure) and not clients.is_gaussian:
            start = fitted.points.mean(axis=0)
            own = fit_others(first, family, structure.basis, fitted.model.varying, start, fitted.correlated)
            clients = _seen(replace(structure, fitted=own))

        def losses(after: Posterior) -> Array:
            mean = expected_response(family, after, second.client_of_row, second.design, second.offset)
            return family.client_scores(second, mean)

        return Half(clients, losses)

    first, second = halves_of_rows(rows, seed)
    return mixture_predicts_better((half(first, second), half(second, first)), structure, seed)


class Half(NamedTuple):
    """Half of the rows of K clients, and how well estimates from it predict the other half."""

    clients: Likelihood
    losses: Callable[[Posterior], Array]
    """Average loss of each client's other rows, (K,), given the posterior from these."""


def may_have_groups(structure: Structure, n_clients: int) -> bool:
    """Is it worth asking halves of this many clients' rows whether there are groups?"""
    if n_clients < FEWEST or not structure.varying.any():
        return False
    return structure.fitted is None or looks_odd(structure.fitted)


def mixture_predicts_better(halves: tuple[Half, Half], structure: Structure, seed: int) -> bool:
    """See ``predicts_better``."""
    losses = []
    for clients, losses_of in halves:
        recoded = in_phi(clients, structure.basis)
        priors = [
            sample_populations(recoded, single=single, seed=seed, options=QUICK, varying=structure.varying)[0]
            for single in (False, True)
        ]
        if (own := _one_gaussian(recoded, structure, seed)) is not None:
            priors.append(own)
        losses.append([losses_of(posterior(clients, prior.mapped(structure.basis))) for prior in priors])
    both = min(map(len, losses))
    mixture, *others = np.mean([one[:both] for one in losses], axis=0)
    gains = np.array(others) - mixture
    return bool((gains.mean(axis=1) > SURELY * gains.std(axis=1, ddof=1) / np.sqrt(gains.shape[1])).all())


def _one_gaussian(clients: Any, structure: Structure, seed: int) -> Prior | None:
    """Gaussian populations with what the structure assumes of correlations, in coordinates phi."""
    fitted = structure.fitted
    if fitted is None or not clients.is_gaussian:
        return None
    view = clients.expanded(None)
    gram = np.ascontiguousarray(view.base_precision)
    cross = np.einsum("kij,kj->ki", gram, view.estimates)
    moments = Moments(gram, cross, penalty=0.0 if fitted.moments.n_rows else fitted.moments.penalty)
    root = fitted.model.root * np.sqrt(fitted.model.variance)
    model = fit_moments(moments, fitted.model.varying, correlated=fitted.correlated, start=root)
    own = likely(Fitted(model, moments, view.estimates, np.zeros(len(model.mean)), fitted.correlated))
    drawn = None if own is None else sample_gaussians([own], seed=seed, options=QUICK)
    return drawn[0] if drawn else None


def halves_of_rows(rows: GroupedRows, seed: int) -> tuple[GroupedRows, GroupedRows]:
    """Half of each client's rows, taken at random, and the others."""
    first = first_halves(rows, seed)
    return rows.some_rows(first), rows.some_rows(~first)
