"""A prior: its kinds, its moments, its draws, its file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal

from vaneb import InvalidReport, Prior

ATOMS = np.array([[0.0, 1.0], [2.0, -1.0], [4.0, 0.5]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
COVARIANCE = np.array([[0.4, 0.1], [0.1, 0.2]])
OWN = np.array([COVARIANCE, [[1.0, -0.5], [-0.5, 0.5]], np.diag([0.01, 3.0])])
DRAW = np.array([0, 0, 1])
HALVES = np.array([0.3, 0.2, 0.5])


def test_weights_are_normalised_and_parameters_get_names() -> None:
    prior = Prior(ATOMS, 10 * WEIGHTS)
    assert_allclose(prior.weights, WEIGHTS)
    assert prior.names == ("1", "2")
    assert prior.dimension == 2
    assert prior.clients is None


def test_one_covariance_is_that_of_every_component() -> None:
    assert_array_equal(Prior(ATOMS, WEIGHTS, COVARIANCE).covariances, np.tile(COVARIANCE, (3, 1, 1)))


@pytest.mark.parametrize(
    ("prior", "kind", "populations", "said"),
    [
        (Prior(ATOMS, WEIGHTS), "discrete", 1, "3 atoms"),
        (Prior(ATOMS[:1], [1.0]), "discrete", 1, "one atom"),
        (Prior(ATOMS[:1], [1.0], COVARIANCE), "gaussian", 1, "one Gaussian"),
        (Prior(ATOMS, WEIGHTS, OWN), "mixture", 1, "a mixture of 3 groups"),
        (
            Prior(ATOMS, np.ones(3), OWN, draw=[0, 1, 2]),
            "gaussian",
            3,
            "one Gaussian; posterior over 3 populations",
        ),
        (
            Prior(ATOMS, HALVES, OWN, draw=DRAW),
            "mixture",
            2,
            "one group; posterior over 2 populations",
        ),
    ],
)
def test_kinds(prior: Prior, kind: str, populations: int, said: str) -> None:
    assert (prior.kind, prior.populations, str(prior)) == (kind, populations, said)
    assert prior.starts[0] == 0
    assert prior.starts[-1] == len(prior.weights)
    assert len(prior.starts) == populations + 1


def test_groups_are_counted_in_each_population() -> None:
    """Components of next to no weight, or of one client's weight, are no groups."""
    weights = np.array([0.5, 0.5, 0.6, 0.389, 0.011, 0.9, 0.1])
    many = Prior(np.zeros((7, 1)), weights, [[1.0]], draw=[0, 0, 1, 1, 1, 2, 2])
    assert many.group_counts() == (2, 2)
    assert_array_equal(many.starts, [0, 2, 5, 7])
    few = Prior(np.zeros((7, 1)), weights, [[1.0]], clients=10, draw=[0, 0, 1, 1, 1, 2, 2])
    assert_array_equal(few.shared, [True, True, True, True, False, True, False])
    assert few.group_counts() == (1, 2)
    assert str(few) == "a mixture of 1 to 2 groups; posterior over 3 populations"


@pytest.mark.parametrize("covariances", [None, COVARIANCE, OWN], ids=["none", "one", "own"])
def test_moments_are_those_of_the_draws(covariances: np.ndarray | None) -> None:
    prior = Prior(ATOMS, WEIGHTS, covariances)
    draws = prior.sample(200_000, np.random.default_rng(0))
    assert draws.shape == (200_000, 2)
    assert_allclose(prior.mean, draws.mean(axis=0), atol=0.015)
    assert_allclose(prior.covariance, np.cov(draws.T), atol=0.03)


def test_draws_of_a_discrete_prior_are_its_atoms() -> None:
    draws = Prior(ATOMS, WEIGHTS).sample(10_000, np.random.default_rng(1))
    counts = [(draws == atom).all(axis=1).mean() for atom in ATOMS]
    assert_allclose(counts, WEIGHTS, atol=0.02)
    assert_allclose(sum(counts), 1.0)


def test_moments_of_many_populations_are_those_of_their_average() -> None:
    one, many = Prior(ATOMS, HALVES, OWN), Prior(ATOMS, HALVES, OWN, draw=DRAW)
    assert_array_equal(many.mean, one.mean)
    assert_array_equal(many.covariance, one.covariance)


