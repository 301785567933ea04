"""``vaneb table``: results of federated training as Panels A and B."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vaneb.commands.outcome import errors_in_words

Form = StrEnum("Form", ["TEXT", "MARKDOWN", "CSV"])
Points = StrEnum("Points", ["OWN", "CORRECTED", "ADDED"])


def table(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders that `vaneb train` wrote.", metavar="DIR...")
    ],
    form: Annotated[Form, typer.Option("--format", help="How it is written.")] = Form.TEXT,
    points: Annotated[
        Points,
        typer.Option(
            help="How clients predict: as each method is meant (own); with their log-proportions taken away "
            "for balanced labels and added for matched ones (corrected); or only added (added)."
        ),
    ] = Points.OWN,
    value: Annotated[
        str, typer.Option(help="Over clients: mean, worst_tenth, or decile_1 to decile_9.")
    ] = "mean",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write instead.")] = None,
) -> None:
    """Print the accuracies of training runs, best ones marked."""
    with errors_in_words():
        import sys

        from vaneb.files import write_atomically
        from vaneb.fl.results import read_rows
        from vaneb.fl.tables import as_csv, as_markdown, as_text, evaluated_models, make_panels

        rows = [row for folder in folders for row in read_rows(folder)]
        panels = make_panels(rows, points=points.value, value=value)
        if form is Form.CSV:
            text = as_csv(panels)
        elif form is Form.MARKDOWN:
            models = "\n".join(f"- {line}" for line in evaluated_models(rows))
            text = f"{as_markdown(panels)}\nModels evaluated:\n\n{models}\n"
        else:
            bold = out is None and sys.stdout.isatty()
            models = "\n".join(f"  {line}" for line in evaluated_models(rows))
            text = f"{as_text(panels, bold=bold)}\nModels evaluated:\n{models}\n"
        if out is None:
            print(text, end="")
        else:
            write_atomically(out, text.encode())
