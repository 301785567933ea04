"""From local fits to the population and back to every client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vaneb.estimators import VANEB
from vaneb.grouped.models import LocalModel
from vaneb.grouped.structure import centred_basis
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.recoded import Recoded
from vaneb.likelihood.seam import Array
from vaneb.local.data import GroupedRows
from vaneb.local.report import report
from vaneb.npmle.fit import Progress
from vaneb.posterior import Posterior, posterior
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

    The population is sampled in coordinates phi, theta = B phi, of covariates that are centred and scaled:
    the intercept at an average row, and changes by a standard deviation.  So neither the units nor the zero
    of a covariate has a say.
    """
    if likelihood == "gaussian" or not local.family.is_likelihood:
        reports = client_reports(rows, local, names)
        model.fit(reports, progress=progress)
        return model, model.personalize(reports)
    clients = exact_likelihood(rows, local.family, local.fits)
    if model.kind == "discrete":
        model.fit(clients, progress=progress)
        model.prior_ = replace(model.prior_, names=names)
    else:
        basis = model_basis(centred_basis(rows.design)[0], clients.dimension)
        model.fit(Recoded(clients, basis), progress=progress)
        model.prior_ = model.prior_.mapped(basis, names)
    status = [OK if e else str(o) for e, o in zip(local.fits.exists, local.fits.outcome, strict=True)]
    return model, posterior(clients, model.prior_, ids=rows.ids, names=names, status=tuple(status))


def model_basis(columns_basis: Array, dimension: int) -> Array:
    """B (d, d) from that of the columns of the design: the same for every class."""
    return np.kron(np.eye(dimension // len(columns_basis)), columns_basis).astype(np.float64)
