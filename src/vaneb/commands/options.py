"""Options that several commands have: each is declared once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaneb.errors import InvalidOption
from vaneb.local.family import FAMILIES

if TYPE_CHECKING:
    from vaneb.column_choice import ColumnChoice

TABLE_IN = "CSV, .xlsx or .parquet; - for standard input."
TABLE_OUT = "Table to write, .csv, .xlsx or .parquet; - for standard output."

Population = StrEnum("Population", ["AUTO", "MIXTURE", "GAUSSIAN", "DISCRETE"])

# ---------------------------------------------------------------- what goes in
Sep = Annotated[
    str | None, typer.Option(help="What separates columns, such as ';' or tab. Recognised by default.")
]
Decimal = Annotated[
    str | None, typer.Option(help="Decimal sign, '.' or ','. Recognised by default.", metavar="SIGN")
]
Encoding = Annotated[
    str | None, typer.Option(help="Such as utf-8, latin-1 or utf-16. Recognised by default.", metavar="NAME")
]
Client = Annotated[
    str | None, typer.Option(help="Column with the clients' names. Guessed by default.", metavar="COLUMN")
]
Estimate = Annotated[
    list[str] | None,
    typer.Option(help="Column with estimates; repeat, or give a pattern such as 'b_*'.", metavar="COLUMN"),
]
Error = Annotated[
    list[str] | None,
    typer.Option("--se", help="Column with their standard errors; likewise.", metavar="COLUMN"),
]
Variance = Annotated[
    list[str] | None, typer.Option(help="Or column with their variances; likewise.", metavar="COLUMN")
]
Lower = Annotated[
    list[str] | None,
    typer.Option(help="Or column with their lower confidence limits; likewise.", metavar="COLUMN"),
]
Upper = Annotated[list[str] | None, typer.Option(help="And with the upper ones.", metavar="COLUMN")]
LimitsLevel = Annotated[
    float | None,
    typer.Option(
        help="Probability between these limits. What their names say by default, else 0.95.", metavar="LEVEL"
    ),
]
LimitsScale = Annotated[
    str | None,
    typer.Option(
        help="Where they are symmetric: given, or log (ratios). Seen from the numbers by default.",
        metavar="SCALE",
    ),
]
Size = Annotated[
    str | None, typer.Option("--n", help="Column with sample sizes. n by default.", metavar="COLUMN")
]

# ---------------------------------------------------------------- rows and their model
Na = Annotated[
    list[str] | None,
    typer.Option(
        "--na", help="Text that stands for a missing value, such as NA or '.'; repeat.", metavar="TEXT"
    ),
]
Factor = Annotated[
    list[str] | None,
    typer.Option("--factor", help="Column that is a factor, whatever it holds; repeat.", metavar="COLUMN"),
]
Family = Annotated[
    str,
    typer.Option(help=f"Of the response: {', '.join(FAMILIES)}.", autocompletion=lambda: list(FAMILIES)),
]
Offset = Annotated[str | None, typer.Option(help="Column added to the linear index, such as log exposure.")]
Weights = Annotated[
    str | None,
    typer.Option(help="Column of what a row counts for; of a share of successes, the trials."),
]

# ---------------------------------------------------------------- fits
PopulationKind = Annotated[
    Population,
    typer.Option(
        help="What the population may be: a mixture of Gaussian groups (auto), one Gaussian, or atoms."
    ),
]
Smooth = Annotated[str | None, typer.Option(hidden=True)]
Level = Annotated[float, typer.Option(help="Probability of the intervals.")]
Seed = Annotated[int, typer.Option(help="Of the random numbers.", min=0)]

# ---------------------------------------------------------------- what comes out
Out = Annotated[Path | None, typer.Option("--out", "-o", help=TABLE_OUT)]
PriorOut = Annotated[Path | None, typer.Option(help="Also save the population (.json, .parquet).")]
PosteriorOut = Annotated[
    Path | None,
    typer.Option("--posterior-out", help="Also save the joint posterior (.parquet), for `vaneb decide`."),
]
Page = Annotated[
    Path | None,
    typer.Option(
        "--report",
        help="Also write a page to look at: one HTML file that needs no network.",
        metavar="PAGE.html",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no summary.")]
Json = Annotated[bool, typer.Option("--json", help="Write everything as JSON to standard output.")]


def column_choice(
    client: str | None,
    estimate: list[str] | None,
    se: list[str] | None,
    variance: list[str] | None,
    limits: tuple[list[str] | None, list[str] | None, float | None, str | None],
    n: str | None,
) -> ColumnChoice:
    """The columns that the options name; ``limits``: lower, upper, their level and scale."""
    from vaneb.column_choice import ColumnChoice

    estimates, errors, variances, lower, upper = (
        tuple(given or ()) for given in (estimate, se, variance, *limits[:2])
    )
    return ColumnChoice(client, estimates, errors, variances, n, lower, upper, *limits[2:])


def refuse_smooth(value: str | None) -> None:
    """Say what has taken the place of ``--smooth``."""
    if value is not None:
        raise InvalidOption(
            f"--smooth {value}: is gone. Write --population discrete for --smooth off; leave it out for auto."
        )
