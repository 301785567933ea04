"""Formulas: designs that are known, missing values, and mistakes named by their column."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped.design import Design, learn_design
from vaneb.grouped.formula import parse
from vaneb.grouped.frames import as_flags, as_pandas, canonical_order, client_ids


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "site": ["b", "a", "a", "b", "b", "a"],
            "y": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "x": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5],
            "dose": [1, 2, 3, 1, 2, 3],
            "arm": ["new", "old", "old", "none", "new", "none"],
            "my column": [1.0, 4.0, 9.0, 16.0, 25.0, 36.0],
        }
    )


def learn(frame: pd.DataFrame, text: str, family: str = "gaussian", offset: str | None = None) -> Design:
    formula = parse(text, frame, ["site", *([offset] if offset else [])])
    return learn_design(frame, formula, family, client="site", offset=offset)


def matrix(frame: pd.DataFrame, text: str) -> tuple[tuple[str, ...], np.ndarray]:
    design = learn(frame, text)
    return design.names, design.rows(frame, response=True, new=False).covariates


def test_a_factor_has_treatment_contrasts_with_sorted_levels(frame: pd.DataFrame) -> None:
    names, z = matrix(frame, "y ~ arm")
    assert names == ("Intercept", "arm[T.none]", "arm[T.old]")
    assert_array_equal(z[:, 1], (frame.arm == "none").astype(float))
    assert_array_equal(z[:, 2], (frame.arm == "old").astype(float))


@pytest.mark.parametrize("text", ["y ~ C(dose)", "y ~ factor(dose)"])
def test_a_number_becomes_a_factor_when_asked(frame: pd.DataFrame, text: str) -> None:
    _, z = matrix(frame, text)
    assert_array_equal(z[:, 1:], np.column_stack([frame.dose == 2, frame.dose == 3]))


def test_interactions_and_quoted_names(frame: pd.DataFrame) -> None:
    names, z = matrix(frame, "y ~ x * arm + sqrt(`my column`)")
    assert "x:arm[T.old]" in names
    assert_allclose(z[:, names.index("x:arm[T.old]")], frame.x * (frame.arm == "old"))
    assert_allclose(z[:, 4], np.arange(1.0, 7.0))


def test_dot_means_all_columns_but_the_reserved(frame: pd.DataFrame) -> None:
    names, _ = matrix(frame[["site", "y", "x", "dose"]], "y ~ .")
    assert names == ("Intercept", "x", "dose")


def test_no_intercept(frame: pd.DataFrame) -> None:
    assert matrix(frame, "y ~ 0 + x")[0] == ("x",)
    assert matrix(frame, "y ~ x - 1")[0] == ("x",)


def test_declared_order_of_levels_is_kept_and_unused_levels_are_dropped(frame: pd.DataFrame) -> None:
    frame["arm"] = pd.Categorical(frame.arm, categories=["old", "extinct", "none", "new"])
    assert matrix(frame, "y ~ arm")[0] == ("Intercept", "arm[T.none]", "arm[T.new]")


def test_rows_with_missing_values_in_used_columns_are_dropped(frame: pd.DataFrame) -> None:
    frame.loc[1, "x"] = np.nan
    frame.loc[2, "arm"] = None
    frame.loc[3, "dose"] = -1  # not used
    frame.loc[4, "site"] = None
    kept = learn(frame, "y ~ x + arm").rows(frame, response=True, new=False).kept
    assert_array_equal(kept, [0, 3, 5])


def test_what_a_function_cannot_compute_is_missing(frame: pd.DataFrame) -> None:
    frame.loc[2, "x"] = -1.0
    kept = learn(frame, "y ~ log(x)").rows(frame, response=True, new=False).kept
    assert_array_equal(kept, [0, 1, 3, 4, 5])


def test_other_rows_use_what_the_fit_learned(frame: pd.DataFrame) -> None:
    design = learn(frame, "y ~ center(x) + arm")
    other = design.rows(frame.iloc[[5]], response=False)
    assert other.response is None
    assert_allclose(other.covariates, [[1, 5.5 - frame.x.mean(), 1, 0]])


def test_new_levels_are_named(frame: pd.DataFrame) -> None:
    design = learn(frame, "y ~ C(dose) + arm")
    with pytest.raises(InvalidReport, match=r"column arm: level 'odd' \(1 rows\)"):
        design.rows(frame.assign(arm=["odd", *frame.arm[1:]]), response=False)
    with pytest.raises(InvalidReport, match="column dose: level"):
        design.rows(frame.assign(dose=7), response=False)


def test_offset_and_response_expression(frame: pd.DataFrame) -> None:
    rows = learn(frame, "log(y) ~ x", offset="dose").rows(frame, response=True, new=False)
    assert_allclose(rows.response, np.log(frame.y))
    assert_array_equal(rows.offset, frame.dose)


def test_offsets_in_the_formula_are_added_to_the_offset_column(frame: pd.DataFrame) -> None:
    frame.loc[0, "x"] = -1.0  # its logarithm is missing
    design = learn(frame, "y ~ arm + offset(log(x)) + offset(2 * y)", offset="dose")
    rows = design.rows(frame, response=True, new=False)
    part = frame.iloc[1:]
    assert_array_equal(rows.kept, part.index)
    assert_allclose(rows.offset, np.log(part.x) + 2 * part.y + part.dose)
    assert design.names == ("Intercept", "arm[T.none]", "arm[T.old]")


def test_a_response_is_transformed_as_in_the_fit(frame: pd.DataFrame) -> None:
    rows = learn(frame, "scale(y) ~ x").rows(frame.iloc[[5]], response=True)
    assert_allclose(rows.response, [(6 - frame.y.mean()) / frame.y.std()])


def test_rows_that_are_all_incomplete_are_no_rows(frame: pd.DataFrame) -> None:
    design = learn(frame, "y ~ x + arm")
    assert design.rows(frame.assign(x=None), response=False).covariates.shape == (0, 4)


def test_a_column_that_was_numbers_in_the_fit(frame: pd.DataFrame) -> None:
    with pytest.raises(InvalidReport, match="column x: holds text, not numbers"):
        learn(frame, "y ~ x").rows(frame.assign(x="high"), response=False)


def test_dates_are_neither_numbers_nor_text(frame: pd.DataFrame) -> None:
    frame["day"] = pd.date_range("2024-01-01", periods=6)
    with pytest.raises(InvalidReport, match=r"column day: .* days since"):
        learn(frame, "y ~ day")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y ~ X1", "column X1: missing"),
        ("y ~ Dose", r"Did you mean 'dose'\?"),
        ("y ~ log(z)", "column z: missing"),
        ("y ~ `my colum`", "Did you mean 'my column'"),
    ],
)
def test_unknown_columns(frame: pd.DataFrame, text: str, message: str) -> None:
    with pytest.raises(InvalidReport, match=message):
        parse(text, frame, ["site"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y ~ x + (1 | site)", "leave out terms such as"),
        ("~ x", "one response"),
        ("y + x ~ dose", "one response"),
        ("y ~ x +", "cannot be read"),
        ("y ~ my column", "quoted, as in `my column`"),
        ("y ~ x^2", r"I\(x \*\* 2\)"),
        ("y ~ ns(x)", r"at character 5 \('ns'\): there is no function 'ns'"),
        ("y ~ np.log(x)", r"write log\(\.\.\.\)"),
        ("Surv(x, dose) ~ arm", "not supported here"),
        ("y | dose ~ arm", "not supported here"),
        ("1 ~ x", "not a column"),
    ],
)
def test_formulas_that_cannot_be_used(frame: pd.DataFrame, text: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parse(text, frame, ["site"])


@pytest.mark.parametrize(
    ("values", "family", "message"),
    [
        (list("uvwuvw"), "gaussian", "column y: holds text, not numbers"),
        ([0, 1, 2.5, 1, 1, 0], "poisson", "2.5 is not a count"),
        ([0, 1, 2, 1, 1, 0], "binomial", "2 is not 0 or 1"),
        (list("uvwuvw"), "binomial", "3 classes"),
        ([1, 0, 2, 1, 1, 1], "gamma", "0 is not a positive number"),
        ([1, 1, 1, 1, 1, 1], "multinomial", "nothing to learn"),
        ([1, np.inf, 1, 1, 1, 1], "gaussian", "finite number"),
    ],
)
def test_responses_that_a_family_cannot_have(
    frame: pd.DataFrame, values: list, family: str, message: str
) -> None:
    frame["y"] = values
    with pytest.raises(InvalidReport, match=message):
        learn(frame, "y ~ x", family).rows(frame, response=True, new=False)


@pytest.mark.parametrize(
    ("values", "codes"),
    [
        ([True, False, True, True, False, False], [1, 0, 1, 1, 0, 0]),
        (["yes", "no", "yes", "yes", "no", "no"], [1, 0, 1, 1, 0, 0]),
        (pd.Categorical(list("abaabb"), categories=["b", "a"]), [1, 0, 1, 1, 0, 0]),
        ([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], [1, 0, 1, 1, 0, 0]),
    ],
)
def test_two_classes_are_coded_as_in_r(frame: pd.DataFrame, values: object, codes: list[int]) -> None:
    frame["y"] = values
    rows = learn(frame, "y ~ x", "binomial").rows(frame, response=True, new=False)
    assert_array_equal(rows.response, codes)


def test_a_class_that_only_test_rows_have(frame: pd.DataFrame) -> None:
    frame["y"] = ["u", "v", "w", "u", "v", "w"]
    design = learn(frame, "y ~ x", "multinomial")
    assert design.coding.classes == ("u", "v", "w")
    with pytest.raises(InvalidReport, match="none of the classes u, v, w"):
        design.rows(frame.assign(y="z"), response=True)


def test_ids_are_the_same_text_whatever_the_type() -> None:
    as_integers = client_ids(pd.Series([3, 10]))
    assert_array_equal(as_integers, client_ids(pd.Series([3.0, 10.0])))
    assert_array_equal(as_integers, client_ids(pd.Series(["3", "10"])))


def test_flags() -> None:
    for values in ([0, 1], [0.0, 1.0], [False, True], ["0", "1"], ["False", "TRUE"]):
        assert_array_equal(as_flags(pd.Series(values), "test"), [False, True])
    with pytest.raises(InvalidReport, match="column test: 'maybe'"):
        as_flags(pd.Series(["0", "maybe"]), "test")


def test_canonical_order_depends_on_values_alone(frame: pd.DataFrame) -> None:
    shuffled = frame.sample(frac=1, random_state=3)
    columns = ["site", "y", "arm"]
    first = frame.iloc[canonical_order(frame, columns)].reset_index(drop=True)
    second = shuffled.iloc[canonical_order(shuffled, columns)].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, second)


def test_frames_of_any_kind(frame: pd.DataFrame) -> None:
    polars = pytest.importorskip("polars")
    pd.testing.assert_frame_equal(as_pandas(polars.from_pandas(frame)), frame, check_dtype=False)
    with pytest.raises(InvalidReport, match="not a pandas, polars or pyarrow table"):
        as_pandas([1, 2])