def test_roots_are_triangular_and_give_the_covariances_back() -> None:
    singular = np.outer([1.0, 2.0], [1.0, 2.0])
    prior = Prior(ATOMS, WEIGHTS, np.array([OWN[1], singular, np.zeros((2, 2))]))
    assert_allclose(prior.roots @ np.swapaxes(prior.roots, 1, 2), prior.covariances, atol=1e-12)
    assert_allclose(prior.roots[:, 0, 1], 0.0, atol=1e-15)
    assert (np.diagonal(prior.roots, axis1=1, axis2=2) >= 0).all()
    assert Prior(ATOMS, WEIGHTS).roots.shape == (3, 2, 0)  # atoms: clients differ in no direction


@pytest.mark.parametrize("covariances", [None, OWN], ids=["discrete", "mixture"])
def test_a_population_in_other_coordinates(covariances: np.ndarray | None) -> None:
    basis = np.array([[2.0, 1.0], [0.0, -3.0]])
    prior = Prior(ATOMS, HALVES, covariances, clients=9, draw=DRAW)
    mapped = prior.mapped(basis, ("p", "q"))
    assert_allclose(mapped.mean, basis @ prior.mean)
    assert_allclose(mapped.covariance, basis @ prior.covariance @ basis.T)
    assert (mapped.kind, mapped.names, mapped.clients) == (prior.kind, ("p", "q"), 9)
    assert_array_equal(mapped.draw, DRAW)


def test_a_singular_covariance_moves_draws_in_its_direction_only() -> None:
    draws = Prior(ATOMS[:1], [1.0], np.outer([1.0, 2.0], [1.0, 2.0])).sample(1000, np.random.default_rng(2))
    moved = draws - ATOMS[0]
    assert_allclose(moved @ [2.0, -1.0], 0.0, atol=1e-7)
    assert_allclose(moved[:, 0].std(), 1.0, rtol=0.1)


def test_the_same_generator_gives_the_same_draws() -> None:
    prior = Prior(ATOMS, WEIGHTS, COVARIANCE)
    one, two = (prior.sample(5, np.random.default_rng(3)) for _ in range(2))
    assert_array_equal(one, two)


numbers = st.floats(-1e70, 1e70)


@st.composite
def priors(draw: st.DrawFn) -> Prior:
    m, d = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    atoms = draw(hnp.arrays(float, (m, d), elements=numbers))
    weights = draw(hnp.arrays(float, m, elements=st.floats(1e-20, 1e20)))
    root = draw(hnp.arrays(float, (m, d, d), elements=st.floats(-1e30, 1e30)))
    covariances = draw(st.sampled_from([None, root @ np.swapaxes(root, 1, 2)]))
    names = draw(st.lists(st.text(min_size=1), min_size=d, max_size=d, unique=True))
    places = None
    if covariances is None:
        places = draw(st.none() | hnp.arrays(float, (m, d), elements=st.floats(0, 1e60)))
    index = None
    if draw(st.booleans()):
        index = np.array([0, *np.cumsum(draw(hnp.arrays(int, m - 1, elements=st.integers(0, 1))))])
        weights = weights / np.bincount(index, weights)[index]
    clients = draw(st.none() | st.integers(1, 10**9))
    return Prior(atoms, weights, covariances, tuple(names), clients, places, index)


def assert_same(one: Prior, other: Prior) -> None:
    assert_array_equal(one.atoms, other.atoms)
    assert_allclose(one.weights, other.weights, rtol=1e-15)
    assert one.names == other.names
    assert one.clients == other.clients
    for name in ("covariances", "atom_variances", "draw"):
        here, there = getattr(one, name), getattr(other, name)
        assert (here is None) == (there is None)
        if here is not None:
            assert_array_equal(here, there)
            assert here.dtype == there.dtype


@given(priors())
def test_the_wire_form_goes_through_json_and_back(prior: Prior) -> None:
    assert_same(Prior.from_wire(json.loads(json.dumps(prior.to_wire()))), prior)


