"""Whole fits under each kind of likelihood: what a special kernel is worth.

Populations of atoms (certified, and 20 steps of Algorithm 1): CPU seconds of one thread, the smallest of the
repeats after a warm-up, and the average log-likelihood at the end, which must not change when kernels do.
``compilation`` is what a first fit takes more, in a new process with nothing compiled.

    python benchmarks/core/part_likelihoods.py [CASE ...]      prints a line a case
    python benchmarks/core/part_likelihoods.py --compile CASE  the seconds of a first and a second fit
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator

import measure
import numpy as np
import problems
from measure import Row

REPEATS = 2


def constant_diagonal():
    from vaneb.reports import Reports

    estimates, variances, _ = problems.five(2000)
    return Reports(estimates, covariance=variances).likelihood()


def constant_full():
    from vaneb.estimators import fixed_covariance

    return fixed_covariance(function("poisson", "moments", 1000))


def shared():
    from vaneb.study.estimators import Clients
    from vaneb.study.scenarios import simulate

    return Clients(simulate("quadratic", 1000, 10, np.random.default_rng(1))).reports.likelihood()


def rows_of(name: str, n_clients: int, n_min: int = 10):
    from vaneb.local.families import poisson, shared_softmax
    from vaneb.study.scenarios import CLASS_PROJECTIONS, simulate

    family = poisson() if name == "poisson" else shared_softmax(CLASS_PROJECTIONS)
    return simulate(name, n_clients, n_min, np.random.default_rng(2)).rows, family


def function(name: str, form: str, n_clients: int):
    from vaneb.local.report import report

    return report(*rows_of(name, n_clients), form=form).likelihood()


def exact(name: str, n_clients: int):
    from vaneb.likelihood.exact import exact_likelihood

    return exact_likelihood(*rows_of(name, n_clients))


def exact_binomial(n_clients: int):
    from vaneb.likelihood.exact import exact_likelihood
    from vaneb.local.data import GroupedRows
    from vaneb.local.families import binomial

    rng = np.random.default_rng(3)
    theta, each = problems.five(n_clients)[2] / 3, 20
    design = rng.standard_normal((n_clients * each, 3))
    client = np.repeat(np.arange(n_clients), each)
    index = np.einsum("np,np->n", design, theta[client])
    response = rng.random(len(client)) < 1 / (1 + np.exp(-index))
    return exact_likelihood(GroupedRows.from_columns(client, design, response), binomial())


def user_diagonal():
    from vaneb.covariance import callable_covariance
    from vaneb.reports import Reports

    estimates, variances, _ = problems.five(100)
    own = callable_covariance(lambda x, k: variances[k] * (1 + 0.1 * x**2), 100, 3, diagonal=True)
    return Reports(estimates, n=np.ones(100), covariance=own).likelihood()


CASES: dict[str, Callable] = {
    "constant-diagonal": constant_diagonal,
    "constant-full": constant_full,
    "shared-variance": shared,
    "poisson-moments": lambda: function("poisson", "moments", 500),
    "poisson-rows": lambda: function("poisson", "empirical", 500),
    "softmax-rows": lambda: function("logistic", "empirical", 300),
    "user-diagonal": user_diagonal,
    "exact-poisson": lambda: exact("poisson", 400),
    "exact-binomial": lambda: exact_binomial(400),
    "exact-softmax": lambda: exact("logistic", 300),
}
SOLVERS = ("certified", "pseudo-em")


def fitted(likelihood, solver: str):
    from vaneb.estimators import VANEB

    return VANEB("discrete", solver=solver, iterations=20, tol=1e-3).fit(likelihood)


def run(options) -> Iterator[Row]:
    warnings.simplefilter("ignore")
    for case in options.cases or CASES:
        for solver in SOLVERS:
            fitted(CASES[case](), solver)
            likelihoods = iter([CASES[case]() for _ in range(REPEATS)])
            model, cpu = measure.fastest(lambda: fitted(next(likelihoods), solver), REPEATS)  # noqa: B023
            found = {"log_likelihood": model.log_likelihood_, "atoms": len(model.prior_.atoms)}
            yield {"what": case, "solver": solver, "cpu": cpu, **found}
        with tempfile.TemporaryDirectory() as folder:
            yield {"what": case, "solver": "certified", **compiled(case, folder)}


def compiled(case: str, folder: str) -> Row:
    command = [sys.executable, __file__, "--compile", case]
    first, second = measure.child(command, NUMBA_CACHE_DIR=folder)
    return {"compilation": first - second}


def main() -> None:
    measure.one_thread()
    if sys.argv[1:2] == ["--compile"]:
        warnings.simplefilter("ignore")
        print([measure.timed(lambda: fitted(CASES[sys.argv[2]](), "certified"))[1] for _ in range(2)])
        return
    from argparse import Namespace

    for row in run(Namespace(cases=sys.argv[1:])):
        print(row, flush=True)


if __name__ == "__main__":
    main()
