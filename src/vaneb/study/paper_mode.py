"""The paper's six estimators as the paper has them, for ``vaneb study --paper``.

    oracle        posterior means under the true prior and the Gaussian working likelihood
    algorithm-1   the paper's VANEB: ``vaneb.paper.Algorithm1``
    npeb          the same EM with covariances fixed at the reported ones: ``vaneb.paper.NPEB``
    adamix        Gaussian mixture prior with MAP shrinkage, from the same reports as npeb
    fedavg        one average for everybody, weighted by numbers of rows
    local         every client's own estimate

They differ from the estimators of the same name in ``vaneb.study.estimators``, which are stronger: those
know the exact likelihood, or have their NPMLE certified, or start where no atom can run off.

What a client reports, by scenario:

    quadratic   sample means; Sigma(theta) = theta^2, clipped; npeb and adamix get sample variances
    logistic    estimates; empirical Fisher information of the rows, as a function or at the estimate
    poisson     estimates; population Fisher information, from the true covariance of the covariates, as a
                function or at the estimate

The population information is what the paper prints for counts; with that of rows its numbers are further off.
The paper does not say what a client sends whose estimate does not exist (separated classes): here it is the
centre of the quadratic that its likelihood is close to (``LocalFits.information_form``), for all estimators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vaneb import paper
from vaneb.covariance.moments import MomentPoisson
from vaneb.estimators import PointEstimates
from vaneb.local.report import report
from vaneb.reports import Reports
from vaneb.study.estimators import ORACLE_ATOMS, Clients, Estimated, personalised
from vaneb.study.prior_curves import FiveCurves

#: The five curves with sizes calibrated on the six numbers that the paper prints, which say little of them
#: (``benchmarks/study/calibrate_curves.py``; the study's page has how little).
CURVES = FiveCurves(sizes=(0.5, 0.5, 1.0, 1.0, 1.0))


@dataclass(frozen=True, eq=False)
class PaperClients(Clients):
    """One replicate as the paper's estimators see it."""

    prior: FiveCurves = CURVES

    @cached_property
    def reports(self) -> Reports:
        """Estimates with their covariance as a function of theta."""
        sample = self.sample
        if sample.scenario == "quadratic":
            return super().reports
        assert sample.rows is not None
        assert sample.covariate_covariance is not None
        assert self.fits is not None
        if sample.scenario == "logistic":
            return report(sample.rows, self.family, self.fits, form="empirical")
        information = MomentPoisson(np.zeros_like(sample.theta), sample.covariate_covariance)
        return Reports(self.fits.information_form(), n=sample.n, covariance=information)

    @cached_property
    def fixed(self) -> Reports:
        """Estimates with the covariance that each client reports for itself."""
        if self.sample.scenario == "quadratic":
            return super().fixed
        return Reports(
            self.reports.estimate, n=self.sample.n, precision=self.reports.likelihood().local_precision()
        )


def _discrete(model: paper.Algorithm1 | paper.NPEB | paper.Oracle, reports: Reports) -> Estimated:
    result = model.fit(reports).personalize(reports)
    atoms = None if isinstance(model, paper.Oracle) else len(result.weights)
    return Estimated(PointEstimates(result.mean), atoms)


def _truth(clients: Clients) -> paper.Oracle:
    return paper.Oracle(*clients.prior.atoms(ORACLE_ATOMS))


PAPER_ESTIMATORS: dict[str, Callable[[Clients], Estimated]] = {
    "oracle": lambda clients: _discrete(_truth(clients), clients.reports),
    "algorithm-1": lambda clients: _discrete(paper.Algorithm1(), clients.reports),
    "npeb": lambda clients: _discrete(paper.NPEB(), clients.fixed),
    "adamix": lambda clients: personalised(paper.AdaMix(), clients.fixed),
    "fedavg": lambda clients: personalised(paper.FedAvg(), clients.fixed),
    "local": lambda clients: Estimated(PointEstimates(clients.fixed.estimate)),
}
