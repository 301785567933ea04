"""Do 90% intervals cover 90% of the truths?  The three scenarios, VANEB as it is by default.

    quadratic   reports with the variance function; n_k of 40 to 80 rows
    logistic    the clients' exact likelihood, and Gaussian reports with the covariance function from
    poisson     covariate moments

Coverage is the share of (client, parameter) pairs whose interval contains the truth; the standard error
treats clients as independent.  One replicate each.  ``--cases`` chooses of quadratic, logistic, poisson,
logistic-reports, poisson-reports.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import measure
import numpy as np
from measure import Row

SIZES, ROWS, LEVEL, SEED = (3200,), 40, 0.9, 2


def run(options) -> Iterator[Row]:
    from vaneb import VANEB

    for n_clients in options.clients or SIZES:
        for scenario, seen, clients, theta in problems_of(n_clients):
            case = scenario if "moments" not in seen else f"{scenario}-reports"
            if options.cases and case not in options.cases:
                continue
            model = VANEB()
            _, cpu, _ = measure.timed(functools.partial(model.fit, clients))
            posterior = model.personalize(clients)
            (low, high), interval_cpu, _ = measure.timed(functools.partial(posterior.interval, LEVEL))
            inside = (low <= theta) & (theta <= high)
            by_client = inside.mean(axis=1)
            choice = model.smooth_
            yield {
                "scenario": scenario,
                "clients": n_clients,
                "seen": seen,
                "coverage": float(inside.mean()),
                "standard_error": float(by_client.std() / np.sqrt(n_clients)),
                "by_parameter": [round(float(share), 4) for share in inside.mean(axis=0)],
                "median_length": float(np.median(high - low)),
                "rmse": float(np.sqrt(((posterior.mean - theta) ** 2).sum(axis=1).mean())),
                "share": None if choice is None else choice.shares[choice.chosen],
                "atoms": len(model.prior_.weights),
                "gap": model.certificate_.gap,
                "cpu": cpu + interval_cpu,
            }


def problems_of(n_clients: int) -> Iterator[tuple]:
    """(scenario, what the solver sees, clients, truth)."""
    from vaneb import Reports
    from vaneb.covariance import QuadraticVariance
    from vaneb.likelihood.exact import exact_likelihood
    from vaneb.local import families
    from vaneb.local.fit import fit_clients
    from vaneb.local.report import report
    from vaneb.study.scenarios import CLASS_PROJECTIONS, simulate

    sample = simulate("quadratic", n_clients, ROWS, np.random.default_rng(SEED))
    function = QuadraticVariance.squared(3, n_clients)
    yield "quadratic", "reports", Reports(sample.means, n=sample.n, covariance=function), sample.theta
    for scenario, family in (
        ("logistic", families.shared_softmax(CLASS_PROJECTIONS)),
        ("poisson", families.poisson()),
    ):
        sample = simulate(scenario, n_clients, ROWS, np.random.default_rng(SEED))
        assert sample.rows is not None
        fits = fit_clients(sample.rows, family)
        yield scenario, "exact likelihood", exact_likelihood(sample.rows, family, fits), sample.theta
        reports = report(sample.rows, family, fits, form="moments")
        yield scenario, "reports, moments", reports, sample.theta
