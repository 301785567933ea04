"""The map of the code names files and functions that are there."""

from __future__ import annotations

import ast
import re

from docs_blocks import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "vaneb"
STEP = re.compile(r"^\| [^|]+ \| `([\w/]+\.py)`: `(\w+)` \|", re.MULTILINE)


def test_every_step_is_in_the_file_that_it_names() -> None:
    steps = STEP.findall(PAGE)
    assert len(steps) > 40
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and ".py`" in line]
    assert len(rows) == len(steps), "a row that is not read"
    for file, name in steps:
        tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        imported = {alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names}
        assert name in defined | imported, f"{file} has no {name}"


def test_every_part_of_the_package_is_on_the_map() -> None:
    """All that others import; modules that serve one part only, and entry points, need no line."""
    table = PAGE.split("Four values")[0]
    named = set(re.findall(r"`(\w+)`", table))
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders <= named, folders - named
    files = {word for word in named if not (SOURCE / word).is_dir()} - {"VANEB"}
    assert all((SOURCE / f"{word}.py").exists() for word in files if word.islower()), files
