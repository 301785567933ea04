"""The estimators of the study, by name: each a function of one replicate's clients.

    oracle         posterior means under the true prior (fine atoms of the curves) and the true likelihood
    vaneb          VANEB as a user gets it by default: the clients' exact likelihood where there are rows,
                   the variance function in the quadratic scenario
    vaneb-reports  the certified NPMLE on Gaussian reports with their covariance function; a few may be off
    algorithm-1    pseudo-EM as in the paper's Algorithm 1 on the same reports, from a start that keeps atoms
                   from running off; to the letter it is in ``vaneb.study.paper_mode``
    npeb           the NPMLE with every covariance fixed at the reported one (quadratic: sample variances)
    adamix         Gaussian mixture prior with MAP shrinkage, from the same reports as npeb
    fedavg         one average for everybody
    local          every client's own estimate

A client whose estimate does not exist (separated classes, all counts zero) sends what
``vaneb.local.report`` makes of it in information form, flagged.  ``fedavg`` and ``local`` have no use for a
precision; they get that client's penalised estimate, which is kinder to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb import estimators as models
from vaneb.covariance.quadratic import QuadraticVariance
from vaneb.errors import InvalidOption
from vaneb.likelihood.base import Likelihood
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local.families import Family, poisson, shared_softmax
from vaneb.local.fit import LocalFits, fit_clients
from vaneb.local.report import report
from vaneb.posterior import Posterior
from vaneb.prior import Prior
from vaneb.reports import Reports
from vaneb.study.prior_curves import FiveCurves
from vaneb.study.scenarios import CLASS_PROJECTIONS, VARIANCE_RANGE, Sample

Array = NDArray[np.float64]

#: Atoms on each curve for the oracle; twice as many change its RMSE by less than one part in a thousand.
ORACLE_ATOMS = 400
#: Gap of the discrete NPMLEs: a hundred times the default.  A tenth of it takes a fifth longer and moves no
#: RMSE by more than a thousandth (ten draws of 3,200 clients).
TOLERANCE = 1e-2
#: How the covariance function of a report is written.  Not by moments of the covariates: with ten rows of
#: counts these are sure of estimates that have run off (benchmarks/study).
REPORT_FORM = "empirical"


@dataclass(frozen=True, eq=False)
class Clients:
    """One replicate as the estimators see it; everything is made once, when first asked for.

    Parameters
    ----------
    sample : what the scenario drew
    prior : what it was drawn from, for the oracle
    """

    sample: Sample
    prior: FiveCurves = field(default_factory=FiveCurves)

    @property
    def family(self) -> Family:
        return poisson() if self.sample.scenario == "poisson" else shared_softmax(CLASS_PROJECTIONS)

    @cached_property
    def fits(self) -> LocalFits | None:
        """Local fits; ``None`` in the quadratic scenario, where a sample mean is all there is to it."""
        return None if self.sample.rows is None else fit_clients(self.sample.rows, self.family)

    @cached_property
    def exact(self) -> Reports | Likelihood:
        """What the server is told at best: exact likelihoods, or means with their variance function."""
        if self.sample.rows is None:
            return self.reports
        return exact_likelihood(self.sample.rows, self.family, self.fits)

    @cached_property
    def reports(self) -> Reports:
        """Estimates with their covariance as a function of theta."""
        sample = self.sample
        if sample.rows is None:
            low, high = VARIANCE_RANGE
            variance = QuadraticVariance.squared(3, len(sample.n), low=low, high=high)
            return Reports(sample.means, n=sample.n, covariance=variance)
        return report(sample.rows, self.family, self.fits, form=REPORT_FORM)

    @cached_property
    def fixed(self) -> Reports:
        """Estimates with the covariance each client estimates for itself."""
        return self._fixed("information")

    @cached_property
    def penalised(self) -> Reports:
        """As ``fixed``, with penalised estimates where there are no others."""
        return self._fixed("penalised")

    def _fixed(self, unidentified: str) -> Reports:
        sample = self.sample
        if sample.rows is None:
            assert sample.variances is not None
            return Reports(sample.means, n=sample.n, covariance=sample.variances / sample.n[:, None])
        return report(sample.rows, self.family, self.fits, unidentified=unidentified)

    @property
    def flagged(self) -> int:
        """Clients without an estimate of their own."""
        return 0 if self.fits is None else int((~self.fits.exists).sum())


@dataclass(frozen=True, eq=False)
class Estimated:
    """Personalised estimates (K, 3), and what can be said of the prior behind them."""

    posterior: Posterior | models.PointEstimates
    atoms: int | None = None
    gap: float | None = None
    certified: bool = True
    """False where a certificate was promised and not reached."""

    @property
    def mean(self) -> Array:
        return self.posterior.mean


def personalised(model: Any, clients: Any) -> Estimated:
    """What a model makes of clients that it is fitted to."""
    posterior = model.fit(clients).personalize(clients)
    certificate = getattr(model, "certificate_", None)
    if certificate is None:
        return Estimated(posterior, len(posterior.prior.weights) if hasattr(model, "sampling_") else None)
    # Nothing is promised by Algorithm 1.
    promised = getattr(model, "solver", None) != "pseudo-em"
    return Estimated(
        posterior, len(model.prior_.weights), certificate.gap, certificate.reached or not promised
    )


def _truth(clients: Clients) -> models.Oracle:
    return models.Oracle(Prior(*clients.prior.atoms(ORACLE_ATOMS)))


ESTIMATORS: dict[str, Callable[[Clients], Estimated]] = {
    "oracle": lambda clients: personalised(_truth(clients), clients.exact),
    "vaneb": lambda clients: personalised(models.VANEB(), clients.exact),
    "vaneb-reports": lambda clients: personalised(
        models.VANEB(population="discrete", tol=TOLERANCE), clients.reports
    ),
    "algorithm-1": lambda clients: personalised(models.VANEB(solver="pseudo-em"), clients.reports),
    "npeb": lambda clients: personalised(models.NPEB(tol=TOLERANCE), clients.fixed),
    "adamix": lambda clients: personalised(models.AdaMix(), clients.fixed),
    "fedavg": lambda clients: personalised(models.FedAvg(), clients.penalised),
    "local": lambda clients: personalised(models.Local(), clients.penalised),
}


def check_estimators(names: tuple[str, ...], known: Collection[str] = tuple(ESTIMATORS)) -> tuple[str, ...]:
    """``names``, in the order of ``known``, if all are."""
    for name in names:
        if name not in known:
            raise InvalidOption(f"estimator {name!r} is unknown; choose among {', '.join(known)}")
    return tuple(name for name in known if name in names)
