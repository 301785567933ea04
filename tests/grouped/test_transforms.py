"""Functions of columns: known values, what is learned from rows, and what cannot be computed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from vaneb.errors import InvalidReport
from vaneb.grouped.encoding import Encoding
from vaneb.grouped.formula import parse


def learn(text: str, frame: pd.DataFrame) -> Encoding:
    return Encoding.learn(parse(f"y ~ 0 + {text}", frame, []), frame)


def columns(text: str, frame: pd.DataFrame, other: pd.DataFrame | None = None) -> np.ndarray:
    return learn(text, frame).matrix(frame if other is None else other)


def of(x: object, **others: object) -> pd.DataFrame:
    return pd.DataFrame({"x": x, **others}).assign(y=0.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("I(x - 1 - 2)", 1.0),
        ("I(12 / x / -2)", -1.5),
        ("I(-x ** 2)", -16.0),
        ("I(-x^2)", -16.0),
        ("I(2 ** 3 ** 2)", 512.0),
        ("I(x ** -1)", 0.25),
        ("I(2 * (x + 1) - 3 * -x)", 22.0),
        ("log(exp(x))", 4.0),
        ("log2(x) + log10(I(25 * x)) + log1p(x)", [2.0, 2.0, np.log(5.0)]),
        ("sqrt(x):abs(-x)", 8.0),
        ("I(9 ** 9 ** 9 ** 9 / 9 ** 9 ** 9 ** 9)", np.nan),
    ],
)
def test_arithmetic(text: str, value: float) -> None:
    assert_allclose(columns(text, of([4])), np.reshape(value, (1, -1)))


def test_numbers_of_any_type() -> None:
    for kind in ("int8", "float32", "bool", "Int64", "boolean", "Float64"):
        assert_array_equal(columns("x + I(x * 2)", of(pd.array([1, 0], dtype=kind))), [[1, 2], [0, 0]])


def test_orthogonal_polynomials_are_those_of_r() -> None:
    linear = np.array([-2, -1, 0, 1, 2]) / np.sqrt(10)
    quadratic = np.array([2, -1, -2, -1, 2]) / np.sqrt(14)
    assert_allclose(columns("poly(x, 2)", of(np.arange(1.0, 6))), np.column_stack([linear, quadratic]))
    # At 6, from the rows 1 to 5: predict(poly(1:5, 2), 6) in R.
    beyond = columns("poly(x, 2)", of(np.arange(1.0, 6)), of([6.0]))
    assert_allclose(beyond, [[3 / np.sqrt(10), 7 / np.sqrt(14)]])


def test_polynomials_far_from_zero() -> None:
    x = 1e6 + np.arange(50.0)
    z = columns("poly(x, 4)", of(x))
    assert_allclose(z.T @ z, np.eye(4), atol=1e-9)
    assert_allclose(z.sum(axis=0), 0, atol=1e-9)


def test_raw_polynomials() -> None:
    assert_array_equal(columns("poly(x, 3, raw=TRUE)", of([2, 3])), [[2, 4, 8], [3, 9, 27]])


def test_splines_without_knots_are_bernstein_polynomials_also_beyond_their_bounds() -> None:
    encoding = learn("bs(x)", of([0.0, 0.25, 0.5, 1.0]))
    t = np.array([-0.5, 0.0, 0.3, 1.0, 1.5])
    expected = np.column_stack([3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    assert_allclose(encoding.matrix(of(t)), expected, atol=1e-12)


def test_linear_splines_are_hats_between_quantiles() -> None:
    x = np.linspace(0, 3, 31)
    hats = np.column_stack([np.interp(x, [0, 1, 2, 3], row) for row in np.eye(4)[1:]])
    assert_allclose(columns("bs(x, df=3, degree=1)", of(x)), hats, atol=1e-12)
    assert_allclose(columns("bs(x, knots=[1, 2], degree=1)", of(x)), hats, atol=1e-12)


def test_centre_and_scale() -> None:
    frame, other = of([1.0, 2.0, 6.0]), of([5.0])
    assert_allclose(columns("center(x) + scale(x)", frame, other), [[2, 2 / np.sqrt(7)]])
    assert_allclose(columns("scale(x, center=FALSE)", frame, other), [[5 / np.sqrt(41 / 2)]])
    assert_allclose(columns("center(log(x)) + log(center(x) + 4)", frame, other)[0, 1], np.log(6))


def test_what_is_missing_is_not_learned_from_and_stays_missing() -> None:
    frame = of([-1.0, 1.0, np.e**2, 0.0])
    z = columns("center(log(x)) + poly(log(x), 1) + bs(log(x), degree=1)", frame)
    assert_allclose(z[1:3], [[-1, -np.sqrt(0.5), 0], [1, np.sqrt(0.5), 1]], atol=1e-12)
    assert np.isnan(z[0]).all()
    assert not np.isfinite(z[3]).any()


@pytest.mark.parametrize(
    ("coding", "names", "values"),
    [
        ("treatment", ["T.b", "T.c"], [[0, 0], [1, 0], [0, 1]]),
        ("treatment(reference='b')", ["T.a", "T.c"], [[1, 0], [0, 0], [0, 1]]),
        ("SAS", ["T.a", "T.b"], [[1, 0], [0, 1], [0, 0]]),
        ("sum", ["S.a", "S.b"], [[1, 0], [0, 1], [-1, -1]]),
        ("helmert", ["H.b", "H.c"], [[-1, -1], [1, -1], [0, 2]]),
        ("diff", ["D.b", "D.c"], np.array([[-2, -1], [1, -1], [1, 2]]) / 3),
        (
            "poly",
            [".L", ".Q"],
            np.column_stack([np.array([-1, 0, 1]) / np.sqrt(2), np.array([1, -2, 1]) / np.sqrt(6)]),
        ),
    ],
)
def test_codings(coding: str, names: list[str], values: object) -> None:
    frame = of(list("abc"))
    encoding = Encoding.learn(parse(f"y ~ C(x, {coding})", frame, []), frame)
    assert [name.rpartition("[")[2][:-1] for name in encoding.names[1:]] == names
    assert_allclose(encoding.matrix(frame)[:, 1:], values, atol=1e-12)


def test_levels_are_the_same_text_whatever_the_type() -> None:
    for values in ([10, 2, 2], [10.0, 2.0, 2.0], ["10", "2", "2"]):
        encoding = learn("C(x)", of(values))
        assert set(encoding.levels["x"]) == {"2", "10"}
        assert_array_equal(encoding.matrix(of([2, 10])).sum(axis=0), [1, 1])
    assert learn("C(x)", of([10, 2])).levels["x"] == ("2", "10")
    assert learn("C(x)", of([True, False])).levels["x"] == ("False", "True")
    assert learn("C(x)", of([2.5, -1.0])).levels["x"] == ("-1", "2.5")
    assert learn("x", of(["b", 3, 2.0, "a"])).levels["x"] == ("2", "3", "a", "b")


def test_levels_that_the_formula_names_need_no_row() -> None:
    encoding = learn("C(x, levels=['c', 'a', 'b'])", of(["a", "b"]))
    assert encoding.learned == ()
    assert encoding.levels == {"x": ("c", "a", "b")}
    assert_array_equal(encoding.matrix(of(["b", "c"])), [[0, 0, 1], [1, 0, 0]])
    with pytest.raises(InvalidReport, match=r"column x: level 'd' \(1 rows\) is not among the levels"):
        encoding.matrix(of(["d"]))


@pytest.mark.parametrize(
    ("text", "x", "message"),
    [
        ("log(x)", ["a", "b"], r"column x: holds text, not numbers, as log\(x\) needs"),
        ("I(1 + x)", pd.Categorical(["a", "b"]), "holds classes, not numbers"),
        ("scale(x)", [2.0, 2.0], "all the same"),
        ("poly(x, 2)", [1.0, 2.0, 1.0], "more than 2 distinct values; there are 2"),
        ("poly(x, 3)", [1e200, 2e200, -1e200, 4e200], "too large"),
        ("bs(x)", [2.0, 2.0], "one value only"),
        ("bs(x, df=5)", [0.0] * 20 + [1.0], "must lie between 0 and 1"),
        ("bs(x, knots=[3])", [0.0, 1.0], "must lie between 0 and 1"),
        ("bs(x, knots=[1, 1, 1], degree=2)", [0.0, 2.0], "no more than 2 in one place"),
        ("center(log(x))", [-1.0, -2.0], "no value in any row"),
        ("C(x, treatment('z'))", ["a", "b"], "has no level 'z'"),
        ("C(x)", [[1], [2]], "neither numbers nor text"),
        ("x", [1j, 2j], "neither numbers nor text"),
    ],
)
def test_what_cannot_be_computed(text: str, x: object, message: str) -> None:
    frame = of(x)
    with pytest.raises(InvalidReport, match=message):
        Encoding.learn(parse(f"y ~ {text}", frame, []), frame).names  # noqa: B018
