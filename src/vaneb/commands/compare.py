"""``vaneb compare``: figures of federated training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vaneb.commands.outcome import errors_in_words


def compare(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders that `vaneb train` wrote.", metavar="DIR...")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures.")] = Path("figures"),
    method: Annotated[
        list[str] | None, typer.Option(help="Label of a method to show in the client-scaling figure; repeat.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="png, svg or pdf.")] = "png",
) -> None:
    """Draw the accuracies of training runs, and the fitted priors."""
    with errors_in_words():
        from vaneb.drawing import check_format
        from vaneb.files import make_folder
        from vaneb.fl.figures import draw_client_scaling, draw_prior
        from vaneb.fl.head_priors import read_head_priors
        from vaneb.fl.results import read_rows

        check_format(form)
        make_folder(out)
        rows = [row for folder in folders for row in read_rows(folder)]
        draw_client_scaling(rows, out / f"client_scaling.{form}", method or ())
        print(out / f"client_scaling.{form}")
        for folder in folders:
            for prior in read_head_priors(folder):
                path = out / f"prior_{_slug(prior.title)}.{form}"
                draw_prior(prior, path)
                print(path)


def _slug(title: str) -> str:
    return "_".join("".join(c if c.isalnum() or c == "." else " " for c in title.lower()).split())
