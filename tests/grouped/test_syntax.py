"""Formulas as text and as trees: what each makes of the other, and where mistakes are."""

from __future__ import annotations

import pytest

from vaneb.errors import InvalidOption
from vaneb.grouped.syntax import (
    Bar,
    Call,
    Chain,
    Limits,
    Name,
    Negative,
    Number,
    Power,
    Rest,
    Text,
    read,
    source,
)

X, Y, A, B, G = (Name(name) for name in "xyabg")
ONE, TWO = Number(1.0), Number(2.0)


def right(text: str) -> object:
    return read(f"y ~ {text}", Limits())[1]


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("x", X),
        ("`my column`", Name("my column")),
        ("`a``b`", Name("a`b")),
        ("Sepal.Length", Name("Sepal.Length")),
        ("größe_2", Name("größe_2")),
        (".", Rest()),
        (".5", Number(0.5)),
        ("1.5e-3", Number(0.0015)),
        ("'it''s'", Text("it's")),
        ("a + b - x", Chain((A, B, X), ("+", "-"))),
        ("a + b*x", Chain((A, Chain((B, X), ("*",))), ("+",))),
        ("a*b:x", Chain((A, Chain((B, X), (":",))), ("*",))),
        ("a:b^2", Chain((A, Power(B, TWO)), (":",))),
        ("-a:b", Negative(Chain((A, B), (":",)))),
        ("-x**2", Negative(Power(X, TWO))),
        ("x**-1", Power(X, Negative(ONE))),
        ("a^b^x", Power(A, Power(B, X))),
        ("2/-x/a", Chain((TWO, Negative(X), A), ("/", "/"))),
        ("(a + b)*x", Chain((Chain((A, B), ("+",)), X), ("*",))),
        ("f(x, k=[1, 2])", Call("f", (("", X), ("k", Call("c", (("", ONE), ("", TWO))))))),
        ("(a - b) - x", Chain((A, B, X), ("-", "-"))),
        ("a - (b - x)", Chain((A, Chain((B, X), ("-",))), ("-",))),
        ("(1 + x | g)", Bar(Chain((ONE, X), ("+",)), G)),
        ("(x || g)", Bar(X, G, double=True)),
        ("(1 | a/b)", Bar(ONE, Chain((A, B), ("/",)))),
    ],
)
def test_trees(text: str, tree: object) -> None:
    assert right(text) == tree


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Surv(a, b) ~ x", Call("Surv", (("", A), ("", B)))),
        ("a | b ~ x", Bar(A, B)),
        ("log(y) ~ x", Call("log", (("", Y),))),
    ],
)
def test_left_hand_sides(text: str, left: object) -> None:
    assert read(text, Limits()) == (left, X)


@pytest.mark.parametrize(
    ("text", "laid_out"),
    [
        ("a+b*x", "a + b * x"),
        ("(a+b)*x", "(a + b) * x"),
        ("a-(b-x)", "a - (b - x)"),
        ("(a-b)-x", "a - b - x"),
        ("x^2", "x ** 2"),
        ("(-x)^-(2)", "(-x) ** (-2)"),
        ("(x^2)^2", "(x ** 2) ** 2"),
        ("f( x,k = 2.0 )", "f(x, k=2)"),
        ("c(1,'a')", "[1, 'a']"),
        ("`x`+`a b`", "x + `a b`"),
        ("((1+x|g))", "1 + x | g"),
        ("(x||g)+a", "(x || g) + a"),
        ("a:(b+x)", "a:(b + x)"),
    ],
)
def test_text_of_a_tree(text: str, laid_out: str) -> None:
    assert source(right(text)) == laid_out  # type: ignore[arg-type]
    assert source(right(f"({laid_out})")) == laid_out  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at the end: needs one response and one right-hand side"),
        ("y", r"at character 1 \('y'\): needs one response"),
        ("~ x", "needs one response"),
        ("y ~ ", "at the end: needs one response"),
        ("y ~ x ~ z", r"at character 7 \('~'\): needs one response"),
        ("y ~ x +", "at the end: cannot be read: a term is missing"),
        ("y ~ x z", r"at character 7 \('z'\): cannot be read: there should be an operator"),
        ("y ~ x > 2", r"at character 7 \('>'\): .*is no part of a formula"),
        ("y ~ 'x", "this quote is empty or not closed"),
        ("y ~ ``", "this quote is empty or not closed"),
        ("y ~ (x", r"an operator or \) here"),
        ("y ~ log(x", r"a comma or \) here"),
        ("y ~ x | g", r"put random terms in parentheses"),
        ("y ~ (x | g | h)", "more than one bar"),
        ("y ~ 1e999", "too large a number"),
    ],
)
def test_mistakes_are_named_with_their_place(text: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read(text, Limits())


@pytest.mark.parametrize("text", ["(" * 40 + "x", "-" * 40 + "x", "x" + "^x" * 40, "f(" * 40, "[" * 40])
def test_depth_has_a_limit(text: str) -> None:
    with pytest.raises(InvalidOption, match="nested more than 32 deep"):
        right(text)
    with pytest.raises(InvalidOption, match="nested more than 2 deep"):
        read("y ~ (((x)))", Limits(depth=2))


def test_length_has_a_limit() -> None:
    long = "y ~ " + " + ".join(f"x{i}" for i in range(10_000))
    with pytest.raises(InvalidOption, match="more than the 20,000") as caught:
        read(long, Limits())
    assert len(str(caught.value)) < 300
    assert len(read(long, Limits(characters=100_000))[1].parts) == 10_000  # type: ignore[union-attr]
