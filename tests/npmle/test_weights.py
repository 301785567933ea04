"""Mixing weights against independent solvers, the optimality conditions, and problems made to be awkward."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from vaneb.npmle import weights as module
from vaneb.npmle.weights import (
    gaps_of_columns,
    mixture,
    nonnegative_quadratic,
    npmle_weights,
    restricted_weights,
    scaled_likelihood,
)


def normal_likelihood(n_clients: int, n_atoms: int, seed: int = 0, sd: float = 1.0) -> np.ndarray:
    """Clients from two groups, atoms on a grid that covers them, rows scaled to a maximum of one."""
    rng = np.random.default_rng(seed)
    estimates = rng.choice([-2.0, 2.0], n_clients) + sd * rng.normal(size=n_clients)
    grid = np.linspace(estimates.min(), estimates.max(), n_atoms)
    return scaled_likelihood(-0.5 * ((estimates[:, None] - grid) / sd) ** 2)[0]


def value(likelihood: np.ndarray, weights: np.ndarray) -> float:
    return float(np.log(likelihood @ weights).mean())


def gap(likelihood: np.ndarray, weights: np.ndarray) -> float:
    """max_j D_j, recomputed from its definition."""
    return float(((likelihood / (likelihood @ weights)[:, None]).mean(axis=0) - 1).max())


def by_em(likelihood: np.ndarray, steps: int) -> np.ndarray:
    weights = np.full(likelihood.shape[1], 1 / likelihood.shape[1])
    for _ in range(steps):
        weights = weights * ((1 / (likelihood @ weights)) @ likelihood) / len(likelihood)
    return weights


def by_slsqp(likelihood: np.ndarray) -> np.ndarray:
    m = likelihood.shape[1]
    found = minimize(
        lambda w: -np.log(likelihood @ w).mean(),
        np.full(m, 1 / m),
        jac=lambda w: -(likelihood / (likelihood @ w)[:, None]).mean(axis=0),
        method="SLSQP",
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(m)},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.x


def assert_solves(likelihood: np.ndarray, solution, tol: float) -> None:
    weights = solution.weights
    assert weights.shape == (likelihood.shape[1],)
    assert (weights >= 0).all()
    assert_allclose(weights.sum(), 1.0, rtol=1e-12)
    assert_allclose(solution.gap, gap(likelihood, weights), rtol=1e-6, atol=1e-12)
    assert solution.gap <= tol


@pytest.mark.parametrize(
    ("n_clients", "n_atoms", "seed"), [(30, 5, 0), (60, 12, 1), (25, 20, 2), (12, 30, 3)]
)
def test_no_worse_than_slsqp(n_clients: int, n_atoms: int, seed: int) -> None:
    likelihood = normal_likelihood(n_clients, n_atoms, seed)
    solution = npmle_weights(likelihood, tol=1e-10)
    assert_solves(likelihood, solution, 1e-10)
    other = by_slsqp(likelihood)
    assert_allclose(value(likelihood, solution.weights), value(likelihood, other), atol=1e-7)
    # f is unique even where the weights are not
    assert_allclose(likelihood @ solution.weights, likelihood @ other, rtol=2e-3)


def test_agrees_with_em_run_for_long() -> None:
    likelihood = normal_likelihood(200, 15, seed=4)
    slow = by_em(likelihood, 40_000)
    assert gap(likelihood, slow) < 1e-5
    fast = npmle_weights(likelihood, tol=1e-10)
    assert value(likelihood, fast.weights) >= value(likelihood, slow) - 1e-12
    assert value(likelihood, fast.weights) <= value(likelihood, slow) + gap(likelihood, slow)
    assert_allclose(fast.weights, slow, atol=1e-3)


@pytest.mark.parametrize("tol", [1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("n_atoms", [10, 100, 300, 1500])
def test_the_gap_is_what_it_says(n_atoms: int, tol: float) -> None:
    likelihood = normal_likelihood(300, n_atoms, seed=5)
    assert_solves(likelihood, npmle_weights(likelihood, tol=tol), tol)


def test_the_optimum_satisfies_the_conditions_of_karush_kuhn_tucker() -> None:
    likelihood = normal_likelihood(400, 300, seed=6)
    solution = npmle_weights(likelihood, tol=1e-9)
    gaps = gaps_of_columns(likelihood, mixture(likelihood, solution.weights), np.full(400, 1 / 400))
    assert gaps.max() <= 1e-9
    # complementary slackness: weight only where D = 0; and the D's average to zero under the weights
    assert_allclose(solution.weights @ gaps, 0.0, atol=1e-12)
    assert np.abs(gaps[solution.weights > 1e-6]).max() < 1e-6
    assert (solution.weights > 0).sum() < 15


@pytest.mark.parametrize("sd", [0.02, 0.005])
def test_sparse_rows_take_the_sparse_hessian_and_the_same_optimum(sd: float) -> None:
    """Precise clients: each row matters in a few columns only, and many start active."""
    likelihood = normal_likelihood(500, 900, seed=7, sd=sd)
    density = mixture(likelihood, np.full(900, 1 / 900))
    assert (likelihood > 1e-9 * density[:, None]).mean() < 0.15
    solution = npmle_weights(likelihood, tol=1e-9, start=np.full(900, 1 / 900))
    assert_solves(likelihood, solution, 1e-9)
    slow = by_em(likelihood, 2000)
    assert value(likelihood, slow) <= value(likelihood, solution.weights) + 1e-9
    assert value(likelihood, solution.weights) <= value(likelihood, slow) + gap(likelihood, slow)


def test_restricted_weights_solve_for_the_columns_they_keep() -> None:
    likelihood = normal_likelihood(300, 60, seed=17)
    active = np.array([50, 3, 17, 31, 8])
    weights, density = restricted_weights(
        likelihood, active, np.full(5, 0.2), np.full(300, 1 / 300), tol=1e-10, max_steps=100
    )
    assert_allclose(density, likelihood[:, active] @ weights, rtol=1e-12)
    gaps = gaps_of_columns(likelihood[:, active], density, np.full(300, 1 / 300))
    assert_allclose(gaps[weights > 0], 0.0, atol=1e-9)
    # a column that fell to zero does not come back here, but the others have the weights that are best then
    kept = weights > 0
    assert_allclose(weights[kept], by_slsqp(likelihood[:, active[kept]]), atol=1e-4)


@pytest.mark.parametrize("sd", [0.02, 2.0])
def test_newton_systems_are_what_they_say(sd: float) -> None:
    """Precise clients take the loop over entries that matter, others the product."""
    likelihood = normal_likelihood(300, 400, seed=8, sd=sd)
    density, share = likelihood @ np.full(400, 1 / 400), np.arange(1.0, 301.0)
    share /= share.sum()
    hessian, total = module._newton_system(module.Columns(likelihood, None), density, share)
    ratio = likelihood / density[:, None]
    assert_allclose(total, share @ ratio, rtol=1e-12, atol=1e-300)
    want = ratio.T @ (share[:, None] * ratio)
    assert_allclose(hessian, want, rtol=1e-6, atol=1e-6 * want.max())


def test_a_client_that_stands_for_two_is_two_clients() -> None:
    likelihood = normal_likelihood(120, 40, seed=19)
    counts = np.random.default_rng(0).integers(1, 4, 120)
    share = counts / counts.sum()
    here = npmle_weights(likelihood, tol=1e-10, share=share)
    there = npmle_weights(np.repeat(likelihood, counts, axis=0), tol=1e-10)
    assert_allclose(likelihood @ here.weights, likelihood @ there.weights, rtol=1e-6)
    # and not what everyone counted once gives
    assert (
        np.abs(
            likelihood @ npmle_weights(likelihood, tol=1e-10).weights / (likelihood @ here.weights) - 1
        ).max()
        > 1e-3
    )


def test_a_matrix_in_single_precision_is_not_copied_and_has_the_same_optimum() -> None:
    double = normal_likelihood(300, 200, seed=18, sd=0.3)
    small = npmle_weights(double, tol=1e-10)
    likelihood = double.astype(np.float32)
    which = np.array([5, 3, 150])
    columns = module.Columns.of(likelihood, which)
    assert columns.matrix is likelihood
    assert columns.only(np.array([True, False, True])).matrix is likelihood
    assert_allclose(columns.times(np.array([1.0, 2.0, 3.0])), likelihood[:, which] @ [1.0, 2.0, 3.0])
    large = npmle_weights(likelihood, tol=1e-5)
    assert large.gap <= 1e-5
    lost = np.log(double @ small.weights).mean() - np.log(double @ large.weights).mean()
    assert -1e-9 <= lost <= 2e-5


def test_columns_in_any_order() -> None:
    likelihood = normal_likelihood(150, 60, seed=9)
    order = np.random.default_rng(0).permutation(60)
    here, there = npmle_weights(likelihood, tol=1e-10), npmle_weights(likelihood[:, order], tol=1e-10)
    assert_allclose(likelihood[:, order] @ there.weights, likelihood @ here.weights, rtol=1e-6)


def test_duplicated_columns_share_a_weight() -> None:
    likelihood = normal_likelihood(100, 8, seed=10)
    twice = np.concatenate([likelihood, likelihood, likelihood[:, :3]], axis=1)
    solution = npmle_weights(twice, tol=1e-9)
    assert_solves(twice, solution, 1e-9)
    single = npmle_weights(likelihood, tol=1e-10)
    total = solution.weights[:8] + solution.weights[8:16] + np.pad(solution.weights[16:], (0, 5))
    assert_allclose(total, single.weights, atol=1e-4)


def test_nearly_equal_columns() -> None:
    likelihood = normal_likelihood(100, 8, seed=10)
    close = np.concatenate([likelihood, likelihood * (1 + 1e-11), likelihood * (1 - 1e-10)], axis=1)
    assert_solves(close, npmle_weights(close, tol=1e-8), 1e-8)


def test_one_column_has_all_the_weight() -> None:
    solution = npmle_weights(normal_likelihood(20, 2)[:, :1])
    assert_allclose(solution.weights, [1.0])
    assert_allclose(solution.gap, 0.0, atol=1e-12)


def test_one_row_takes_its_best_column() -> None:
    row = np.array([[0.2, 1.0, 0.7, 0.99]])
    assert_allclose(npmle_weights(row, tol=1e-10).weights, [0, 1, 0, 0], atol=1e-8)


def test_columns_that_nobody_else_explains_each_get_their_row() -> None:
    """An identity matrix: every client has its own atom, every weight is 1 / K."""
    solution = npmle_weights(np.eye(250), tol=1e-10)
    assert_allclose(solution.weights, 1 / 250, rtol=1e-6)


def test_groups_get_their_shares() -> None:
    likelihood = np.zeros((10, 3))
    likelihood[:2, 0] = likelihood[2:7, 1] = likelihood[7:, 2] = 1.0
    assert_allclose(npmle_weights(likelihood, tol=1e-12).weights, [0.2, 0.5, 0.3], atol=1e-10)


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30])
def test_scaling_a_row_changes_nothing(scale: float) -> None:
    likelihood = normal_likelihood(80, 25, seed=11)
    scaled = likelihood.copy()
    scaled[::3] *= scale
    here, there = npmle_weights(likelihood, tol=1e-10), npmle_weights(scaled, tol=1e-10)
    assert_solves(likelihood, there, 1e-9)
    assert_allclose(there.weights, here.weights, atol=1e-4)


def test_rows_with_tiny_likelihoods_are_explained() -> None:
    """A client that one late column alone explains, by a factor of 1e250, gets that column."""
    likelihood = np.concatenate([normal_likelihood(200, 200, seed=12), np.zeros((200, 1))], axis=1)
    outlier = np.full((1, 201), 1e-250)
    outlier[0, 200] = 1.0
    likelihood = np.concatenate([likelihood, outlier])
    solution = npmle_weights(likelihood, tol=1e-8)
    assert_solves(likelihood, solution, 1e-8)
    assert_allclose(solution.weights[200], 1 / 201, rtol=1e-6)


def test_a_row_whose_only_column_did_not_carry_weight_at_the_start() -> None:
    likelihood = normal_likelihood(50, 20, seed=13)
    likelihood[0] = 0.0
    likelihood[0, 7] = 1.0
    start = np.full(20, 1 / 19)
    start[7] = 0.0
    solution = npmle_weights(likelihood, tol=1e-9, start=start)
    assert_solves(likelihood, solution, 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_starting_weights_do_not_change_the_optimum(seed: int) -> None:
    likelihood = normal_likelihood(120, 40, seed=14)
    rng = np.random.default_rng(seed)
    start = rng.dirichlet(np.full(40, 0.1)) * 7.0
    start[rng.random(40) < 0.5] = 0.0
    best = npmle_weights(likelihood, tol=1e-10)
    solution = npmle_weights(likelihood, tol=1e-10, start=start)
    assert_solves(likelihood, solution, 1e-10)
    assert_allclose(likelihood @ solution.weights, likelihood @ best.weights, rtol=1e-6)
    # and from the solution itself there is next to nothing to do
    assert npmle_weights(likelihood, tol=1e-9, start=best.weights).passes == 1


def test_a_start_of_zeros_is_no_start() -> None:
    likelihood = normal_likelihood(30, 10)
    assert_solves(likelihood, npmle_weights(likelihood, start=np.zeros(10)), 1e-8)


def test_duplicating_all_rows_changes_nothing() -> None:
    likelihood = normal_likelihood(70, 30, seed=15)
    here, there = npmle_weights(likelihood, tol=1e-10), npmle_weights(np.tile(likelihood, (3, 1)), tol=1e-10)
    assert_allclose(likelihood @ there.weights, likelihood @ here.weights, rtol=1e-6)


def test_threads_do_not_change_a_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    likelihood = normal_likelihood(40_000, 12, seed=16)
    found = []
    for count in ("1", "2"):
        monkeypatch.setenv("VANEB_THREADS", count)
        found.append(npmle_weights(likelihood).weights)
    assert (found[0] == found[1]).all()


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.sampled_from([1.0, 10.0, 60.0]),
)
def test_any_likelihood_is_solved(n_clients: int, m: int, seed: int, zeros: float, spread: float) -> None:
    """Random tables with zeros, near-zeros and more columns than rows."""
    rng = np.random.default_rng(seed)
    logs = -spread * rng.random((n_clients, m))
    likelihood = np.where(rng.random((n_clients, m)) < zeros, 0.0, np.exp(logs))
    likelihood[np.arange(n_clients), rng.integers(m, size=n_clients)] = 1.0
    assert_solves(likelihood, npmle_weights(likelihood, tol=1e-7), 1e-7)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 10**6))
def test_quadratic_programmes_satisfy_their_conditions(size: int, rank: int, seed: int) -> None:
    """min v'Hv/2 - b'v over v >= 0 with b in the range of H, also for singular H."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(rank, size))
    hessian = root.T @ root
    linear = hessian @ rng.normal(size=size)
    solution = nonnegative_quadratic(hessian, linear, np.maximum(rng.normal(size=size), 0.0))
    gradient = linear - hessian @ solution
    scale = 1 + np.abs(linear).max()
    assert (solution >= 0).all()
    assert gradient.max() <= 1e-5 * scale
    assert_allclose(gradient * solution, 0.0, atol=1e-4 * scale * (1 + solution.max()))


def test_scaled_likelihood_is_in_safe_range() -> None:
    logs = np.array([[-1000.0, -1001.0], [800.0, 700.0]])
    matrix, top = scaled_likelihood(logs.copy())
    assert_allclose(top, [-1000.0, 800.0])
    assert_allclose(matrix, [[1.0, np.exp(-1.0)], [1.0, np.exp(-100.0)]])
