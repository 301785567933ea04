"""Designs as formulaic and R make them, full rank, and as plain data that others may have written."""

from __future__ import annotations

import copy
import itertools
import json
import random
import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped.encoding import Encoding
from vaneb.grouped.formula import parse
from vaneb.grouped.syntax import Limits


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    n = 160
    levels = ["lo", "mid", "hi"]
    return pd.DataFrame(
        {
            "y": rng.normal(size=n),
            "x": rng.normal(size=n),
            "z": rng.uniform(1, 2, n),
            "a": rng.choice(list("uvw"), n),
            "b": rng.choice(list("pq"), n),
            "c": pd.Categorical(rng.choice(levels, n), categories=levels),
            "d": rng.integers(1, 5, n),
            "t": rng.integers(0, 2, n).astype(bool),
            "my column": np.arange(float(n)),
        }
    )


def learn(text: str, frame: pd.DataFrame) -> Encoding:
    return Encoding.learn(parse(f"y ~ {text}", frame, []), frame)


WRITTEN = """
1; 0 + x; a; 0 + a; a + b; 0 + a + b; a:b; 0 + a:b; x:a; x*a; a*b; a/b; a/x; (a + b)^2; b:a; a*b*c;
a:b:c; a + b:c; a:b + b:c; a:b + a:c + b:c; x:a:b; x:a + x:b; x + x:a:b; a*x*b*z; x/z/a; (x + z)/a; (a +
b + x)**2 - a:b; poly(x, 2); poly(x, 3):a; a:poly(x, 2); bs(x); bs(x, df=5); bs(x, df=4, degree=2); bs(x,
knots=[-0.5, 0.3]); bs(x, df=3, degree=1, lower_bound=-10, upper_bound=10); bs(z, df=6):a; C(a,
contr.sum); C(a, contr.helmert); C(d, contr.poly); C(d, contr.diff); C(a, contr.SAS); C(a,
contr.treatment('v')); C(a, Treatment(reference='v')); C(a, Sum); 0 + C(a, contr.sum); C(a, contr.sum):x;
C(a, contr.sum)*C(d, contr.helmert); C(a, levels=['w', 'u', 'v']); C(d); C(d):x; C(t); t; 0 + t; t*a;
I(x**2); I(-x / 2 * z); log(z + 1); log(z)*exp(x); center(x); scale(x); center(x)*a; scale(z):scale(x);
center(log(z)); poly(center(z), 2); `my column`; I(`my column` * 2); x:x; 1:a; x + 1 + 0; x + 0 + 1; x -
x; c; 0 + c; c*a; c:x + a; I(2 / -x / z); I(-x**2); I(2**x**2); log10(z) + log2(z); I(x - 1 - 2); x + (z
+ a)*b; scale(x, center=False); scale(x, scale=False)
"""


def formulas() -> list[str]:
    draw = random.Random(3)
    factors = ["x", "z", "a", "b", "c", "C(d)", "poly(x, 2)", "t"]
    drawn = [
        draw.choice(["", "0 + "])
        + " + ".join(
            ":".join(draw.sample(factors, draw.choice([1, 1, 2, 2, 3]))) for _ in range(draw.randint(1, 5))
        )
        for _ in range(80)
    ]
    return [" ".join(text.split()) for text in WRITTEN.split(";")] + drawn


def test_designs_are_those_of_formulaic(frame: pd.DataFrame) -> None:
    """Names, values, and values of other rows."""
    formulaic = pytest.importorskip("formulaic")
    other = frame.sample(30, random_state=1)
    for text in formulas():
        spec = formulaic.ModelSpec(formula=formulaic.Formula(text), na_action="ignore", output="numpy")
        theirs = spec.get_model_matrix(frame)
        ours = learn(text, frame)
        assert ours.names == tuple(theirs.model_spec.column_names), text
        assert_allclose(ours.matrix(frame), theirs, atol=1e-10, err_msg=text)
        assert_allclose(
            ours.matrix(other), theirs.model_spec.get_model_matrix(other), atol=1e-10, err_msg=text
        )


def test_designs_have_full_rank_and_span_what_all_levels_would(frame: pd.DataFrame) -> None:
    """Against dummies of all levels for every term, the definition of what a formula spans."""
    dummies = {
        "x": frame[["x"]].to_numpy(),
        **{name: np.asarray(pd.get_dummies(frame[name]), dtype=float) for name in "abc"},
    }
    choices = ["a", "b", "c", "x", "a:b", "b:c", "x:a", "x:b", "a:b:x", "a:b:c"]
    for start, *terms in itertools.chain(
        itertools.product([0, 1], choices, choices), itertools.product([0, 1], choices[4:], choices[4:])
    ):
        found = learn(f"{start} + {terms[0]} + {terms[1]}", frame).matrix(frame)
        every = [np.ones((len(frame), 1))] if start else []
        for term in terms:
            block = np.ones((len(frame), 1))
            for name in str(term).split(":"):
                block = np.einsum("ni,nj->nij", block, dummies[name]).reshape(len(frame), -1)
            every.append(block)
        rank = np.linalg.matrix_rank(np.hstack(every))
        assert found.shape[1] == rank == np.linalg.matrix_rank(found), (start, terms)
        assert np.linalg.matrix_rank(np.hstack([found, *every])) == rank, (start, terms)


