"""``import vaneb`` is quick: nothing heavy is imported before it is used."""

from __future__ import annotations

import subprocess
import sys

import vaneb

HEAVY = (
    "numpy",
    "scipy",
    "numba",
    "pandas",
    "polars",
    "pyarrow",
    "torch",
    "matplotlib",
    "rich",
    "typer",
    "flwr",
)


def imported_by(code: str) -> set[str]:
    show = f"{code}; import sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(
        subprocess.run(
            [sys.executable, "-c", show], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_import_is_light():
    assert not imported_by("import vaneb") & set(HEAVY)


def test_names_are_found_when_they_are_used():
    assert vaneb.grouped.fit_groups.__name__ == "fit_groups"
    assert vaneb.theory.gap.__name__ == "gap"
    assert {"VANEB", "grouped", "report"} <= set(dir(vaneb))
    loaded = imported_by("import vaneb; vaneb.VANEB")
    assert "numpy" in loaded
    assert not loaded & {"torch", "matplotlib", "pandas", "polars", "flwr"}


def test_it_is_typed():
    from importlib.resources import files

    assert (files("vaneb") / "py.typed").is_file()
