"""From local fits to the population and back to every client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vaneb.estimators import VANEB, diagonal_spread
from vaneb.grouped.choice import compare_on_rows
from vaneb.grouped.gaussian_population import as_mixture
from vaneb.grouped.models import LocalModel
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.seam import Likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.report import report
from vaneb.npmle.certificate import certify
from vaneb.npmle.fit import Progress, Step, log_mixture
from vaneb.npmle.gaussian_prior import gaussian_prior
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
    model.fit(clients, progress=progress)
    if isinstance(model.smooth, str) and model.smooth == "auto" and model.smooth_ is not None:
        rng = np.random.default_rng(model.seed)
        single = model.smooth_.single
        if not single:
            spread = model.smooth_.spread
            verdict = compare_on_rows(
                rows, local.family, clients, spread, _fold_gaussian, tol=model.tol, rng=rng, progress=progress
            )
            single = not verdict.mixture
        if single:
            _use_single_gaussian(model, clients, local, rng)
    model.prior_ = replace(model.prior_, names=names)
    status = [OK if e else str(o) for e, o in zip(local.fits.exists, local.fits.outcome, strict=True)]
    return model, posterior(clients, model.prior_, ids=rows.ids, names=names, status=tuple(status))


def _fold_gaussian(clients: Likelihood) -> Prior:
    """The single Gaussian of some of the clients, in the form that a mixture is compared with."""
    return as_mixture(gaussian_prior(clients, diagonal=diagonal_spread(clients), tol=1e-6))


def _use_single_gaussian(
    model: VANEB, clients: Likelihood, local: LocalModel, rng: np.random.Generator
) -> None:
    """Put the single Gaussian in place of what ``model`` has; for least squares that of the mixed model."""
    assert model.smooth_ is not None
    if local.mixed_model is not None:
        mixed = local.mixed_model
        prior = Prior(mixed.mean[None], np.ones(1), mixed.spread, (), clients.n_clients)
    elif model.smooth_.single:
        return
    else:
        found = gaussian_prior(clients, diagonal=diagonal_spread(clients), tol=1e-7, polish=True)
        prior = Prior(found.atoms, found.weights, found.spread, (), clients.n_clients)
    smoothed = clients.smoothed(prior.spread)
    model.prior_ = prior
    model.smooth_ = replace(model.smooth_, spread=prior.spread, single=True, chosen=0)
    model.certificate_ = certify(smoothed, prior.atoms, prior.weights, rng, tol=model.tol)
    model.log_likelihood_ = float(log_mixture(smoothed, prior.atoms, prior.weights).mean())
    model.trace_ = (Step(model.log_likelihood_, 1, model.certificate_.gap),)
