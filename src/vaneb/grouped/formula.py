"""A formula ``y ~ x1 + x2`` taken apart: its response, its right-hand side, the columns it uses."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped.frames import need_column

if TYPE_CHECKING:
    import pandas as pd
    from formulaic import SimpleFormula

#: A quoted name, as in `my column`.
QUOTED = re.compile(r"`([^`]+)`")
RANDOM_EFFECT = re.compile(r"\([^()|]*\|[^()]*\)")


@dataclass(frozen=True, eq=False)
class ParsedFormula:
    """What a formula says."""

    text: str
    response: str
    """Expression on the left-hand side."""
    terms: SimpleFormula
    """The right-hand side."""
    columns: tuple[str, ...]
    """Columns of the data that either side uses, the response's first."""
    right_columns: tuple[str, ...]
    """Those of the right-hand side."""
    factor_columns: dict[str, str]
    """Column behind each factor that is a column itself, C(column) or factor(column)."""


def context() -> dict[str, Any]:
    """Functions that formulas may use besides formulaic's own: R's name for a factor."""
    from formulaic.transforms import TRANSFORMS

    return {"factor": TRANSFORMS["C"]}


def parse(text: str, frame: pd.DataFrame, reserved: Sequence[str]) -> ParsedFormula:
    """Parse ``text`` for the columns of ``frame``.

    ``reserved`` columns (client, offset, test column) are not meant by the ``.`` of ``y ~ .``.
    """
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    if RANDOM_EFFECT.search(text):
        raise InvalidOption(
            f"formula {text!r}: leave out terms such as (1 | group). The client column is named on its own, "
            "and every coefficient of the formula varies between clients."
        )
    free = [column for column in frame.columns if column not in reserved]
    try:
        parsed = Formula(text, _context={"__formulaic_variables_available__": free})
    except FormulaicError as error:
        spaced = next((c for c in free if " " in c), None)
        hint = "" if spaced is None else f" Names with spaces are quoted, as in `{spaced}`."
        raise InvalidOption(f"formula {text!r}: cannot be read ({_plain(error)}).{hint}") from None
    left, right = getattr(parsed, "lhs", None), getattr(parsed, "rhs", None)
    if left is None or right is None or not hasattr(right, "required_variables"):
        raise InvalidOption(f"formula {text!r}: needs one response and one right-hand side, as in 'y ~ x'.")
    responses = list(left)
    if len(responses) != 1 or len(responses[0].factors) != 1:
        raise InvalidOption(f"formula {text!r}: the left-hand side must be one response, not several terms.")
    response = str(responses[0].factors[0].expr)
    lookups = {str(f.expr) for side in (left, right) for t in side for f in t.factors if _is_lookup(f)}
    right_expressions = list(dict.fromkeys(str(f.expr) for t in right for f in t.factors if _is_used(f)))
    used = {e: _columns_of(e, e in lookups, frame, text) for e in (response, *right_expressions)}
    if not used[response]:
        raise InvalidOption(f"formula {text!r}: the response {response!r} is not a column of the data.")
    right_columns = tuple(dict.fromkeys(c for e in right_expressions for c in used[e]))
    return ParsedFormula(
        text,
        response,
        right,
        tuple(dict.fromkeys([*used[response], *right_columns])),
        right_columns,
        {e: used[e][0] for e in right_expressions if e in lookups or _names_a_factor(e)},
    )


def _is_lookup(factor: Any) -> bool:
    return factor.eval_method.value == "lookup"


def _is_used(factor: Any) -> bool:
    return factor.eval_method.value != "literal"


def _columns_of(expression: str, lookup: bool, frame: pd.DataFrame, text: str) -> list[str]:
    """Columns that an expression of the formula ``text`` uses; complains about unknown names."""
    from formulaic.transforms import TRANSFORMS

    place = f"the formula {text!r}"
    if lookup:
        need_column(frame, expression, place)
        return [expression]
    quoted = QUOTED.findall(expression)
    for column in quoted:
        need_column(frame, column, place)
    try:
        tree = ast.parse(QUOTED.sub("0", expression).strip(), mode="eval")
    except SyntaxError:
        raise InvalidOption(f"formula {text!r}: {expression!r} is not an expression.") from None
    known = {*TRANSFORMS, *context(), *dir(builtins)}
    found = list(quoted)
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor):
            raise InvalidOption(f"formula {text!r}: write powers inside {expression!r} as **, not ^.")
        if not isinstance(node, ast.Name):
            continue
        if node.id in frame.columns:
            found.append(node.id)
        elif node.id == "offset":
            raise InvalidOption(
                f"formula {text!r}: leave out offset(...) and name the offset's column on its own."
            )
        elif node.id not in known:
            called = any(isinstance(n, ast.Call) and n.func is node for n in ast.walk(tree))
            if called:
                raise InvalidOption(
                    f"formula {text!r}: there is no function {node.id!r}; use one of "
                    f"{', '.join(sorted(k for k in TRANSFORMS if k != 'np'))}, or np.<name>."
                )
            need_column(frame, node.id, place)
    return list(dict.fromkeys(found))


def _names_a_factor(expression: str) -> bool:
    return re.fullmatch(r"(C|factor)\(\s*(\w+|`[^`]+`)\s*(,.*)?\)", expression) is not None


def _plain(error: Exception) -> str:
    """The first line of formulaic's message, without its colours."""
    lines = re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", str(error)).splitlines()
    return (lines or [type(error).__name__])[0].rstrip(".")


def evaluation_error(text: str, error: Exception) -> InvalidReport:
    """What to raise when the terms of a formula cannot be computed from the data."""
    return InvalidReport(f"formula {text!r}: {_plain(error)}")
