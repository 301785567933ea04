"""The population, fitted to clients, and every client conditioned on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vaneb.blocks import Progress
from vaneb.estimators import VANEB
from vaneb.grouped.client_reports import reports_of_rows
from vaneb.grouped.gaussian_posterior import WeighedCandidate, probabilities, sample_gaussians
from vaneb.grouped.mixture import predicts_better
from vaneb.grouped.models import LocalModel
from vaneb.grouped.population import Structure, has_row_factors, in_phi, through_row_factors
from vaneb.likelihood.base import Likelihood
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local.data import GroupedRows
from vaneb.population.options import Options
from vaneb.population.sampler import Sampling, sample_populations
from vaneb.posterior import Posterior, posterior
from vaneb.prior import Prior
from vaneb.reports import OK

#: Rows that keep their own likelihood make sweeps dear: this is accurate enough.
ROWS = Options(accuracy=0.05)


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
        reports = reports_of_rows(rows, local.family, local.fits, names, local.family.dispersion)
        clients, status = reports.likelihood(), list(reports.status)
    kind = model.kind
    if exact and model.population == "auto" and not predicts_better(rows, structure, model.seed):
        kind = "gaussian"
    found = structure.found if exact else ()
    plain = not exact or clients.is_gaussian or kind == "discrete"
    through = clients if plain or not has_row_factors(structure) else through_row_factors(structure)
    learn_population(through, structure, kind, names, model, progress, found=found)
    return model, posterior(clients, model.prior_, ids=rows.ids, names=names, status=tuple(status))


def learn_population(
    clients: Likelihood,
    structure: Structure,
    kind: str,
    names: tuple[str, ...],
    model: VANEB,
    progress: Progress | None = None,
    *,
    found: tuple[WeighedCandidate, ...],
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
        drawn = _averaged(found, model)
    recoded = in_phi(clients, structure.basis)
    prior, model.sampling_ = drawn or sample_populations(
        recoded, single=kind == "gaussian", seed=model.seed, options=model.options or ROWS,
        progress=progress, varying=structure.varying,
    )  # fmt: skip
    model.prior_ = prior.mapped(structure.basis, names)
    model.certificate_, model.trace_ = None, ()


def _averaged(found: tuple[WeighedCandidate, ...], model: VANEB) -> tuple[Prior, Sampling] | None:
    """Populations of the candidates; of the likeliest alone where that has too many covariances to draw."""
    best = found[int(np.argmax(probabilities(found)))]
    if best.easy:
        few = [one for one in found if one.easy]
        return sample_gaussians(few, seed=model.seed, options=model.options)
    return None
