"""One HTML file with its data, style and scripts inside; it asks nobody for anything."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

Content = Mapping[str, Any]

#: In the order in which they need each other.
SCRIPTS = (
    "core", "plot", "mixture", "prior", "space", "who", "clients", "fit", "study", "train", "federation",
    "main",
)  # fmt: skip
#: Digits of embedded numbers: more than a picture or a table shows.
DIGITS = 6


def numbers(values: Any) -> Any:
    """An array as nested lists of short numbers; ``None`` where they are not finite."""
    array = np.asarray(values, dtype=np.float64)
    flat = [_short(value) for value in array.ravel().tolist()]
    return np.array(flat, dtype=object).reshape(array.shape).tolist()


def _short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def as_json(content: Content) -> str:
    """JSON that can stand inside a script element: no ``<``, so no client's name can end it."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page(content: Content, *, live: bool = False) -> str:
    """The whole page.

    Parameters
    ----------
    content : what ``fit_content`` or one of its sisters returned.
    live : for ``vaneb watch``, whose server the page then asks for newer content.
    """
    assets = files("vaneb.report") / "assets"
    scripts = "\n".join((assets / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS)
    parts = {
        "title": escape(content["title"]),
        "sentence": _bold(escape(content["sentence"])),
        "connect": "'self'" if live else "'none'",
        "live": "true" if live else "false",
        "style": (assets / "page.css").read_text(encoding="utf-8"),
        "data": as_json(content),
        "scripts": scripts,
    }
    # Split before anything is put in: what a client is called cannot be taken for a slot.
    pieces = (assets / "page.html").read_text(encoding="utf-8").split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _bold(text: str) -> str:
    return "".join(f"<strong>{part}</strong>" if i % 2 else part for i, part in enumerate(text.split("**")))


def write_page(path: str | os.PathLike[str], content: Content) -> None:
    """Write the page, in one step."""
    from vaneb.files import write_atomically

    write_atomically(path, page(content).encode())
