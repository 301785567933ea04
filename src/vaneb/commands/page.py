"""``--report PAGE.html``, the same in every command that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vaneb.errors import InvalidOption

PageOption = Annotated[
    Path | None,
    typer.Option(
        "--report",
        help="Also write a page to look at: one HTML file that needs no network.",
        metavar="PAGE.html",
    ),
]


def check_page(path: Path | None) -> None:
    """Refuse a page that cannot be written, before any work is done."""
    if path is None:
        return
    from vaneb.files import check_writable

    if path.suffix.lower() not in (".html", ".htm"):
        raise InvalidOption(f"--report {path}: must end in .html, so that a browser opens it.")
    check_writable(path)
