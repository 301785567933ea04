"""Adaptive quadrature against fine grids, finite differences and the closed form; limiting cases."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime
from vaneb.grouped.marginal import Marginal, gaussian_rule, root_of

from vaneb.local.data import GroupedRows
from vaneb.local.families import Family, binomial, gamma, gaussian, multinomial, poisson


def drawn(family: Family, sizes: tuple[int, ...] = (1, 2, 3, 6, 9), columns: int = 2) -> GroupedRows:
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(len(sizes)), sizes)
    n = len(client)
    design = np.column_stack([np.ones(n), rng.standard_normal((n, columns - 1))])
    response = {
        "poisson": rng.poisson(2.0, n),
        "multinomial": rng.integers(0, 3, n),
        "gamma": rng.gamma(2.0, 1.0, n),
        "gaussian": rng.standard_normal(n),
    }.get(family.name, rng.integers(0, 2, n))
    offset = np.zeros(n) if family.name == "multinomial" else 0.1 * rng.standard_normal(n)
    return GroupedRows.from_columns(client, design, response.astype(float), offset=offset)


MEAN = np.array([-0.4, 0.7])
ROOT = np.array([[1.1, 0.0], [-0.3, 0.6]])


@pytest.mark.parametrize(
    "family", [binomial(), poisson(), gamma().with_dispersion(0.5)], ids=lambda f: f.name
)
def test_integrals_are_those_of_a_fine_grid(family: Family) -> None:
    rows = drawn(family)
    marginal = Marginal(rows, family)
    edge = np.linspace(-9, 9, 361)
    u = np.stack(np.meshgrid(edge, edge), axis=-1).reshape(-1, 2)
    weight = np.exp(-0.5 * np.sum(u**2, axis=1)) / (2 * np.pi) * (edge[1] - edge[0]) ** 2
    exact = np.log(np.exp(marginal.log_likelihood(MEAN + u @ ROOT.T)) @ weight)
    assert_allclose(marginal.value(MEAN, ROOT).log_density, exact, atol=2e-4)


def test_least_squares_has_the_density_of_the_mixed_model() -> None:
    family = gaussian().with_dispersion(1.3)
    rows = drawn(family)
    found = Marginal(rows, family).value(MEAN, ROOT).log_density
    for k in range(rows.n_clients):
        part = slice(rows.starts[k], rows.starts[k + 1])
        z = rows.design[part]
        covariance = z @ ROOT @ ROOT.T @ z.T + 1.3 * np.eye(len(z))
        away = rows.response[part] - rows.offset[part] - z @ MEAN
        expected = -0.5 * (
            np.linalg.slogdet(2 * np.pi * covariance)[1] + away @ np.linalg.solve(covariance, away)
        )
        assert found[k] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("family", [binomial(), poisson(), multinomial(3, 2)], ids=lambda f: f.name)
def test_slopes(family: Family) -> None:
    rows = drawn(family)
    marginal = Marginal(rows, family)
    d = marginal.dimension
    rng = np.random.default_rng(1)
    mean, root = 0.3 * rng.standard_normal(d), 0.5 * np.tri(d)[:, :2] + 0.1
    value = marginal.value(mean, root)

    def total(x: np.ndarray) -> float:
        return float(marginal.value(x[:d], x[d:].reshape(d, 2)).log_density.sum())

    numeric = approx_fprime(np.concatenate([mean, root.ravel()]), total, 1e-6)
    found = np.concatenate([value.mean_slope, value.root_slope.ravel()])
    assert_allclose(found, numeric, atol=5e-3)


def test_a_population_that_is_a_point() -> None:
    family = binomial()
    marginal = Marginal(drawn(family), family)
    at_point = marginal.log_likelihood(MEAN[None])[:, 0]
    assert_allclose(marginal.value(MEAN, np.zeros((2, 0))).log_density, at_point)
    assert_allclose(marginal.value(MEAN, np.zeros((2, 2))).log_density, at_point, atol=1e-9)
    assert root_of(np.zeros((2, 2))).shape == (2, 0)


def test_points_are_the_posterior_and_some_clients_are_as_all() -> None:
    family = binomial()
    rows = drawn(family)
    marginal = Marginal(rows, family)
    after = marginal.points(MEAN, ROOT)
    assert_allclose(after.shares.sum(axis=1), 1)
    means = np.einsum("km,kmd->kd", after.shares, after.thetas)
    # Gamma times the slope in mu is how far the posterior mean is from mu.
    for k in range(rows.n_clients):
        one = marginal.take(np.array([k]))
        assert_allclose(means[k], MEAN + ROOT @ ROOT.T @ one.value(MEAN, ROOT).mean_slope, atol=3e-3)
        assert_allclose(one.points(MEAN, ROOT).thetas[0], after.thetas[k], atol=1e-6)


@pytest.mark.parametrize("directions", [0, 1, 2, 3, 5])
def test_rules_have_the_moments_of_a_gaussian(directions: int) -> None:
    x, weights = gaussian_rule(directions)
    assert weights.sum() == pytest.approx(1)
    assert (weights > 0).all()
    assert_allclose(weights @ x, 0, atol=1e-12)
    assert_allclose((weights[:, None] * x).T @ x, np.eye(directions), atol=1e-4)


def test_rows_beyond_all_bounds_are_as_good_as_impossible() -> None:
    family = poisson()
    rows = GroupedRows.from_columns([0, 0, 1], [[1.0, 300.0], [1.0, -300.0], [1.0, 5.0]], [3.0, 0.0, 1e6])
    marginal = Marginal(rows, family)
    value = marginal.value(np.array([0.0, 2.0]), np.eye(2))
    assert value.log_density[0] == -np.inf
    assert np.isfinite(value.log_density[1])
    assert np.isfinite(value.root_slope).all()
    after = marginal.points(np.array([0.0, 2.0]), np.eye(2))
    assert_allclose(after.shares.sum(axis=1), 1)
    assert np.isfinite(after.thetas).all()
