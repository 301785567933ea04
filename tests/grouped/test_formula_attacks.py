"""A formula is data, never code: attacks and arbitrary text end in a refusal, soon and without effect."""

from __future__ import annotations

import ast
import contextlib
import datetime
import importlib
import inspect
import string
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.flower import client_data
from vaneb.flower.settings import Settings
from vaneb.grouped.design import learn_design
from vaneb.grouped.encoding import Encoding
from vaneb.grouped.formula import SPECIAL, parse, understand

MODULES = ("syntax", "functions", "transforms", "formula", "encoding", "design")
MARK = "MARK"  # stands for a file that an attack would make

#: Seconds after which a formula counts as one that hangs.
SOON = 3.0

ATTACKS = [
    "y ~ I(eval(\"open('MARK', 'w')\"))",
    "y ~ eval('x')",
    "y ~ exec('x')",
    "y ~ __import__('os').system('touch MARK')",
    "y ~ I(__import__('os').system('touch MARK'))",
    "y ~ I(__builtins__['eval']('1'))",
    "y ~ np.savetxt('MARK', x)",
    "y ~ numpy.save('MARK', x)",
    "y ~ x.to_csv('MARK')",
    "y ~ I(x.to_csv('MARK'))",
    "y ~ x.to_pickle('MARK')",
    "y ~ pd.read_pickle('MARK')",
    "y ~ z.__class__",
    "y ~ x.__class__.__mro__",
    "y ~ I(x.__class__.__base__.__subclasses__())",
    "y ~ ().__class__.__bases__[0].__subclasses__()",
    "y ~ log.__globals__['os']",
    "y ~ C(x, contr.__init__.__globals__)",
    "y ~ C(x, contrasts=open('MARK', 'w'))",
    "y ~ C(x, contr.treatment(base=open('MARK', 'w')))",
    "y ~ C(x, levels=[open('MARK', 'w')])",
    "y ~ poly(x, degree=__import__('os').system('touch MARK'))",
    "y ~ bs(x, knots=open('MARK', 'w'))",
    "y ~ bs(x, knots=[open('MARK', 'w')])",
    "y ~ offset(open('MARK', 'w'))",
    "open('MARK', 'w') ~ x",
    "I(open('MARK', 'w')) ~ x",
    "Surv(open('MARK', 'w'), x) ~ x",
    "open('MARK', 'w') | x ~ x",
    "y ~ (1 | open('MARK', 'w'))",
    "y ~ (open('MARK', 'w') | x)",
    "y ~ I((lambda: open('MARK', 'w'))())",
    "y ~ lambda x: x",
    "y ~ [open('MARK', 'w') for i in [1]]",
    "y ~ I([i for i in x])",
    "y ~ {open('MARK', 'w')}",
    "y ~ {x + 1}",
    "y ~ I({'a': open('MARK', 'w')})",
    'y ~ f\'{open("MARK", "w")}\'',
    "y ~ I(f'{x}')",
    "y ~ I(z := open('MARK', 'w'))",
    "y ~ (z := x)",
    "y ~ x if open('MARK', 'w') else x",
    "y ~ x; import os",
    "y ~ x\nimport os",
    "y ~ x # comment",
    "y ~ @x",
    "y ~ x[0]",
    "y ~ x()",
    "y ~ log(x)(x)",
    "y ~ log(*x)",
    "y ~ log(**x)",
    "y ~ print(x)",
    "y ~ breakpoint()",
    "y ~ exit()",
    "y ~ hashed(x, levels=10**9)",
    "y ~ lookup(x)",
    "y ~ Q('x')",
    "y ~ ｅval('1')",  # letters that Python takes for eval
    "y ~ ℯval('1')",
    "y ~ ｅｘｅｃ('1')",
    "y ~ log\u200b(x)",
    "y ~ x\u2028open('MARK', 'w')",
    "y ~ \u202ex",
    "y ~ `\x1b]0;title\x07`",
    "y ~ (`\x1b[2J`)^2",
    "y ~ log(x, '\x1b[2J')",
    "y ~ C(g, treatment('\x1b[2J'))",
    "y ~ \x00x",
    "y ~ ‘x’",
    "y ~ `x` + `open('MARK', 'w')`",
    "y ~ `x`.__class__",
    "y ~ `x``y`",
    "y ~ I(`x`; open('MARK', 'w'))",
    "y ~ ` + __import__('os').system('touch MARK') + `",
    "y ~ I(`\\`)",
    "y ~ 'x' + \"y\"",
    "y ~ x**9**9**9",
    "y ~ (x + z)^9^9",
    "y ~ 9**9**9**9**9",
    "y ~ poly(x, 999999999)",
    "y ~ poly(x, 1e308)",
    "y ~ bs(x, df=999999999)",
    "y ~ bs(x, knots=[1e308, -1e308])",
    "y ~ x:" + "(" * 10_000,
    "y ~ " + "(" * 5_000 + "x" + ")" * 5_000,
    "y ~ " + "-" * 10_000 + "x",
    "y ~ " + "x ** " * 4_000 + "x",
    "y ~ " + "log(" * 4_000,
    "y ~ " + "[" * 10_000,
    "y ~ " + "`" * 9_999,
    "y ~ " + "'" * 9_999,
    "y ~ " + "1" * 10_000,
    "y ~ " + "9" * 300 + " * x",
    "y ~ " + "*".join(f"x{i}" for i in range(60)),
    "y ~ (" + "+".join(f"x{i}" for i in range(200)) + ")^5",
    "y ~ " + ":".join(["(x+z+g+y1+y2+y3+y4+y5+y6)^9"] * 500),
    "y ~ " + "/".join(["(x+z+g)"] * 2_000) + "/(1|x)",
    "y ~ x" * 10_000,
]

