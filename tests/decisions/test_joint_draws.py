"""Draws of all clients together hang together through the population, and in no other way."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from vaneb import Prior, Reports
from vaneb.covariance import by_name
from vaneb.posterior import posterior

SIZE = 20_000


def two_populations(clients: int = 3) -> tuple[Prior, Reports]:
    """Two that differ in their centre alone; clients know little themselves."""
    prior = Prior([[-3.0], [3.0]], [1.0, 1.0], [[1.0]], draw=[0, 1])
    return prior, Reports(np.zeros((clients, 1)), standard_errors=np.full((clients, 1), 2.0))


def test_clients_share_the_population_of_a_draw():
    prior, reports = two_populations()
    draws = posterior(reports.likelihood(), prior).sample(SIZE, np.random.default_rng(0))[:, :, 0]
    # Given the population r: mean +-3 * 4 / 5, variance 4 / 5.
    between, within = (3 * 4 / 5) ** 2, 4 / 5
    assert_allclose(np.cov(draws.T), between + within * np.eye(3), atol=0.06)
    # Within one population clients are independent.
    assert_allclose(np.corrcoef(draws[: SIZE // 2].T), np.eye(3), atol=0.03)


def test_each_population_has_its_share_even_where_draws_are_few():
    prior, reports = two_populations()
    post = posterior(reports.likelihood(), prior)
    signs = np.sign(np.median(post.sample(7, np.random.default_rng(0))[:, :, 0], axis=1))
    assert signs.tolist() == [-1, -1, -1, -1, 1, 1, 1]
    assert post.sample(1, np.random.default_rng(0)).shape == (1, 3, 1)


def test_components_of_one_population_are_independent_between_clients():
    """The trick of ascending numbers must not make clients take the same group in the same draw."""
    prior = Prior([[-3.0], [3.0]], [0.5, 0.5], [[0.1]])
    reports = Reports(np.zeros((2, 1)), standard_errors=np.full((2, 1), 50.0))
    draws = posterior(reports.likelihood(), prior).sample(SIZE, np.random.default_rng(1))[:, :, 0]
    assert abs(np.corrcoef(draws.T)[0, 1]) < 0.03
    discrete = posterior(reports.likelihood(), Prior([[-3.0], [3.0]], [0.5, 0.5]))
    draws = discrete.sample(SIZE, np.random.default_rng(1))[:, :, 0]
    assert abs(np.corrcoef(draws.T)[0, 1]) < 0.03


def test_noise_that_depends_on_the_parameter_has_the_posteriors_quantiles():
    """Against integration on a grid: few counts, a skewed posterior."""
    prior = Prior([[1.0]], [1.0], [[0.25]])
    n, estimate = np.array([4.0, 30.0]), np.array([[0.6], [1.8]])
    post = posterior(Reports(estimate, n=n, covariance=by_name("poisson", 1, 2)).likelihood(), prior)
    draws = post.sample(SIZE, np.random.default_rng(2))[:, :, 0]
    grid = np.linspace(0.02, 4, 8000)
    for k in range(2):
        log = -0.5 * np.log(grid / n[k]) - 0.5 * (estimate[k, 0] - grid) ** 2 * n[k] / grid
        density = np.exp(log - 0.5 * (grid - 1) ** 2 / 0.25)
        below = np.cumsum(density) / density.sum()
        for p in (0.05, 0.25, 0.5, 0.75, 0.95):
            truth = grid[np.searchsorted(below, p)]
            assert abs((draws[:, k] < truth).mean() - p) < 0.025, (k, p)
