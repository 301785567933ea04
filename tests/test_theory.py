"""The theory's quantities against closed forms, exact cases and the things they promise to bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize, root

from vaneb import theory
from vaneb.covariance import ConstantDiagonal, ConstantFull, QuadraticVariance, callable_covariance
from vaneb.errors import InvalidOption
from vaneb.likelihood.gaussian import gaussian_likelihood

RNG = np.random.default_rng(20)
K, D = 12, 2
N = RNG.integers(5, 20, size=K).astype(float)
ESTIMATES = RNG.normal(size=(K, D))
ATOMS = RNG.normal(size=(4, D))
WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4])
ROOTS = RNG.normal(size=(K, D, D))
FULL = ConstantFull(ROOTS @ np.swapaxes(ROOTS, 1, 2) + 0.2 * np.eye(D))
SQUARED = QuadraticVariance.squared(D, K)


def tight_clients() -> tuple[np.ndarray, np.ndarray, QuadraticVariance, theory.CovarianceBounds]:
    """Thirty clients close to 2 with variance theta^2: here the theory's conditions hold."""
    rng = np.random.default_rng(21)
    n = rng.integers(40_000, 80_000, size=30).astype(float)
    estimates = 2.0 + 2.0 * rng.standard_normal((30, 1)) / np.sqrt(n[:, None])
    covariance = QuadraticVariance.squared(1, 30)
    region = np.linspace(estimates.min() - 0.02, estimates.max() + 0.02, 101)[:, None]
    return estimates, n, covariance, theory.covariance_bounds(covariance, region)


def expectation_maximisation(logs: np.ndarray, iterations: int) -> tuple[np.ndarray, float, float]:
    """Weights over columns of log-likelihoods (K, m), their average log-likelihood, and a bound on the best.

    Slow and plain, so that it can be trusted: the gap bounds what is left.
    """
    top = logs.max(axis=1)
    matrix = np.exp(logs - top[:, None])
    weights = np.full(logs.shape[1], 1 / logs.shape[1])
    for _ in range(iterations):
        weights = weights * ((1 / (matrix @ weights)) @ matrix) / len(matrix)
    density = matrix @ weights
    value = float(np.mean(np.log(density) + top))
    return weights, value, value + math.log(np.max((1 / density) @ matrix) / len(matrix))


# ---------------------------------------------------------------- bounds of the covariance


def test_bounds_of_a_diagonal_function() -> None:
    points = np.linspace(0.5, 3.0, 6)[:, None]
    bounds = theory.covariance_bounds(QuadraticVariance.squared(1, 2), points)
    # v = t^2, so v' = 2 t and (log v)' = 2 / t
    assert_allclose(bounds, (0.25, 9.0, max(2 * 3.0, 2 / 0.5)))
    assert_allclose(bounds.condition, 36.0)


def test_bounds_of_constant_matrices() -> None:
    bounds = theory.covariance_bounds(FULL, ATOMS)
    eigenvalues = np.linalg.eigvalsh(np.linalg.inv(FULL.unit_precision))
    assert_allclose(bounds, (eigenvalues.min(), eigenvalues.max(), 0.0))


def test_bounds_of_a_full_function() -> None:
    matrix = np.array([[2.0, 0.5], [0.5, 1.0]])
    grows = callable_covariance(lambda x, client: np.exp(x[:, 0, None, None]) * matrix, 1, 2, diagonal=False)
    bounds = theory.covariance_bounds(grows, np.array([[0.0, 3.0], [1.0, -1.0]]))
    smallest, largest = np.linalg.eigvalsh(matrix)
    # dSigma = Sigma in the first direction: as large as Sigma itself, and one relative to it
    assert_allclose(bounds, (smallest, math.e * largest, math.e * largest), rtol=1e-6)


def test_a_singular_precision_has_no_upper_bound() -> None:
    bounds = theory.covariance_bounds(ConstantDiagonal(np.array([[1.0, 0.0]])), np.zeros((1, 2)))
    assert bounds.upper == np.inf
    assert bounds.lower == 1.0


# ---------------------------------------------------------------- the gap, the support, the grid


