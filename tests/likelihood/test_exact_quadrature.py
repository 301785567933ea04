"""Marginal likelihoods of rows under one Gaussian: against fine grids, finite differences, limiting cases."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime

from vaneb.likelihood.exact import ExactLikelihood, exact_likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family, binomial, multinomial, poisson

FAMILIES = [binomial(), poisson(), multinomial(3, 2)]


def clients_of(family: Family, d: int = 2, seed: int = 0) -> ExactLikelihood:
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(8), [1, 1, 2, 2, 3, 4, 5, 9])
    design = np.column_stack([np.ones(len(client)), rng.standard_normal((len(client), d - 1))])
    top = {"binomial": 2, "poisson": 4, "multinomial": 3}[family.name]
    rows = GroupedRows.from_columns(client, design, rng.integers(0, top, len(client)).astype(float))
    found = exact_likelihood(rows, family)
    assert isinstance(found, ExactLikelihood)
    return found


def on_a_grid(clients: ExactLikelihood, mean: np.ndarray, root: np.ndarray) -> np.ndarray:
    """log f_k by a fixed product rule with 80 nodes in each of two directions."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    u = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    w = np.outer(weights, weights).ravel() / weights.sum() ** 2
    return np.log(np.exp(clients.log_likelihood(mean + u @ root.T)) @ w)


@pytest.mark.parametrize("family", FAMILIES[:2], ids=lambda f: f.name)
def test_against_a_fine_grid(family: Family) -> None:
    clients = clients_of(family)
    mean, root = np.array([0.2, -0.3]), np.array([[0.9, 0.0], [0.3, 0.6]])
    exact = on_a_grid(clients, mean, root)
    found, _, _ = clients.marginal(mean, root)
    laplace = clients.smoothed(root @ root.T).log_likelihood(mean[None])[:, 0]
    assert_allclose(found, exact, atol=2e-4)
    assert np.abs(laplace - exact).max() > 10 * np.abs(found - exact).max()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@pytest.mark.parametrize("singular", [False, True])
def test_gradient_also_where_the_population_is_singular(family: Family, singular: bool) -> None:
    clients = clients_of(family)
    d = clients.dimension
    rng = np.random.default_rng(1)
    mean, root = 0.3 * rng.standard_normal(d), np.tril(0.4 * rng.standard_normal((d, d)))
    if singular:
        root[:, 1:] = 0.0
    _, slope, root_slope = clients.marginal(mean, root)
    numeric = approx_fprime(mean, lambda m: clients.marginal(m, root)[0].sum(), 1e-6)
    assert_allclose(slope, numeric, atol=5e-3)
    numeric = approx_fprime(root.ravel(), lambda r: clients.marginal(mean, r.reshape(d, d))[0].sum(), 1e-6)
    assert_allclose(root_slope.ravel(), numeric, atol=2e-2)


def test_no_spread_is_the_likelihood_at_the_mean() -> None:
    clients = clients_of(binomial(), d=3)
    mean = np.array([0.2, -0.3, 0.5])
    found, slope, root_slope = clients.marginal(mean, np.zeros((3, 3)))
    assert_allclose(found, clients.log_likelihood(mean[None])[:, 0])
    assert_allclose(root_slope, 0)
    gradient = approx_fprime(mean, lambda m: clients.log_likelihood(m[None]).sum(), 1e-7)
    assert_allclose(slope, gradient, rtol=1e-4, atol=1e-4)