@given(prior=priors())
def test_parquet_says_the_same_as_json(prior: Prior, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("parquet") / "prior.parquet"
    prior.save(path)
    assert_same(Prior.load(path), prior)


@pytest.mark.parametrize("bad", [np.ones((1, 2)), -np.ones(ATOMS.shape), np.full(ATOMS.shape, np.nan)])
def test_variances_of_atoms_must_be_variances(bad: np.ndarray) -> None:
    with pytest.raises(InvalidReport, match="atom_variances"):
        Prior(ATOMS, WEIGHTS, atom_variances=bad)


SAVED = {
    "discrete": Prior(
        ATOMS, WEIGHTS, None, ("alpha", "β"), 17, np.array([[0.1, 0.2], [0.0, 0.3], [1.0, 2.0]])
    ),
    "gaussian": Prior(ATOMS[:1], [1.0], COVARIANCE, ("alpha", "β"), 17),
    "mixture": Prior(ATOMS, WEIGHTS, OWN, ("alpha", "β"), 17),
    "drawn": Prior(ATOMS, HALVES, OWN, ("alpha", "β"), 17, None, DRAW),
}


@pytest.mark.parametrize("name", ["prior.json", "prior.parquet", "prior"])
@pytest.mark.parametrize("kind", SAVED)
def test_save_and_load(kind: str, name: str, tmp_path: Path) -> None:
    SAVED[kind].save(tmp_path / name)
    again = Prior.load(tmp_path / name)
    assert_same(again, SAVED[kind])
    assert again.kind == SAVED[kind].kind
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_saved_file_says_what_it_is(tmp_path: Path) -> None:
    SAVED["drawn"].save(tmp_path / "prior.json")
    wire = json.loads((tmp_path / "prior.json").read_text(encoding="utf-8"))
    assert wire["format"] == "vaneb-prior/2"
    assert wire["kind"] == "mixture"
    SAVED["drawn"].save(tmp_path / "prior.parquet")
    table = pq.read_table(tmp_path / "prior.parquet")
    assert table.num_rows == 3  # one row for each component
    assert table.column_names == ["atoms", "covariances", "weights", "draw"]


@pytest.mark.parametrize("spread", [None, COVARIANCE.tolist()], ids=["discrete", "one spread"])
def test_a_file_of_the_version_before_is_read(spread: list | None, tmp_path: Path) -> None:
    wire = {"format": "vaneb-prior/1", "names": ["a", "b"], "atoms": ATOMS.tolist()}
    wire |= {"weights": WEIGHTS.tolist(), "spread": spread}
    wire |= {"clients": 17, "atom_variances": np.ones((3, 2)).tolist()}
    (tmp_path / "prior.json").write_text(json.dumps(wire))
    prior = Prior.load(tmp_path / "prior.json")
    if spread is None:
        expected = Prior(ATOMS, WEIGHTS, None, ("a", "b"), 17, np.ones((3, 2)))
    else:  # what was not known of atoms is now a matter of discrete populations
        expected = Prior(ATOMS, WEIGHTS, COVARIANCE, ("a", "b"), 17)
    assert_same(prior, expected)
    # the first files knew neither clients nor variances of atoms
    del wire["clients"], wire["atom_variances"]
    assert Prior.from_wire(wire).clients is None


@pytest.mark.parametrize(
    ("version", "missing"), [("vaneb-prior/2", "covariances"), ("vaneb-prior/1", "spread")]
)
def test_what_a_file_lacks_is_named(version: str, missing: str) -> None:
    wire = Prior(ATOMS, WEIGHTS, OWN).to_wire() | {"format": version, "spread": COVARIANCE.tolist()}
    del wire[missing]
    with pytest.raises(InvalidReport, match=f"{missing} missing"):
        Prior.from_wire(wire)


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
        ({"covariances": np.eye(3)}, "covariances"),
        ({"covariances": 1.0}, "covariances"),
        ({"covariances": OWN[:2]}, "covariances"),
        ({"covariances": [[1.0, 0.5], [0.4, 1.0]]}, "symmetric"),
        ({"covariances": [[1.0, 2.0], [2.0, 1.0]]}, "semidefinite"),
        ({"covariances": [[0.0, 1.0], [1.0, 0.0]]}, "semidefinite"),
        ({"covariances": [[-1.0, 0.0], [0.0, 1.0]]}, "semidefinite"),
        ({"covariances": [*OWN[:2], [[1.0, 2.0], [2.0, 1.0]]]}, "semidefinite"),
        ({"covariances": [*OWN[:2], [[1.0, 0.1], [0.2, 1.0]]]}, "symmetric"),
        ({"covariances": np.full((2, 2), np.nan)}, "covariances"),
        ({"covariances": np.full((2, 2), 1e308)}, "covariances"),
        ({"draw": [0, 1]}, "draw"),
        ({"draw": [1, 1, 2]}, "draw"),
        ({"draw": [0, 2, 2]}, "draw"),
        ({"draw": [0, 1, 0]}, "draw"),
        ({"draw": [0, 0.5, 1]}, "draw"),
        ({"draw": [0, np.nan, 1]}, "draw"),
        ({"draw": ["a", "b", "c"]}, "draw"),
        ({"draw": [0, 0, 1], "covariances": OWN}, "the same sum in each"),
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
    scaled = Prior(ATOMS, WEIGHTS, COVARIANCE * units[:, None] * units)
    assert_allclose(scaled.covariances[1], COVARIANCE * units[:, None] * units, rtol=1e-12)
    with pytest.raises(InvalidReport, match="semidefinite"):
        Prior(ATOMS, WEIGHTS, np.array([[1.0, 1.1], [1.1, 1.0]]) * units[:, None] * units)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(SAVED["drawn"].to_wire())), json_values)