@pytest.mark.parametrize("covariance", [FULL, SQUARED], ids=["full", "squared"])
def test_the_gap_averages_to_zero_under_the_prior(covariance) -> None:
    likelihood = gaussian_likelihood(ESTIMATES, N, covariance)
    gaps = theory.gap(likelihood, ATOMS, WEIGHTS, ATOMS)
    assert_allclose(WEIGHTS @ gaps, 0.0, atol=1e-12)
    densities = np.exp(likelihood.log_likelihood(ATOMS))
    expected = np.mean(densities / (densities @ WEIGHTS)[:, None], axis=0) - 1
    assert_allclose(gaps, expected, rtol=1e-10)


def test_the_gap_bounds_what_any_prior_can_gain() -> None:
    likelihood = gaussian_likelihood(ESTIMATES, N, SQUARED)
    densities = np.exp(likelihood.log_likelihood(ESTIMATES))
    start = np.full(K, 1 / K)
    largest = theory.gap(likelihood, ESTIMATES, start, ESTIMATES).max()
    for other in np.random.default_rng(22).dirichlet(np.full(K, 0.3), size=50):
        gain = np.mean(np.log(densities @ other) - np.log(densities @ start))
        assert gain <= math.log1p(largest) + 1e-12


def test_the_gap_of_a_hopeless_prior_is_infinite_not_an_error() -> None:
    likelihood = gaussian_likelihood(np.zeros((1, 1)), np.array([1e8]), ConstantDiagonal(np.ones((1, 1))))
    assert theory.gap(likelihood, np.array([[1.0]]), np.ones(1), np.zeros((1, 1)))[0] == np.inf


def test_the_npmle_stays_within_the_support_radius() -> None:
    rng = np.random.default_rng(23)
    n = rng.integers(20, 40, size=25).astype(float)
    truth = rng.choice([1.0, 3.0], size=25)
    estimates = (truth + truth * rng.standard_normal(25) / np.sqrt(n))[:, None]
    covariance = QuadraticVariance.squared(1, 25, low=0.2, high=20.0)
    grid = np.linspace(-4, 8, 1201)[:, None]
    bounds = theory.covariance_bounds(covariance, grid)
    likelihood = gaussian_likelihood(estimates, n, covariance)
    logs = likelihood.log_likelihood(grid)
    weights, value, best = expectation_maximisation(logs, 3000)
    assert best - value < 1e-3
    radius = theory.support_radius(bounds, n, 1)
    assert_allclose(radius, math.sqrt(2 * 20 / n.min() * math.log(math.e * 100**0.5 * 25)))
    distance = theory.distance_to_estimates(grid, estimates)
    assert distance[weights > 1e-8].max() <= radius
    outside = distance > radius
    assert outside.any()
    assert (theory.gap(likelihood, grid, weights, grid[outside]) < 0).all()
    # and no client's marginal density falls below the floor
    density = np.exp(logs) @ weights
    assert (density >= theory.likelihood_floor(bounds, n, 1) * (1 - 1e-6)).all()


def test_the_grid_loses_no_more_than_its_bound() -> None:
    rng = np.random.default_rng(24)
    estimates, n = rng.uniform(0, 2, size=(30, 1)), np.ones(30)
    likelihood = gaussian_likelihood(estimates, n, ConstantDiagonal(np.ones((30, 1))))

    def solved(spacing: float) -> tuple[float, float]:
        grid = np.arange(-spacing, 2 + 2 * spacing, spacing)[:, None]
        return expectation_maximisation(likelihood.log_likelihood(grid), 3000)[1:]

    _, anywhere = solved(0.005)
    for spacing in (0.28, 0.2, 0.1):
        # no less than what is lost: a bound on the one, minus a value that the other surpasses
        loss = anywhere - solved(spacing)[0]
        assert 0 < loss <= theory.discretisation_bound(spacing, 2.0 + 2 * spacing, 1.0, 1)


def test_the_bound_says_where_it_holds() -> None:
    limit = theory.largest_spacing(2.0, 1.0, 3)
    assert_allclose(limit, math.sqrt(3 / 12) / 2)
    assert_allclose(theory.discretisation_bound(0.1, 2.0, 1.0, 3), 3 * (0.5 + 8) * 0.01)
    with pytest.raises(InvalidOption, match="spacing"):
        theory.discretisation_bound(limit, 2.0, 1.0, 3)


