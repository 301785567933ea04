"""What a certificate states, against optimisers that are not ours, on D computed from its definition."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import differential_evolution, minimize

from npmle_problems import correlated_problem, diagonal_problem
from vaneb import VANEB, Reports
from vaneb.covariance import QuadraticVariance, callable_covariance
from vaneb.npmle.ascent import client_log_weights, climb
from vaneb.npmle.certified import certified
from vaneb.npmle.fit import log_mixture
from vaneb.npmle.options import Options

Array = np.ndarray


def users_variances() -> Reports:
    """Standard errors that shrink to a fifth around two: the likelihoods of many clients rise there."""
    rng = np.random.default_rng(1)

    def variances(points: Array, client: int) -> Array:
        return (0.2 + (points - 2) ** 2 / (1 + (points - 2) ** 2)) * (1 + client % 3)

    theta = rng.choice([0.0, 2.0, 5.0], (40, 1))
    n = rng.integers(2, 9, 40).astype(float)
    noise = [np.sqrt(variances(t[None], k)[0] / n[k]) for k, t in enumerate(theta)]
    estimates = theta + np.array(noise) * rng.normal(size=(40, 1))
    return Reports(estimates, n=n, covariance=callable_covariance(variances, 40, 1, diagonal=True))


def users_matrices() -> Reports:
    rng = np.random.default_rng(2)

    def matrices(points: Array, client: int) -> Array:
        size = 0.3 + 0.2 * np.abs(points).sum(axis=1)
        turn = 0.6 * np.tanh(points[:, 0]) * (-1) ** client
        return size[:, None, None] * np.stack(
            [np.stack([np.ones_like(turn), turn], -1), np.stack([turn, np.ones_like(turn)], -1)], -1
        )

    estimates = rng.normal(size=(30, 2)) * 2
    covariance = callable_covariance(matrices, 30, 2, diagonal=False)
    return Reports(estimates, n=np.full(30, 4.0), covariance=covariance)


def proportions() -> Reports:
    """A variance function with edges: an atom at zero or one claims a precision that nobody has."""
    rng = np.random.default_rng(3)
    n = rng.integers(5, 30, 60).astype(float)
    shares = rng.binomial(n.astype(int), rng.choice([0.02, 0.3, 0.9], 60)) / n
    return Reports(shares[:, None], n=n, covariance=QuadraticVariance.binomial(1, 60))


class Constant:
    """Reports made of a likelihood with constant covariances."""

    def __init__(self, likelihood) -> None:
        self.made, self.n = likelihood, np.ones(likelihood.n_clients)

    def likelihood(self):
        return self.made


PROBLEMS: dict[str, Callable] = {
    "user, line": users_variances,
    "user, plane": users_matrices,
    "edges": proportions,
    "d = 1": lambda: Constant(diagonal_problem(80, 1, seed=31)),
    "d = 2": lambda: Constant(correlated_problem(60, 0.9, seed=32)),
    "d = 3": lambda: Constant(diagonal_problem(60, 3, seed=33)),
    "d = 4": lambda: Constant(diagonal_problem(50, 4, seed=34)),
    "d = 5": lambda: Constant(diagonal_problem(50, 5, seed=35)),
    "d = 5, precise": lambda: Constant(diagonal_problem(40, 5, seed=36, spread=20.0)),
}


def largest_gap(likelihood, atoms: Array, weights: Array, box: tuple[Array, Array]) -> float:
    """max D in the box, by differential evolution in few dimensions and by L-BFGS from many points."""
    logs = likelihood.log_likelihood(atoms) + np.log(weights)
    top = logs.max(axis=1, keepdims=True)
    log_density = np.log(np.exp(logs - top).sum(axis=1)) + top[:, 0]

    def gap(points: Array) -> Array:
        return np.exp(likelihood.log_likelihood(points) - log_density[:, None]).mean(axis=0) - 1

    rng, bounds, best = np.random.default_rng(0), list(zip(*box, strict=True)), -np.inf
    if len(bounds) <= 2:
        found = differential_evolution(
            lambda x: -gap(x.T), bounds, seed=0, vectorized=True, updating="deferred", popsize=30, tol=1e-9
        )
        best = -float(found.fun)
    starts = np.concatenate([rng.uniform(*box, (300, len(bounds))), likelihood.local_estimates(), atoms])
    step = 1e-6 * np.eye(len(bounds))

    def climbed(start: Array) -> float:
        def negative(x: Array) -> tuple[float, Array]:
            values = gap(np.concatenate([x[None], x + step, x - step]))
            d = len(x)
            return -float(values[0]), -(values[1 : d + 1] - values[d + 1 :]) / 2e-6

        return -float(minimize(negative, start, jac=True, bounds=bounds, method="L-BFGS-B").fun)

    highest = starts[np.argsort(-gap(starts))[:25]]
    return max(best, *(climbed(start) for start in highest))


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("solver", ["certified", "pseudo-em"])
def test_no_other_optimiser_finds_a_higher_gap(name: str, solver: str) -> None:
    reports = PROBLEMS[name]()
    model = VANEB("discrete", solver=solver, outliers=0.0).fit(reports)
    stated, likelihood = model.certificate_, reports.likelihood()
    low, high = likelihood.local_estimates().min(axis=0) - 2, likelihood.local_estimates().max(axis=0) + 2
    box = (low, high) if stated.within is None else stated.within
    found = largest_gap(likelihood, model.prior_.atoms, model.prior_.weights, box)
    assert found <= stated.bound + 1e-3 * abs(stated.gap) + 1e-5
    assert stated.reached or solver != "certified"
    # it is a value of D, and where it says
    logs = likelihood.log_likelihood(model.prior_.atoms) + np.log(model.prior_.weights)
    density = np.logaddexp.reduce(logs, axis=1)
    at = np.exp(likelihood.log_likelihood(stated.location[None])[:, 0] - density).mean() - 1
    if stated.proved is None:
        assert_allclose(at, stated.gap, atol=1e-8, rtol=1e-6)


def test_many_clients_are_certified_by_all_of_them() -> None:
    """Climbs on a part of the clients miss nothing that climbs on all of them from all estimates find."""
    likelihood = correlated_problem(3_000, 0.6, seed=37)
    fit = certified(likelihood, tol=1e-3, options=Options(first_clients=800))
    assert fit.certificate.reached
    log_weights = client_log_weights(log_mixture(likelihood, fit.atoms, fit.weights))
    every = climb(
        likelihood, np.concatenate([likelihood.estimates, fit.atoms]), log_weights, steps=100, gain=1e-8
    )
    assert every.gap.max() <= fit.certificate.gap + 1e-4
