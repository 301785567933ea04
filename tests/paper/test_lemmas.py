"""The lemmas' numbers for a fit: right where they can be computed by hand, and kept where they must be."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import vaneb
from vaneb import paper
from vaneb.covariance import QuadraticVariance

K = 40


@pytest.fixture(scope="module")
def reports() -> vaneb.Reports:
    rng = np.random.default_rng(0)
    n = rng.integers(40, 80, K).astype(float)
    theta = np.where(rng.random((K, 1)) < 0.5, 1.0, 2.0)
    x = theta * (1 + rng.standard_normal((K, 1)) / np.sqrt(n)[:, None])
    return vaneb.Reports(x, n=n, covariance=QuadraticVariance.squared(1, K, low=0.25, high=9.0))


def test_numbers_by_hand(reports):
    fit = paper.Algorithm1(steps=200).fit(reports).personalize(reports)
    found = paper.lemma_bounds(reports, fit)
    a, x, n = fit.atoms[:, 0], reports.estimate[:, 0], reports.n
    variance = np.clip(a**2, 0.25, 9.0)
    s, large = variance.min(), variance.max()
    assert_allclose([found.bounds.lower, found.bounds.upper], [s, large])
    tau = large / s
    assert_allclose(found.support_radius, np.sqrt(2 * large / n.min() * np.log(np.e * tau**0.5 * K)))
    assert (found.atom_distance < found.support_radius).all()
    assert_allclose(found.floor, (2 * np.pi * large / n) ** -0.5 / (np.e * K))
    share = fit.responsibilities / fit.responsibilities.sum(axis=0)
    # psi_j: with one parameter the variance at the atom cancels
    psi = (share * n[:, None] * x[:, None]).sum(axis=0) / (share * n[:, None]).sum(axis=0)
    assert_allclose(found.residual, np.abs(psi - a), atol=1e-9)


def test_mixing_gain_by_hand(reports):
    fit = paper.Algorithm1(start="uniform", steps=1).fit(reports).personalize(reports)
    found = paper.lemma_bounds(reports, fit)
    p = np.exp(reports.likelihood().log_likelihood(reports.estimate))
    f = np.exp(fit.log_marginal)
    gains = [np.mean(np.log((1 - 1 / K) + p[:, k] / (K * f))) for k in range(K)]
    assert_allclose(found.mixing_gain, max(gains), rtol=1e-6, atol=1e-10)


def test_an_npmle_meets_what_the_denoising_theorem_asks(reports):
    prior = vaneb.VANEB(population="discrete", tol=1e-8).fit(reports).prior_
    fit = paper.Oracle(prior.atoms, prior.weights).personalize(reports)
    found = paper.lemma_bounds(reports, fit, np.concatenate([prior.atoms, reports.estimate]))
    assert found.mixing_gain <= 1e-9
    assert not found.below_floor.any()


def test_a_bad_fit_is_shown_up(reports):
    fit = paper.Oracle(np.array([[8.0]]), np.ones(1)).personalize(reports)
    found = paper.lemma_bounds(reports, fit)
    assert found.below_floor.all()
    assert found.mixing_gain > 0