# ---------------------------------------------------------------- fixed points


def test_critical_points_lie_on_the_ridgeline() -> None:
    precision = FULL.unit_precision * N[:, None, None]
    weights = RNG.dirichlet(np.ones(K))

    def components(theta: np.ndarray) -> np.ndarray:
        difference = ESTIMATES - theta
        quadratic = np.einsum("ki,kij,kj->k", difference, precision, difference)
        return weights * np.sqrt(np.linalg.det(precision)) * np.exp(-quadratic / 2)

    peak = minimize(lambda theta: -np.log(components(theta).sum()), ESTIMATES[3], tol=1e-12).x
    assert_allclose(theory.ridgeline_point(components(peak), ESTIMATES, precision), peak, atol=1e-5)


def test_the_ridgeline_of_equal_precisions_is_the_hull() -> None:
    weights = RNG.dirichlet(np.ones(K), size=3)
    assert_allclose(theory.ridgeline_point(weights, ESTIMATES, np.full((K, D), 3.0)), weights @ ESTIMATES)
    same = np.broadcast_to(FULL.unit_precision[:1], (K, D, D))
    assert_allclose(theory.ridgeline_point(weights, ESTIMATES, same), weights @ ESTIMATES)


@pytest.mark.parametrize("covariance", [FULL, SQUARED], ids=["full", "squared"])
def test_the_frozen_map_is_the_move_of_algorithm_1(covariance, monkeypatch) -> None:
    likelihood = gaussian_likelihood(ESTIMATES, N, covariance)
    share = theory.shares(likelihood, ATOMS, WEIGHTS)
    assert_allclose(share.sum(axis=0), 1.0)
    moved = theory.frozen_map(ATOMS, share, ESTIMATES, N, covariance)
    precision = covariance.precision(ATOMS[None]) * N.reshape(
        -1, *[1] * (covariance.precision(ATOMS[None]).ndim - 1)
    )
    expected = [theory.ridgeline_point(share[:, j], ESTIMATES, precision[:, j]) for j in range(len(ATOMS))]
    assert_allclose(moved, expected, rtol=1e-10)
    log_density = np.log(np.exp(likelihood.log_likelihood(ATOMS)) @ WEIGHTS)
    sums = likelihood.ascent(ATOMS, -log_density, frozen=True)
    information = sums.information
    if information.ndim == 2:
        information = information[..., None] * np.eye(D)
    assert_allclose(moved, ATOMS + np.linalg.solve(information, sums.gradient[..., None])[..., 0], rtol=1e-8)
    monkeypatch.setattr("vaneb.theory.bounds.BLOCK", 1)
    assert_allclose(theory.frozen_map(ATOMS, share, ESTIMATES, N, covariance), moved, rtol=1e-12)


def test_geometric_medians_that_are_known() -> None:
    line = np.array([[0.0], [1.0], [5.0]])
    assert_allclose(theory.geometric_median(line, np.ones(3)), [1.0], atol=1e-6)
    triangle = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, math.sqrt(3) / 2]])
    assert_allclose(theory.geometric_median(triangle, np.ones(3)), triangle.mean(axis=0), atol=1e-9)
    heavy = np.array([0.2, 0.2, 0.6])
    assert_allclose(theory.geometric_median(triangle, heavy), triangle[2], atol=1e-6)
    assert_allclose(theory.geometric_median(np.ones((3, 2)), np.ones(3)), [1.0, 1.0])


def test_geometric_median_against_a_general_optimiser() -> None:
    weights = RNG.dirichlet(np.ones(K))

    def spread(u: np.ndarray) -> float:
        return float(weights @ np.linalg.norm(ESTIMATES - u, axis=1))

    found = theory.geometric_median(ESTIMATES, weights)
    best = minimize(
        spread, weights @ ESTIMATES, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14}
    )
    assert_allclose(spread(found), best.fun, rtol=1e-9)


def test_constant_covariances_contract_at_once() -> None:
    bounds = theory.covariance_bounds(FULL, ATOMS)
    share = RNG.dirichlet(np.ones(K), size=3).T
    settled = theory.contraction(share, ESTIMATES, N, bounds)
    assert_allclose(settled.constant, 0.0)
    assert_allclose(settled.effective_n, N @ share)


