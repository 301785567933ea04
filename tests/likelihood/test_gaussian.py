"""One contract for every likelihood of Gaussian reports, against scipy, brute force and differences."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal

from vaneb import blocks
from vaneb.covariance import (
    ConstantDiagonal,
    ConstantFull,
    CovarianceFunction,
    EmpiricalGLM,
    MomentPoisson,
    QuadraticVariance,
    SandwichCovariance,
    callable_covariance,
)
from vaneb.likelihood.gaussian import ConstantGaussian, gaussian_likelihood
from vaneb.likelihood.gaussian_function import FunctionGaussian
from vaneb.likelihood.gaussian_shared import SharedGaussian

K, D, M = 9, 3, 4
RNG = np.random.default_rng(0)
N = RNG.integers(3, 9, size=K).astype(float)
ESTIMATES = 1.5 + 0.4 * RNG.normal(size=(K, D))
ATOMS = 1.5 + 0.3 * RNG.normal(size=(M, D))
LOG_WEIGHTS = RNG.normal(size=K)
_ROOTS = RNG.normal(size=(K, D, D))
FULL_PRECISION = _ROOTS @ np.swapaxes(_ROOTS, 1, 2) + 0.3 * np.eye(D)
#: Clients with one, two and three independent rows: ranks 1, 2 and 3.
SINGULAR_PRECISION = np.stack([_ROOTS[k, :, : 1 + k % 3] @ _ROOTS[k, :, : 1 + k % 3].T for k in range(K)])
#: The same for a covariance function: rows of covariates, fewer than parameters for some clients.
ROW_COUNTS = np.array([1, 2, 4] * (K // 3))
ROWS = RNG.normal(size=(ROW_COUNTS.sum(), D))
OFFSETS = np.concatenate([[0], np.cumsum(ROW_COUNTS)])


def user_variance(points: np.ndarray, client: int) -> np.ndarray:
    """Every variance depends on every coordinate."""
    return 0.5 + 0.1 * client + np.roll(points, 1, axis=1) ** 2 + 0.2 * points.sum(axis=1, keepdims=True) ** 2


def user_variance_gradient(points: np.ndarray, client: int) -> np.ndarray:
    shifted = np.roll(points, 1, axis=1)
    own = 2 * shifted[:, :, None] * np.roll(np.eye(D), 1, axis=0)
    return own + 0.4 * points.sum(axis=1)[:, None, None]


FAMILIES: dict[str, tuple[CovarianceFunction, type]] = {
    "constant-diagonal": (ConstantDiagonal(np.abs(RNG.normal(size=(K, D))) + 0.1), ConstantGaussian),
    "constant-full": (ConstantFull(FULL_PRECISION), ConstantGaussian),
    "constant-singular": (ConstantFull(SINGULAR_PRECISION), ConstantGaussian),
    "constant-zeros": (
        ConstantDiagonal(np.where(RNG.random((K, D)) < 0.4, 0.0, RNG.uniform(0.5, 2.0, (K, D)))),
        ConstantGaussian,
    ),
    "shared": (QuadraticVariance.negative_binomial(2.0, D, K), SharedGaussian),
    "function-diagonal": (
        callable_covariance(user_variance, K, D, diagonal=True, gradient=user_variance_gradient),
        FunctionGaussian,
    ),
    "function-full": (MomentPoisson(0.3 * RNG.normal(size=(K, D)), FULL_PRECISION / 10), FunctionGaussian),
    "function-singular": (EmpiricalGLM(ROWS, OFFSETS, "poisson"), FunctionGaussian),
}


@dataclass(frozen=True)
class Case:
    covariance: CovarianceFunction

    @property
    def likelihood(self):
        return gaussian_likelihood(ESTIMATES, N, self.covariance)

    def precision(self, client: int, atom: np.ndarray) -> np.ndarray:
        """n_k Sigma_k(atom)^{-1} as a matrix, straight from the covariance function."""
        unit = self.covariance.precision(atom[None, None])[client, 0]
        return N[client] * (np.diag(unit) if unit.ndim == 1 else unit)

    def on_range(self, client: int, atom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A basis B of the range of the precision, and the covariance of B'theta_hat."""
        values, vectors = np.linalg.eigh(self.precision(client, atom))
        kept = values > 1e-9 * values.max()
        return vectors[:, kept], np.diag(1 / values[kept])

    def log_density(self, client: int, atom: np.ndarray) -> float:
        basis, covariance = self.on_range(client, atom)
        if basis.shape[1] == 0:
            return 0.0
        return float(multivariate_normal(basis.T @ atom, covariance).logpdf(basis.T @ ESTIMATES[client]))