@pytest.mark.parametrize(
    "text",
    [
        "x*a + C(d, sum):z + `my column`",
        "center(log(z)) + scale(x, center=FALSE) + I(scale(x) ** 2)",
        "poly(x, 3) + poly(z, 2, raw=TRUE)",
        "bs(x, df=6) + bs(z) + bs(x, knots=[0], lower_bound=-9, upper_bound=9)",
        "C(d, levels=[4, 3, 2, 1]) + offset(center(z))",
        ".",
    ],
)
def test_plain_data_make_the_same_design(frame: pd.DataFrame, text: str) -> None:
    encoding = Encoding.learn(parse(f"scale(y) ~ {text}", frame, []), frame)
    again = Encoding.from_data(json.loads(json.dumps(encoding.to_data(), allow_nan=False)))
    other = frame.iloc[:7]
    assert again.names == encoding.names
    assert again.learned == encoding.learned
    assert again.levels == encoding.levels
    assert_array_equal(again.matrix(other), encoding.matrix(other))
    assert_array_equal(again.offset(other), encoding.offset(other))
    assert_array_equal(again.response(other), encoding.response(other))


@pytest.mark.parametrize(
    ("text", "learned"),
    [
        ("x + a + I(x**2) + log(z)", ()),
        ("center(x) + a", ("center(x)",)),
        ("I(scale(x) + 1)", ("scale(x)",)),
        ("poly(x, 2, raw=TRUE)", ()),
        ("poly(x, 2)", ("poly(x, 2)",)),
        ("bs(x, knots=[0], lower_bound=-9, upper_bound=9)", ()),
        ("bs(x, knots=[0])", ("bs(x, knots=[0])",)),
        ("x + offset(center(z))", ("center(z)",)),
    ],
)
def test_which_terms_take_numbers_from_the_rows(
    frame: pd.DataFrame, text: str, learned: tuple[str, ...]
) -> None:
    assert learn(text, frame).learned == learned


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((), []),
        ((), {"formula": "y ~ x"}),
        (("formula",), 3),
        (("formula",), "y ~ I(eval(x))"),
        (("formula",), "y ~ x + (1 | g)"),
        (("formula",), "y ~ a"),
        (("states",), None),
        (("states",), {}),
        (("states", "x"), {"levels": []}),
        (("states", "x"), 3),
        (("states", "a"), {"levels": ["u", "u"]}),
        (("states", "a"), {"levels": [1, 2]}),
        (("states", "a"), {"levels": "uvw"}),
        (("states", "a"), {"levels": ["u"], "more": 1}),
        (("states", "scale(x)", "sd"), 0.0),
        (("states", "scale(x)", "mean"), float("nan")),
        (("states", "scale(x)", "mean"), 10**400),
        (("states", "scale(x)", "mean"), "0"),
        (("states", "scale(x)", "mean"), True),
        (("states", "poly(x, 2)", "norms"), [1.0, 1.0]),
        (("states", "poly(x, 2)", "norms"), [1.0, -1.0, 1.0]),
        (("states", "bs(x, df=5)", "knots"), [0.0, 1.0, 2.0]),
        (("states", "bs(x, df=5)", "lower"), None),
        (("states", "extra"), {}),
    ],
)
def test_plain_data_that_cannot_be(frame: pd.DataFrame, path: tuple[str, ...], value: Any) -> None:
    data: Any = copy.deepcopy(learn("x + a + scale(x) + poly(x, 2) + bs(x, df=5)", frame).to_data())
    Encoding.from_data(data)
    if path:
        inner = data
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
    else:
        data = value
    with pytest.raises((InvalidReport, InvalidOption)):
        Encoding.from_data(data)


def test_two_columns_of_one_name(frame: pd.DataFrame) -> None:
    with pytest.raises(InvalidReport, match="two columns of the design would be called 'Intercept'"):
        learn("Intercept", frame.assign(Intercept=1.0))
    with pytest.raises(InvalidReport, match=r"called 'b\[T.q\]'"):
        learn("b + `b[T.q]`", frame.assign(**{"b[T.q]": 1.0}))


def test_size_is_checked_before_memory_is_taken() -> None:
    n = 200_000
    frame = pd.DataFrame({"y": 0.0, "x": np.arange(n) / n})
    tracemalloc.start()
    for text in ("bs(x, df=1000)", "poly(x, 10):bs(x, df=100)", "poly(x, 100, raw=TRUE):bs(x, df=10)"):
        limits = Limits(cells=10**8)
        with pytest.raises(InvalidReport, match=r"asks for 1,001 columns of 200,000 rows"):
            Encoding.learn(parse(f"y ~ {text}", frame, [], limits=limits), frame)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e8  # the columns would take 1.6e9


def test_a_factor_of_one_level_has_no_contrasts(frame: pd.DataFrame) -> None:
    encoding = learn("one*x", frame.assign(one="a"))
    assert encoding.names == ("Intercept", "x")
    assert_array_equal(encoding.matrix(frame.assign(one="a"))[:, 1], frame.x)
    assert learn("0 + one", frame.assign(one="a")).names == ("one[a]",)


def test_columns_have_a_limit(frame: pd.DataFrame) -> None:
    many = frame.assign(d=np.arange(len(frame)), a=np.arange(len(frame))[::-1])
    with pytest.raises(
        InvalidReport, match=r"asks for 25,600 columns .* Column d is taken for a factor, of 160"
    ):
        learn("C(d)*C(a)", many)
    for limits in (Limits(columns=3), Limits(cells=5 * len(frame) - 1)):
        with pytest.raises(InvalidReport, match="asks for 5 columns of 160 rows"):
            Encoding.learn(parse("y ~ x + z + a", frame, [], limits=limits), frame)
    with pytest.raises(InvalidReport, match="asks for 22 operations on each of 160 rows"):
        Encoding.learn(
            parse(f"y ~ I({' + '.join(['x'] * 10)})", frame, [], limits=Limits(cells=20 * len(frame))), frame
        )
    wide = {name: list("uv") for name in "abcdefghijk"}
    with pytest.raises(InvalidReport, match="has 11 factors"):
        learn(":".join(wide), pd.DataFrame({"y": 0.0, **wide}))