def test_garbage_in_any_field_is_refused_or_harmless(key: str, value: object) -> None:
    wire = SAVED["drawn"].to_wire()
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


@given(content=st.binary(max_size=60))
def test_garbage_called_parquet_is_refused(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("garbage") / "prior.parquet"
    path.write_bytes(content)
    with pytest.raises(InvalidReport, match=r"prior\.parquet"):
        Prior.load(path)


@pytest.mark.parametrize(
    "said",
    [
        None,
        b"[",
        b"[]",
        b"null",
        b"7",
        b"{}",
        b'{"names": 3}',
        b'{"format": "vaneb-prior/2", "names": ["a"]}',
    ],
)
def test_a_parquet_file_of_something_else_is_refused(said: bytes | None, tmp_path: Path) -> None:
    table = pa.table({"atoms": [["x"], None], "weights": [1.0, None], "covariances": [[1.0], None]})
    pq.write_table(table.replace_schema_metadata(said and {"vaneb": said}), tmp_path / "prior.parquet")
    with pytest.raises(InvalidReport, match=r"prior\.parquet"):
        Prior.load(tmp_path / "prior.parquet")


@pytest.mark.parametrize("cut", [1, 10, 50, 120])
def test_a_file_that_ends_early_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    Prior(ATOMS, WEIGHTS, COVARIANCE).save(path)
    path.write_bytes(path.read_bytes()[:-cut])
    if cut > 1:  # the last byte is the end of the line
        with pytest.raises(InvalidReport):
            Prior.load(path)
    else:
        Prior.load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidReport, match=r"nowhere\.json"):
        Prior.load(tmp_path / "nowhere.json")
    with pytest.raises(InvalidReport, match=r"nowhere\.parquet"):
        Prior.load(tmp_path / "nowhere.parquet")
    with pytest.raises(InvalidReport, match="not a saved prior"):
        Prior.load(tmp_path)


def test_a_population_says_in_a_line_what_it_is() -> None:
    prior = Prior(np.zeros((3, 2)), np.ones(3), np.eye(2), ("age", "sex"), draw=np.arange(3))
    assert repr(prior) == "Prior(one Gaussian; posterior over 3 populations; 'age', 'sex')"


def test_the_usual_spread_where_each_client_has_a_component_of_its_own() -> None:
    """Two clients: in one population they share a group, in the other each stands alone."""
    prior = Prior([[0.0], [-1.0], [1.0]], [1.0, 0.5, 0.5], np.eye(1), clients=2, draw=[0, 1, 1])
    assert_allclose(prior.typical_sd, (1 + np.sqrt(2)) / 2)
