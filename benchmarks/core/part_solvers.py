"""The certified solver against the paper's Algorithm 1, on the quadratic five-curve scenario.

Both get the same reports (sample means, V(t) = t^2 clipped, n_k of 40 to 80 rows) and no spread.  The gap is
searched for by the same thorough search for both; RMSE is the root of the average squared distance of a
client's estimate from its truth.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import measure
import numpy as np
from measure import Row

SIZES, ROWS, SEED = (800, 3200), 40, 1
SOLVERS: dict[str, dict[str, Any]] = {
    "certified": {"solver": "certified"},
    "Algorithm 1, 50 iterations": {"solver": "pseudo-em", "iterations": 50},
    "Algorithm 1, 500 iterations": {"solver": "pseudo-em", "iterations": 500},
}


def run(options) -> Iterator[Row]:
    from vaneb import VANEB, Reports
    from vaneb.covariance import QuadraticVariance
    from vaneb.estimators import Local, Oracle
    from vaneb.npmle.search import certify
    from vaneb.prior import Prior
    from vaneb.study.prior_curves import FiveCurves
    from vaneb.study.scenarios import simulate

    def reports_of(n_clients: int, seed: int):
        sample = simulate("quadratic", n_clients, ROWS, np.random.default_rng(seed))
        function = QuadraticVariance.squared(3, n_clients)
        return Reports(sample.means, n=sample.n, covariance=function), sample.theta

    warm, _ = reports_of(100, 0)
    for chosen in SOLVERS.values():
        VANEB("discrete", **chosen).fit(warm)
    for n_clients in options.clients or SIZES:
        reports, theta = reports_of(n_clients, SEED)
        oracle = Oracle(Prior(*FiveCurves().atoms(200)))
        for name, posterior in (
            ("local", Local().personalize(reports)),
            ("oracle", oracle.personalize(reports)),
        ):
            yield {"clients": n_clients, "what": name, "rmse": rmse(posterior.mean, theta)}
        for name, chosen in SOLVERS.items():
            model = VANEB("discrete", **chosen)
            _, cpu, _ = measure.timed(functools.partial(model.fit, reports))
            prior = model.prior_
            looked = certify(reports.likelihood(), prior.atoms, prior.weights, np.random.default_rng(7))
            yield {
                "clients": n_clients,
                "what": name,
                "cpu": cpu,
                "atoms": len(prior.weights),
                "log_likelihood": model.log_likelihood_,
                "gap": looked.gap,
                "rmse": rmse(model.personalize(reports).mean, theta),
            }


def rmse(estimates, theta) -> float:
    return float(np.sqrt(((estimates - theta) ** 2).sum(axis=1).mean()))
