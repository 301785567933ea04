"""Formulas multiplied out: terms, offsets, random terms, responses."""

from __future__ import annotations

import pandas as pd
import pytest

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped.formula import SPECIAL, RandomTerm, parse, understand
from vaneb.grouped.syntax import Limits, Name, source


def terms(text: str) -> str:
    return understand(f"y ~ {text}", ["y", "u", "my v"], allow=SPECIAL).canonical.partition(" ~ ")[2]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("1", "1"),
        ("0", "0"),
        ("a", "1 + a"),
        ("0 + a", "0 + a"),
        ("a - 1", "0 + a"),
        ("-1 + a", "0 + a"),
        ("(0 + a)", "0 + a"),
        ("a + 0 + 1", "1 + a"),
        ("a + 1 - 1", "0 + a"),
        ("a - 0", "1 + a"),
        ("a + -b + b", "1 + a + b"),
        ("a + b - b", "1 + a"),
        ("a*b", "1 + a + b + a:b"),
        ("a:b + a", "1 + a + a:b"),
        ("a:b + b:a", "1 + a:b"),
        ("a:a", "1 + a"),
        ("1:a", "1 + a"),
        ("a/b", "1 + a + a:b"),
        ("a/b/c", "1 + a + a:b + a:b:c"),
        ("(a + b)/c", "1 + a + b + a:b:c"),
        ("a/(b + c)", "1 + a + a:b + a:c"),
        ("(a + b + c)^2", "1 + a + b + c + a:b + a:c + b:c"),
        ("(a + b + c)**3 - a:b", "1 + a + b + c + a:c + b:c + a:b:c"),
        ("(a + b)^1000", "1 + a + b + a:b"),
        ("a*b*c - a*b", "1 + c + a:c + b:c + a:b:c"),
        ("a*b - (a + b)", "1 + a:b"),
        ("log(x)*I(x^2)", "1 + log(x) + I(x ** 2) + log(x):I(x ** 2)"),
        (".", "1 + u + `my v`"),
        (". - u", "1 + `my v`"),
        ("a:.", "1 + a:u + a:`my v`"),
        ("a + offset(log(t)) + offset(-2*b)", "1 + a + offset(log(t)) + offset(-2 * b)"),
        ("a + (1 + x | g) + (x || g)", "1 + a + x + (1 + x | g) + (1 + x || g)"),
        (". + (1 | u)", "1 + `my v` + (1 | u)"),
        ("(0 + x | a/b)", "1 + x + (0 + x | a) + (0 + x | a:b)"),
    ],
)
def test_terms_are_multiplied_out(text: str, expanded: str) -> None:
    assert terms(text) == expanded
    assert terms(expanded) == expanded


def test_random_terms() -> None:
    formula = understand("y ~ x + (1 + x || g) + (1 | a/b)", allow={"random"})
    one, x = (), (Name("x"),)
    assert formula.terms == (one, x)
    assert formula.random == (
        RandomTerm((one, x), ("g",), correlated=False),
        RandomTerm((one,), ("a",), correlated=True),
        RandomTerm((one,), ("a", "b"), correlated=True),
    )
    assert formula.right_columns == ("x", "g", "a", "b")


@pytest.mark.parametrize(
    ("text", "kind", "columns"),
    [
        ("Surv(t, dead) ~ x", "survival", ("t", "dead", "x")),
        ("won | played ~ x", "trials", ("won", "played", "x")),
        ("y ~ x + (1 | g)", "random", ("y", "x", "g")),
    ],
)
def test_what_only_some_models_can_use(text: str, kind: str, columns: tuple[str, ...]) -> None:
    formula = understand(text, allow={kind})
    assert formula.columns == columns
    assert understand(formula.canonical, allow={kind}).canonical == formula.canonical
    for allow in ((), set(SPECIAL) - {kind}):
        with pytest.raises(InvalidOption, match=r"leave out|not supported here"):
            understand(text, allow=allow)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y + z ~ x", "one response, not several terms"),
        ("y^2 ~ x", "one response"),
        ("1 ~ x", "'1' is not a column"),
        ("I(2) ~ x", r"'I\(2\)' is not a column"),
        ("C(y) ~ x", "Name the column itself"),
        ("Surv(y) ~ x", "two or three columns"),
        ("y || z ~ x", "write one bar"),
        (". ~ x", "Name the column"),
        ("y ~ 2", "0 and 1 only"),
        ("y ~ 2*x", "0 and 1 only"),
        ("y ~ 0*x", "0 and 1 only"),
        ("y ~ x^2", r"Write I\(x \*\* 2\)"),
        ("y ~ (a + b)^0", "whole number"),
        ("y ~ (a + b)^1.5", "whole number"),
        ("y ~ (a + b)^a", "whole number"),
        ("y ~ x**9**9**9", "whole number"),
        ("y ~ a*(-b)", r"Use I\(-x\)"),
        ("y ~ 'x'", "cannot be a term"),
        ("y ~ a:offset(x)", "added to the others"),
        ("y ~ a - offset(x)", "added to the others"),
        ("y ~ a*((b + (1 | g)) + x)", "added to the others"),
        ("y ~ a - (1 | g)", "added to the others"),
        ("y ~ offset(x, 2)", "one expression"),
        ("y ~ offset(poly(x, 2))", "stands on its own"),
        ("y ~ (1 | log(g))", "a group is a column"),
        ("y ~ (1 | 1)", "a group is a column"),
        ("y ~ (0 | g)", "nothing that differs"),
        ("y ~ (1 + (1 | a) | g)", "side by side"),
    ],
)
def test_what_cannot_be(text: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        understand(text, allow=SPECIAL)


def test_terms_have_a_limit() -> None:
    with pytest.raises(InvalidOption, match=r"terms, more than the 1,000"):
        understand("y ~ " + "*".join("abcdefghijk"))
    assert len(understand("y ~ " + "*".join("abcdefghi")).terms) == 512
    with pytest.raises(InvalidOption, match="makes 3 terms, more than the 2"):
        understand("y ~ a + b", limits=Limits(terms=2))
    with pytest.raises(InvalidOption, match="terms, more than"):
        understand("y ~ .", [f"x{i}" for i in range(2_000)])
    for many in ("y ~ " + "+".join(["."] * 9_000), "y ~ " + "+".join(["(.|g)"] * 3_000)):
        with pytest.raises(InvalidOption, match="takes too long"):
            understand(many, [f"x{i}" for i in range(900)])


def test_multiplying_out_ends_soon() -> None:
    """Products that make nothing new are still work."""
    closed = "(" + "+".join("abcdefghi") + ")^9"
    with pytest.raises(InvalidOption, match="takes too long to multiply out"):
        understand("y ~ " + ":".join([closed] * 800))


def test_columns_are_looked_up_by_name_only() -> None:
    frame = pd.DataFrame({"y": [1.0], "x.__class__": [2.0], "np.e": [3.0], "log": [4.0], "I": [5.0]})
    formula = parse("y ~ x.__class__ + np.e + log(log) + I", frame, [])
    assert formula.right_columns == ("x.__class__", "np.e", "log", "I")
    assert [source(f) for t in formula.terms for f in t][2] == "log(log)"
    with pytest.raises(InvalidReport, match=r"column x\.__dict__: missing"):
        parse("y ~ x.__dict__", frame, [])
