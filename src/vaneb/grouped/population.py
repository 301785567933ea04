"""From local fits to the population and back to every client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import one_blas_thread
from vaneb.errors import InvalidOption
from vaneb.estimators import VANEB
from vaneb.grouped import mixed_kernels as kernels
from vaneb.grouped.choice import (
    Fitted,
    candidates,
    features_of,
    fit_least_squares,
    fit_others,
    left_out_responses,
)  # fmt: skip
from vaneb.grouped.crossed import Crossed, Factor, fit_crossed, reports_of
from vaneb.grouped.fixed import FixedEffects
from vaneb.grouped.gaussian_posterior import sample_gaussians
from vaneb.grouped.halves import first_halves
from vaneb.grouped.mixed_model import MOST, TIE_BREAK, centred_basis, centred_rows, identified
from vaneb.grouped.models import LocalModel
from vaneb.grouped.predictive import expected_response
from vaneb.grouped.terms import constant_within
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.recoded import Recoded
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import gaussian
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
#: Share of the loss by which a population with fewer differences may be worse.
SLIGHT = 1e-3
#: Skewness or tails beyond this many standard errors make it worth asking whether there are groups.
ODD = 2.5
#: Rows that keep their own likelihood make sweeps dear: this is accurate enough.
ROWS = Options(accuracy=0.05)
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
    family: Family
    """With the dispersion that was found."""
    notes: tuple[str, ...]

    def fixed_effects(self, names: tuple[str, ...], prior: Prior) -> FixedEffects | None:
        """The population's centre in coordinates theta.

        Of least squares those of the mixed model; of other families, for which that is but an approximation,
        mean and covariance over the populations drawn.
        """
        if self.fitted is not None and self.family.name == "gaussian":
            model = self.fitted.model
            covariance = self.basis @ model.covariance_of_mean @ self.basis.T
            return FixedEffects(names, self.basis @ model.mean, covariance)
        if prior.populations < 2:
            return None
        centres = np.add.reduceat(prior.weights[:, None] * prior.atoms, prior.starts[:-1]) * prior.populations
        return FixedEffects(names, centres.mean(axis=0), np.atleast_2d(np.cov(centres.T)))


def find_structure(rows: GroupedRows, local: LocalModel, may_vary: Flags, *, asked: bool) -> Structure:
    """Choose what differs between clients among columns that may (p,), by how well rows are predicted.

    ``asked``: the formula says what differs, so there is nothing to choose.
    """
    family, n_index = local.family, local.family.n_index
    d = n_index * rows.design.shape[1]
    _check_size(rows, d, int(may_vary.sum()) * n_index, asked)
    columns, intercept = centred_basis(rows.design, may_vary)
    basis = model_basis(columns, d)
    if not family.is_likelihood:
        return Structure(basis, np.tile(may_vary, n_index), None, family, ())
    if not family.by_row:
        return _of_whole_clients(rows, family, basis, may_vary, asked)
    sets = candidates(may_vary, intercept, n_index, constant_within(rows))
    if asked:
        sets = [np.flatnonzero(np.tile(may_vary, n_index))]
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
    elif rows.n_rows.max() == 1 and not (asked or family.has_dispersion or n_index > 1):
        # To leave a row out is to leave the client out, and that says nothing of differences.
        flags = [np.isin(np.arange(d), one) for one in sets]
        sets = [np.flatnonzero(chosen(rows, family, basis, flags).varying)]
        if not len(sets[0]):
            notes += ("clients do not differ by what their rows say: all have the same coefficients",)
    if family.name == "gaussian":
        centred = centred_rows(rows, may_vary)
        if centred.exact:
            notes += ("the fit leaves no residuals: there is no noise to be seen",)
        told = all(identified(centred.moments.gram, rows.n_rows, one) for one in sets)
        if not told:
            notes += (
                "clients have too few rows to tell noise from differences between clients; "
                "what could be either is taken for noise",
            )
            moments = replace(centred.moments, penalty=TIE_BREAK * len(rows.response))
            centred = replace(centred, moments=moments)
        found = [fit_least_squares(centred, one) for one in sets]
    else:
        pooled = np.linalg.solve(basis, local.pooled.theta[0])
        found = [fit_others(rows, family, basis, one, pooled) for one in sets]
    best = found[0] if len(found) == 1 else found[_best(rows, family, basis, found)]
    if family.name == "gaussian":
        family = family.with_dispersion(best.model.variance)
    varying = np.zeros(d, dtype=bool)
    varying[best.model.varying] = True
    if not asked and len(best.model.varying) < len(sets[-1]):
        what = "slopes do not differ" if varying.any() else "no coefficient differs"
        notes += (f"{what} between clients: rows are predicted best so",)
    return Structure(basis, varying, best, family, notes)


def _of_whole_clients(
    rows: GroupedRows, family: Family, basis: Array, may_vary: Flags, asked: bool
) -> Structure:
    """Losses that are no sums over rows: no row can be left out, so the marginal likelihood chooses."""
    if asked:
        return Structure(basis, may_vary, None, family, ())
    if may_vary.sum() > MOST:
        note = (
            f"{int(may_vary.sum())} coefficients might differ between clients, more than {MOST}: none does. "
            "Write what should in the formula, as in (x | group)"
        )
        return Structure(basis, np.zeros_like(may_vary), None, family, (note,))
    varying = chosen(rows, family, basis, [np.zeros_like(may_vary), may_vary]).varying
    same = "clients do not differ by what their rows say: all have the same coefficients"
    return Structure(basis, varying, None, family, () if varying.any() else (same,))


def _check_size(rows: GroupedRows, d: int, r: int, asked: bool) -> None:
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


def _best(rows: GroupedRows, family: Family, basis: Array, found: list[Fitted]) -> int:
    """The simplest population that predicts each row from all others hardly worse than the best."""
    features = features_of(family, rows.design, basis)
    averages: list[float] = []
    for one in found:
        scaled = family.with_dispersion(one.model.variance) if family.name == "gaussian" else family
        mean = left_out_responses(rows, scaled, features, one)
        loss = family.score(rows.response, mean, rows.weight)
        averages.append(loss if np.isfinite(loss) else np.inf)
    return int(np.flatnonzero(np.array(averages) <= (1 + SLIGHT) * min(averages))[0])


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
    fitted = structure.fitted if exact else None
    learn_population(clients, structure, kind, names, model, progress, fitted=fitted)
    return model, posterior(clients, model.prior_, ids=rows.ids, names=names, status=tuple(status))


def learn_population(
    clients: Likelihood,
    structure: Structure,
    kind: str,
    names: tuple[str, ...],
    model: VANEB,
    progress: Progress | None = None,
    *,
    fitted: Fitted | None,
) -> None:
    """Fit ``model`` to these clients, with a population of this kind.

    ``fitted``: the structure's Gaussian population, if it is that of these very clients.
    """
    if kind == "discrete":
        model.fit(clients, progress=progress)
        model.prior_ = replace(model.prior_, names=names)
        return
    found = None
    if kind == "gaussian" and clients.is_gaussian and fitted is not None:
        found = sample_gaussians(fitted, seed=model.seed, options=model.options)
    recoded = _in_phi(clients, structure.basis)
    prior, model.sampling_ = found or _sampled(recoded, structure, kind == "gaussian", model, progress)
    model.prior_ = prior.mapped(structure.basis, names)
    model.certificate_, model.trace_ = None, ()


def _in_phi(clients: Likelihood, basis: Array) -> Any:
    """The clients in coordinates phi: what the sampler of populations needs of a likelihood."""
    return Recoded(clients, basis)


def _sampled(
    clients: Any, structure: Structure, single: bool, model: VANEB, progress: Progress | None
) -> tuple[Prior, Sampling]:
    """By sweeps; where these break down on clients that say next to nothing, by the Gaussians that the
    structure was found with."""
    try:
        return sample_populations(
            clients, single=single, seed=model.seed, options=model.options or ROWS, progress=progress,
            varying=structure.varying,
        )  # fmt: skip
    except np.linalg.LinAlgError:
        fitted = structure.fitted
        found = None if fitted is None else sample_gaussians(fitted, seed=model.seed, most=MOST)
        if found is None:
            raise
        return found


def fit_several(
    rows: GroupedRows,
    names: tuple[str, ...],
    may_vary: Flags,
    others: list[Factor],
    model: VANEB,
    progress: Progress | None,
) -> tuple[Crossed, FixedEffects, Structure, Posterior]:
    """Clients among other groups of rows: the population of the clients, given the others.

    Least squares only.  ``others``: the other groups, in the order of the rows.
    """
    _check_size(rows, rows.design.shape[1], int(may_vary.sum()), asked=True)
    basis = centred_basis(rows.design, may_vary)[0]
    # A row of weight w has noise of variance sigma^2 / w.
    root = np.sqrt(rows.weight)
    design, varying = rows.design @ basis * root[:, None], np.flatnonzero(may_vary)
    others = [replace(one, columns=one.columns * root[:, None]) for one in others]
    own = Factor(rows.client_of_row, rows.n_clients, np.ascontiguousarray(design[:, varying]))
    if progress is not None:
        progress("fitting all groups", 0, 1)
    with one_blas_thread():
        crossed = fit_crossed(design, root * (rows.response - rows.offset), [own, *others], varying)
    estimates, precision = reports_of(crossed, varying)
    back = np.linalg.inv(basis)
    clients = ConstantGaussian(estimates @ basis.T, back.T @ precision @ back)
    prior, model.sampling_ = sample_populations(
        _in_phi(clients, basis), single=model.kind == "gaussian", seed=model.seed, options=model.options,
        progress=progress, varying=may_vary,
    )  # fmt: skip
    model.prior_, model.certificate_, model.trace_ = prior.mapped(basis, names), None, ()
    fixed = FixedEffects(names, basis @ crossed.fixed, basis @ crossed.covariance @ basis.T)
    structure = Structure(basis, may_vary, None, gaussian(crossed.variance), ())
    return crossed, fixed, structure, posterior(clients, model.prior_, ids=rows.ids, names=names)


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

    By more than a standard error of the average over clients, whose losses are compared one by one; and only
    where clients are skewed or have other tails than one Gaussian.
    """
    rows = rows.take(np.flatnonzero(rows.n_rows >= 2))
    if not may_have_groups(structure, rows.n_clients):
        return False
    family = structure.family

    def half(first: GroupedRows, second: GroupedRows) -> Half:
        def losses(after: Posterior) -> Array:
            mean = expected_response(family, after, second.client_of_row, second.design, second.offset)
            return family.client_scores(second, mean)

        return Half(exact_likelihood(first, family), losses)

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
    gains = []
    for clients, losses_of in halves:
        losses = []
        for single in (True, False):
            prior, _ = sample_populations(
                _in_phi(clients, structure.basis), single=single, seed=seed, options=QUICK,
                varying=structure.varying,
            )  # fmt: skip
            losses.append(losses_of(posterior(clients, prior.mapped(structure.basis))))
        gains.append(losses[0] - losses[1])
    gain = np.mean(gains, axis=0)
    return bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))


def halves_of_rows(rows: GroupedRows, seed: int) -> tuple[GroupedRows, GroupedRows]:
    """Half of each client's rows, taken at random, and the others."""
    first = first_halves(rows, seed)
    return rows.some_rows(np.flatnonzero(first)), rows.some_rows(np.flatnonzero(~first))
