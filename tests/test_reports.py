"""The door: what is a report, what is refused and how it is said."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from report_strategies import report_arguments, reports
from vaneb.covariance import ConstantDiagonal, ConstantFull, QuadraticVariance, by_name
from vaneb.errors import InvalidReport, VanebError
from vaneb.reports import ClientReport, Reports

THETA = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
SE = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
COV = np.array([[[2.0, 0.5], [0.5, 1.0]], [[4.0, -1.0], [-1.0, 1.0]], [[1.0, 0.0], [0.0, 3.0]]])
IDS = ["north", "south", "west"]
NAMES = ["age", "dose"]


def changed(array: np.ndarray, index: tuple, value: float) -> np.ndarray:
    copy = array.copy()
    copy[index] = value
    return copy


def precision_of_estimate(made: Reports) -> np.ndarray:
    """n_k times the unit precision, always as matrices (K, d, d)."""
    unit = made.covariance.unit_precision
    full = unit if unit.ndim == 3 else unit[:, :, None] * np.eye(made.dimension)
    return made.n[:, None, None] * full


# ---------------------------------------------------------------- one convention


def test_all_ways_to_state_the_same_uncertainty_agree() -> None:
    n = np.array([10, 20, 30])
    diagonal = [
        Reports(THETA, n=n, standard_errors=SE),
        Reports(THETA, n=n, covariance=SE**2),
        Reports(THETA, n=n, precision=1 / SE**2),
        Reports(THETA, n=n, covariance=SE[:, :, None] ** 2 * np.eye(2)),
        Reports(THETA, covariance=SE**2),
    ]
    for made in diagonal:
        assert_allclose(precision_of_estimate(made), np.eye(2) / SE[:, :, None] ** 2, rtol=1e-13)
    assert [type(made.covariance) for made in diagonal[:4]] == [ConstantDiagonal] * 3 + [ConstantFull]
    for made in (Reports(THETA, n=n, covariance=COV), Reports(THETA, precision=np.linalg.inv(COV))):
        assert_allclose(precision_of_estimate(made) @ COV, np.broadcast_to(np.eye(2), COV.shape), atol=1e-12)


def test_one_parameter_needs_no_second_axis() -> None:
    made = Reports([1.0, 2.0], standard_errors=[0.5, 0.25])
    assert made.estimate.shape == (2, 1)
    assert_allclose(made.covariance.unit_precision, [[4.0], [16.0]])


def test_one_covariance_for_all_clients() -> None:
    made = Reports(THETA, covariance=COV[0])
    assert_allclose(precision_of_estimate(made), np.broadcast_to(np.linalg.inv(COV[0]), COV.shape))


def test_covariance_function_is_kept_and_divided_by_n() -> None:
    function = by_name("poisson", dimension=2, n_clients=3)
    made = Reports(THETA, n=[1, 2, 3], covariance=function)
    assert made.covariance is function
    assert_array_equal(made.n, [1, 2, 3])


def test_the_units_of_theta_do_not_decide_what_is_singular() -> None:
    units = np.array([1e-9, 1e9])
    made = Reports(THETA * units, covariance=COV * units[:, None] * units)
    plain = Reports(THETA, covariance=COV)
    assert_allclose(
        made.covariance.unit_precision * units[:, None] * units, plain.covariance.unit_precision, rtol=1e-12
    )


def test_singular_precision_is_an_ordinary_report() -> None:
    direction = np.array([1.0, -2.0])
    precision = np.stack([np.outer(direction, direction), np.zeros((2, 2)), np.diag([1.0, 0.0])])
    made = Reports(THETA, precision=precision)
    assert_allclose(made.covariance.unit_precision, precision, atol=1e-15)


def test_rounding_in_a_singular_precision_is_forgiven_and_removed() -> None:
    direction = np.array([1.0, 1 / 3, np.pi])
    rounded = np.array([[float(f"{x:.7g}") for x in row] for row in np.outer(direction, direction)])
    assert np.linalg.eigvalsh(rounded)[0] < 0
    made = Reports(np.ones((1, 3)), precision=rounded[None])
    unit = made.covariance.unit_precision[0]
    assert np.linalg.eigvalsh(unit)[0] >= -1e-14
    assert_allclose(unit, rounded, rtol=1e-6)


def test_results_do_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    roots = rng.standard_normal((11, 3, 3))
    covariance = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(3)
    whole = [Reports(np.zeros((11, 3)), **{form: covariance}) for form in ("covariance", "precision")]
    monkeypatch.setattr("vaneb.noise.BLOCK", 4)
    parts = [Reports(np.zeros((11, 3)), **{form: covariance}) for form in ("covariance", "precision")]
    for one, other in zip(whole, parts, strict=True):
        assert_array_equal(one.covariance.unit_precision, other.covariance.unit_precision)
    with pytest.raises(InvalidReport, match="client '9'"):
        Reports(np.zeros((11, 3)), precision=changed(covariance, (9,), -np.eye(3)))


def test_the_caller_may_change_his_arrays_afterwards() -> None:
    theta = THETA.copy()
    made = Reports(theta, standard_errors=SE)
    theta[:] = 0
    assert_array_equal(made.estimate, THETA)


# ---------------------------------------------------------------- data frames

FRAME = {
    "cov_dose__age": [0.5, -1.0, 0.0],
    "client": IDS,
    "theta_age": THETA[:, 0],
    "n": [10, 20, 30],
    "theta_dose": THETA[:, 1],
    "cov_age__age": COV[:, 0, 0],
    "cov_dose__dose": COV[:, 1, 1],
    "comment": ["a", "b", "c"],
}


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_frames_are_read_by_their_column_names(kind) -> None:
    made = Reports(kind(FRAME))
    expected = Reports(THETA, n=[10, 20, 30], covariance=COV, ids=IDS, names=NAMES)
    assert made.names == ("age", "dose")
    assert made.ids.tolist() == IDS
    assert_array_equal(made.estimate, expected.estimate)
    assert_array_equal(made.covariance.unit_precision, expected.covariance.unit_precision)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, pa.table])
def test_frames_with_a_covariance_function_need_no_columns_for_it(kind) -> None:
    made = Reports(kind(FRAME), covariance=by_name("squared", 2, 3))
    assert isinstance(made.covariance, QuadraticVariance)


def test_missing_value_of_a_frame_is_named() -> None:
    frame = pd.DataFrame({"client": [7, 8], "theta_age": [1.0, None], "se_age": [1.0, 2.0]})
    with pytest.raises(InvalidReport, match=r"client '8', column theta_age: the estimate is missing"):
        Reports(frame)
    with pytest.raises(InvalidReport, match=r"column theta_age: holds String"):
        Reports(pl.DataFrame({"client": [7], "theta_age": ["x"], "se_age": [1.0]}))


def test_frames_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(InvalidReport, match=r"LazyFrame is neither an array nor .* collect it first"):
        Reports(pl.DataFrame(FRAME).lazy())
    twice = pd.DataFrame([[1, 1.0, 1.0, 2.0]], columns=["client", "theta_a", "se_a", "se_a"])
    with pytest.raises(InvalidReport, match=r"'se_a' 2 times"):
        Reports(twice)
    with pytest.raises(InvalidReport, match="column client: missing"):
        Reports(pd.DataFrame(FRAME).set_index("client"))


def test_a_frame_and_an_argument_may_not_both_give_the_uncertainty() -> None:
    with pytest.raises(InvalidReport, match=r"columns cov_.*also given"):
        Reports(pd.DataFrame(FRAME), covariance=COV)


# ---------------------------------------------------------------- refusals

REFUSED = {
    "estimate NaN": (
        {"theta_hat": changed(THETA, (1, 0), np.nan), "standard_errors": SE},
        r"client 'south', column theta_age: the estimate is missing \(NaN\)",
    ),
    "estimate infinite": (
        {"theta_hat": changed(THETA, (2, 1), -np.inf), "standard_errors": SE},
        r"client 'west', column theta_dose: the estimate is -inf",
    ),
    "estimate beyond squaring": (
        {"theta_hat": changed(THETA, (0, 1), 1e80), "standard_errors": SE},
        r"client 'north', column theta_dose: the estimate is 1e\+80",
    ),
    "n zero": ({"n": [1, 0, 3], "standard_errors": SE}, r"client 'south', column n: the sample size is 0"),
    "n negative": ({"n": [1, 2, -3], "standard_errors": SE}, r"client 'west', column n: .*-3"),
    "n NaN": ({"n": [np.nan, 2, 3], "standard_errors": SE}, r"client 'north', column n: .*missing"),
    "n of other length": ({"n": [1, 2], "standard_errors": SE}, r"column n: shape \(2,\) for 3 clients"),
    "se zero": (
        {"standard_errors": changed(SE, (1, 1), 0)},
        r"client 'south', column se_dose: the standard error is 0",
    ),
    "se negative": (
        {"standard_errors": changed(SE, (1, 1), -0.5)},
        r"client 'south', column se_dose: the standard error is -0.5",
    ),
    "se NaN": ({"standard_errors": changed(SE, (0, 0), np.nan)}, r"client 'north', column se_age: .*missing"),
    "se infinite": (
        {"standard_errors": changed(SE, (0, 0), np.inf)},
        r"client 'north', column se_age: .*inf",
    ),
    "se underflows": ({"standard_errors": changed(SE, (0, 0), 1e-200)}, r"client 'north', column se_age"),
    "variance zero": (
        {"covariance": changed(SE, (2, 0), 0)},
        r"client 'west', column cov_age__age: the variance is 0",
    ),
    "variance negative": (
        {"covariance": changed(COV, (1, 1, 1), -1.0)},
        r"client 'south', column cov_dose__dose: the variance is -1",
    ),
    "covariance NaN": (
        {"covariance": changed(COV, (1, 1, 0), np.nan)},
        r"client 'south', column cov_age__dose: the value is missing",
    ),
    "covariance not symmetric": (
        {"covariance": changed(COV, (0, 0, 1), 0.6)},
        r"client 'north', column cov_age__dose: the matrix is not symmetric.*0\.6.*0\.5",
    ),
    "correlation beyond one": (
        {"covariance": COV + np.array([[[0, 2.0], [2.0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]])},
        r"client 'north', column cov_age__dose: 2\.5 is larger than its two diagonal entries allow",
    ),
    "covariance overflows": (
        {"covariance": COV + np.array([[[0, 1e300], [1e300, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]])},
        r"client 'north', column cov_age__dose: 1e\+300 is larger",
    ),
    "covariance singular": (
        {"covariance": changed(COV, (2,), np.ones((2, 2)))},
        r"client 'west', column cov_age__dose: the covariance is singular.*prec_",
    ),
    "precision negative": (
        {"precision": changed(SE, (1, 0), -1.0)},
        r"client 'south', column prec_age__age: the precision is -1",
    ),
    "precision NaN": (
        {"precision": changed(SE, (1, 0), np.nan)},
        r"client 'south', column prec_age__age: the precision is missing",
    ),
    "precision infinite": (
        {"precision": changed(COV, (1, 0, 0), np.inf)},
        r"client 'south', column prec_age__age",
    ),
    "precision with zero diagonal": (
        {"precision": changed(COV, (0, 0, 0), 0.0)},
        r"client 'north', column prec_age__dose: the precision is indefinite",
    ),
    "two forms": (
        {"standard_errors": SE, "covariance": SE**2},
        r"covariance, standard_errors: given together",
    ),
    "no form": ({}, r"none of them given"),
    "function without n": ({"covariance": by_name("poisson", 2, 3)}, r"column n: missing"),
    "function of other clients": (
        {"covariance": by_name("poisson", 2, 4), "n": 5},
        r"function is for 4 clients with 2 parameters, the estimates are of 3 clients with 2",
    ),
    "shape": ({"standard_errors": SE[:2]}, r"standard_errors: shape \(2, 2\) does not fit"),
    "shape of covariance": ({"covariance": COV[:2]}, r"covariance: shape \(2, 2, 2\) does not fit"),
    "empty": ({"theta_hat": np.empty((0, 2)), "standard_errors": SE}, r"theta_hat: empty"),
    "no parameters": ({"theta_hat": np.empty((3, 0)), "standard_errors": SE}, r"theta_hat: empty"),
    "mixed dimensions": (
        {"theta_hat": [[1.0, 2.0], [3.0], [4.0]], "standard_errors": SE},
        r"theta_hat: not a rect",
    ),
    "three axes": ({"theta_hat": COV, "standard_errors": SE}, r"theta_hat: shape \(3, 2, 2\)"),
    "text": ({"theta_hat": [["a", "b"]] * 3, "standard_errors": SE}, r"theta_hat: not a rectangular array"),
    "complex": ({"theta_hat": THETA * 1j, "standard_errors": SE}, r"theta_hat: .*complex"),
    "ids twice": (
        {"ids": ["a", "b", "a"], "standard_errors": SE},
        r"client 'a', column client: appears in rows 1 and 3",
    ),
    "ids empty": ({"ids": ["a", " ", "b"], "standard_errors": SE}, r"row 2, column client: empty"),
    "ids missing": (
        {"ids": ["a", None, "b"], "standard_errors": SE},
        r"row 2, column client: None is not an id",
    ),
    "ids float": (
        {"ids": [1.0, 2.5, 3.0], "standard_errors": SE},
        r"row 1, column client: 1\.0 is not an id",
    ),
    "ids too few": ({"ids": ["a", "b"], "standard_errors": SE}, r"ids: 2 ids for 3 clients"),
    "ids one string": ({"ids": "abc", "standard_errors": SE}, r"ids: expected a sequence"),
    "names too many": ({"names": ["a", "b", "c"], "standard_errors": SE}, r"names: 3 names for 2 parameters"),
    "names twice": ({"names": ["a", "a"], "standard_errors": SE}, r"names: 'a' names two parameters"),
    "names empty": ({"names": ["a", ""], "standard_errors": SE}, r"names: every parameter needs a name"),
    "status too few": ({"status": ["ok"], "standard_errors": SE}, r"status: expected 3 strings"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_place(case: str) -> None:
    arguments, message = REFUSED[case]
    with pytest.raises(InvalidReport, match=message):
        Reports(**{"theta_hat": THETA, "ids": IDS, "names": NAMES} | arguments)


def test_indefinite_matrix_within_the_bounds_of_its_diagonal() -> None:
    matrix = np.array([[1.0, 0.9, -0.9], [0.9, 1.0, 0.9], [-0.9, 0.9, 1.0]])[None]
    for form in ("covariance", "precision"):
        with pytest.raises(InvalidReport, match=rf"client '0', .*the {form} is indefinite"):
            Reports(np.zeros((1, 3)), **{form: matrix})


def test_a_square_array_that_could_be_two_things_is_refused() -> None:
    with pytest.raises(InvalidReport, match="could be one matrix for all clients or a row for each"):
        Reports(THETA[:2], covariance=np.eye(2))


def test_several_culprits_are_counted() -> None:
    with pytest.raises(InvalidReport, match=r"client '0', column se_1: .* \(and 2 more clients\)"):
        Reports(THETA, standard_errors=-SE)


# ---------------------------------------------------------------- single clients


def test_indexing_iterating_and_stacking_are_inverse() -> None:
    made = Reports(THETA, n=[4, 5, 6], covariance=COV, ids=IDS, names=NAMES, status=["ok", "penalised", "ok"])
    assert made[-1].id == "west"
    assert made[1].status == "penalised"
    again = Reports.from_clients(list(made), names=made.names)
    assert_same(made, again)
    with pytest.raises(IndexError):
        made[3]


def test_constant_families_may_mix_others_may_not() -> None:
    diagonal = Reports(THETA, standard_errors=SE)
    full = Reports(THETA, covariance=COV, ids=IDS)
    mixed = Reports.from_clients([diagonal[0], full[1]])
    assert_allclose(
        precision_of_estimate(mixed),
        np.stack([precision_of_estimate(diagonal)[0], precision_of_estimate(full)[1]]),
    )
    poisson = ClientReport("p", THETA[0], 5, by_name("poisson", 2, 1))
    with pytest.raises(InvalidReport, match=r"client 'p', covariance: QuadraticVariance, but client '0'"):
        Reports.from_clients([diagonal[0], poisson])
    with pytest.raises(InvalidReport, match=r"client 'q', estimate: 1 parameters, but client '0' has 2"):
        Reports.from_clients([diagonal[0], ClientReport("q", np.ones(1), 5, by_name("poisson", 1, 1))])
    with pytest.raises(InvalidReport, match="empty"):
        Reports.from_clients([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"estimate": [1.0, np.nan]}, "client 'a', column theta_2: the estimate is missing"),
        ({"estimate": [[1.0, 2.0]]}, r"client 'a', estimate: expected shape \(d,\)"),
        ({"n": 0}, "client 'a', column n"),
        ({"id": ""}, "column client: empty"),
        ({"covariance": by_name("poisson", 2, 2)}, "function is for 2 clients"),
        ({"covariance": np.eye(2)}, "expected a CovarianceFunction, got ndarray"),
        ({"status": None}, "client 'a', status"),
    ],
)
def test_a_single_report_is_checked_too(changes: dict, message: str) -> None:
    valid = {"id": "a", "estimate": [1.0, 2.0], "n": 3, "covariance": by_name("poisson", 2, 1)}
    with pytest.raises(InvalidReport, match=message):
        ClientReport(**valid | changes)


# ---------------------------------------------------------------- properties


def assert_same(one: Reports, other: Reports, rtol: float = 0.0) -> None:
    assert one.names == other.names
    assert one.ids.tolist() == other.ids.tolist()
    assert one.status.tolist() == other.status.tolist()
    assert_allclose(one.estimate, other.estimate, rtol=rtol)
    assert_allclose(one.n, other.n, rtol=rtol)
    assert type(one.covariance) is type(other.covariance)
    assert_allclose(one.covariance.unit_precision, other.covariance.unit_precision, rtol=rtol)


@given(reports)
def test_wire_round_trip(made: Reports) -> None:
    wires = [json.loads(json.dumps(client.to_wire(), allow_nan=False)) for client in made]
    assert_same(made, Reports.from_clients([ClientReport.from_wire(wire) for wire in wires], made.names))


@given(report_arguments(), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(arguments: dict, random) -> None:
    made = Reports(**arguments)
    order = list(range(len(made)))
    random.shuffle(order)
    per_client = {key: arguments[key] for key in ("theta_hat", "n", "ids")}
    shuffled = {key: [value[k] for k in order] for key, value in per_client.items()}
    noise_key = next(key for key in arguments if key in ("standard_errors", "covariance", "precision"))
    noise = np.asarray(arguments[noise_key])
    if noise.ndim == 3 or noise.shape == made.estimate.shape:  # not one matrix for all
        shuffled[noise_key] = noise[order]
    assert_same(made.take(order), Reports(**arguments | shuffled), rtol=1e-14)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
GOOD_WIRE = {
    "id": "a",
    "estimate": [1.0, 2.0],
    "n": 3.0,
    "covariance": {"family": "constant-diagonal", "unit_precision": [[1.0, 2.0]]},
    "status": "ok",
}


@given(JSON)
def test_garbage_is_not_a_report(wire) -> None:
    with pytest.raises(InvalidReport):
        ClientReport.from_wire(wire)


@given(st.sampled_from(sorted(GOOD_WIRE)), JSON)
def test_a_report_with_one_garbled_field_is_refused_or_valid(key: str, value) -> None:
    try:
        report = ClientReport.from_wire(GOOD_WIRE | {key: value})
    except VanebError:
        return
    assert np.isfinite(report.estimate).all()
    assert report.n > 0
    assert isinstance(report.id, str)


def test_a_wire_without_a_field_says_which() -> None:
    for key in GOOD_WIRE:
        with pytest.raises(InvalidReport, match=key):
            ClientReport.from_wire({other: value for other, value in GOOD_WIRE.items() if other != key})


# ---------------------------------------------------------------- looks


def test_repr_is_short() -> None:
    made = Reports(
        THETA, n=[10, 20, 30], standard_errors=SE, ids=["<b>", "&", "c"], status=["ok", "separated", "ok"]
    )
    assert repr(made) == "Reports(3 clients, 2 parameters: '1', '2', n 10 to 30, ConstantDiagonal, 1 not ok)"
    html = made._repr_html_()
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert len(Reports(np.zeros((1000, 1)), standard_errors=np.ones(1000))._repr_html_()) < 1500


def test_likelihood_sees_the_same_clients() -> None:
    made = Reports(THETA, n=[4, 5, 6], covariance=COV)
    log_density = made.likelihood().log_likelihood(THETA[:1])[:, 0]
    for k in range(3):
        z = THETA[k] - THETA[0]
        expected = -0.5 * (z @ np.linalg.solve(COV[k], z) + np.log(np.linalg.det(2 * np.pi * COV[k])))
        assert_allclose(log_density[k], expected, rtol=1e-12)
