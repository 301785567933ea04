"""Families against closed forms, limits, each other and independent computations."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import expit, softmax
from scipy.stats import norm, qmc

from covariance.examples import PROJECTIONS, D, K, moments, ragged_rows
from vaneb.covariance import (
    EmpiricalGLM,
    EmpiricalSoftmax,
    MomentPoisson,
    MomentSoftmax,
    constant_information,
)
from vaneb.vector_math import exponentials

RNG = np.random.default_rng(5)
POINTS = RNG.normal(size=(1, 3, D))
#: Gaussian covariates so regular that averages over them are expectations to three or four digits.
SOBOL = norm.ppf(qmc.Sobol(D, seed=6).random(2**15))


def gaussian_rows(mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose empirical distribution is close to N(mean_k, covariance_k), for each client."""
    values, vectors = np.linalg.eigh(covariance)
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
    rows = mean[:, None] + SOBOL @ np.swapaxes(roots, 1, 2)
    return rows.reshape(-1, D), np.arange(len(mean) + 1) * len(SOBOL)


def logistic_weight(eta: np.ndarray) -> np.ndarray:
    return expit(eta) * expit(-eta)


def test_the_written_out_exponential() -> None:
    x = np.concatenate([np.linspace(-700, 700, 4001), [0.0, -0.0, 1e-300, np.log(2) / 2]])
    out = np.empty_like(x)
    exponentials(x, x.size, out)
    assert_allclose(out, np.exp(x), rtol=5e-16)
    exponentials(x, x.size, x)
    np.testing.assert_array_equal(x, out)


