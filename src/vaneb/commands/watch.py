"""``vaneb watch``: the page of a study or of training, served while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vaneb.commands.outcome import complain, errors_in_words
from vaneb.errors import InvalidOption


def watch(
    folder: Annotated[Path, typer.Argument(help="Folder of `vaneb study` or `vaneb train`.", metavar="DIR")],
    port: Annotated[
        int, typer.Option(help="On this machine; 0 takes any that is free.", min=0, max=65535)
    ] = 8350,
) -> None:
    """Show a study or a training in the browser while it runs.

    Serves to this machine only, and reads DIR without touching it.  Ctrl-C ends it.
    """
    with errors_in_words():
        from vaneb.report.server import make_server

        if not folder.is_dir():
            raise InvalidOption(
                f"{folder}: is not a folder. Name one that `vaneb study` or `vaneb train` writes to."
            )
        with make_server(folder, port) as server:
            complain(f"watching {folder}: open http://localhost:{server.server_port}/ (Ctrl-C ends this).")
            try:
                server.serve_forever(poll_interval=0.2)
            except KeyboardInterrupt:
                complain("stopped.")
