"""Draw the fixed sample of mutants and write it to standard output.

A mutant is one line changed: a term dropped, an operator swapped, a comparison or a condition negated, a
small number changed, an update left out.  Numbers below 1e-3 and above 1e3 are tolerances and caps and are
left alone, and so are messages, annotations and ``<`` against ``<=``.  The named mutants come first.
"""

from __future__ import annotations

import ast
import csv
import random
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "vaneb"
SEED = 20261118
#: How many mutants of which files; the named ones are counted in.
PARTS = {
    "population/*.py": 40,
    "fl/algorithms/*.py": 40,
    "likelihood/*.py": 30,
    "covariance/*.py": 25,
    "npmle/*.py": 25,
    "local/**/*.py": 20,
    "posterior.py semidefinite.py prior.py quantiles.py joint_draws.py": 20,
}
#: (file, line as it is, line as the mutant has it)
NAMED = list(csv.reader((Path(__file__).parent / "named.csv").read_text(encoding="utf-8").splitlines()[1:]))
SWAPPED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
NEGATED = {
    ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip


def changes(node: ast.AST, text: str) -> Iterator[str]:
    """What may stand for the source of ``node``."""

    def source(part: ast.AST) -> str:
        return ast.get_source_segment(text, part) or ""

    if isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        left, right = source(node.left), source(node.right)
        yield f"({left}) {SWAPPED[type(node.op)]} ({right})"
        yield f"({left})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield f"({source(node.operand)})"
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in NEGATED:
        yield f"({source(node.left)} {NEGATED[type(node.ops[0])]} {source(node.comparators[0])})"
    elif isinstance(node, ast.BoolOp):
        word = " and " if isinstance(node.op, ast.Or) else " or "
        yield "(" + word.join(f"({source(value)})" for value in node.values) + ")"
    elif isinstance(node, ast.AugAssign):
        yield "pass"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and 1e-3 <= abs(node.value) <= 1e3
    ):
        yield repr(node.value + 1)


def nodes(tree: ast.AST, inside: bool = False) -> Iterator[ast.AST]:
    """Nodes within functions, without annotations, defaults of signatures, decorators and messages."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments | ast.AnnAssign):
            continue
        if isinstance(child, ast.FunctionDef):
            for statement in child.body:
                yield statement
                yield from nodes(statement, True)
        elif isinstance(child, ast.ClassDef):
            yield from nodes(child, inside)
        elif inside:
            yield child
            yield from nodes(child, inside)


def mutants(path: Path) -> list[tuple[str, int, str, str]]:
    """(file, how many equal lines come before it, line, mutant) of all mutants on one line."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = set()
    for node in nodes(ast.parse(text)):
        if getattr(node, "end_lineno", None) != getattr(node, "lineno", -1):
            continue
        line = lines[node.lineno - 1]
        if not line.isascii():
            continue
        for new in changes(node, text):
            after = line[: node.col_offset] + new + line[node.end_col_offset :]
            if after.strip() != line.strip():
                before = sum(other.strip() == line.strip() for other in lines[: node.lineno - 1])
                found.add((str(path.relative_to(SOURCE)), before, line.strip(), after.strip()))
    return sorted(found)


def main() -> None:
    """Write the sample."""
    rng = random.Random(SEED)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["mutant", "file", "nth", "line", "mutated"])
    number = 0
    for pattern, wanted in PARTS.items():
        paths = sorted({path for part in pattern.split() for path in SOURCE.glob(part)})
        files = {str(path.relative_to(SOURCE)) for path in paths}
        own = [(file, 0, before, after) for file, before, after in NAMED if file in files]
        every = [mutant for path in paths for mutant in mutants(path)]
        for mutant in own + rng.sample(every, wanted - len(own)):
            number += 1
            writer.writerow([number, *mutant])


if __name__ == "__main__":
    main()