#: Odd but harmless: these must work, and still do nothing else.
HARMLESS = [
    "y ~ (x + z)**999999999999",
    "y ~ bs(x, df=1000, degree=10)",
    "y ~ I(x ** 9 ** 9 ** 9)",
    "y ~ I(" + "9" * 300 + " * x)",
    "y ~ " + " + ".join(["x"] * 4_000),
    "y ~ I(" + " * ".join(["x"] * 3_000) + ")",
    "y ~ I(" + " - ".join(["x"] * 3_000) + ")",
    "y ~ " + ":".join(["x"] * 5_000),
    "y ~ " + "*".join(["x", "z"] * 2_000),
    "y ~ C(g, levels=['a', 'b', 'open(1)', '__import__'])",
    "y ~ `open('x')` + x.__class__",
]

WATCHED = (
    "exec",
    "compile",
    "import",
    "open",
    "os.",
    "subprocess.",
    "socket.",
    "shutil.",
    "pickle.",
    "ctypes.",
)
_seen: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and event.startswith(WATCHED):
        _seen.append(f"{event} {arguments!r}")


sys.addaudithook(_watch)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    numbers = {name: rng.uniform(1, 2, 40) for name in ("y", "x", "z", "x.__class__", "open('x')", "my x")}
    return pd.DataFrame({**numbers, "g": rng.choice(list("ab"), 40)})


def use(text: str, frame: pd.DataFrame) -> None:
    """All that is done with a formula on rows."""
    formula = parse(text, frame, [], allow=SPECIAL)
    if not formula.random and formula.columns[0] == formula.response:
        design = learn_design(frame, formula, "gaussian", client="g", offset=None)
        design.rows(frame, response=True)
    else:
        Encoding.learn(understand(text, list(frame.columns)), frame).matrix(frame)


@pytest.fixture(scope="module")
def warm(frame: pd.DataFrame) -> None:
    """What is imported on first use is imported before anybody watches."""
    use("log(y) ~ g*center(x) + poly(x, 2) + bs(x, df=5) + C(g) + offset(z)", frame)
    client_data.local_model(frame, Settings(formula="y ~ x + g"))


