"""The door: what is a report, in all the ways that it may be given."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from report_strategies import COV, IDS, NAMES, SE, THETA, assert_same
from vaneb.covariance import ConstantDiagonal, ConstantFull, QuadraticVariance, by_name
from vaneb.errors import InvalidReport
from vaneb.reports import ClientReport, Reports


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


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_columns_of_estimates_beside_columns_of_standard_errors(frame: type) -> None:
    """Frames of the numbers alone are arrays with names."""
    estimates, errors = {"effect": [1.0, 2.0], "dose": [0.5, 0.1]}, {"a": [0.3, 0.4], "b": [0.2, 0.1]}
    reports = Reports(frame(estimates), standard_errors=frame(errors), ids=["x", "y"])
    plain = Reports(
        np.array([[1.0, 0.5], [2.0, 0.1]]), standard_errors=np.array([[0.3, 0.2], [0.4, 0.1]]), ids=["x", "y"]
    )
    assert reports.names == ("effect", "dose")
    assert_allclose(reports.estimate, plain.estimate)
    assert_allclose(
        reports.covariance.precision(reports.estimate), plain.covariance.precision(plain.estimate)
    )
    with pytest.raises(InvalidReport, match="client"):
        Reports(frame(estimates))