@pytest.mark.parametrize(
    ("model", "weight"),
    [
        ("poisson", np.exp),
        ("logistic", logistic_weight),
        ("negative-binomial", lambda eta: np.exp(eta) / (1 + np.exp(eta) / 1.5)),
    ],
)
def test_empirical_information_is_the_weighted_mean_of_outer_products(model, weight) -> None:
    rows, offsets = ragged_rows()
    precision = EmpiricalGLM(rows, offsets, model, 1.5).precision(POINTS)
    for k in range(K):
        z = rows[offsets[k] : offsets[k + 1]]
        for j, theta in enumerate(POINTS[0]):
            expected = (z.T * weight(z @ theta)) @ z / len(z)
            assert_allclose(precision[k, j], expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("scale", [1.0, 200.0], ids=["ordinary", "almost certain classes"])
@pytest.mark.parametrize("n_classes", [2, 3, 6])
def test_empirical_softmax_is_the_covariance_of_the_class_loadings(n_classes: int, scale: float) -> None:
    rows, offsets = ragged_rows()
    projections = PROJECTIONS if n_classes == 3 else RNG.normal(size=(n_classes, D, D))
    points = scale * POINTS
    precision = EmpiricalSoftmax(rows, offsets, projections).precision(points)
    loadings = np.einsum("cab,ib->ica", projections, rows)
    for j, theta in enumerate(points[0]):
        share = softmax(loadings @ theta, axis=1)
        each = [np.cov(loading.T, aweights=p, ddof=0) for loading, p in zip(loadings, share, strict=True)]
        expected = [np.mean(each[offsets[k] : offsets[k + 1]], axis=0) for k in range(K)]
        assert_allclose(precision[:, j], expected, rtol=1e-11, atol=1e-14)


def test_empirical_softmax_of_many_points_and_of_a_client_again_and_again() -> None:
    """Points are taken together, those of clients that follow themselves too; alone they give the same."""
    rows, offsets = ragged_rows()
    function = EmpiricalSoftmax(rows, offsets, PROJECTIONS)
    points = np.random.default_rng(5).normal(size=(150, D)) * np.linspace(0.1, 900, 150)[:, None]
    together = function.precision(points[None])
    alone = np.stack([function.precision(point[None, None])[:, 0] for point in points], axis=1)
    assert_allclose(together, alone, rtol=1e-12, atol=1e-300)
    clients = np.repeat([1, 0, 1], 50)
    by_pairs = function.take(clients).precision(points[:, None])[:, 0]
    assert_allclose(by_pairs, alone[clients, np.arange(150)], rtol=1e-12, atol=1e-300)


def test_many_rows_of_many_classes_are_taken_a_few_at_a_time() -> None:
    rng = np.random.default_rng(8)
    d, n, n_classes = 9, 300, 6
    rows, projections = rng.normal(size=(n, d)), rng.normal(size=(n_classes, d, d)) / d
    function = EmpiricalSoftmax(rows, np.array([0, n]), projections)
    points, step = rng.normal(size=(1, 2, d)), 1e-5
    loadings = np.einsum("cab,ib->ica", projections, rows)
    for precision, theta in zip(function.precision(points)[0], points[0], strict=True):
        share = softmax(loadings @ theta, axis=1)
        each = [np.cov(loading.T, aweights=p, ddof=0) for loading, p in zip(loadings, share, strict=True)]
        assert_allclose(precision, np.mean(each, axis=0), rtol=1e-11, atol=1e-14)
    gradient = function.precision_gradient(points)
    for i, move in enumerate(step * np.eye(d)):
        difference = (function.precision(points + move) - function.precision(points - move)) / (2 * step)
        assert_allclose(gradient[..., i], difference, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", ["empirical", "moment"])
def test_logistic_regression_is_softmax_of_two_classes(kind: str) -> None:
    two_classes = np.stack([np.eye(D), np.zeros((D, D))])
    if kind == "empirical":
        rows, offsets = ragged_rows()
        one, other = EmpiricalGLM(rows, offsets, "logistic"), EmpiricalSoftmax(rows, offsets, two_classes)
    else:
        one, other = MomentSoftmax.logistic(*moments()), MomentSoftmax(*moments(), -two_classes)
    assert_allclose(one.precision(POINTS), other.precision(POINTS), rtol=1e-9, atol=1e-13)
    assert_allclose(one.precision_gradient(POINTS), other.precision_gradient(POINTS), rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("kind", ["empirical", "moment"])
def test_softmax_sees_differences_of_projections_only(kind: str) -> None:
    first, second = ragged_rows() if kind == "empirical" else moments()
    family = EmpiricalSoftmax if kind == "empirical" else MomentSoftmax
    shift = RNG.normal(size=(D, D))
    assert_allclose(
        family(first, second, PROJECTIONS + shift).precision(POINTS),
        family(first, second, PROJECTIONS).precision(POINTS),
        rtol=1e-6,
        atol=1e-12,
    )


def test_poisson_information_of_centred_covariates() -> None:
    """The population formula of the Poisson scenario: exp(s^2 th'Sth/2) s^2 S [I + s^2 th th' S], s = 0.1."""
    _, covariance = moments()
    scaled = 0.1**2 * covariance
    precision = MomentPoisson(np.zeros((K, D)), scaled).precision(POINTS)
    for k in range(K):
        for j, theta in enumerate(POINTS[0]):
            factor = np.exp(theta @ scaled[k] @ theta / 2)
            expected = factor * scaled[k] @ (np.eye(D) + np.outer(theta, theta) @ scaled[k])
            assert_allclose(precision[k, j], expected, rtol=1e-13, atol=1e-18)


@pytest.mark.parametrize("model", ["poisson", "logistic", "three classes", "four classes"])
def test_moments_agree_with_many_rows(model: str) -> None:
    mean, covariance = moments()
    mean, covariance = mean[:2], covariance[:2]
    rows, offsets = gaussian_rows(mean, covariance)
    points = 0.4 * POINTS  # farther out, averages of exponentials converge slowly
    if model == "poisson":
        moment, empirical = MomentPoisson(mean, covariance), EmpiricalGLM(rows, offsets, "poisson")
    elif model == "logistic":
        moment, empirical = MomentSoftmax.logistic(mean, covariance), EmpiricalGLM(rows, offsets, "logistic")
    else:
        projections = (
            PROJECTIONS if model == "three classes" else np.random.default_rng(7).normal(size=(4, D, D))
        )
        moment = MomentSoftmax(mean, covariance, projections)
        empirical = EmpiricalSoftmax(rows, offsets, projections)
    for method in ("precision", "precision_gradient"):
        one, other = getattr(moment, method)(points), getattr(empirical, method)(points)
        assert_allclose(one, other, atol=3e-3 * np.abs(other).max(), rtol=0)


def test_logistic_moments_by_steins_identity() -> None:
    """E[w](S + mu mu') + E[w'](mu (S th)' + (S th) mu') + E[w''](S th)(S th)', by adaptive quadrature."""
    mean, covariance = moments()
    theta = np.array([1.5, -2.0, 0.5])
    precision = MomentSoftmax.logistic(mean, covariance).precision(theta[None, None])[:, 0]

    def derivative(order: int, eta: float) -> float:
        pi = expit(eta)
        w = pi * (1 - pi)
        return [w, w * (1 - 2 * pi), w * (1 - 6 * w)][order]

    for k in range(K):
        centre, deviation = mean[k] @ theta, np.sqrt(theta @ covariance[k] @ theta)
        e0, e1, e2 = (
            quad(
                lambda t, o=o, c=centre, s=deviation: derivative(o, c + s * t) * norm.pdf(t),
                -12,
                12,
                limit=200,
            )[0]
            for o in range(3)
        )
        shifted = covariance[k] @ theta
        cross = np.outer(mean[k], shifted)
        expected = e0 * (covariance[k] + np.outer(mean[k], mean[k])) + e1 * (cross + cross.T)
        expected += e2 * np.outer(shifted, shifted)
        assert_allclose(precision[k], expected, rtol=1e-7, atol=1e-9)


def test_wide_logits_are_still_resolved() -> None:
    """Logits of standard deviation 15: nearly all rows are certain, the few at the boundary inform."""
    covariance = np.eye(2)[None]
    theta = np.array([15.0, 0.0])
    precision = MomentSoftmax.logistic(np.zeros((1, 2)), covariance).precision(theta[None, None])[0, 0]
    weight = quad(lambda t: logistic_weight(15 * t) * norm.pdf(t), -3, 3, points=[0], limit=500)[0]
    second = quad(lambda t: t**2 * logistic_weight(15 * t) * norm.pdf(t), -3, 3, points=[0], limit=500)[0]
    assert_allclose(np.diag(precision), [second, weight], rtol=1e-6)


def test_at_zero_all_classes_are_equally_likely() -> None:
    mean, covariance = moments()
    second = covariance + mean[:, :, None] * mean[:, None, :]
    origin = np.zeros((1, 1, D))
    assert_allclose(MomentSoftmax.logistic(mean, covariance).precision(origin)[:, 0], second / 4, rtol=1e-12)
    three = MomentSoftmax(mean, covariance, PROJECTIONS).precision(origin)[:, 0]
    # the projections sum to zero
    expected = np.einsum("cab,kbd,ced->kae", PROJECTIONS, second, PROJECTIONS) / 3
    assert_allclose(three, expected, rtol=1e-12, atol=1e-15)


def test_negative_binomial_with_a_huge_size_is_poisson() -> None:
    rows, offsets = ragged_rows()
    poisson = EmpiricalGLM(rows, offsets, "poisson").precision(POINTS)
    limit = EmpiricalGLM(rows, offsets, "negative-binomial", 1e12).precision(POINTS)
    assert_allclose(limit, poisson, rtol=1e-9)


def test_constant_information_is_the_mean_of_outer_products() -> None:
    rows, offsets = ragged_rows()
    value = constant_information(rows, offsets, weight=2.0)
    z = rows[offsets[1] : offsets[2]]
    assert_allclose(value.unit_precision[1], 2.0 * z.T @ z / len(z), rtol=1e-12)


@pytest.mark.parametrize("size", [1e2, 1e5, 1e10])
def test_far_away_points_give_finite_precisions(size: float) -> None:
    rows, offsets = ragged_rows()
    points = size * POINTS
    for value in (
        EmpiricalGLM(rows, offsets, "poisson"),
        EmpiricalGLM(rows, offsets, "logistic"),
        EmpiricalGLM(rows, offsets, "negative-binomial", 2.0),
        EmpiricalSoftmax(rows, offsets, PROJECTIONS),
        MomentPoisson(*moments()),
        MomentSoftmax.logistic(*moments()),
        MomentSoftmax(*moments(), PROJECTIONS),
    ):
        precision = value.precision(points)
        assert np.isfinite(precision).all()
        assert np.isfinite(value.precision_gradient(points)).all()
        eigenvalues = np.linalg.eigvalsh(precision)
        assert (eigenvalues[..., 0] >= -1e-12 * eigenvalues[..., -1]).all()


def test_duplicating_rows_changes_nothing() -> None:
    rows, offsets = ragged_rows()
    twice = np.concatenate([np.repeat(rows[offsets[k] : offsets[k + 1]], 2, axis=0) for k in range(K)])
    one = EmpiricalGLM(rows, offsets, "logistic").precision(POINTS)
    assert_allclose(EmpiricalGLM(twice, 2 * offsets, "logistic").precision(POINTS), one, rtol=1e-12)


def test_softmax_moments_refuse_too_many_axes() -> None:
    with pytest.raises(ValueError, match="empirical family"):
        MomentSoftmax(np.zeros((1, 4)), np.eye(4)[None], np.ones((5, 4, 4)))
