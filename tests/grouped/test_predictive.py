"""Expected responses: against sums over a grid, draws, and where they are the response at the mean."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from vaneb.grouped.predictive import expected_response
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family, binomial, gaussian, multinomial, poisson
from vaneb.posterior import posterior
from vaneb.prior import Prior


def setting(family: Family):
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(5), [1, 2, 3, 6, 8])
    design = np.column_stack([np.ones(20), rng.standard_normal(20)])
    rows = GroupedRows.from_columns(client, design, rng.integers(0, 2, 20).astype(float))
    clients = exact_likelihood(rows, family)
    d = clients.dimension
    prior = Prior(np.stack([np.full(d, -0.5), np.full(d, 0.7)]), np.array([0.4, 0.6]), 0.3 * np.eye(d))
    return rows, posterior(clients, prior)


@pytest.mark.parametrize("family", [binomial(), poisson()], ids=lambda f: f.name)
def test_average_over_the_posterior(family: Family) -> None:
    """Against the posterior itself, on a fine grid of coefficients."""
    rows, after = setting(family)
    line = np.linspace(-5, 5, 500)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    prior = after.prior
    density = sum(
        w * multivariate_normal(a, s).pdf(grid)
        for w, a, s in zip(prior.weights, prior.atoms, prior.covariances, strict=True)
    )
    shares = np.exp(after.likelihood.log_likelihood(grid)) * density
    shares /= shares.sum(axis=1, keepdims=True)
    expected = [
        shares[k] @ family.mean(family.index(grid, np.tile(z, (len(grid), 1)))).ravel()
        for k, z in zip(rows.client_of_row, rows.design, strict=True)
    ]
    found = expected_response(family, after, rows.client_of_row, rows.design, rows.offset)
    assert_allclose(np.ravel(found), expected, rtol=0.03, atol=0.02)


def test_average_over_draws() -> None:
    family = multinomial(3, 2)
    rows, after = setting(family)
    at = rows.client_of_row
    found = expected_response(family, after, at, rows.design, rows.offset)
    draws = after.sample(4000, np.random.default_rng(1))
    mean = np.mean([family.mean(family.index(theta[at], rows.design)) for theta in draws], axis=0)
    assert_allclose(found, mean, rtol=0.03, atol=0.02)


def test_identity_link_is_the_response_at_the_mean() -> None:
    family = gaussian().with_dispersion(2.0)
    rows, after = setting(family)
    found = expected_response(family, after, rows.client_of_row, rows.design, rows.offset + 1)
    at_mean = (after.mean[rows.client_of_row] * rows.design).sum(axis=1) + 1
    assert_allclose(found, at_mean)


def test_strangers_are_drawn_from_the_population() -> None:
    family = binomial()
    rows, after = setting(family)
    client = np.array([2, -1, 0, -1])
    found = expected_response(family, after, client, rows.design[:4], np.zeros(4))
    theta = after.prior.sample(40_000, np.random.default_rng(2))
    for i in (1, 3):
        assert found[i] == pytest.approx(family.mean(theta @ rows.design[i]).mean(), abs=0.01)
    alone = expected_response(family, after, client[[0]], rows.design[[0]], np.zeros(1))
    assert found[0] == pytest.approx(alone[0])
    assert len(expected_response(family, after, client[:0], rows.design[:0], np.zeros(0))) == 0
