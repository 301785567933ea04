"""A prior: its moments, its draws, its file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from vaneb import InvalidReport, Prior

ATOMS = np.array([[0.0, 1.0], [2.0, -1.0], [4.0, 0.5]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
SPREAD = np.array([[0.4, 0.1], [0.1, 0.2]])


def test_weights_are_normalised_and_parameters_get_names() -> None:
    prior = Prior(ATOMS, 10 * WEIGHTS)
    assert_allclose(prior.weights, WEIGHTS)
    assert prior.names == ("1", "2")
    assert prior.dimension == 2
    assert prior.clients is None


@pytest.mark.parametrize("spread", [None, SPREAD])
def test_moments_are_those_of_the_draws(spread: np.ndarray | None) -> None:
    prior = Prior(ATOMS, WEIGHTS, spread)
    draws = prior.sample(200_000, np.random.default_rng(0))
    assert draws.shape == (200_000, 2)
    assert_allclose(prior.mean, draws.mean(axis=0), atol=0.015)
    assert_allclose(prior.covariance, np.cov(draws.T), atol=0.03)


def test_draws_of_a_discrete_prior_are_its_atoms() -> None:
    draws = Prior(ATOMS, WEIGHTS).sample(10_000, np.random.default_rng(1))
    counts = [(draws == atom).all(axis=1).mean() for atom in ATOMS]
    assert_allclose(counts, WEIGHTS, atol=0.02)
    assert_allclose(sum(counts), 1.0)


def test_a_singular_spread_moves_draws_in_its_direction_only() -> None:
    draws = Prior(ATOMS[:1], [1.0], np.outer([1.0, 2.0], [1.0, 2.0])).sample(1000, np.random.default_rng(2))
    moved = draws - ATOMS[0]
    assert_allclose(moved @ [2.0, -1.0], 0.0, atol=1e-7)
    assert_allclose(moved[:, 0].std(), 1.0, rtol=0.1)


def test_the_same_generator_gives_the_same_draws() -> None:
    prior = Prior(ATOMS, WEIGHTS, SPREAD)
    one, two = (prior.sample(5, np.random.default_rng(3)) for _ in range(2))
    assert_array_equal(one, two)


numbers = st.floats(-1e70, 1e70)


@st.composite
def priors(draw: st.DrawFn) -> Prior:
    m, d = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    atoms = draw(hnp.arrays(float, (m, d), elements=numbers))
    weights = draw(hnp.arrays(float, m, elements=st.floats(1e-20, 1e20)))
    root = draw(hnp.arrays(float, (d, d), elements=st.floats(-1e30, 1e30)))
    spread = draw(st.sampled_from([None, root @ root.T]))
    names = draw(st.lists(st.text(min_size=1), min_size=d, max_size=d, unique=True))
    places = draw(st.none() | hnp.arrays(float, (m, d), elements=st.floats(0, 1e60)))
    return Prior(atoms, weights, spread, tuple(names), draw(st.none() | st.integers(1, 10**9)), places)


@given(priors())
def test_the_wire_form_goes_through_json_and_back(prior: Prior) -> None:
    again = Prior.from_wire(json.loads(json.dumps(prior.to_wire())))
    assert_array_equal(again.atoms, prior.atoms)
    assert_allclose(again.weights, prior.weights, rtol=1e-15)
    assert again.names == prior.names
    assert again.clients == prior.clients
    if prior.spread is None:
        assert again.spread is None
    else:
        assert_array_equal(again.spread, prior.spread)
    if prior.atom_variances is None:
        assert again.atom_variances is None
    else:
        assert_array_equal(again.atom_variances, prior.atom_variances)


@pytest.mark.parametrize("bad", [np.ones((1, 2)), -np.ones(ATOMS.shape), np.full(ATOMS.shape, np.nan)])
def test_variances_of_atoms_must_be_variances(bad: np.ndarray) -> None:
    with pytest.raises(InvalidReport, match="atom_variances"):
        Prior(ATOMS, WEIGHTS, atom_variances=bad)


def test_save_and_load(tmp_path: Path) -> None:
    prior = Prior(ATOMS, WEIGHTS, SPREAD, ("alpha", "β"), 17)
    prior.save(tmp_path / "prior.json")
    again = Prior.load(tmp_path / "prior.json")
    assert_array_equal(again.atoms, prior.atoms)
    assert_array_equal(again.weights, prior.weights)
    assert_array_equal(again.spread, prior.spread)
    assert again.names == prior.names
    assert again.clients == 17


def test_a_file_of_an_earlier_version_knows_no_clients(tmp_path: Path) -> None:
    wire = Prior(ATOMS, WEIGHTS).to_wire()
    del wire["clients"]
    (tmp_path / "prior.json").write_text(json.dumps(wire))
    assert Prior.load(tmp_path / "prior.json").clients is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"atoms": np.zeros((0, 2))}, "atoms"),
        ({"atoms": np.zeros(3)}, "atoms"),
        ({"atoms": np.full((3, 2), np.nan)}, "atoms"),
        ({"atoms": np.full((3, 2), np.inf)}, "atoms"),
        ({"atoms": np.full((3, 2), 1e200)}, "atoms"),
        ({"atoms": [[1.0], [2.0, 3.0]]}, "atoms"),
        ({"atoms": [["a", "b"]] * 3}, "atoms"),
        ({"weights": [0.5, 0.5]}, "weights"),
        ({"weights": [0.5, 0.6, -0.1]}, "weights"),
        ({"weights": [0.0, 0.0, 0.0]}, "weights"),
        ({"weights": [1.0, np.nan, 1.0]}, "weights"),
        ({"weights": [1e308, 1e308, 1.0]}, "weights"),
        ({"spread": np.eye(3)}, "spread"),
        ({"spread": 1.0}, "spread"),
        ({"spread": [[1.0, 0.5], [0.4, 1.0]]}, "symmetric"),
        ({"spread": [[1.0, 2.0], [2.0, 1.0]]}, "semidefinite"),
        ({"spread": [[0.0, 1.0], [1.0, 0.0]]}, "semidefinite"),
        ({"spread": [[-1.0, 0.0], [0.0, 1.0]]}, "semidefinite"),
        ({"spread": np.full((2, 2), np.nan)}, "spread"),
        ({"spread": np.full((2, 2), 1e308)}, "spread"),
        ({"names": ("a",)}, "names"),
        ({"names": ("a", "a")}, "names"),
        ({"names": ("a", 3)}, "names"),
        ({"clients": 0}, "clients"),
        ({"clients": 2.5}, "clients"),
        ({"clients": "many"}, "clients"),
    ],
)
def test_what_is_no_prior_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(InvalidReport, match=message):
        Prior(**({"atoms": ATOMS, "weights": WEIGHTS} | arguments))


def test_what_is_singular_does_not_depend_on_units() -> None:
    units = np.array([1e12, 1e-12])
    scaled = Prior(ATOMS, WEIGHTS, SPREAD * units[:, None] * units)
    assert_allclose(scaled.spread, SPREAD * units[:, None] * units, rtol=1e-12)
    with pytest.raises(InvalidReport, match="semidefinite"):
        Prior(ATOMS, WEIGHTS, np.array([[1.0, 1.1], [1.1, 1.0]]) * units[:, None] * units)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(["format", "atoms", "weights", "spread", "names", "clients"]), json_values)
def test_garbage_in_any_field_is_refused_or_harmless(key: str, value: object) -> None:
    wire = Prior(ATOMS, WEIGHTS, SPREAD).to_wire()
    wire[key] = value
    try:
        prior = Prior.from_wire(wire)
    except InvalidReport:
        return
    assert_allclose(prior.weights.sum(), 1.0)
    assert np.isfinite(prior.sample(3, np.random.default_rng(0))).all()


@given(json_values)
def test_garbage_is_refused(value: object) -> None:
    with pytest.raises(InvalidReport):
        Prior.from_wire(value)


@given(content=st.binary(max_size=60) | st.sampled_from([b"[" * 200_000, b"{}", b"null", b'{"format": 1}']))
def test_files_of_garbage_are_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("garbage") / "prior.json"
    path.write_bytes(content)
    with pytest.raises(InvalidReport, match=r"prior\.json"):
        Prior.load(path)


@pytest.mark.parametrize("cut", [1, 10, 50, 120])
def test_a_file_that_ends_early_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    Prior(ATOMS, WEIGHTS, SPREAD).save(path)
    path.write_bytes(path.read_bytes()[:-cut])
    if cut > 1:  # the last byte is the end of the line
        with pytest.raises(InvalidReport):
            Prior.load(path)
    else:
        Prior.load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidReport, match=r"nowhere\.json"):
        Prior.load(tmp_path / "nowhere.json")
    with pytest.raises(InvalidReport, match="not a saved prior"):
        Prior.load(tmp_path)
