"""The mixed model against its own marginal density, brute force, and designs that cannot be told apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime, minimize

from vaneb.errors import InvalidReport
from vaneb.grouped.mixed_model import (
    MixedModel,
    Moments,
    centred_rows,
    deviance,
    fit_moments,
    identified,
)
from vaneb.local.client_sums import outer_sums
from vaneb.local.data import GroupedRows


def simulated(seed: int, sizes: np.ndarray, sd: float = 1.0) -> GroupedRows:
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(len(sizes)), sizes)
    design = np.column_stack([np.ones(len(client)), rng.standard_normal(len(client))])
    theta = rng.multivariate_normal([5, 1], [[1, 0.3], [0.3, 0.5]], len(sizes))
    response = (design * theta[client]).sum(axis=1) + sd * rng.standard_normal(len(client))
    return GroupedRows.from_columns(client, design, response)


def mixed_model(rows: GroupedRows) -> MixedModel:
    """All coefficients differ, in the coordinates of the columns themselves."""
    centred = centred_rows(rows)
    found = centred.model(np.arange(rows.design.shape[1]))
    root = centred.basis @ found.root  # not triangular, but a root all the same
    return replace(found, mean=centred.basis @ found.mean, root=root)


def minus_log_density(rows: GroupedRows, mean: np.ndarray, spread: np.ndarray, variance: float) -> float:
    """Of all responses, from the definition; and of mu, flat beforehand, so that it is integrated out."""
    total, known = 0.0, np.zeros((len(mean), len(mean)))
    for k in range(rows.n_clients):
        part = slice(rows.starts[k], rows.starts[k + 1])
        z = rows.design[part]
        cov = z @ spread @ z.T + variance * np.eye(len(z))
        away = rows.response[part] - z @ mean
        total += 0.5 * float(np.linalg.slogdet(2 * np.pi * cov)[1] + away @ np.linalg.solve(cov, away))
        known += z.T @ np.linalg.solve(cov, z)
    return total + 0.5 * float(np.linalg.slogdet(known)[1])


def test_gradient() -> None:
    rows = simulated(0, np.array([1, 2, 3, 4, 5, 6]))
    gram = outer_sums(rows.design, rows.starts)
    cross = np.add.reduceat(rows.design * rows.response[:, None], rows.starts[:-1], axis=0)
    square = float(rows.response @ rows.response)
    for moments in (Moments(gram, cross, square, len(rows.response), 0.1), Moments(gram, cross)):
        for varying, factor in (([0, 1], np.array([[0.7, 0.0], [0.2, 0.4]])), ([1], np.array([[0.6]]))):
            at = np.array(varying)

            def value(f: np.ndarray, moments=moments, at=at) -> float:
                return deviance(moments, at, f.reshape(len(at), -1))[0]

            numeric = approx_fprime(factor.ravel(), value, 1e-6)
            found = deviance(moments, at, factor)[1].ravel()
            assert_allclose(found, numeric, rtol=1e-4, atol=1e-3)


def test_restricted_likelihood_is_that_of_the_marginal_density() -> None:
    rows = simulated(1, np.full(12, 4))
    found = mixed_model(rows)
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
    found = mixed_model(rows)
    within = y.var(axis=1, ddof=1).mean()
    assert found.variance == pytest.approx(within, rel=1e-4)
    assert found.spread[0, 0] == pytest.approx(y.mean(axis=1).var(ddof=1) - within / n, rel=1e-4)
    assert found.mean[0] == pytest.approx(y.mean())


def told_apart(rows: GroupedRows, varying: list[int]) -> bool:
    return identified(centred_rows(rows).moments.gram, rows.n_rows, np.array(varying))


def test_clients_of_one_or_two_rows_reveal_the_noise() -> None:
    sizes = np.random.default_rng(3).integers(1, 3, 4000)
    rows = simulated(3, sizes, sd=1.5)
    assert told_apart(rows, [0, 1])
    assert mixed_model(rows).variance == pytest.approx(2.25, rel=0.1)


def test_units_of_the_columns_do_not_matter() -> None:
    rows = simulated(4, np.full(30, 4))
    scaled = GroupedRows.from_columns(
        rows.client_of_row, rows.design * [1.0, 1e5], rows.response * 100 + 1e4, offset=rows.offset
    )
    first, second = mixed_model(rows), mixed_model(scaled)
    assert_allclose(second.variance, 1e4 * first.variance, rtol=1e-4)
    assert_allclose(second.spread[1, 1], 1e4 / 1e10 * first.spread[1, 1], rtol=1e-3)


def test_designs_that_cannot_tell_noise_from_population() -> None:
    rng = np.random.default_rng(6)
    assert not told_apart(simulated(5, np.ones(200, dtype=int)), [0, 1])
    design = np.tile([[1.0, 0.0], [1.0, 1.0]], (50, 1))
    same = GroupedRows.from_columns(np.repeat(np.arange(50), 2), design, rng.standard_normal(100))
    assert not told_apart(same, [0, 1])
    assert told_apart(same, [0])


def test_rows_without_noise_and_too_few_rows() -> None:
    rows = simulated(7, np.full(5, 3))
    exact = GroupedRows.from_columns(rows.client_of_row, rows.design, rows.design @ [1.0, 2.0])
    assert 0 < mixed_model(exact).variance < 1e-8
    with pytest.raises(InvalidReport, match="1 rows cannot tell"):
        centred_rows(GroupedRows.from_columns(["a"], [[1.0]], [2.0]))


def test_fixed_effects_are_generalised_least_squares() -> None:
    """Given the variances, mu and its covariance from the definition, with one coefficient that is shared."""
    rows = simulated(8, np.random.default_rng(8).integers(2, 7, 25))
    moments = centred_rows(rows).moments
    found = centred_rows(rows).model(np.array([0]))
    basis = centred_rows(rows).basis
    left, right = np.zeros((2, 2)), np.zeros(2)
    for k in range(rows.n_clients):
        part = slice(rows.starts[k], rows.starts[k + 1])
        z = rows.design[part] @ basis
        weight = np.linalg.inv(z @ found.spread @ z.T + found.variance * np.eye(len(z)))
        left, right = left + z.T @ weight @ z, right + z.T @ weight @ rows.response[part]
    assert_allclose(found.mean, np.linalg.solve(left, right), rtol=1e-6)
    assert_allclose(found.covariance_of_mean, np.linalg.inv(left), rtol=1e-6)
    assert fit_moments(moments, np.array([], dtype=np.intp)).root.shape == (0, 0)
