"""The sandwich, and functions of the user's own."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from covariance.examples import D, K, moments, ragged_rows, user_matrix, user_matrix_gradient
from vaneb.covariance import (
    ConstantDiagonal,
    ConstantFull,
    EmpiricalGLM,
    EmpiricalScores,
    MomentPoisson,
    SandwichCovariance,
    callable_covariance,
    from_wire,
)
from vaneb.errors import InvalidReport

POINTS = np.random.default_rng(8).uniform(-1, 1, size=(1, 3, D))


def test_equal_bread_and_meat_are_the_information() -> None:
    information = MomentPoisson(*moments())
    sandwich = SandwichCovariance(information, information)
    assert_allclose(sandwich.precision(POINTS), information.precision(POINTS), rtol=1e-8, atol=1e-12)


def test_overdispersion_divides_the_information() -> None:
    _, information = moments()
    sandwich = SandwichCovariance(ConstantFull(information), ConstantFull(3.0 * information))
    assert_allclose(sandwich.precision(POINTS)[:, 0], information / 3.0, rtol=1e-8, atol=1e-12)


def test_the_sandwich_is_the_inverse_of_the_covariance() -> None:
    rng = np.random.default_rng(9)
    roots = rng.normal(size=(2, K, D, D))
    bread, meat = roots @ np.swapaxes(roots, -1, -2) + 0.1 * np.eye(D)
    inverse = np.linalg.inv(bread)
    precision = SandwichCovariance(ConstantFull(bread), ConstantFull(meat)).precision(POINTS)[:, 0]
    assert_allclose(precision, np.linalg.inv(inverse @ meat @ inverse), rtol=1e-8)


def test_a_client_with_fewer_rows_than_parameters() -> None:
    """Two rows, three parameters: precision on their span only, and a gradient that agrees with it."""
    rows = np.random.default_rng(10).normal(size=(2, D))
    offsets, responses = np.array([0, 2]), np.array([3.0, 0.0])
    sandwich = SandwichCovariance(
        EmpiricalGLM(rows, offsets, "poisson"), EmpiricalScores(rows, offsets, responses, "poisson")
    )
    precision = sandwich.precision(POINTS)[0]
    assert_array_equal(np.linalg.matrix_rank(precision, tol=1e-9), 2)
    nowhere = np.cross(rows[0], rows[1])
    assert_allclose(precision @ nowhere, 0.0, atol=1e-10)
    step = 1e-6 * np.eye(D)
    difference = [
        (sandwich.precision(POINTS + step[i]) - sandwich.precision(POINTS - step[i])) / 2e-6 for i in range(D)
    ]
    gradient = sandwich.precision_gradient(POINTS)
    assert_allclose(gradient, np.stack(difference, axis=-1), atol=1e-6 * np.abs(gradient).max())


def test_the_gradient_where_the_direction_without_information_turns() -> None:
    """J = v v' with a v that depends on theta: the null space of J turns, and J^+ with it."""

    class Turning(ConstantFull):
        def precision(self, points: np.ndarray) -> np.ndarray:
            v = self._direction(points)
            return v[..., :, None] * v[..., None, :]

        def precision_gradient(self, points: np.ndarray) -> np.ndarray:
            v, dv = self._direction(points), np.zeros((*points.shape, D))
            dv[..., 0, 0], dv[..., 1, 0] = -np.sin(points[..., 0]), np.cos(points[..., 0])
            half = dv[..., :, None, :] * v[..., None, :, None]
            return half + np.swapaxes(half, 2, 3)

        def _direction(self, points: np.ndarray) -> np.ndarray:
            angle = points[..., 0]
            return np.stack([np.cos(angle), np.sin(angle), np.full_like(angle, 0.5)], axis=-1)

    root = np.random.default_rng(12).normal(size=(D, D))
    sandwich = SandwichCovariance(ConstantFull((root @ root.T + np.eye(D))[None]), Turning(np.eye(D)[None]))
    step = 1e-5 * np.eye(D)
    difference = [
        (sandwich.precision(POINTS + step[i]) - sandwich.precision(POINTS - step[i])) / 2e-5 for i in range(D)
    ]
    gradient = sandwich.precision_gradient(POINTS)
    assert_allclose(gradient, np.stack(difference, axis=-1), atol=1e-6 * np.abs(gradient).max())


def test_scores_have_the_information_as_variance_when_the_model_is_right() -> None:
    rng = np.random.default_rng(11)
    rows = 0.5 * rng.normal(size=(100_000, D))
    theta, offsets = POINTS[0, 0], np.array([0, len(rows)])
    counts = rng.poisson(np.exp(rows @ theta)).astype(float)
    meat = EmpiricalScores(rows, offsets, counts, "poisson").precision(POINTS)[0, 0]
    bread = EmpiricalGLM(rows, offsets, "poisson").precision(POINTS)[0, 0]
    assert_allclose(meat, bread, atol=0.02 * bread.max())


def test_parts_must_fit() -> None:
    full = ConstantFull(np.eye(D)[None])
    with pytest.raises(InvalidReport, match="meat"):
        SandwichCovariance(full, ConstantFull(np.stack([np.eye(D)] * 2)))
    with pytest.raises(InvalidReport, match="bread"):
        SandwichCovariance(ConstantDiagonal(np.ones((1, D))), full)  # type: ignore[arg-type]


def test_sandwiches_do_not_nest() -> None:
    wire = SandwichCovariance(ConstantFull(np.eye(D)[None]), ConstantFull(np.eye(D)[None])).to_wire()
    for _ in range(5000):
        wire = {"family": "sandwich", "bread": wire, "meat": wire}
    with pytest.raises(InvalidReport, match="bread: a sandwich"):
        from_wire(wire)


def test_the_users_gradient_and_differences_agree() -> None:
    given = callable_covariance(user_matrix, K, D, diagonal=False, gradient=user_matrix_gradient)
    numeric = callable_covariance(user_matrix, K, D, diagonal=False)
    assert_allclose(given.precision_gradient(POINTS), numeric.precision_gradient(POINTS), atol=1e-8)


def test_the_user_may_ignore_the_client_after_take() -> None:
    seen = []

    def variance(points: np.ndarray, client: int) -> np.ndarray:
        seen.append(client)
        return np.ones_like(points)

    callable_covariance(variance, K, D, diagonal=True).take(np.array([4, 2])).precision(POINTS)
    assert seen == [4, 2]


@pytest.mark.parametrize(
    ("function", "diagonal", "message"),
    [
        (lambda points, client: points[:, :1], True, "shape"),
        (lambda points, client: np.full_like(points, np.nan), True, "not finite"),
        (lambda points, client: -np.ones_like(points), True, "not positive"),
        (lambda points, client: np.zeros((len(points), D, D)), False, "client 0: must be positive"),
        (lambda points, client: np.ones((len(points), D, D)), False, "not positive definite"),
    ],
)
def test_what_a_users_function_may_not_return(function, diagonal: bool, message: str) -> None:
    with pytest.raises(InvalidReport, match=message):
        callable_covariance(function, K, D, diagonal=diagonal).precision(POINTS)


def test_ragged_rows_are_checked() -> None:
    rows, offsets = ragged_rows()
    for bad, message in [
        (offsets[1:], "start at 0"),
        (offsets[:-1], "number of rows"),
        (offsets + np.linspace(0, 1, 6) * (np.arange(6) == 2), "whole numbers"),
        (np.concatenate([[0], offsets]), "client 0 has no rows"),
    ]:
        with pytest.raises(InvalidReport, match=message):
            EmpiricalGLM(rows, bad, "poisson")
