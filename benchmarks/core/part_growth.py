"""Growth with the number of clients: fit and personalise 10^4, 10^5 and 10^6 of them.

Five clusters like those of ``problems.five``, but for the last.  Five cases:

    diagonal-function        d = 10, V(t) = 0.5 + t^2 / 4 in each coordinate, n_k of 1 to 5
    full-function            d = 3, Poisson regression from covariate moments, n_k of 100 to 400
    full-function-outliers   the same, some of which may be off, as is the default
    diagonal-constant        d = 10, variances of 0.3 to 1.5 in each coordinate
    full-constant            d = 2, colours and magnitudes along two curves and in a clump, errors correlated

Every measurement has a process of its own; time is that of ``VANEB("discrete", outliers=0).fit(reports)``,
to another tolerance with ``--tol``, and of the posterior means, after a warm-up on 500 clients.  Peak memory
is that of the whole process, data included.
"""

from __future__ import annotations

import cProfile
import io
import json
import pstats
import sys
from collections.abc import Callable, Iterator

import measure
import numpy as np
import problems
from measure import Row

SIZES = (10_000, 100_000, 1_000_000)
CHUNK = 50_000
MOST_PROFILE_LINES = 25


def diagonal_function(n_clients: int, rng: np.random.Generator):
    from vaneb.covariance import QuadraticVariance
    from vaneb.reports import Reports

    d = 10
    coefficients = np.tile([0.5, 0.0, 0.25], (d, 1))
    function = QuadraticVariance(coefficients, np.full(d, 0.1), np.full(d, 100.0), n_clients)
    theta = problems.population(n_clients, d, rng)
    n = rng.integers(1, 5, n_clients, endpoint=True).astype(float)
    estimates = theta.copy()
    for start in range(0, n_clients, CHUNK):
        part = slice(start, start + CHUNK)
        deviation = np.sqrt(function.variance(theta[part]) / n[part, None])
        estimates[part] += deviation * rng.standard_normal(deviation.shape)
    return Reports(estimates, n=n, covariance=function), theta


def full_function(n_clients: int, rng: np.random.Generator):
    from vaneb.covariance import MomentPoisson
    from vaneb.reports import Reports
    from vaneb.study.scenarios import random_covariances

    theta = problems.population(n_clients, 3, rng)
    n = rng.integers(100, 400, n_clients, endpoint=True).astype(float)
    scatter, estimates = np.empty((n_clients, 3, 3)), theta.copy()
    for start in range(0, n_clients, CHUNK):
        part = slice(start, min(start + CHUNK, n_clients))
        size = part.stop - part.start
        scatter[part] = 0.01 * random_covariances(size, rng)
        unit = MomentPoisson(np.zeros((size, 3)), scatter[part]).precision(theta[part][:, None, :])[:, 0]
        root = np.linalg.cholesky(unit * n[part, None, None])
        noise = rng.standard_normal((size, 3, 1))
        estimates[part] += np.linalg.solve(np.swapaxes(root, 1, 2), noise)[:, :, 0]
    return Reports(estimates, n=n, covariance=MomentPoisson(np.zeros((n_clients, 3)), scatter)), theta


def diagonal_constant(n_clients: int, rng: np.random.Generator):
    from vaneb.reports import Reports

    theta = problems.population(n_clients, 10, rng)
    variances = rng.uniform(*problems.VARIANCES, theta.shape)
    estimates = theta.copy()
    for start in range(0, n_clients, CHUNK):
        part = slice(start, start + CHUNK)
        estimates[part] += np.sqrt(variances[part]) * rng.standard_normal(estimates[part].shape)
    return Reports(estimates, covariance=variances), theta


def full_constant(n_clients: int, rng: np.random.Generator):
    from vaneb.reports import Reports

    t, kind = rng.beta(2, 3, n_clients), rng.choice(3, n_clients, p=[0.7, 0.2, 0.1])
    colour = np.where(kind == 0, 2 * t - 0.2, np.where(kind == 1, 0.9 + 0.8 * t**1.5, 1.05))
    magnitude = np.where(kind == 0, 8 * t**0.8 - 1, np.where(kind == 1, 3.5 - 5 * t, 0.7))
    theta = np.stack([colour, magnitude], axis=1)
    theta += np.stack([0.04 * rng.standard_normal(n_clients), 0.12 * rng.standard_normal(n_clients)], axis=1)
    small, large = rng.uniform(0.03, 0.2, n_clients), np.exp(rng.uniform(np.log(0.1), 0.0, n_clients))
    covariance = np.empty((n_clients, 2, 2))
    covariance[:, 0, 0], covariance[:, 1, 1] = small**2, large**2
    covariance[:, 0, 1] = covariance[:, 1, 0] = rng.uniform(-0.7, 0.7, n_clients) * small * large
    noise = np.linalg.cholesky(covariance) @ rng.standard_normal((n_clients, 2, 1))
    return Reports(theta + noise[:, :, 0], covariance=covariance), theta


CASES: dict[str, Callable] = {
    "diagonal-function": diagonal_function,
    "full-function": full_function,
    "full-function-outliers": full_function,
    "diagonal-constant": diagonal_constant,
    "full-constant": full_constant,
}


def share_of(case: str) -> float:
    from vaneb.likelihood.contaminated import OUTLIERS

    return OUTLIERS if case.endswith("outliers") else 0.0


def run(options) -> Iterator[Row]:
    for case in options.cases or CASES:
        for n_clients in sorted(options.clients or SIZES):
            yield measure.script("part_growth.py", case, n_clients, options.tol)


def measured(case: str, n_clients: int, tol: float) -> Row:
    from vaneb import VANEB

    warm, _ = CASES[case](500, np.random.default_rng(1))
    share = share_of(case)
    _ = VANEB(population="discrete", outliers=share).fit(warm).personalize(warm).mean
    reports, theta = CASES[case](n_clients, np.random.default_rng(0))
    with_data = measure.peak_mib()
    asked = VANEB(population="discrete", tol=tol, outliers=share)
    model, fit_cpu, fit_wall = measure.timed(lambda: asked.fit(reports))
    mean, own_cpu, own_wall = measure.timed(lambda: model.personalize(reports).mean)
    return {
        "case": case,
        "clients": n_clients,
        "tol": tol,
        "cpu": fit_cpu + own_cpu,
        "fit_cpu": fit_cpu,
        "personalize_cpu": own_cpu,
        "wall": fit_wall + own_wall,
        "peak_mib": measure.peak_mib(),
        "data_mib": with_data,
        "atoms": len(model.prior_.weights),
        "rounds": len(model.trace_),
        "gap": model.certificate_.gap,
        "reached": model.certificate_.reached,
        "log_likelihood": model.log_likelihood_,
        "mse": float(((mean - theta) ** 2).sum(axis=1).mean()),
        "mse_raw": float(((reports.estimate - theta) ** 2).sum(axis=1).mean()),
    }


def profiled(case: str, n_clients: int, tol: float) -> None:
    """Where the time goes: python part_growth.py CASE CLIENTS TOLERANCE profile"""
    profile = cProfile.Profile()
    row = profile.runcall(measured, case, n_clients, tol)
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats(MOST_PROFILE_LINES)
    sys.stdout.write(f"{row}\n{text.getvalue()}")


if __name__ == "__main__":
    problem = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    if sys.argv[4:] == ["profile"]:
        profiled(*problem)
    else:
        sys.stdout.write(json.dumps(measured(*problem)) + "\n")
