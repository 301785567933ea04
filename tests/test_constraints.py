"""The pinned packages install on every Python that we say we support, down to the first release of 3.11."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

specifiers = pytest.importorskip("packaging.specifiers")
CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


def test_no_pin_asks_for_a_newer_python() -> None:
    """Debian 12 has 3.11.2; a pin that asks for 3.11.5 cannot be installed there."""
    pins = [line.strip() for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if "==" in line]
    assert len(pins) > 50
    asked, seen = {}, 0
    for pin in pins:
        name, _, version = pin.partition("==")
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if installed.version == version:
            seen += 1
            asked[pin] = installed.metadata["Requires-Python"] or ""
    assert seen > 20
    too_new = {
        pin: python for pin, python in asked.items() if "3.11.0" not in specifiers.SpecifierSet(python)
    }
    assert not too_new
