"""From local fits to the population and back to every client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vaneb.estimators import VANEB, diagonal_spread
from vaneb.grouped.choice import compare_on_rows
from vaneb.grouped.generalised_mixed_model import gaussian_population
from vaneb.grouped.grid_choice import certificate, choose_on_grid, grid_over
from vaneb.grouped.marginal import Marginal
from vaneb.grouped.mixed_model import MixedModel
from vaneb.grouped.models import LocalModel
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.seam import Likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.report import report
from vaneb.npmle.certificate import certify
from vaneb.npmle.fit import Certificate, Progress, Step, log_mixture
from vaneb.npmle.gaussian_prior import gaussian_prior
from vaneb.npmle.smooth import SmoothChoice, choose_spread
from vaneb.posterior import Posterior, posterior
from vaneb.prior import Prior
from vaneb.reports import OK, Reports


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
    names: tuple[str, ...],
    likelihood: str,
    model: VANEB,
    progress: Progress | None,
) -> tuple[VANEB, Posterior]:
    """Fit the population with ``model``'s options, and condition every client on it.

    With ``likelihood="exact"`` and ``smooth="auto"`` a mixture also has to predict rows better than the
    single Gaussian; see ``choice``.
    """
    if likelihood == "gaussian" or not local.family.is_likelihood:
        reports = client_reports(rows, local, names)
        model.fit(reports, progress=progress)
        return model, model.personalize(reports)
    clients = exact_likelihood(rows, local.family, local.fits)
    automatic = isinstance(model.smooth, str) and model.smooth == "auto" and rows.n_clients > 1
    if not automatic:
        model.fit(clients, progress=progress)
    elif local.mixed_model is None:
        _fit_by_quadrature(model, rows, local, clients, progress)
    else:
        _fit_least_squares(model, rows, local, local.mixed_model, clients, progress)
    model.prior_ = replace(model.prior_, names=names)
    status = [OK if e else str(o) for e, o in zip(local.fits.exists, local.fits.outcome, strict=True)]
    return model, posterior(clients, model.prior_, ids=rows.ids, names=names, status=tuple(status))


def _fit_by_quadrature(
    model: VANEB, rows: GroupedRows, local: LocalModel, clients: Likelihood, progress: Progress | None
) -> None:
    """The single Gaussian of the mixed model, or a mixture if that is better (``grid_choice``)."""
    rng = np.random.default_rng(model.seed)
    if progress is not None:
        progress("fitting one Gaussian", 0, 1)
    marginal = Marginal(rows, local.family)
    population = gaussian_population(marginal, local.pooled.theta[0])
    grid = grid_over(population)
    choice = choose_on_grid(marginal, population, grid, rng=rng, progress=progress)
    if not choice.single:
        _fit_mixture(model, clients, choice, progress)
        return
    found = certificate(marginal, population, grid, model.tol)
    density = marginal.value(population.mean, population.root).log_density
    prior = Prior(population.mean[None], np.ones(1), population.spread, (), rows.n_clients)
    _use_single_gaussian(model, prior, float(density.mean()), found, choice)


def _fit_least_squares(
    model: VANEB,
    rows: GroupedRows,
    local: LocalModel,
    mixed: MixedModel,
    clients: Likelihood,
    progress: Progress | None,
) -> None:
    """The single Gaussian of the mixed model, or a mixture if that is better (``choice``)."""
    rng = np.random.default_rng(model.seed)
    diagonal = diagonal_spread(clients)
    choice = choose_spread(clients, diagonal=diagonal, rng=rng, progress=progress, own_spreads=False)
    if not choice.single:
        given = (rows, local.family, clients, choice.spread, _fold_gaussian)
        if compare_on_rows(*given, tol=model.tol, rng=rng, progress=progress).mixture:
            _fit_mixture(model, clients, choice, progress)
            return
    choice = replace(choice, spread=mixed.spread, single=True, chosen=0)
    prior = Prior(mixed.mean[None], np.ones(1), mixed.spread, (), rows.n_clients)
    smoothed = clients.smoothed(mixed.spread)
    found = certify(smoothed, prior.atoms, prior.weights, rng, tol=model.tol)
    value = float(log_mixture(smoothed, prior.atoms, prior.weights).mean())
    _use_single_gaussian(model, prior, value, found, choice)


def _fit_mixture(model: VANEB, clients: Likelihood, choice: SmoothChoice, progress: Progress | None) -> None:
    model.set_params(smooth="off" if choice.spread is None else choice.spread).fit(clients, progress)
    model.set_params(smooth="auto")
    model.smooth_ = choice


def _fold_gaussian(clients: Likelihood) -> Prior:
    """The single Gaussian of some of the clients."""
    return gaussian_prior(clients, diagonal=diagonal_spread(clients), tol=1e-6)


def _use_single_gaussian(
    model: VANEB, prior: Prior, value: float, found: Certificate, choice: SmoothChoice
) -> None:
    model.prior_, model.smooth_ = prior, choice
    model.certificate_, model.log_likelihood_ = found, value
    model.trace_ = (Step(value, 1, found.gap),)