def test_iterates_contract_as_fast_as_promised() -> None:
    estimates, n, covariance, bounds = tight_clients()
    share = np.full((30, 1), 1 / 30)
    promised = theory.contraction(share, estimates, n, bounds).constant[0]
    assert promised < 1
    starts = np.linspace(estimates.min(), estimates.max(), 7)[:, None]
    images = [theory.frozen_map(start[None], share, estimates, n, covariance)[0, 0] for start in starts]
    steps = np.abs(np.diff(images)) / np.diff(starts[:, 0])
    assert 0 <= steps.max() <= promised


def test_the_exact_scores_root_is_within_its_bound() -> None:
    estimates, n, covariance, bounds = tight_clients()
    share = np.full((30, 1), 1 / 30)
    atom = estimates.mean(axis=0)[None]
    for _ in range(50):
        atom = theory.frozen_map(atom, share, estimates, n, covariance)

    def score(a: np.ndarray) -> float:
        """sum_k w_k d/da [-log a - n_k (x_k - a)^2 / (2 a^2)], the log-density for variance a^2 / n."""
        x = estimates[:, 0]
        return float(np.mean(-1 / a[0] + n * (x - a[0]) / a[0] ** 2 + n * (x - a[0]) ** 2 / a[0] ** 3))

    exact = root(score, atom[0], tol=1e-14).x
    bound = theory.score_root_bound(atom, share, estimates, n, covariance, bounds)
    assert bound.valid[0]
    assert 0 < abs(exact[0] - atom[0, 0]) <= bound.distance[0]
    settled = theory.settled_points(atom + 0.1, share, estimates, n, covariance)
    assert_allclose(settled.fixed, atom, rtol=1e-10)
    assert_allclose(settled.root[0], exact, rtol=1e-10)


def test_observed_contraction_is_that_of_the_first_moves() -> None:
    def variance(points: np.ndarray, client: int) -> np.ndarray:
        return 1 + 0.25 * np.sin(points + client)

    covariance = callable_covariance(variance, K, 2, diagonal=True)
    share = np.full((K, 1), 1 / K)
    places = [ATOMS[:1]]
    for _ in range(2):
        places.append(theory.frozen_map(places[-1], share, ESTIMATES, N, covariance))
    moves = [np.linalg.norm(b - a) for a, b in zip(places, places[1:], strict=False)]  # noqa: RUF007
    settled = theory.settled_points(ATOMS[:1], share, ESTIMATES, N, covariance)
    assert_allclose(settled.rate[0], moves[1] / moves[0])
    bounds = theory.covariance_bounds(covariance, np.concatenate([ESTIMATES, ATOMS]))
    assert settled.rate[0] < theory.contraction(share, ESTIMATES, N, bounds).constant[0]

    def score(a: np.ndarray) -> np.ndarray:
        def mean_log_density(at: np.ndarray) -> float:
            return float(gaussian_likelihood(ESTIMATES, N, covariance).log_likelihood(at[None])[:, 0].mean())

        step = 1e-5 * np.eye(2)
        return np.array([(mean_log_density(a + s) - mean_log_density(a - s)) / 2e-5 for s in step])

    assert_allclose(score(settled.root[0]), 0, atol=1e-5)


def test_no_bound_where_the_map_may_not_contract() -> None:
    bounds = theory.covariance_bounds(SQUARED, np.array([[0.1, 0.1], [3.0, 3.0]]))
    share = np.full((K, 1), 1 / K)
    bound = theory.score_root_bound(ATOMS[:1], share, ESTIMATES, N, SQUARED, bounds)
    assert bound.distance[0] == np.inf
    assert not bound.valid[0]


# ---------------------------------------------------------------- Hellinger, van Trees, risk


def within(estimate: theory.Estimate, exact: float) -> None:
    assert estimate.standard_error > 0
    assert abs(estimate.value - exact) < 4 * estimate.standard_error


def test_hellinger_of_equal_priors_is_zero() -> None:
    prior = (ATOMS, WEIGHTS)
    rng = np.random.default_rng(25)
    assert_allclose(theory.average_hellinger(prior, prior, N, FULL, rng=rng, draws=3), (0.0, 0.0), atol=1e-15)


