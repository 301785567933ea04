"""AdaMix against the lines of the paper's appendix, one client and one component at a time."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

import vaneb
from vaneb import paper
from vaneb.adamix import SphericalMixture, fit_spherical_mixture

K, D, L, T, RATE = 40, 3, 3, 6, 0.4


def responsibilities(points, mixture):
    """Pr(l | theta_k) under a mixture of spherical Gaussians."""
    r = np.empty((len(points), len(mixture.means)))
    for k, point in enumerate(points):
        for component, (mu, v, p) in enumerate(zip(*mixture, strict=True)):
            r[k, component] = p * np.exp(-0.5 * ((point - mu) ** 2).sum() / v) / np.sqrt(2 * np.pi * v) ** D
    return r / r.sum(axis=1, keepdims=True)


def problem():
    rng = np.random.default_rng(6)
    x = rng.choice([-2.0, 0.0, 3.0], (K, 1)) + 0.4 * rng.standard_normal((K, D))
    root = rng.standard_normal((K, D, D))
    return x, 0.1 * (root @ root.transpose(0, 2, 1) + np.eye(D))


def test_the_printed_loop():
    x, covariance = problem()
    reports = vaneb.Reports(x, covariance=covariance)
    model = paper.AdaMix(components=L, iterations=T, rate=RATE)
    found = model.fit(reports).personalize(reports).mean
    theta = x.copy()
    mixture = fit_spherical_mixture(theta, L, np.random.default_rng(0))
    for _ in range(T):
        r, after = responsibilities(theta, mixture), np.empty_like(theta)
        for k in range(K):
            d = 1 / np.diag(covariance[k])
            alpha = sum(r[k, j] / mixture.variances[j] for j in range(L))
            b = sum(r[k, j] / mixture.variances[j] * mixture.means[j] for j in range(L))
            after[k] = theta[k] + RATE * ((d * x[k] + b) / (d + alpha) - theta[k])
        theta = after
        mixture = fit_spherical_mixture(theta, L, np.random.default_rng(0), start=mixture, steps=20)
    assert_allclose(found, theta, rtol=1e-9)
    assert np.abs(found - x).max() > 0.1


def test_a_step_of_the_mixture_is_em():
    x, _ = problem()
    start = SphericalMixture(x[[0, 7, 20]], np.array([0.5, 1.0, 2.0]), np.array([0.2, 0.3, 0.5]))
    r = responsibilities(x, start)
    found = fit_spherical_mixture(x, L, np.random.default_rng(0), start=start, steps=1)
    for j in range(L):
        mu = (r[:, j, None] * x).sum(axis=0) / r[:, j].sum()
        assert_allclose(found.means[j], mu)
        squared = sum(r[k, j] * ((x[k] - mu) ** 2).sum() for k in range(K))
        assert_allclose(found.variances[j], squared / (D * r[:, j].sum()))
        assert_allclose(found.weights[j], r[:, j].mean())
