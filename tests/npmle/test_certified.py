"""The certified NPMLE: its certificate against dense grids, known solutions, invariances."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logsumexp

from npmle_problems import correlated_problem, diagonal_problem, gaps_at
from vaneb.covariance import ConstantDiagonal, ConstantFull, QuadraticVariance
from vaneb.likelihood.gaussian import gaussian_likelihood
from vaneb.npmle.certified import certified
from vaneb.npmle.fit import Certificate, Fit, log_mixture
from vaneb.npmle.options import Options
from vaneb.npmle.search import certify
from vaneb.npmle.weights import npmle_weights, scaled_likelihood

TOL = 1e-4


def poisson_problem(n_clients: int, d: int, seed: int = 0):
    """Variance equal to the mean: maxima of D need not lie between the estimates."""
    rng = np.random.default_rng(seed)
    theta, n = rng.uniform(0.5, 5.0, size=(n_clients, d)), rng.integers(3, 20, size=n_clients).astype(float)
    estimates = np.maximum(theta + np.sqrt(theta / n[:, None]) * rng.normal(size=theta.shape), 0.1)
    return gaussian_likelihood(estimates, n, QuadraticVariance.poisson(d, n_clients))


PROBLEMS = {
    "line": lambda: diagonal_problem(80, 1),
    "line, few": lambda: diagonal_problem(4, 1, seed=1),
    "line, wide": lambda: diagonal_problem(60, 1, seed=2, spread=8.0),
    "plane": lambda: diagonal_problem(60, 2),
    "plane, correlated": lambda: correlated_problem(50, 0.6),
    "plane, elongated": lambda: correlated_problem(40, 0.95, seed=1),
    "poisson, line": lambda: poisson_problem(80, 1),
    "poisson, plane": lambda: poisson_problem(50, 2, seed=1),
}


def grid_around(likelihood, count: int) -> np.ndarray:
    """Points that cover all estimates and three units around them."""
    estimates = likelihood.local_estimates()
    lowest = 0.02 if isinstance(getattr(likelihood, "covariance", None), QuadraticVariance) else -np.inf
    axes = [np.linspace(max(x.min() - 3, lowest), x.max() + 3, count) for x in estimates.T]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


@pytest.mark.parametrize("name", PROBLEMS)
def test_no_point_of_a_dense_grid_refutes_the_certificate(name: str) -> None:
    likelihood = PROBLEMS[name]()
    fit = certified(likelihood, tol=TOL)
    assert fit.certificate.reached
    assert fit.certificate.kind == "ascent"
    grid = grid_around(likelihood, 4001 if likelihood.dimension == 1 else 201)
    assert gaps_at(likelihood, fit, grid).max() <= fit.certificate.bound + 1e-6
    # what it says of itself is so
    at_location = gaps_at(likelihood, fit, fit.certificate.location[None])[0]
    assert_allclose(at_location, fit.certificate.gap, atol=1e-9)
    assert_allclose(fit.log_likelihood, log_mixture(likelihood, fit.atoms, fit.weights).mean(), atol=1e-12)
    assert_allclose(fit.weights.sum(), 1.0)
    assert (fit.weights > 0).all()
    # D averages to zero under the prior itself
    assert_allclose(fit.weights @ gaps_at(likelihood, fit, fit.atoms), 0.0, atol=1e-10)


@pytest.mark.parametrize("name", PROBLEMS)
def test_at_least_as_likely_as_the_best_prior_on_a_fine_grid(name: str) -> None:
    likelihood = PROBLEMS[name]()
    fit = certified(likelihood, tol=TOL)
    grid = grid_around(likelihood, 1001 if likelihood.dimension == 1 else 61)
    matrix, top = scaled_likelihood(likelihood.log_likelihood(grid))
    best = npmle_weights(matrix, tol=1e-6)
    on_grid = float((np.log(matrix @ best.weights) + top).mean())
    assert fit.log_likelihood >= on_grid - fit.certificate.bound - 1e-9
    if likelihood.dimension == 1:  # where the grid is fine enough to be near the optimum itself
        assert_allclose(fit.log_likelihood, on_grid, atol=2e-4)


def test_elongated_likelihoods_meet_far_from_both_estimates() -> None:
    """Two clients that know one direction well: the only place where they agree is outside their box."""
    along, across = np.array([[1.0, 1.0], [1.0, 1.2]]), np.array([[-1.0, 1.0], [-1.2, 1.0]])
    along, across = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (along, across))
    precision = sum(w * v[:, :, None] * v[:, None, :] for w, v in ((0.01, along), (400.0, across)))
    likelihood = gaussian_likelihood(np.array([[0.0, 0.0], [1.0, 0.0]]), np.ones(2), ConstantFull(precision))
    fit = certified(likelihood)
    assert len(fit.weights) == 1
    assert_allclose(fit.atoms[0], [6.0, 6.0], atol=0.15)
    assert gaps_at(likelihood, fit, grid_around(likelihood, 301)).max() <= TOL


def test_a_tighter_tolerance_is_met() -> None:
    likelihood = diagonal_problem(100, 1, seed=3)
    loose, tight = certified(likelihood, tol=1e-2), certified(likelihood, tol=1e-8)
    assert tight.certificate.gap <= 1e-8
    assert tight.log_likelihood >= loose.log_likelihood - 1e-9
    assert tight.log_likelihood <= loose.log_likelihood + loose.certificate.bound
    assert gaps_at(likelihood, tight, grid_around(likelihood, 4001)).max() <= 1e-8 + 1e-10


def test_the_trace_tells_the_story() -> None:
    likelihood = diagonal_problem(100, 2, seed=4)
    said: list[tuple] = []
    fit = certified(likelihood, progress=lambda *step: said.append(step))
    values = [step.log_likelihood for step in fit.trace]
    assert (np.diff(values) > -1e-3).all()
    assert values[-1] == pytest.approx(fit.log_likelihood, abs=1e-9)
    assert fit.trace[-1].atoms == len(fit.weights)
    assert fit.trace[-1].gap == fit.certificate.gap
    assert len(said) >= 1


def test_out_of_rounds_it_says_so() -> None:
    fit = certified(diagonal_problem(100, 2, seed=4), tol=1e-12, options=Options(rounds=1))
    assert not fit.certificate.reached
    assert fit.certificate.gap > 1e-12


def test_certify_judges_any_prior() -> None:
    likelihood = diagonal_problem(60, 1)
    rng = np.random.default_rng(0)
    poor = certify(likelihood, np.array([[0.0]]), np.ones(1), rng)
    best = certified(likelihood)
    gain = best.log_likelihood - log_mixture(likelihood, np.array([[0.0]]), np.ones(1)).mean()
    assert poor.gap > gain > 0
    grid = gaps_at(
        likelihood, Fit(np.array([[0.0]]), np.ones(1), poor, (), 0.0), grid_around(likelihood, 4001)
    )
    assert_allclose(poor.gap, grid.max(), rtol=1e-3)
    good = certify(likelihood, best.atoms, best.weights, rng)
    assert good.gap <= TOL


def test_certificate_reads_well() -> None:
    text = str(Certificate(1e-5, np.zeros(1), "ascent", 1e-4, 7))
    assert "1e-05" in text
    assert "7 starts" in text
    assert Certificate(-1e-3, np.zeros(1), "ascent", 1e-4, 7).bound == 0.0


# ---------------------------------------------------------------- known solutions


@pytest.mark.parametrize("d", [1, 3])
def test_identical_clients_have_one_atom_at_their_estimate(d: int) -> None:
    estimates = np.tile(np.arange(1.0, d + 1), (20, 1))
    fit = certified(gaussian_likelihood(estimates, np.ones(20), ConstantDiagonal(np.full((20, d), 2.0))))
    assert_allclose(fit.atoms, estimates[:1])
    assert_allclose(fit.weights, [1.0])


def test_clients_closer_than_their_errors_have_one_atom_at_the_precision_weighted_mean() -> None:
    """All within one standard error: the likelihood of a common value is log-concave around it."""
    rng = np.random.default_rng(5)
    estimates, errors = rng.uniform(-0.3, 0.3, size=(30, 2)), rng.uniform(1.0, 2.0, size=(30, 2))
    likelihood = gaussian_likelihood(estimates, np.ones(30), ConstantDiagonal(errors**-2.0))
    fit = certified(likelihood, tol=1e-8)
    assert len(fit.weights) == 1
    expected = (estimates / errors**2).sum(axis=0) / (errors**-2.0).sum(axis=0)
    assert_allclose(fit.atoms[0], expected, atol=1e-4)


def test_two_far_groups_are_two_atoms_with_their_shares() -> None:
    rng = np.random.default_rng(6)
    errors = rng.uniform(1.0, 1.5, size=(50, 1))
    centre = np.where(np.arange(50) < 15, -100.0, 100.0)[:, None]
    estimates = centre + 0.2 * rng.normal(size=(50, 1))
    likelihood = gaussian_likelihood(estimates, np.ones(50), ConstantDiagonal(errors**-2.0))
    fit = certified(likelihood, tol=1e-8)
    order = np.argsort(fit.atoms[:, 0])
    assert_allclose(fit.weights[order], [0.3, 0.7], rtol=1e-6)
    for group, atom in ((slice(0, 15), fit.atoms[order[0]]), (slice(15, 50), fit.atoms[order[1]])):
        precision = errors[group] ** -2.0
        # D falls by about z^2 / 2 at z standard errors: a gap of tol allows sqrt(2 tol) of them.
        allowed = 1.5 * np.sqrt(2 * 1e-8)
        expected = (estimates[group] * precision).sum(axis=0) / precision.sum(axis=0)
        assert_allclose(atom, expected, atol=allowed)


@pytest.mark.parametrize("precision", [1e12, 1e18])
def test_with_huge_precision_every_client_keeps_its_estimate(precision: float) -> None:
    estimates = np.random.default_rng(7).normal(size=(30, 2))
    likelihood = gaussian_likelihood(estimates, np.full(30, precision), ConstantDiagonal(np.ones((30, 2))))
    fit = certified(likelihood)
    assert fit.certificate.reached
    order = np.lexsort(fit.atoms.T)
    assert_allclose(fit.atoms[order], estimates[np.lexsort(estimates.T)], atol=1e-9)
    assert_allclose(fit.weights, 1 / 30, rtol=1e-3)


def test_one_client_is_its_own_population() -> None:
    fit = certified(gaussian_likelihood(np.array([[3.0, -1.0]]), np.ones(1), ConstantDiagonal([[1.0, 4.0]])))
    assert_allclose(fit.atoms, [[3.0, -1.0]], atol=1e-9)


def test_two_clients_merge_at_two_standard_errors() -> None:
    """For two unit normals the NPMLE is one atom if they are at most two standard errors apart."""
    for distance, atoms in ((1.9, 1), (2.5, 2)):
        estimates = np.array([[0.0], [distance]])
        fit = certified(
            gaussian_likelihood(estimates, np.ones(2), ConstantDiagonal(np.ones((2, 1)))), tol=1e-9
        )
        assert len(fit.weights) == atoms


def test_clients_that_know_nothing_do_not_matter() -> None:
    here = diagonal_problem(40, 2, seed=8)
    precision = np.concatenate([here.base_precision, np.zeros((5, 2))])
    estimates = np.concatenate([here.estimates, np.full((5, 2), 1e6)])
    there = gaussian_likelihood(estimates, np.ones(45), ConstantDiagonal(precision))
    one, two = certified(here, tol=1e-7), certified(there, tol=1e-7)
    assert_allclose(45 * two.log_likelihood, 40 * one.log_likelihood, atol=1e-4)
    assert np.abs(two.atoms).max() < 10


def test_singular_precisions_pool_what_they_know() -> None:
    """Half the clients know one coordinate, half the other: one population, both coordinates found."""
    rng = np.random.default_rng(9)
    estimates = np.array([2.0, -3.0]) + 0.3 * rng.normal(size=(40, 2))
    precision = np.zeros((40, 2, 2))
    precision[::2, 0, 0] = precision[1::2, 1, 1] = 1.0
    fit = certified(gaussian_likelihood(estimates, np.ones(40), ConstantFull(precision)), tol=1e-7)
    assert fit.certificate.reached
    expected = [estimates[::2, 0].mean(), estimates[1::2, 1].mean()]
    assert_allclose(fit.weights @ fit.atoms, expected, atol=1e-3)


# ---------------------------------------------------------------- invariances


def means(likelihood, fit: Fit) -> np.ndarray:
    logs = likelihood.log_likelihood(fit.atoms) + np.log(fit.weights)
    return np.exp(logs - logsumexp(logs, axis=1, keepdims=True)) @ fit.atoms


def test_permuting_clients_permutes_what_they_get() -> None:
    likelihood = diagonal_problem(60, 2, seed=10)
    order = np.random.default_rng(1).permutation(60)
    here, there = certified(likelihood, tol=1e-7), certified(likelihood.take(order), tol=1e-7)
    assert_allclose(here.log_likelihood, there.log_likelihood, atol=1e-7)
    assert_allclose(means(likelihood.take(order), there), means(likelihood, here)[order], atol=5e-3)


def test_duplicating_all_clients_changes_nothing() -> None:
    likelihood = diagonal_problem(50, 1, seed=11)
    here = certified(likelihood, tol=1e-8)
    there = certified(likelihood.take(np.tile(np.arange(50), 3)), tol=1e-8)
    assert_allclose(here.log_likelihood, there.log_likelihood, atol=1e-8)
    assert_allclose(means(likelihood, there), means(likelihood, here), atol=2e-3)


@pytest.mark.parametrize("units", [np.array([100.0, 100.0]), np.array([1e6, 1e-6]), np.array([-1e-3, 1.0])])
def test_shifted_and_scaled_parameters_take_the_prior_along(units: np.ndarray) -> None:
    likelihood = diagonal_problem(60, 2, seed=12)
    moved = gaussian_likelihood(
        7.0 * units + units * likelihood.estimates,
        np.ones(60),
        ConstantDiagonal(likelihood.base_precision / units**2),
    )
    here, there = certified(likelihood, tol=1e-7), certified(moved, tol=1e-7)
    assert there.certificate.reached
    jacobian = np.log(np.abs(units)).sum()
    assert_allclose(there.log_likelihood + jacobian, here.log_likelihood, atol=1e-6)
    assert_allclose(means(moved, there) / units - 7.0, means(likelihood, here), atol=1e-2)


def test_rotated_parameters_take_the_prior_along() -> None:
    likelihood = correlated_problem(50, 0.7, seed=2)
    angle = np.array([[0.6, -0.8], [0.8, 0.6]])
    turned = gaussian_likelihood(
        likelihood.estimates @ angle.T, np.ones(50), ConstantFull(angle @ likelihood.base_precision @ angle.T)
    )
    here, there = certified(likelihood, tol=1e-7), certified(turned, tol=1e-7)
    assert_allclose(here.log_likelihood, there.log_likelihood, atol=1e-6)
    assert_allclose(means(turned, there), means(likelihood, here) @ angle.T, atol=1e-2)


def test_a_constant_covariance_given_as_a_function_is_the_constant() -> None:
    constant = diagonal_problem(40, 2, seed=13)
    variances = np.array([0.3, 0.7])
    normal = gaussian_likelihood(constant.estimates, np.ones(40), QuadraticVariance.normal(variances, 2, 40))
    fixed = gaussian_likelihood(
        constant.estimates, np.ones(40), ConstantDiagonal.from_variances(np.tile(variances, (40, 1)))
    )
    here, there = certified(fixed, tol=1e-6), certified(normal, tol=1e-6)
    assert_allclose(here.log_likelihood, there.log_likelihood, atol=2e-6)
    assert_allclose(means(normal, there), means(fixed, here), atol=1e-2)


def test_threads_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood = diagonal_problem(17_000, 1, seed=15, spread=0.5)
    found = []
    for count in ("1", "2"):
        monkeypatch.setenv("VANEB_THREADS", count)
        found.append(certified(likelihood, tol=1e-2, options=Options(rounds=2, looked_at=40, climbed=4)))
    assert_array_equal(found[0].atoms, found[1].atoms)
    assert_array_equal(found[0].weights, found[1].weights)


def test_many_clients_start_from_some_of_them() -> None:
    likelihood = diagonal_problem(1500, 1, seed=16)
    whole = certified(likelihood)
    fit = certified(likelihood, options=Options(first_clients=150))
    assert fit.certificate.reached
    assert gaps_at(likelihood, fit, grid_around(likelihood, 1001)).max() <= fit.certificate.bound + 1e-6
    assert_allclose(fit.log_likelihood, whole.log_likelihood, atol=TOL)


def test_a_start_that_was_given_is_used() -> None:
    likelihood = diagonal_problem(60, 1, seed=17)
    first = certified(likelihood)
    again = certified(likelihood, start=(first.atoms, first.weights))
    assert len(again.trace) <= 3
    assert again.certificate.reached
    assert again.log_likelihood >= first.log_likelihood - TOL
