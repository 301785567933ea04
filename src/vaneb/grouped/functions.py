"""The functions that a formula may use, and the options of each: a closed list.

Nothing is looked up anywhere else: a name that is not in ``OPTIONS`` is no function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from vaneb.grouped.syntax import (
    Bar,
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
        case Name() | Number() | Negative() | Power():
            pass
        case Chain(_, operators) if operators[0] != ":":
            pass
        case Call(function) if function in NUMERIC or function not in OPTIONS:
            bind(node)
        case Call(function):
            raise Mistake(node.at, f"{function}(...) stands on its own, not within other functions.")
        case Rest():
            raise Mistake(node.at, ". stands for columns among the terms only. Name the column.")
        case _:
            raise Mistake(
                node.at, "is no arithmetic. Use columns, numbers, + - * / ** and functions of the list."
            )
    for part in operands(node):
        check_numeric(part)


def operands(node: Node) -> tuple[Node, ...]:
    """What a node is computed from: of a function of the list its first argument, not its options."""
    match node:
        case Call(function, arguments):
            values = tuple(value for _, value in arguments)
            return values[:1] if function in OPTIONS else values
        case Negative(operand):
            return (operand,)
        case Power(base, exponent):
            return base, exponent
        case Chain(parts):
            return parts
        case Bar(left, right):
            return left, right
    return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all that it is computed from, from left to right."""
    yield node
    for part in operands(node):
        yield from walk(part)


def columns_of(*nodes: Node) -> tuple[str, ...]:
    """Columns that expressions use, in the order of their appearance."""
    return tuple(dict.fromkeys(part.name for node in nodes for part in walk(node) if isinstance(part, Name)))


def state_of(node: Node) -> dict[str, int | None] | None:
    """What is learned of an expression itself: keys of its state, and the length of each, None for one number
    and 0 for any number of values.  ``None`` where there is nothing to learn."""
    match node:
        case Name():
            return {"levels": 0}
        case Call(function):
            options = bind(node)[1]
        case _:
            return None
    match function:
        case "center":
            return {"mean": None}
        case "scale":
            keys = {"mean": options.get("center", True), "sd": options.get("scale", True)}
            return {key: None for key, wanted in keys.items() if wanted}
        case "poly" if not options.get("raw", False):
            degree = options.get("degree", 1)
            return {"centres": degree, "norms": degree + 1}
        case "bs":
            bounds: dict[str, int | None] = {
                key: None for key in ("lower", "upper") if f"{key}_bound" not in options
            }
            inner = options.get("df", 0) - options.get("degree", 3)
            return {**bounds, **({"knots": inner} if inner > 0 else {})}
        case "C" | "factor":
            return {} if "levels" in options else {"levels": 0}
    return None


def factor_of(node: Node) -> tuple[str, dict[str, Any]]:
    """The column of a factor, and its options."""
    if isinstance(node, Name):
        return node.name, {}
    assert isinstance(node, Call)
    first, options = bind(node)
    assert isinstance(first, Name)
    return first.name, options