@pytest.fixture(params=FAMILIES, name="case")
def _case(request: pytest.FixtureRequest) -> Case:
    return Case(FAMILIES[request.param][0])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_type_of_the_covariance_picks_the_implementation(name: str) -> None:
    covariance, kind = FAMILIES[name]
    assert type(gaussian_likelihood(ESTIMATES, N, covariance)) is kind


def test_log_likelihood_is_the_normal_log_density(case: Case) -> None:
    expected = [[case.log_density(k, atom) for atom in ATOMS] for k in range(K)]
    assert_allclose(case.likelihood.log_likelihood(ATOMS), expected, rtol=1e-9, atol=1e-9)


def test_value_is_the_sum_of_exponentials(case: Case) -> None:
    expected = np.exp(case.likelihood.log_likelihood(ATOMS) + LOG_WEIGHTS[:, None]).sum(axis=0)
    assert_allclose(case.likelihood.ascent(ATOMS, LOG_WEIGHTS).value, expected, rtol=1e-10)


def test_gradient_is_that_of_the_value(case: Case) -> None:
    likelihood = case.likelihood
    gradient = likelihood.ascent(ATOMS, LOG_WEIGHTS).gradient
    for i in range(D):
        step = 1e-5 * np.eye(D)[i]
        above, below = (likelihood.ascent(ATOMS + s, LOG_WEIGHTS).value for s in (step, -step))
        assert_allclose(gradient[:, i], (above - below) / 2e-5, rtol=1e-5, atol=1e-7)


