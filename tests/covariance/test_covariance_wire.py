"""Messages that are not what they claim to be: a clear error, or a value that works."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covariance.examples import SENDABLE
from vaneb.covariance import FAMILIES, ConstantDiagonal, ConstantFull, CovarianceFunction, from_wire
from vaneb.errors import InvalidReport

numbers = st.one_of(
    st.integers(),
    st.sampled_from([10**400, -(10**30), 10**9, -1, 0]),
    st.floats(allow_nan=True, allow_infinity=True),
)
garbage = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5), st.sampled_from(sorted(FAMILIES))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def places(node: object, path: tuple = ()) -> list[tuple]:
    """Every place in a message, as the keys and indices that lead to it."""
    found = [path] if path else []
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else []
    for key, child in children:
        found += places(child, (*path, key))
    return found


def changed(wire: dict, path: tuple, value: object, *, remove: bool) -> dict:
    copy = json.loads(json.dumps(wire))
    node = copy
    for key in path[:-1]:
        node = node[key]
    if remove:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return copy


def works_or_is_refused(wire: object) -> None:
    """Either ``InvalidReport``, or a function with finite, semidefinite precisions near the origin."""
    try:
        value = from_wire(wire)
    except InvalidReport:
        return
    assert isinstance(value, CovarianceFunction)
    few = value.take(slice(0, 3))
    points = np.full((1, 1, few.dimension), 0.5)
    precision = few.precision(points)
    assert np.isfinite(precision).all()
    assert np.isfinite(few.precision_gradient(points)).all()
    if precision.ndim == 3:
        assert (precision >= 0).all()
    else:
        scale = np.abs(precision).max(axis=(2, 3))
        assert (np.linalg.eigvalsh(precision)[..., 0] >= -1e-5 * scale).all()


@pytest.mark.parametrize("name", SENDABLE)
@settings(max_examples=40)
@given(data=st.data())
def test_a_message_with_one_thing_wrong(name: str, data: st.DataObject) -> None:
    wire = SENDABLE[name].value.to_wire()
    path = data.draw(st.sampled_from(places(wire)))
    works_or_is_refused(changed(wire, path, data.draw(garbage), remove=data.draw(st.booleans())))


@settings(max_examples=200)
@given(
    family=st.sampled_from(sorted(FAMILIES)), rest=st.dictionaries(st.text(max_size=8), garbage, max_size=4)
)
def test_a_message_of_garbage(family: str, rest: dict) -> None:
    works_or_is_refused({"family": family, **rest})


@settings(max_examples=100)
@given(wire=garbage)
def test_not_even_a_message(wire: object) -> None:
    with pytest.raises(InvalidReport):
        from_wire(wire)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("constant-diagonal", ("unit_precision", 0, 0), float("nan")),
        ("constant-diagonal", ("unit_precision", 0, 0), -1.0),
        ("constant-diagonal", ("unit_precision", 0, 0), "1.0"),
        ("constant-diagonal", ("unit_precision", 0), [1.0]),
        ("constant-full", ("unit_precision", 1, 0, 1), 1e6),
        ("constant-full", ("unit_precision",), [[[1.0, 0.0]]]),
        ("poisson", ("n_clients",), 10**12),
        ("poisson", ("n_clients",), True),
        ("poisson", ("low", 0), 0.0),
        ("log-polynomial", ("scale", 1), 0.0),
        ("moment-poisson", ("covariance", 0, 0, 0), -1.0),
        ("moment-poisson", ("mean", 0, 0), 1e200),
        ("empirical-poisson", ("model",), "probit"),
        ("empirical-poisson", ("offsets", 1), 10**6),
        ("empirical-negative-binomial", ("size",), 0.0),
        ("empirical-softmax", ("projections",), [[[1.0]]]),
        ("poisson-scores", ("responses",), [1.0]),
        ("sandwich", ("meat", "model"), None),
        ("sandwich", ("bread", "family"), "squared"),
    ],
)
def test_the_error_names_the_key(name: str, path: tuple, value: object) -> None:
    wire = changed(SENDABLE[name].value.to_wire(), path, value, remove=False)
    keys = [key for key in path if isinstance(key, str)]
    with pytest.raises(InvalidReport, match=keys[-1]):
        from_wire(wire)


@pytest.mark.parametrize("name", SENDABLE)
def test_every_key_is_needed(name: str) -> None:
    wire = SENDABLE[name].value.to_wire()
    for key in wire:
        with pytest.raises(InvalidReport, match=key):
            from_wire(changed(wire, (key,), None, remove=True))


def test_an_unknown_family_gets_the_list() -> None:
    with pytest.raises(InvalidReport, match="constant-diagonal, constant-full"):
        from_wire({"family": "wishart"})


def test_units_do_not_matter_for_what_is_definite() -> None:
    scale = np.array([1e-8, 1.0, 1e8])
    correlation = np.array([[1.0, 0.5, 0.2], [0.5, 1.0, 0.3], [0.2, 0.3, 1.0]])
    covariance = correlation * np.outer(scale, scale)
    value = ConstantFull.from_covariances(covariance[None])
    scaled = value.unit_precision[0] * np.outer(scale, scale)
    np.testing.assert_allclose(scaled @ correlation, np.eye(3), atol=1e-12)
    indefinite = covariance * np.array([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0], [1.0, 1.0, 1.0]])
    with pytest.raises(InvalidReport, match="covariances"):
        ConstantFull.from_covariances(indefinite[None])


def test_variances_become_precisions() -> None:
    value = ConstantDiagonal.from_variances(np.array([[4.0, 0.5]]))
    np.testing.assert_array_equal(value.unit_precision, [[0.25, 2.0]])
    with pytest.raises(InvalidReport, match="variances"):
        ConstantDiagonal.from_variances(np.array([[0.0, 1.0]]))
