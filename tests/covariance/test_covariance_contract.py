"""What holds for every covariance family."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from covariance.examples import EXAMPLES, SENDABLE, D, Example, K
from vaneb.covariance import FAMILIES, DiagonalCovariance, FullCovariance, SharedDiagonal, from_wire
from vaneb.errors import InvalidReport


@pytest.fixture(params=EXAMPLES.values(), ids=EXAMPLES.keys())
def example(request: pytest.FixtureRequest) -> Example:
    return request.param


def test_every_family_on_the_wire_has_an_example() -> None:
    assert {example.value.family for example in SENDABLE.values()} == set(FAMILIES)


def test_structure_is_a_type(example: Example) -> None:
    value, points = example.value, example.points()
    assert (value.n_clients, value.dimension) == (K, D)
    matrix = (D, D) if isinstance(value, FullCovariance) else (D,)
    assert isinstance(value, FullCovariance) != isinstance(value, DiagonalCovariance)
    assert value.precision(points).shape == (K, 4, *matrix)
    assert value.precision_gradient(points).shape == (K, 4, *matrix, D)


def test_precision_is_symmetric_and_semidefinite(example: Example) -> None:
    precision = example.value.precision(example.points())
    assert np.isfinite(precision).all()
    if isinstance(example.value, DiagonalCovariance):
        assert (precision >= 0).all()
        return
    assert_array_equal(precision, np.swapaxes(precision, -1, -2))
    eigenvalues = np.linalg.eigvalsh(precision)
    assert (eigenvalues[..., 0] >= -1e-13 * eigenvalues[..., -1]).all()


def test_gradient_is_that_of_the_precision(example: Example) -> None:
    points = example.points(n_clients=K)
    gradient = example.value.precision_gradient(points)
    scale = np.abs(example.value.precision(points)).max()
    step = 1e-5
    for i in range(D):
        shift = step * np.eye(D)[i]
        above, below = example.value.precision(points + shift), example.value.precision(points - shift)
        difference = (above - below) / (2 * step)
        assert_allclose(gradient[..., i], difference, atol=example.accuracy * scale, rtol=example.accuracy)


def test_shared_points_are_own_points_repeated(example: Example) -> None:
    points = example.points()
    repeated = np.repeat(points, K, axis=0)
    assert_array_equal(example.value.precision(points), example.value.precision(repeated))
    assert_array_equal(example.value.precision_gradient(points), example.value.precision_gradient(repeated))


@pytest.mark.parametrize(
    "rows",
    [slice(1, 4), slice(None, None, -2), np.array([3, 0, 3, 3]), np.array([True, False, True, True, False])],
    ids=["slice", "step", "repeated", "mask"],
)
def test_take_is_indexing(example: Example, rows: np.ndarray | slice) -> None:
    points = example.points(n_clients=K)
    taken = example.value.take(rows)
    assert taken.n_clients == len(points[rows])
    assert_array_equal(taken.precision(points[rows]), example.value.precision(points)[rows])
    assert_array_equal(taken.precision_gradient(points[rows]), example.value.precision_gradient(points)[rows])


def test_take_of_nobody_is_empty(example: Example) -> None:
    nobody = example.value.take(np.array([], dtype=np.intp))
    assert nobody.n_clients == 0
    assert nobody.precision(example.points()).shape[0] == 0
    assert nobody.precision_gradient(example.points()).shape[0] == 0


def test_stack_undoes_take(example: Example) -> None:
    value, points = example.value, example.points(n_clients=K)
    stacked = type(value).stack([value.take(slice(0, 2)), value.take(np.array([2])), value.take(slice(3, K))])
    assert stacked.n_clients == K
    assert_array_equal(stacked.precision(points), value.precision(points))


def test_stack_needs_one_dimension(example: Example) -> None:
    with pytest.raises(InvalidReport, match="dimension"):
        type(example.value).stack([])


def test_shared_functions_are_broadcast_not_copied() -> None:
    value = EXAMPLES["squared"].value
    assert isinstance(value, SharedDiagonal)
    assert value.precision(np.ones((1, 4, D))).strides[0] == 0


@pytest.mark.parametrize("name", SENDABLE)
def test_wire_round_trips_through_json(name: str) -> None:
    value, points = SENDABLE[name].value, SENDABLE[name].points(n_clients=K)
    wire = json.loads(json.dumps(value.to_wire()))
    back = from_wire(wire)
    assert type(back) is type(value)
    assert back.to_wire() == value.to_wire()
    assert_array_equal(back.precision(points), value.precision(points))
    assert_array_equal(back.precision_gradient(points), value.precision_gradient(points))


@pytest.mark.parametrize("name", SENDABLE)
def test_wire_of_some_clients_holds_those_only(name: str) -> None:
    value, points = SENDABLE[name].value, SENDABLE[name].points(n_clients=2)
    rows = np.array([4, 1])
    back = from_wire(value.take(rows).to_wire())
    assert back.n_clients == 2
    assert_array_equal(back.precision(points), value.take(rows).precision(points))


@pytest.mark.parametrize("name", ["user-diagonal", "user-full"])
def test_a_function_of_the_users_own_cannot_be_sent(name: str) -> None:
    with pytest.raises(InvalidReport, match="cannot be sent"):
        EXAMPLES[name].value.to_wire()