def test_frozen_gradient_and_information_leave_the_covariance_where_it_is(case: Case) -> None:
    """sum r Q e and sum r Q, Q the precision on the range at the atom, by brute force."""
    sums = case.likelihood.ascent(ATOMS, LOG_WEIGHTS, frozen=True)
    information = sums.information
    if information.ndim == 2:
        information = information[:, :, None] * np.eye(D)
    for j, atom in enumerate(ATOMS):
        gradient, expected, outer = np.zeros(D), np.zeros((D, D)), np.zeros((D, D))
        for k in range(K):
            basis, covariance = case.on_range(k, atom)
            share = np.exp(LOG_WEIGHTS[k] + case.log_density(k, atom))
            precision = basis @ np.linalg.inv(covariance) @ basis.T
            score = precision @ (ESTIMATES[k] - atom)
            gradient += share * score
            expected += share * precision
            outer += share * np.outer(score, score)
        assert_allclose(sums.gradient[j], gradient, rtol=1e-8, atol=1e-9)
        assert_allclose(information[j], expected, rtol=1e-8, atol=1e-9)
        assert_allclose(sums.outer[j], outer, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("frozen", [False, True])
def test_outer_and_information_are_symmetric_and_semidefinite(case: Case, frozen: bool) -> None:
    sums = case.likelihood.ascent(ATOMS, LOG_WEIGHTS, frozen=frozen)
    matrices = [sums.outer]
    if sums.information.ndim == 3:
        matrices.append(sums.information)
    else:
        assert (sums.information >= 0).all()
    for matrix in matrices:
        assert_allclose(matrix, np.swapaxes(matrix, 1, 2), rtol=1e-12, atol=1e-12)
        assert (np.linalg.eigvalsh(matrix) >= -1e-10 * np.abs(matrix).max()).all()


def test_information_is_the_expected_square_of_the_score(case: Case) -> None:
    """Over reports drawn at the atom, E[score] = 0 and E[score score'] = information.

    Both are polynomials of degree four at most in the report: three-point Gauss-Hermite is exact.
    """
    atom, client = ATOMS[0], 5
    basis, covariance = case.on_range(client, atom)
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(3)
    rank = len(covariance)
    grid = np.stack(np.meshgrid(*[nodes] * rank, indexing="ij"), axis=-1).reshape(-1, rank)
    weights = (
        np.stack(np.meshgrid(*[node_weights] * rank, indexing="ij"), axis=-1).reshape(-1, rank).prod(axis=1)
    )
    estimates = atom + grid @ np.linalg.cholesky(covariance).T @ basis.T
    rows = np.full(len(grid), client)
    likelihood = gaussian_likelihood(estimates, N[rows], case.covariance.take(rows))
    # Weights that undo the densities: an average over reports, not a sum weighted by likelihood.
    log_weights = np.log(weights / weights.sum()) - likelihood.log_likelihood(atom[None])[:, 0]
    sums = likelihood.ascent(atom[None], log_weights)
    assert_allclose(sums.value, 1.0, rtol=1e-9)
    assert_allclose(sums.gradient, 0.0, atol=1e-8)
    assert_allclose(sums.outer, as_matrices(sums.information), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("frozen", [False, True])
def test_without_curvature_the_rest_is_the_same(case: Case, frozen: bool) -> None:
    whole, part = (
        case.likelihood.ascent(ATOMS, LOG_WEIGHTS, frozen=frozen, curvature=c) for c in (True, False)
    )
    assert part.outer is None
    for name in ("value", "gradient", "information"):
        assert_allclose(getattr(part, name), getattr(whole, name), rtol=1e-12)


@pytest.mark.parametrize("name", ["constant-diagonal", "shared"])
def test_a_step_of_pseudo_em_makes_no_matrix_of_the_parameters(name: str) -> None:
    """With as many parameters as a network has, d x d numbers do not fit, for one atom or for many."""
    clients, d = 10, 2000
    rng = np.random.default_rng(4)
    estimates = 1.5 + 0.4 * rng.normal(size=(clients, d))
    covariance = {
        "constant-diagonal": ConstantDiagonal(np.ones((clients, d))),
        "shared": QuadraticVariance.negative_binomial(2.0, d, clients),
    }[name]
    likelihood = gaussian_likelihood(estimates, np.full(clients, 5.0), covariance)

    def step() -> None:
        own = likelihood.log_likelihood(estimates)
        likelihood.ascent(estimates, -own.max(axis=1), frozen=True, curvature=False)
        likelihood.peak()

    step()  # compiles, and makes what is kept
    tracemalloc.start()
    try:
        step()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 * estimates.nbytes < d * d * 8


def test_taking_clients_is_taking_rows(case: Case) -> None:
    likelihood = case.likelihood
    everyone = likelihood.log_likelihood(ATOMS)
    for rows in (np.array([4, 0, 4]), slice(2, 6)):
        part = likelihood.take(rows)
        assert part.n_clients == len(everyone[rows])
        # both from a likelihood that has computed what it caches and from a fresh one
        assert_allclose(part.log_likelihood(ATOMS), everyone[rows], rtol=1e-12)
        assert_allclose(case.likelihood.take(rows).log_likelihood(ATOMS), everyone[rows], rtol=1e-12)
        assert_allclose(part.peak(), likelihood.peak()[rows], rtol=1e-12)
        assert_array_equal(part.local_estimates(), ESTIMATES[rows])
        assert_allclose(part.local_precision(), likelihood.local_precision()[rows])


def test_sums_do_not_depend_on_the_order_of_clients(case: Case) -> None:
    order = np.random.default_rng(2).permutation(K)
    here = case.likelihood.ascent(ATOMS, LOG_WEIGHTS)
    there = case.likelihood.take(order).ascent(ATOMS, LOG_WEIGHTS[order])
    for a, b in zip(here, there, strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["constant-diagonal", "constant-full", "shared", "function-full"])
def test_threads_do_not_change_a_digit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2 * blocks.BLOCK_CLIENTS + 100
    rng = np.random.default_rng(3)
    rows = rng.integers(K, size=size)
    estimates = 1.5 + 0.4 * rng.normal(size=(size, D))
    log_weights = rng.normal(size=size)
    found = []
    for count in ("1", "2"):
        monkeypatch.setenv("VANEB_THREADS", count)
        likelihood = gaussian_likelihood(estimates, N[rows], FAMILIES[name][0].take(rows))
        found.append((likelihood.log_likelihood(ATOMS), *likelihood.ascent(ATOMS, log_weights)))
    for one, two in zip(*found, strict=True):
        assert_array_equal(one, two)
    # and many clients in blocks are the sum over clients
    direct = np.exp(found[0][0] + log_weights[:, None]).sum(axis=0)
    assert_allclose(found[0][1], direct, rtol=1e-9)


def test_peak_is_the_density_at_the_clients_own_estimate(case: Case) -> None:
    own = [case.log_density(k, ESTIMATES[k]) for k in range(K)]
    assert_allclose(case.likelihood.peak(), own, rtol=1e-9, atol=1e-9)


def test_at_is_the_log_likelihood_at_points_of_the_clients_own(case: Case) -> None:
    points = ATOMS[np.arange(K) % M] + 0.1 * ESTIMATES
    own = np.diagonal(case.likelihood.log_likelihood(points))
    assert_allclose(case.likelihood.at(points), own, rtol=1e-9, atol=1e-9)


def test_local_precision_is_that_at_the_clients_own_estimate(case: Case) -> None:
    local = case.likelihood.local_precision()
    for k in range(K):
        matrix = np.diag(local[k]) if local.ndim == 2 else local[k]
        assert_allclose(matrix, case.precision(k, ESTIMATES[k]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["callable-diagonal", "callable-full", "sandwich", "normal"])
def test_a_constant_given_as_a_function_is_the_constant(kind: str) -> None:
    diagonal = np.array([0.4, 1.0, 2.5])
    full = np.linalg.inv(FULL_PRECISION)
    function, constant = {
        "callable-diagonal": (
            callable_covariance(lambda x, k: np.broadcast_to(diagonal, x.shape), K, D, diagonal=True),
            ConstantDiagonal.from_variances(np.tile(diagonal, (K, 1))),
        ),
        "callable-full": (
            callable_covariance(lambda x, k: np.broadcast_to(full[k], (len(x), D, D)), K, D, diagonal=False),
            ConstantFull(FULL_PRECISION),
        ),
        "sandwich": (
            SandwichCovariance(ConstantFull(FULL_PRECISION), ConstantFull(FULL_PRECISION)),
            ConstantFull(FULL_PRECISION),
        ),
        "normal": (
            QuadraticVariance.normal(diagonal, D, K),
            ConstantDiagonal.from_variances(np.tile(diagonal, (K, 1))),
        ),
    }[kind]
    here, there = (gaussian_likelihood(ESTIMATES, N, covariance) for covariance in (function, constant))
    assert type(here) is not type(there)
    assert_allclose(here.log_likelihood(ATOMS), there.log_likelihood(ATOMS), rtol=1e-9, atol=1e-9)
    for frozen in (False, True):
        one, two = (x.ascent(ATOMS, LOG_WEIGHTS, frozen=frozen) for x in (here, there))
        assert_allclose(one.value, two.value, rtol=1e-9)
        assert_allclose(one.gradient, two.gradient, rtol=1e-7, atol=1e-9)
        assert_allclose(one.outer, two.outer, rtol=1e-7, atol=1e-9)
        assert_allclose(as_matrices(one.information), as_matrices(two.information), rtol=1e-7, atol=1e-9)


def as_matrices(information: np.ndarray) -> np.ndarray:
    return information if information.ndim == 3 else information[:, :, None] * np.eye(D)


def test_an_offset_is_added_to_every_client() -> None:
    offset = RNG.normal(size=K)
    plain = ConstantGaussian(ESTIMATES, FULL_PRECISION)
    shifted = ConstantGaussian(ESTIMATES, FULL_PRECISION, offset)
    assert_allclose(shifted.log_likelihood(ATOMS), plain.log_likelihood(ATOMS) + offset[:, None])
    assert_allclose(shifted.peak(), plain.peak() + offset)
    part = shifted.take(np.array([3, 1]))
    expected = plain.take(np.array([3, 1])).log_likelihood(ATOMS)
    assert_allclose(part.log_likelihood(ATOMS), expected + offset[[3, 1], None])


@pytest.mark.parametrize("name", ["constant-full", "constant-singular"])
def test_units_of_theta_change_nothing_but_units(name: str) -> None:
    """A slope per year or per microsecond: what the clients know is the same."""
    units = np.array([1e5, 1.0, 1e-5])
    precision = FAMILIES[name][0].unit_precision
    here = gaussian_likelihood(ESTIMATES, N, ConstantFull(precision))
    there = gaussian_likelihood(ESTIMATES * units, N, ConstantFull(precision / units[:, None] / units))
    shift = there.log_likelihood(ATOMS * units) - here.log_likelihood(ATOMS)
    # The Jacobian on the range does not depend on the atom, and is one where the range is everything.
    assert_allclose(shift, np.broadcast_to(shift[:, :1], shift.shape), atol=1e-6)
    assert_allclose(shift[np.linalg.matrix_rank(precision) == D], 0.0, atol=1e-6)
    for k in np.flatnonzero(np.linalg.matrix_rank(precision) == 1):
        direction = np.linalg.eigh(precision[k])[1][:, -1]
        assert_allclose(shift[k], np.log(np.linalg.norm(direction / units)), rtol=1e-6)
    one = here.ascent(ATOMS, LOG_WEIGHTS)
    two = there.ascent(ATOMS * units, LOG_WEIGHTS - shift[:, 0])
    assert_allclose(two.gradient * units, one.gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("units", [np.ones(D), np.array([1e5, 1.0, 1e-5])], ids=["same", "different"])
def test_a_constant_of_any_rank_is_the_same_as_a_function(units: np.ndarray) -> None:
    """H J^+ H with H = J = P is P, whatever its rank, its units, and the sample size."""
    parts = ConstantFull(SINGULAR_PRECISION / units[:, None] / units)
    for n in (N, 1e9 * N):
        function = FunctionGaussian(ESTIMATES * units, n, parts)
        constant = gaussian_likelihood(ESTIMATES * units, n, parts)
        expected = constant.log_likelihood(ATOMS * units)
        assert_allclose(function.log_likelihood(ATOMS * units), expected, rtol=1e-5, atol=1e-6)


def test_huge_precisions_keep_their_rank() -> None:
    """A client with very many rows in two of three directions."""
    case = Case(ConstantFull(1e9 * SINGULAR_PRECISION))
    expected = [[case.log_density(k, atom) for atom in ATOMS] for k in range(K)]
    assert_allclose(case.likelihood.log_likelihood(ATOMS), expected, rtol=1e-6)


def test_far_away_is_far_not_an_error() -> None:
    """Atoms at the end of the world: log-likelihoods are finite, sums are zero, nothing is nan."""
    far = np.full((1, D), 1e9)
    for covariance, _ in FAMILIES.values():
        likelihood = gaussian_likelihood(ESTIMATES, 1e6 * N, covariance)
        if isinstance(likelihood, FunctionGaussian | SharedGaussian):
            far = np.full((1, D), 50.0)
        assert np.isfinite(likelihood.log_likelihood(far)).all()
        sums = likelihood.ascent(far, LOG_WEIGHTS - 1000.0)
        assert all(np.isfinite(part).all() for part in sums)


@pytest.mark.parametrize(
    "name", ["function-diagonal", "function-full", "function-singular", "constant-diagonal"]
)
def test_an_em_step_in_one_pass_is_that_in_two(name: str) -> None:
    likelihood = Case(FAMILIES[name][0]).likelihood
    log_prior = np.log(np.arange(1.0, len(ATOMS) + 1)) - 1.0
    density, sums = likelihood.expectation(ATOMS, log_prior)
    expected = np.log(np.exp(likelihood.log_likelihood(ATOMS) + log_prior).sum(axis=1))
    assert_allclose(density, expected, rtol=1e-12, atol=1e-12)
    log_weights = -np.log(K) - expected
    want = likelihood.ascent(ATOMS, log_weights, frozen=True, curvature=False)
    for a, b in zip(sums, want, strict=True):
        if b is not None:
            assert_allclose(a, b, rtol=1e-9, atol=1e-9 * float(np.abs(b).max()))
