"""Algorithm 1 against a transcription of its lines in plain numpy, one client and one atom at a time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import vaneb
from vaneb import paper
from vaneb.covariance import MomentPoisson, QuadraticVariance
from vaneb.errors import InvalidOption
from vaneb.paper.algorithm_1 import e_step, starting_weights

K, D = 12, 2


def density(x: np.ndarray, n: float, theta: np.ndarray, sigma: np.ndarray) -> float:
    """phi^(k)(sqrt(n) theta_hat; theta), the paper's likelihood, in the units of sqrt(n) theta_hat."""
    scaled = np.sqrt(n) * x - np.sqrt(n) * theta
    quadratic = scaled @ np.linalg.inv(sigma) @ scaled
    return float(np.exp(-0.5 * quadratic) / np.sqrt(np.linalg.det(2 * np.pi * sigma)))


def transcription(x, n, sigma, weights, steps):
    """The loop of Algorithm 1, t outermost; ``sigma(k, theta)`` is Sigma_k(theta)."""
    clients, atoms = range(len(x)), [row.copy() for row in x]
    weights = list(weights)
    for _ in range(steps):
        covariance = [[sigma(k, a) for a in atoms] for k in clients]
        r = responsibilities(x, n, atoms, weights, covariance)
        for j in range(len(atoms)):
            top, bottom = np.zeros(x.shape[1]), np.zeros((x.shape[1],) * 2)
            for k in clients:
                precision = np.linalg.inv(covariance[k][j] / n[k])
                top += r[k, j] * precision @ x[k]
                bottom += r[k, j] * precision
            atoms[j] = np.linalg.solve(bottom, top)
            weights[j] = r[:, j].mean()
    covariance = [[sigma(k, a) for a in atoms] for k in clients]
    r = responsibilities(x, n, atoms, weights, covariance)
    return r @ np.array(atoms), np.array(atoms), np.array(weights)


def responsibilities(x, n, atoms, weights, covariance):
    places = range(len(atoms))
    r = np.array(
        [
            [weights[j] * density(x[k], n[k], atoms[j], covariance[k][j]) for j in places]
            for k in range(len(x))
        ]
    )
    return r / r.sum(axis=1, keepdims=True)


def weights_by_em(likelihoods: np.ndarray, steps: int = 200_000) -> np.ndarray:
    """argmax sum_k log (L w)_k by the multiplicative update, which needs no solver."""
    w = np.full(likelihoods.shape[1], 1 / likelihoods.shape[1])
    for _ in range(steps):
        w = w * (likelihoods / (likelihoods @ w)[:, None]).mean(axis=0)
    return w


@pytest.fixture(params=["quadratic", "poisson"])
def problem(request):
    """Reports with a diagonal and with a full covariance function, and that function in plain numpy."""
    rng = np.random.default_rng(5)
    n = rng.integers(20, 40, K).astype(float)
    centres = np.array([[1.0, 2.0], [-2.0, 0.5]])[rng.integers(2, size=K)]
    if request.param == "quadratic":
        x = centres * (1 + rng.standard_normal((K, D)) / np.sqrt(n)[:, None])
        covariance = QuadraticVariance.squared(D, K, low=0.01, high=100.0)
        return vaneb.Reports(x, n=n, covariance=covariance), lambda k, t: np.diag(np.clip(t**2, 0.01, 100))
    root = rng.standard_normal((K, D, D))
    s = 0.3 * (root @ root.transpose(0, 2, 1) + np.eye(D))
    x = centres + 0.1 * rng.standard_normal((K, D))

    def sigma(k, t):
        """The paper's population Fisher information for counts, inverted."""
        information = np.exp(t @ s[k] @ t / 2) * s[k] @ (np.eye(D) + np.outer(t, t) @ s[k])
        return np.linalg.inv(information)

    return vaneb.Reports(x, n=n, covariance=MomentPoisson(np.zeros((K, D)), s)), sigma


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_uniform_start_is_the_printed_loop(problem, steps):
    reports, sigma = problem
    result = paper.Algorithm1(start="uniform", steps=steps).fit(reports).personalize(reports)
    mean, atoms, weights = transcription(reports.estimate, reports.n, sigma, np.full(K, 1 / K), steps)
    assert_allclose(result.mean, mean, rtol=1e-9, atol=1e-10)
    assert_allclose(result.weights, weights, rtol=1e-8, atol=1e-14)
    assert_allclose(result.atoms, atoms, rtol=1e-8, atol=1e-9)
    assert_allclose(result.responsibilities.sum(axis=1), 1)
    assert result.bound is None


