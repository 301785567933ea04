"""The functions that a formula may use, and the options of each: a closed list.

Nothing is looked up anywhere else: a name that is not in ``OPTIONS`` is no function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from vaneb.grouped.syntax import (
    Call,
    Chain,
    Mistake,
    Name,
    Negative,
    Node,
    Number,
    Power,
    Rest,
    Text,
    show_number,
    source,
)

#: Functions of one number.
ELEMENTWISE = ("I", "log", "log2", "log10", "log1p", "exp", "sqrt", "abs")
#: Functions whose value is a factor: R's two names for it.
FACTORS = ("C", "factor")
CODINGS = ("treatment", "sas", "sum", "helmert", "poly", "diff")
#: Highest degree of a polynomial and of a spline, and most knots of a spline.
MOST_DEGREES, MOST_SPLINE_DEGREES, MOST_KNOTS = 100, 10, 1_000


def _whole(least: int, most: int) -> Callable[[Node], int]:
    def read(node: Node) -> int:
        value = _number(node)
        if value != math.floor(value) or not least <= value <= most:
            raise Mistake(node.at, f"should be a whole number from {least} to {most}.")
        return int(value)

    return read


def _number(node: Node) -> float:
    match node:
        case Number(value):
            return value
        case Negative(Number(value)):
            return -value
    raise Mistake(node.at, "should be a number that is written out.")


def _logical(node: Node) -> bool:
    match node:
        case Name("TRUE" | "True" | "T"):
            return True
        case Name("FALSE" | "False" | "F"):
            return False
    raise Mistake(node.at, "should be TRUE or FALSE.")


def _items(node: Node, read: Callable[[Node], Any], what: str) -> tuple[Any, ...]:
    match node:
        case Call("c", arguments) if arguments and not any(name for name, _ in arguments):
            return tuple(read(value) for _, value in arguments)
    raise Mistake(node.at, f"should be a list of {what}, as in [1, 2].")


def _numbers(node: Node) -> tuple[float, ...]:
    return _items(node, _number, "numbers")


def _level(node: Node) -> str:
    match node:
        case Text(value):
            return value
        case Name("TRUE" | "True"):
            return "True"
        case Name("FALSE" | "False"):
            return "False"
        case Number() | Negative():
            return show_number(_number(node))
    raise Mistake(node.at, "should be a level: a text between quotes, or a number.")


def _levels(node: Node) -> tuple[str, ...]:
    levels = _items(node, _level, "levels")
    if len(set(levels)) < len(levels):
        raise Mistake(node.at, "has a level twice. Leave one out.")
    return levels


def _coding(node: Node) -> tuple[str, str | None]:
    """A coding and its reference level: ``sum``, ``contr.sum``, ``Sum`` are one and the same."""
    match node:
        case Name(name):
            name, arguments = name, ()
        case Call(name, arguments):
            pass
        case _:
            raise Mistake(node.at, f"should be a coding: {', '.join(CODINGS)}.")
    coding = name.removeprefix("contr.").lower()
    if coding not in CODINGS:
        raise Mistake(node.at, f"there is no coding {name!r}; use one of {', '.join(CODINGS)}.")
    if not arguments:
        return coding, None
    if coding != "treatment" or len(arguments) > 1 or arguments[0][0] not in ("", "reference", "base"):
        raise Mistake(node.at, "only treatment takes an argument, as in treatment(reference='a').")
    return coding, _level(arguments[0][1])


_FACTOR: dict[str, Callable[[Node], Any]] = {"contrasts": _coding, "levels": _levels}
#: Functions with the options they take after their first argument, in order.
OPTIONS: dict[str, dict[str, Callable[[Node], Any]]] = {
    **{name: {} for name in ELEMENTWISE},
    "center": {},
    "scale": {"center": _logical, "scale": _logical},
    "poly": {"degree": _whole(1, MOST_DEGREES), "raw": _logical},
    "bs": {
        "df": _whole(1, MOST_KNOTS),
        "knots": _numbers,
        "degree": _whole(1, MOST_SPLINE_DEGREES),
        "lower_bound": _number,
        "upper_bound": _number,
    },
    **dict.fromkeys(FACTORS, _FACTOR),
}
#: Functions that give one number for each row, and may stand within others.
NUMERIC = (*ELEMENTWISE, "center", "scale")


def bind(call: Call) -> tuple[Node, dict[str, Any]]:
    """The first argument of a function, and the values of its options.  Raises ``Mistake``."""
    known = OPTIONS.get(call.function)
    if known is None:
        raise Mistake(call.at, _no_function(call.function))
    first, *others = call.arguments or (("", None),)
    if first[1] is None or first[0]:
        raise Mistake(call.at, f"{call.function}(...) needs a column first, as in {call.function}(x).")
    values: dict[str, Any] = {}
    for position, (name, node) in enumerate(others):
        option = name or next(iter(list(known)[position:]), "")
        if option not in known:
            listed = f"takes {', '.join(known)} after it" if known else "takes nothing after it"
            raise Mistake(node.at, f"{call.function}(x) {listed}, not {name or source(node)}.")
        if option in values:
            raise Mistake(node.at, f"{call.function}(x) is given {option} twice.")
        values[option] = known[option](node)
    if call.function == "bs":
        _check_spline(call, values)
    return first[1], values


def _no_function(name: str) -> str:
    last = name.rpartition(".")[2]
    if last != name and last in OPTIONS:
        return f"there is no function {name!r}; write {last}(...)."
    return f"there is no function {name!r}; use one of {', '.join(OPTIONS)}, offset, or make a column of it."


def _check_spline(call: Call, values: dict[str, Any]) -> None:
    degree, knots = values.get("degree", 3), values.get("knots")
    if "df" in values and knots is not None:
        raise Mistake(call.at, "bs(x) takes df or knots, not both.")
    if values.get("df", degree) < degree:
        raise Mistake(call.at, f"bs(x) of degree {degree} has a df of {degree} at least.")
    if knots is not None and (list(knots) != sorted(knots) or len(knots) > MOST_KNOTS):
        raise Mistake(call.at, f"bs(x) takes knots in increasing order, {MOST_KNOTS} at most.")


def check_factor(node: Node) -> None:
    """That the node can be a part of a term: a column, or a function of the list.  Raises ``Mistake``."""
    match node:
        case Name():
            return
        case Call(function) if function in FACTORS:
            first, _ = bind(node)
            if not isinstance(first, Name):
                raise Mistake(first.at, f"{function}(...) takes a column by its name, as in {function}(x).")
            return
        case Call("poly" | "bs"):
            check_numeric(bind(node)[0])
            return
        case Call():
            check_numeric(node)
            return
    raise Mistake(node.at, f"cannot be a term. {_ARITHMETIC_REMEDY}")


_ARITHMETIC_REMEDY = "Arithmetic goes into I(...), as in I(x / 2)."


def check_numeric(node: Node) -> None:
    """That the node is one number for each row.  Raises ``Mistake``."""
    match node:
        case Name() | Number():
            return
        case Negative(operand):
            return check_numeric(operand)
        case Power(base, exponent):
            check_numeric(base)
            return check_numeric(exponent)
        case Chain(parts, operators) if operators[0] != ":":
            for part in parts:
                check_numeric(part)
            return
        case Call(function) if function in NUMERIC or function not in OPTIONS:
            return check_numeric(bind(node)[0])
        case Call(function):
            raise Mistake(node.at, f"{function}(...) stands on its own, not within other functions.")
        case Rest():
            raise Mistake(node.at, ". stands for columns among the terms only. Name the column.")
    raise Mistake(node.at, "is no arithmetic. Use columns, numbers, + - * / ** and functions of the list.")


def columns_of(node: Node) -> tuple[str, ...]:
    """Columns that an expression uses, in the order of their appearance."""
    match node:
        case Name(name):
            return (name,)
        case Call(function) if function in OPTIONS:
            return columns_of(bind(node)[0])
        case Call(_, arguments):
            inner: tuple[Node, ...] = tuple(value for _, value in arguments)
        case Negative(operand):
            inner = (operand,)
        case Power(base, exponent):
            inner = (base, exponent)
        case Chain(parts):
            inner = parts
        case _:
            inner = ()
    return tuple(dict.fromkeys(c for part in inner for c in columns_of(part)))


def factor_of(node: Node) -> tuple[str, dict[str, Any]]:
    """The column of a factor, and its options."""
    if isinstance(node, Name):
        return node.name, {}
    assert isinstance(node, Call)
    first, options = bind(node)
    assert isinstance(first, Name)
    return first.name, options
