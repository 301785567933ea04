"""Coordinatewise variance functions: the quadratic families and the fitted log-polynomial."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from vaneb.covariance import LogPolynomialVariance, QuadraticVariance, by_name
from vaneb.errors import InvalidOption, InvalidReport


@pytest.mark.parametrize(
    ("name", "draw", "mean"),
    [
        ("poisson", lambda rng, t, size: rng.poisson(t, size), 1.7),
        ("binomial", lambda rng, t, size: rng.binomial(1, t, size), 0.3),
        ("gamma:2.5", lambda rng, t, size: rng.gamma(2.5, t / 2.5, size), 1.7),
        ("negative-binomial:3", lambda rng, t, size: rng.negative_binomial(3, 3 / (3 + t), size), 1.7),
        ("normal:2", lambda rng, t, size: rng.normal(t, np.sqrt(2), size), 1.7),
    ],
)
def test_the_variance_is_that_of_the_named_distribution(name, draw, mean) -> None:
    sample = draw(np.random.default_rng(0), mean, 200_000)
    variance = by_name(name, dimension=1, n_clients=1).variance(np.array([mean]))
    # four standard errors of a sample variance
    tolerance = 4 * np.std((sample - sample.mean()) ** 2) / np.sqrt(sample.size)
    assert_allclose(variance, sample.var(), atol=tolerance, rtol=0)


def test_clipping_is_flat() -> None:
    value = QuadraticVariance.squared(dimension=1, n_clients=1)
    points = np.array([[0.05], [0.5], [20.0]])
    assert_array_equal(value.variance(points), [[0.01], [0.25], [100.0]])
    assert_array_equal(value.coordinate_gradient(points)[[0, 2]], [[0.0], [0.0]])
    assert_allclose(value.coordinate_gradient(points)[1], -2 / 0.5**3)


def test_floor_and_ceiling_can_be_named() -> None:
    value = by_name("squared:0.5:2", dimension=2, n_clients=4)
    assert_array_equal(value.variance(np.array([0.1, 9.0])), [0.5, 2.0])
    assert (value.n_clients, value.dimension) == (4, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cauchy", "normal, poisson, binomial, gamma, negative-binomial, squared"),
        ("", "choose one of"),
        ("gamma", "gamma:shape"),
        ("gamma:x", "could not convert"),
        ("gamma:-1", "positive"),
        ("gamma:nan", "finite"),
        ("poisson:1:2:3", "poisson"),
        ("squared:2:1", "below low"),
    ],
)
def test_a_wrong_name_says_what_is_right(name: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        by_name(name, dimension=2, n_clients=3)


def test_functions_that_differ_are_not_stacked() -> None:
    with pytest.raises(InvalidReport, match="coefficients"):
        QuadraticVariance.stack([QuadraticVariance.poisson(1, 2), QuadraticVariance.binomial(1, 2)])


def test_the_fit_finds_a_log_quadratic() -> None:
    rng = np.random.default_rng(1)
    estimates = rng.normal(2.0, 3.0, size=(400, 2))
    truth = np.exp(0.3 + 0.2 * estimates - 0.02 * estimates**2)
    fitted = LogPolynomialVariance.fit(estimates, truth, ridge=1e-12)
    assert fitted.n_clients == 400
    assert_allclose(fitted.variance(estimates), truth, rtol=1e-6)


def test_the_fit_minimises_the_stated_objective() -> None:
    rng = np.random.default_rng(2)
    estimates, variances = rng.normal(size=(30, 1)), rng.gamma(2.0, size=(30, 1))
    fitted = LogPolynomialVariance.fit(estimates, variances, degree=3, ridge=0.5)
    x = (estimates[:, 0] - fitted.center) / fitted.scale

    def objective(coefficients: np.ndarray) -> float:
        residual = np.log(variances[:, 0]) - np.polynomial.polynomial.polyval(x, coefficients)
        return np.mean(residual**2) + 0.5 * np.sum(coefficients[1:] ** 2)

    best = objective(fitted.coefficients[0])
    for direction in np.concatenate([np.eye(4), -np.eye(4)]):
        assert objective(fitted.coefficients[0] + 1e-3 * direction) > best


def test_the_fit_stays_in_the_range_seen() -> None:
    rng = np.random.default_rng(3)
    estimates = rng.normal(size=(50, 3))
    variances = np.exp(2 * estimates + 0.1 * rng.normal(size=(50, 3)))
    fitted = LogPolynomialVariance.fit(estimates, variances)
    far = np.array([[-100.0] * 3, [100.0] * 3, [1e300] * 3])
    values = fitted.variance(far)
    assert (values >= variances.min(axis=0) * (1 - 1e-12)).all()
    assert (values <= variances.max(axis=0) * (1 + 1e-12)).all()
    assert_array_equal(fitted.coordinate_gradient(far), 0.0)


def test_a_coordinate_without_spread_gets_the_mean_log_variance() -> None:
    variances = np.array([[1.0], [4.0]])
    fitted = LogPolynomialVariance.fit(np.full((2, 1), 0.1), variances)
    assert_allclose(fitted.variance(np.array([0.1])), 2.0)


def test_the_fit_does_not_depend_on_units() -> None:
    rng = np.random.default_rng(4)
    estimates, variances = rng.normal(size=(40, 2)), rng.gamma(2.0, size=(40, 2))
    one = LogPolynomialVariance.fit(estimates, variances)
    other = LogPolynomialVariance.fit(1e6 * estimates + 3e6, 1e-3 * variances)
    points = rng.normal(size=(5, 2))
    assert_allclose(other.variance(1e6 * points + 3e6), 1e-3 * one.variance(points), rtol=1e-6)


def test_a_network_head_is_fitted_at_once() -> None:
    rng = np.random.default_rng(5)
    estimates, variances = rng.normal(size=(100, 1290)), rng.gamma(2.0, size=(100, 1290))
    fitted = LogPolynomialVariance.fit(estimates, variances)
    alone = LogPolynomialVariance.fit(estimates[:, [700]], variances[:, [700]])
    assert fitted.dimension == 1290
    assert_allclose(fitted.coefficients[700], alone.coefficients[0], rtol=1e-10)


@pytest.mark.parametrize("options", [{"degree": -1}, {"degree": 7}, {"ridge": 0.0}, {"ridge": np.inf}])
def test_options_out_of_range(options: dict) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        LogPolynomialVariance.fit(np.ones((2, 1)), np.ones((2, 1)), **options)


def test_variances_must_be_positive() -> None:
    with pytest.raises(InvalidReport, match="variances"):
        LogPolynomialVariance.fit(np.ones((2, 1)), np.array([[1.0], [0.0]]))