@pytest.mark.parametrize("start", ["fixed-covariance", "coupled"])
def test_starting_weights_solve_the_programme_they_are_said_to(problem, start):
    reports, sigma = problem
    x, n = reports.estimate, reports.n
    matrix = np.array(
        [[density(x[k], n[k], a, sigma(k, a if start == "coupled" else x[k])) for a in x] for k in range(K)]
    )
    expected = weights_by_em(matrix)
    found = starting_weights(reports.likelihood(), x, start, 1e-10)
    assert_allclose(matrix @ found, matrix @ expected, rtol=1e-4)
    assert np.log(matrix @ found).mean() >= np.log(matrix @ expected).mean() - 1e-8


def test_the_default_start_then_the_printed_loop(problem):
    reports, sigma = problem
    x = reports.estimate
    start = starting_weights(reports.likelihood(), x, "fixed-covariance", 1e-6)
    assert (start == 0).any()
    result = paper.Algorithm1(steps=5).fit(reports).personalize(reports)
    mean, atoms, weights = transcription(x, reports.n, sigma, np.where(start > 0, start, 1e-300), 5)
    kept = weights > 1e-200
    assert_allclose(result.mean, mean, rtol=1e-8, atol=1e-9)
    assert_allclose(result.atoms, atoms[kept], rtol=1e-7, atol=1e-8)
    assert_allclose(result.weights, weights[kept], rtol=1e-7)


def test_npeb_is_the_same_loop_with_fixed_covariances(problem):
    reports, sigma = problem
    x = reports.estimate
    result = paper.NPEB(start="uniform", steps=6).fit(reports).personalize(reports)
    mean, atoms, _ = transcription(x, reports.n, lambda k, _: sigma(k, x[k]), np.full(K, 1 / K), 6)
    assert_allclose(result.mean, mean, rtol=1e-8, atol=1e-9)
    assert_allclose(result.atoms, atoms, rtol=1e-7, atol=1e-8)


def test_fixed_covariances_make_algorithm_1_npeb():
    rng = np.random.default_rng(2)
    reports = vaneb.Reports(rng.standard_normal((30, 2)), standard_errors=rng.uniform(0.2, 1, (30, 2)))
    one = paper.Algorithm1().fit(reports).personalize(reports)
    other = paper.NPEB().fit(reports).personalize(reports)
    assert_allclose(one.mean, other.mean)


def test_em_with_fixed_covariances_never_loses_likelihood():
    rng = np.random.default_rng(4)
    reports = vaneb.Reports(rng.standard_normal((25, 2)), standard_errors=rng.uniform(0.2, 1, (25, 2)))
    values = [
        paper.NPEB(start="uniform", steps=s).fit(reports).personalize(reports).log_marginal.mean()
        for s in range(6)
    ]
    assert (np.diff(values) > 0).all()


def test_new_clients_get_the_fitted_prior(problem):
    reports, _ = problem
    model = paper.Algorithm1().fit(reports)
    some = reports.take([3, 1])
    assert_allclose(model.personalize(some).mean, model.personalize(reports).mean[[3, 1]])


def test_oracle_uses_the_gaussian_likelihood_and_the_given_prior(problem):
    reports, sigma = problem
    atoms, weights = np.array([[1.0, 2.0], [-2.0, 0.5], [0.3, 0.3]]), np.array([0.5, 0.3, 0.2])
    x, n = reports.estimate, reports.n
    covariance = [[sigma(k, a) for a in atoms] for k in range(K)]
    r = responsibilities(x, n, atoms, weights, covariance)
    result = paper.Oracle(atoms, weights).fit(reports).personalize(reports)
    assert_allclose(result.mean, r @ atoms, rtol=1e-9)
    assert_allclose(result.responsibilities, r, rtol=1e-8, atol=1e-14)


def test_marginals_are_densities_of_the_estimate(problem):
    reports, sigma = problem
    atoms, weights = reports.estimate[:3], np.array([0.2, 0.3, 0.5])
    _, log_marginal = e_step(reports.likelihood(), atoms, weights)
    x, n = reports.estimate, reports.n
    for k in range(K):
        scaled = sum(w * density(x[k], n[k], a, sigma(k, a)) for a, w in zip(atoms, weights, strict=True))
        assert_allclose(log_marginal[k], np.log(scaled) + D / 2 * np.log(n[k]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "random"}, "start must be one of fixed-covariance, coupled, uniform"),
        ({"steps": -1}, "steps must be a whole number"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"tol": 0}, "tol must be a positive number"),
        ({"delta": -1.0}, "delta must be a positive number"),
    ],
)
def test_options_are_checked(problem, options, message):
    with pytest.raises(InvalidOption, match=message):
        paper.Algorithm1(**options).fit(problem[0])


def test_personalize_before_fit_says_so(problem):
    with pytest.raises(InvalidOption, match=r"fit the model first: NPEB\(\)"):
        paper.NPEB().personalize(problem[0])
