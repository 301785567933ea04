"""Everything that a user meets says what it is."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import vaneb
from docs_blocks import ROOT

PAGE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^::: (vaneb[\w.]*)$", PAGE, re.MULTILINE)


def entry(path: str) -> Any:
    """The module or the object that an entry of the page names."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def parts(thing: Any, name: str) -> Iterator[tuple[str, Any]]:
    """It, and the public functions, classes, methods and properties in it that are written there."""
    yield name, thing
    if not inspect.isclass(thing) and not inspect.ismodule(thing):
        return
    home = thing.__name__ if inspect.ismodule(thing) else thing.__module__
    for key, value in vars(thing).items():
        value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        value = value.func if hasattr(value, "attrname") else value  # a cached property
        own = getattr(value, "__module__", home) == home
        if not key.startswith("_") and own and (callable(value) or isinstance(value, property)):
            if inspect.isclass(value):
                yield from parts(value, f"{name}.{key}")
            elif inspect.isfunction(value) or isinstance(value, property):
                # A method that overrides a documented one says what it says.
                shown = getattr(thing, key) if inspect.ismodule(thing) else inspect.getattr_static(thing, key)
                documented = inspect.isclass(thing) and any(
                    getattr(vars(base).get(key), "__doc__", None) for base in thing.__mro__[1:]
                )
                yield f"{name}.{key}", inspect if documented else getattr(shown, "__func__", value)


@pytest.mark.parametrize("path", [*ENTRIES, *(f"vaneb.{name}" for name in vaneb.__all__)])
def test_what_the_reference_shows_has_a_docstring(path: str) -> None:
    pytest.importorskip("torch") if path.startswith("vaneb.fl") else None
    without = [name for name, thing in parts(entry(path), path) if not (thing.__doc__ or "").strip()]
    assert not without
