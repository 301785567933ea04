"""The regularised rule and its rho, against the integrals they are written with."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import vaneb
from vaneb import paper
from vaneb.covariance import QuadraticVariance
from vaneb.errors import InvalidOption
from vaneb.theory import CovarianceBounds, covariance_bounds, likelihood_floor

K, D = 9, 2


@pytest.fixture
def reports() -> vaneb.Reports:
    rng = np.random.default_rng(1)
    n = rng.integers(5, 15, K).astype(float)
    x = np.array([1.5, -1.0]) * (1 + rng.standard_normal((K, D)) / np.sqrt(n)[:, None])
    return vaneb.Reports(x, n=n, covariance=QuadraticVariance.squared(D, K, low=0.5, high=9.0))


def test_rho_is_the_equations():
    n = np.array([4.0, 9.0])
    found = paper.rho(CovarianceBounds(2.0, 3.0, 1.0), n, 2)
    in_scaled_units = (2 * np.pi * 3.0) ** (-2 / 2) / (np.exp(1 + 8 / 2.0) * 2)
    assert_allclose(found, in_scaled_units * n ** (2 / 2))


def test_the_rule_is_the_formula_with_q_and_f(reports):
    model = paper.Algorithm1(start="uniform", steps=3).fit(reports)
    plain = model.personalize(reports)
    rho = np.exp(plain.log_marginal) * np.linspace(0.2, 3, K)  # some below f, some above
    model.rho = rho
    x, n = np.sqrt(reports.n)[:, None] * reports.estimate, reports.n
    expected = np.empty((K, D))
    for k in range(K):
        f, q = 0.0, np.zeros(D)
        for a, w in zip(plain.atoms, plain.weights, strict=True):
            variance = np.clip(a**2, 0.5, 9.0)
            difference = x[k] - np.sqrt(n[k]) * a
            value = np.exp(-0.5 * (difference**2 / variance).sum()) / np.sqrt((2 * np.pi * variance).prod())
            f += w * value
            q += w * value * (np.sqrt(n[k]) * a - x[k])
        scaled_rho = rho[k] / n[k] ** (D / 2)
        expected[k] = x[k] / np.sqrt(n[k]) + q / (np.sqrt(n[k]) * max(f, scaled_rho))
    found = model.personalize(reports)
    assert_allclose(found.mean, expected, rtol=1e-9)
    assert_allclose(found.mean[0], plain.mean[0])
    assert np.abs(found.mean[-1] - plain.mean[-1]).max() > 1e-3


def test_rho_changes_nothing_for_an_npmle(reports):
    prior = vaneb.VANEB(population="discrete", tol=1e-8).fit(reports).prior_
    bounds = covariance_bounds(reports.covariance, np.concatenate([prior.atoms, reports.estimate]))
    plain = paper.Oracle(prior.atoms, prior.weights).personalize(reports)
    floor = likelihood_floor(bounds, reports.n, D)
    rho = paper.rho(bounds, reports.n, D)
    assert (np.exp(plain.log_marginal) >= floor * (1 - 1e-6)).all()
    assert (rho < floor).all()


def test_a_large_rho_leaves_every_client_its_estimate(reports):
    model = paper.Algorithm1(rho=1e30).fit(reports)
    assert_allclose(model.personalize(reports).mean, reports.estimate, atol=1e-12)
    model.rho = 0.0
    zero = model.personalize(reports).mean
    model.rho = None
    assert_allclose(zero, model.personalize(reports).mean)


@pytest.mark.parametrize("rho", [np.ones(K + 1), -1.0])
def test_rho_is_checked(reports, rho):
    with pytest.raises(InvalidOption, match=f"one for each of the {K} clients"):
        paper.Algorithm1(rho=rho).fit(reports).personalize(reports)