def test_hellinger_of_two_gaussians() -> None:
    """1 - exp(-n (a - b)' P (a - b) / 8) for a common covariance."""
    a, b = np.zeros((1, D)), np.full((1, D), 0.3)
    rng = np.random.default_rng(26)
    estimate = theory.average_hellinger((a, np.ones(1)), (b, np.ones(1)), N, FULL, rng=rng, draws=400)
    squared = N * np.einsum("i,kij,j->k", b[0], FULL.unit_precision, b[0])
    within(estimate, float(np.mean(1 - np.exp(-squared / 8))))


@pytest.mark.parametrize("coordinate", [None, 0])
def test_hellinger_of_gaussians_with_different_variances(coordinate: int | None) -> None:
    """Variances t^2 at atoms 1 and 1.5; the overlap of N(a, v/n) and N(b, u/n) is known."""
    covariance, n = QuadraticVariance.squared(1, 40), np.full(40, 10.0)
    a, b = np.array([[1.0]]), np.array([[1.5]])
    v, u = 1.0, 2.25
    overlap = math.sqrt(2 * math.sqrt(v * u) / (v + u)) * math.exp(-10 * 0.25 / (4 * (v + u)))
    exact = 1 - overlap if coordinate is None else (v + u) / 2 - math.sqrt(v * u) * overlap
    rng = np.random.default_rng(27)
    one = (a, np.ones(1)), (b, np.ones(1))
    within(theory.average_hellinger(*one, n, covariance, rng=rng, draws=300, coordinate=coordinate), exact)


def test_hellinger_refuses_what_it_cannot_do() -> None:
    prior, rng = (ATOMS, WEIGHTS), np.random.default_rng(28)
    with pytest.raises(InvalidOption, match="draws"):
        theory.average_hellinger(prior, prior, N, FULL, rng=rng, draws=1)
    with pytest.raises(InvalidOption, match="coordinate"):
        theory.average_hellinger(prior, prior, N, FULL, rng=rng, coordinate=0)
    for singular in (ConstantDiagonal(np.zeros((K, D))), ConstantFull(np.ones((K, D, D)))):
        with pytest.raises(InvalidOption, match="singular"):
            theory.average_hellinger(prior, prior, N, singular, rng=rng)


def test_van_trees_is_sharp_for_a_gaussian_prior() -> None:
    """Prior N(0, g I), noise N(0, v I / n): the oracle's risk is d / (1/g + n/v), the lower bound itself."""
    g, v, n = 2.0, 3.0, np.full(5, 7.0)
    bounds = theory.covariance_bounds(ConstantDiagonal(np.full((5, D), 1 / v)), np.zeros((1, D)))
    low, high = theory.van_trees_bounds(bounds, n, np.eye(D) / g)
    assert_allclose(low, D / (1 / g + 7 / v))
    assert_allclose(high, D * v / 7)


def test_the_information_of_gaussian_mixtures() -> None:
    spread = np.array([[1.0, 0.3], [0.3, 0.5]])
    rng = np.random.default_rng(29)
    one = theory.prior_information(np.ones((1, D)), np.ones(1), spread, rng=rng, draws=20_000)
    assert_allclose(one, np.linalg.inv(spread), atol=0.1)
    # far apart, the components do not overlap and each brings its own information
    apart = np.array([[0.0, 0.0], [100.0, 100.0]])
    two = theory.prior_information(apart, np.array([0.5, 0.5]), spread, rng=rng, draws=20_000)
    assert_allclose(two, np.linalg.inv(spread), atol=0.1)
    # on top of each other's flanks they are wider than one, so they hold less
    near = theory.prior_information(np.array([[0.0, 0.0], [1.5, 0.0]]), np.array([0.5, 0.5]), spread, rng=rng)
    assert np.trace(near) < np.trace(one)


def test_the_risk_of_any_estimator_is_excess_plus_oracle() -> None:
    rng = np.random.default_rng(30)
    truth = rng.normal(size=(200_000, D))
    noisy = truth + rng.normal(size=truth.shape)
    oracle = noisy / 2
    risk = theory.risk_decomposition(noisy, oracle, truth)
    assert_allclose(risk.total, risk.excess + risk.oracle + risk.cross)
    assert_allclose(risk, (2.0, 1.0, 1.0, 0.0), atol=0.03)