def watched(action: Any) -> list[str]:
    """What ``action`` did to the world."""
    global _seen
    _seen = events = []
    try:
        action()
    finally:
        _seen = None
    return events


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda text: text[:60].encode("ascii", "replace").decode())
def test_attacks_are_refused_without_effect(
    frame: pd.DataFrame, warm: None, attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = time.perf_counter()

    def attempt() -> None:
        with pytest.raises((InvalidOption, InvalidReport)) as caught:
            use(attack, frame)
        assert len(str(caught.value)) < 1_000
        assert str(caught.value).isprintable()
        # As a client of a federation meets it.
        with pytest.raises((InvalidOption, InvalidReport)):
            client_data.local_model(frame, Settings(formula=attack))

    assert watched(attempt) == []
    assert not list(tmp_path.iterdir())
    assert time.perf_counter() - start < SOON


@pytest.mark.parametrize("text", HARMLESS, ids=lambda text: text[:60])
def test_odd_formulas_do_what_they_say_and_nothing_else(
    frame: pd.DataFrame, warm: None, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    start = time.perf_counter()
    assert watched(lambda: use(text, frame)) == []
    assert not list(tmp_path.iterdir())
    assert time.perf_counter() - start < SOON


def test_the_watch_sees_what_it_should(tmp_path: Path) -> None:
    assert watched(lambda: eval("1"))
    assert watched(lambda: (tmp_path / "file").write_text("x"))
    assert watched(lambda: np.savetxt(tmp_path / "file", np.zeros(2)))


def test_nothing_in_the_code_can_run_text() -> None:
    """No look-up of a name from text in Python itself: tables only."""
    forbidden = {
        "eval",
        "exec",
        "compile",
        "getattr",
        "setattr",
        "__import__",
        "globals",
        "locals",
        "vars",
        "open",
    }
    for name in MODULES:
        module = importlib.import_module(f"vaneb.grouped.{name}")
        tree = ast.parse(inspect.getsource(module))
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not used & forbidden, name
        imported = {
            alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert not imported & {"ast", "importlib", "os", "pickle", "subprocess", "formulaic"}, name


# ---------------------------------------------------------------- arbitrary text

TOKENS = st.sampled_from(
    [
        *"+-*/:^~|(),=[].`'\"01",
        "**",
        "||",
        " ",
        "x",
        "y",
        "z",
        "g",
        "`my x`",
        "'a'",
        "2",
        "3.5",
        "1e308",
        ".5",
    ]
    + ["log(", "I(", "C(", "poly(", "bs(", "center(", "scale(", "offset(", "Surv(", "c(", "exp(", "abs("]
    + [
        "degree=",
        "df=",
        "knots=[",
        "levels=[",
        "raw=TRUE",
        "contr.sum",
        "treatment('a')",
        "x.__class__",
        "eval(",
    ]
)
SOUP = st.lists(TOKENS, max_size=30).map("".join).map("y ~ ".__add__)
PLAIN = st.text(string.printable + "‘ß∑\u200b\x00٣²ªｅ", max_size=60)
ANYTHING = st.one_of(PLAIN, PLAIN.map("y ~ ".__add__), SOUP, st.text(max_size=40).map("y ~ x + ".__add__))


@st.composite
def numeric(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.integers(0, 5 if depth else 1))
    if kind == 0:
        return draw(st.sampled_from(["x", "z", "`my x`", "g"]))
    if kind == 1:
        return draw(st.sampled_from(["1", "0", "2.5", "1e3"]))
    inner = draw(numeric(depth - 1))
    if kind == 2:
        return f"-({inner})"
    if kind == 3:
        function = draw(st.sampled_from(["I", "log", "exp", "sqrt", "abs", "center", "scale", "log1p"]))
        return f"{function}({inner})"
    operator = draw(st.sampled_from([" + ", "-", "*", " / ", "**", "^"]))
    return f"({inner}){operator}({draw(numeric(depth - 1))})"


@st.composite
def terms(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.integers(0, 6 if depth else 3))
    if kind == 0:
        return draw(st.sampled_from(["x", "z", "g", "`my x`", "0", "1", "-1", "."]))
    if kind == 1:
        return draw(
            st.sampled_from(["C(g)", "C(g, sum)", "poly(x, 2)", "bs(z, df=4)", "C(g, levels=['b', 'a'])"])
        )
    if kind == 2:
        return f"I({draw(numeric(2))})"
    if kind == 3:
        return draw(st.sampled_from(["offset(log(x))", "(1 | g)", "(x || g)", "(0 + z | g/x)", "-x"]))
    if kind == 4:
        return f"({draw(terms(depth - 1))})^{draw(st.integers(0, 3))}"
    operator = draw(st.sampled_from([" + ", " - ", "*", ":", "/"]))
    return f"({draw(terms(depth - 1))}){operator}({draw(terms(depth - 1))})"


fuzz = settings(
    max_examples=300,
    deadline=datetime.timedelta(seconds=SOON),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
    database=None,
)


@fuzz
@given(ANYTHING)
@example("y ~ x\u00b2")
@example("y ~ ٣")
@example("y ~ `")
def test_arbitrary_text_is_used_or_refused(frame: pd.DataFrame, warm: None, text: str) -> None:
    def attempt() -> None:
        with contextlib.suppress(InvalidOption, InvalidReport):
            use(text, frame)

    assert watched(attempt) == []


@fuzz
@given(terms())
def test_formulas_are_used_or_refused_and_mean_the_same_when_laid_out(
    frame: pd.DataFrame, warm: None, text: str
) -> None:
    try:
        formula = parse(f"y ~ {text}", frame, [], allow=SPECIAL)
    except (InvalidOption, InvalidReport):
        return
    again = understand(formula.canonical, allow=SPECIAL)
    assert again.canonical == formula.canonical
    assert (again.terms, again.offsets, again.random) == (formula.terms, formula.offsets, formula.random)
    try:
        encoding = Encoding.learn(formula, frame)
        matrix = encoding.matrix(frame)
    except InvalidReport:
        return
    assert matrix.shape == (len(frame), len(encoding.names))
    assert len(set(encoding.names)) == len(encoding.names)
    np.testing.assert_array_equal(Encoding.learn(again, frame).matrix(frame), matrix)


def lists(size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(), min_size=size, max_size=size)


@fuzz
@given(
    st.fixed_dictionaries({"levels": st.lists(st.text(max_size=3))})
    | st.fixed_dictionaries({"centres": lists(2), "norms": lists(3)})
    | st.fixed_dictionaries({"lower": st.floats(), "upper": st.floats(), "knots": lists(2)})
    | st.fixed_dictionaries({"mean": st.floats(), "sd": st.floats()})
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(["x", "g", "poly(x, 2)", "bs(z, df=5)", "scale(x)"]),
)
def test_arbitrary_states_are_used_or_refused(frame: pd.DataFrame, warm: None, state: Any, name: str) -> None:
    data = Encoding.learn(
        parse("y ~ x + g + poly(x, 2) + bs(z, df=5) + scale(x)", frame, []), frame
    ).to_data()
    data["states"][name] = state
    with contextlib.suppress(InvalidOption, InvalidReport):
        Encoding.from_data(data).matrix(frame)
