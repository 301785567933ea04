"""From local fits to the population and back to every client."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from vaneb.estimators import VANEB
from vaneb.grouped.models import LocalModel
from vaneb.grouped.predictive import expected_response
from vaneb.grouped.structure import centred_basis
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.recoded import Recoded
from vaneb.likelihood.seam import Array
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family
from vaneb.local.report import report
from vaneb.npmle.fit import Progress
from vaneb.population.options import QUICK
from vaneb.population.sampler import Sampling, sample_populations
from vaneb.posterior import Posterior, posterior
from vaneb.prior import Prior
from vaneb.reports import OK, Reports

#: With fewer clients than this, rows cannot tell a mixture from one Gaussian.
FEWEST = 20
#: Populations drawn where all clients are alike.
ALIKE = 400


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

    With ``population="auto"`` it is one Gaussian, as in a mixed model, unless a mixture predicts rows better
    (``predicts_better``): where noise is not what the family says, a mixture would take it for groups.
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
        kind = model.kind
        if model.population == "auto" and not predicts_better(rows, local.family, basis, model.seed):
            kind = "gaussian"
        laplace = local.population
        if laplace is not None and not laplace.varying.any():
            centres = laplace.draws_of_mean(ALIKE, np.random.default_rng([model.seed, 4]))
            prior = _of_one_mind(centres, rows.n_clients)
            model.sampling_ = Sampling(ALIKE**-0.5, ALIKE**-0.5, 0, 1.0)
        else:
            recoded: Any = Recoded(clients, basis)  # all that the sampler asks of a likelihood
            prior, model.sampling_ = sample_populations(
                recoded,
                single=kind == "gaussian",
                seed=model.seed,
                options=model.options,
                progress=progress,
            )
        model.prior_ = prior.mapped(basis, names)
        model.certificate_, model.trace_ = None, ()
    status = [OK if e else str(o) for e, o in zip(local.fits.exists, local.fits.outcome, strict=True)]
    return model, posterior(clients, model.prior_, ids=rows.ids, names=names, status=tuple(status))


def _of_one_mind(centres: Array, n_clients: int) -> Prior:
    """Populations in which all clients are the same, (m, d)."""
    m, d = centres.shape
    return Prior(centres, np.full(m, 1 / m), np.zeros((m, d, d)), (), n_clients, None, np.arange(m))


def model_basis(columns_basis: Array, dimension: int) -> Array:
    """B (d, d) from that of the columns of the design: the same for every class."""
    return np.kron(np.eye(dimension // len(columns_basis)), columns_basis).astype(np.float64)


def predicts_better(rows: GroupedRows, family: Family, basis: Array, seed: int) -> bool:
    """Does a mixture predict half of each client's rows from the other half better than one Gaussian?

    By more than a standard error of the average over clients, whose losses are compared one by one; and only
    where either half of the rows is sure that there are groups.
    """
    rows = rows.take(np.flatnonzero(rows.n_rows >= 2))
    if rows.n_clients < FEWEST:
        return False
    halves, gains = halves_of_rows(rows, np.random.default_rng([seed, 3])), []
    for first, second in (halves, halves[::-1]):
        clients = exact_likelihood(first, family)
        losses = []
        for kind in ("gaussian", "mixture"):
            model = VANEB(kind, seed=seed, options=QUICK).fit(Recoded(clients, basis))
            if kind == "mixture" and model.prior_.group_counts()[0] < 2:
                return False
            after = posterior(clients, model.prior_.mapped(basis))
            mean = expected_response(family, after, second.client_of_row, second.design, second.offset)
            losses.append(family.client_scores(second, mean))
        gains.append(losses[0] - losses[1])
    gain = np.mean(gains, axis=0)
    return bool(gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)))


def halves_of_rows(rows: GroupedRows, rng: np.random.Generator) -> tuple[GroupedRows, GroupedRows]:
    """Half of each client's rows, taken at random, and the others.

    Rows come in the order of their values.  Every second one would make halves more alike than rows that are
    independent, and a population too wide would then seem to predict best.
    """
    n = len(rows.response)
    shuffled = np.lexsort((rng.random(n), rows.client_of_row))
    place = np.arange(n) - np.repeat(rows.starts[:-1], rows.n_rows)
    first = np.zeros(n, dtype=bool)
    first[shuffled] = place % 2 == 0
    return rows.some_rows(np.flatnonzero(first)), rows.some_rows(np.flatnonzero(~first))
