"""The mixed model against its own marginal density, brute force, and designs that cannot be told apart."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize

from vaneb.errors import InvalidReport
from vaneb.grouped.mixed_model import _Moments, mixed_model
from vaneb.local.client_sums import outer_sums
from vaneb.local.data import GroupedRows


def simulated(seed: int, sizes: np.ndarray, sd: float = 1.0) -> GroupedRows:
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    design = np.column_stack([np.ones(len(client)), rng.standard_normal(len(client))])
    theta = rng.multivariate_normal([5, 1], [[1, 0.3], [0.3, 0.5]], len(sizes))
    response = (design * theta[client]).sum(axis=1) + sd * rng.standard_normal(len(client))
    return GroupedRows.from_columns(client, design, response)


def minus_log_density(rows: GroupedRows, mean: np.ndarray, spread: np.ndarray, variance: float) -> float:
    """Of all responses, from the definition."""
    total = 0.0
    for k in range(rows.n_clients):
        part = slice(rows.starts[k], rows.starts[k + 1])
        z = rows.design[part]
        cov = z @ spread @ z.T + variance * np.eye(len(z))
        away = rows.response[part] - z @ mean
        total += 0.5 * float(np.linalg.slogdet(2 * np.pi * cov)[1] + away @ np.linalg.solve(cov, away))
    return total


@pytest.mark.parametrize("restricted", [True, False])
def test_gradient(restricted: bool) -> None:
    rows = simulated(0, np.array([1, 2, 3, 4, 5, 6]))
    gram = outer_sums(rows.design, rows.starts)
    cross = np.add.reduceat(rows.design * rows.response[:, None], rows.starts[:-1], axis=0)
    square = float(rows.response @ rows.response)
    moments = _Moments(gram, cross, square, len(rows.response), 0.1, restricted)
    factor = np.array([[0.7, 0.0], [0.2, 0.4]])
    numeric = approx_fprime(factor.ravel(), lambda f: moments.deviance(f.reshape(2, 2))[0], 1e-6)
    assert_allclose(moments.deviance(factor)[1].ravel(), numeric, rtol=1e-4, atol=1e-4)


def test_maximum_likelihood_is_that_of_the_marginal_density() -> None:
    rows = simulated(1, np.full(12, 4))
    found = mixed_model(rows, free=np.tri(2, dtype=bool), restricted=False)
    at_found = minus_log_density(rows, found.mean, found.spread, found.variance)

    def loss(x: np.ndarray) -> float:
        root = np.array([[x[2], 0], [x[3], x[4]]])
        return minus_log_density(rows, x[:2], root @ root.T, float(np.exp(x[5])))

    best = minimize(loss, [5, 1, 1, 0.3, 0.6, 0.0], method="Nelder-Mead", options={"maxiter": 4000})
    assert at_found == pytest.approx(best.fun, abs=1e-3)


def test_restricted_likelihood_of_balanced_one_way_data_is_the_analysis_of_variance() -> None:
    rng = np.random.default_rng(2)
    k, n = 12, 5
    y = rng.standard_normal(k)[:, None] * 2 + rng.standard_normal((k, n))
    rows = GroupedRows.from_columns(np.repeat(np.arange(k), n), np.ones((k * n, 1)), y.ravel())
    found = mixed_model(rows, restricted=True)
    within = y.var(axis=1, ddof=1).mean()
    assert found.variance == pytest.approx(within, rel=1e-4)
    assert found.spread[0, 0] == pytest.approx(y.mean(axis=1).var(ddof=1) - within / n, rel=1e-4)
    assert found.mean[0] == pytest.approx(y.mean())


def test_clients_of_one_or_two_rows_reveal_the_noise() -> None:
    sizes = np.random.default_rng(3).integers(1, 3, 4000)
    found = mixed_model(simulated(3, sizes, sd=1.5))
    assert found.identified
    assert found.variance == pytest.approx(2.25, rel=0.1)


def test_units_of_the_columns_do_not_matter() -> None:
    rows = simulated(4, np.full(30, 4))
    scaled = GroupedRows.from_columns(
        rows.client_of_row, rows.design * [1.0, 1e5], rows.response * 100 + 1e4, offset=rows.offset
    )
    first, second = mixed_model(rows), mixed_model(scaled)
    assert_allclose(second.variance, 1e4 * first.variance, rtol=1e-4)
    assert_allclose(second.spread[1, 1], 1e4 / 1e10 * first.spread[1, 1], rtol=1e-3)


def test_one_row_per_client_cannot_tell_noise_from_population() -> None:
    rows = simulated(5, np.ones(200, dtype=int))
    found = mixed_model(rows)
    assert not found.identified
    # What could be either is taken for noise.
    assert found.spread[0, 0] < 0.2 * found.variance


def test_same_two_points_at_every_client_cannot_either() -> None:
    rng = np.random.default_rng(6)
    design = np.tile([[1.0, 0.0], [1.0, 1.0]], (50, 1))
    rows = GroupedRows.from_columns(np.repeat(np.arange(50), 2), design, rng.standard_normal(100))
    assert not mixed_model(rows).identified


def test_rows_without_noise_and_too_few_rows() -> None:
    rows = simulated(7, np.full(5, 3))
    exact = GroupedRows.from_columns(rows.client_of_row, rows.design, rows.design @ [1.0, 2.0])
    assert 0 < mixed_model(exact).variance < 1e-8
    with pytest.raises(InvalidReport, match="1 rows cannot tell"):
        mixed_model(GroupedRows.from_columns(["a"], [[1.0]], [2.0]))
