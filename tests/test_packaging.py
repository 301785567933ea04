"""What the package index is told, and what a pinned installation gets."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

requirements = pytest.importorskip("packaging.requirements")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if "==" in line and not line.startswith("#")
)


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *(r for rs in project["optional-dependencies"].values() for r in rs)]
    pins = {plain(name): version for name, version in PINS.items()}
    for text in wanted:
        requirement = requirements.Requirement(text)
        if requirement.name == "vaneb":
            continue
        assert plain(requirement.name) in pins, text
        assert pins[plain(requirement.name)] in requirement.specifier, text


def test_the_build_of_torch_is_pinned_and_its_range_is_not() -> None:
    """An unpinned torch brings gigabytes of libraries for graphics cards."""
    assert PINS["torch"] == "2.13.0"
    extras = PROJECT["project"]["optional-dependencies"]
    assert "torch>=2.4" in extras["nn"]
    assert "flwr[simulation]>=1.41,<1.42" in extras["flower"]


def test_the_page_of_the_package_index_has_no_broken_links() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"\]\((?!https?://|#)", text)  # there are some to be replaced
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert not re.search(r"\]\((?!https?://|#)", text)
    assert "The guide" in text  # the words stay


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {PROJECT['project']['version']}\n" in citation
    names = re.findall(r"family-names: (\w+)\n +given-names: (.+)\n", citation)
    assert names == [("Chang", "Jae Ho"), ("Auddy", "Arnab"), ("Paul", "Subhadeep")]


def test_benchmarks_and_pictures_stay_out_of_the_source_distribution() -> None:
    kept = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert not [path for path in kept if "benchmarks" in path or "pictures" in path or path == "/docs"]
    assert {"/src", "/tests"} <= set(kept)


#: Imported under another name than they are installed by, or brought along by what is asked for.
BROUGHT_BY = {
    "sklearn": "scikit-learn",
    "llvmlite": "numba",
    "cryptography": "flwr",
    "google": "flwr",
    "ray": "flwr",
}


def test_everything_that_is_imported_is_asked_for() -> None:
    """typer once brought click, and one day did not: the first command of a fresh installation failed."""
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *(r for rs in project["optional-dependencies"].values() for r in rs)]
    asked = {plain(requirements.Requirement(text).name) for text in wanted}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in (name.partition(".")[0] for name in names):
                if name not in sys.stdlib_module_names:
                    assert BROUGHT_BY.get(name, name) in asked, f"{path}: {name}"
