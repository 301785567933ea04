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
TABLE_OUT = "Table to write: .csv, .xlsx or .parquet; - for standard output."

Population = StrEnum("Population", ["AUTO", "MIXTURE", "GAUSSIAN", "DISCRETE"])

# ---------------------------------------------------------------- what goes in
Sep = Annotated[
    str | None, typer.Option(help="Character between columns, such as ';' or tab. Detected by default.")
]
Decimal = Annotated[
    str | None, typer.Option(help="Decimal sign, '.' or ','. Detected by default.", metavar="SIGN")
]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding, such as utf-8 or latin-1. Detected by default.", metavar="NAME")
]
Client = Annotated[
    str | None, typer.Option(help="Column with the clients' names. Guessed by default.", metavar="COLUMN")
]
Estimate = Annotated[
    list[str] | None,
    typer.Option(
        help="Column of estimates. For several parameters repeat it, or give a pattern such as 'b_*'.",
        metavar="COLUMN",
    ),
]
Error = Annotated[
    list[str] | None,
    typer.Option("--se", help="Column of their standard errors; repeat as --estimate.", metavar="COLUMN"),
]
Variance = Annotated[
    list[str] | None, typer.Option(help="Column of variances, instead of --se.", metavar="COLUMN")
]
Lower = Annotated[
    list[str] | None,
    typer.Option(help="Column of lower confidence limits, instead of --se.", metavar="COLUMN"),
]
Upper = Annotated[list[str] | None, typer.Option(help="Column of upper confidence limits.", metavar="COLUMN")]
LimitsLevel = Annotated[
    float | None,
    typer.Option(
        help="Confidence level of the limits. By default what their names say, or 0.95.", metavar="LEVEL"
    ),
]
LimitsScale = Annotated[
    str | None,
    typer.Option(
        help="Scale on which limits are symmetric: given, or log for ratios. Detected by default.",
        metavar="SCALE",
    ),
]
Size = Annotated[
    str | None, typer.Option("--n", help="Column of sample sizes. By default n.", metavar="COLUMN")
]

# ---------------------------------------------------------------- rows and their model
Na = Annotated[
    list[str] | None,
    typer.Option(
        "--na", help="Text that marks a missing value, such as NA or '.'. Can be repeated.", metavar="TEXT"
    ),
]
Factor = Annotated[
    list[str] | None,
    typer.Option("--factor", help="Column to treat as a factor. Can be repeated.", metavar="COLUMN"),
]
Family = Annotated[
    str,
    typer.Option(
        help=f"Distribution of the response: {', '.join(FAMILIES)}.", autocompletion=lambda: list(FAMILIES)
    ),
]
Offset = Annotated[
    str | None, typer.Option(help="Column to add to the linear predictor, such as log exposure.")
]
Weights = Annotated[
    str | None,
    typer.Option(help="Column of weights; if the response is a share of successes, the number of trials."),
]

# ---------------------------------------------------------------- fits
PopulationKind = Annotated[
    Population,
    typer.Option(
        help="Shape of the population. auto: a mixture of Gaussian groups; in `vaneb run` one Gaussian, "
        "unless groups predict better."
    ),
]
Smooth = Annotated[str | None, typer.Option(hidden=True)]
Level = Annotated[float, typer.Option(help="Probability that an interval holds.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.", min=0)]

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
        help="Also write a report page: one HTML file that works offline.",
        metavar="PAGE.html",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress bar and no summary.")]
Json = Annotated[bool, typer.Option("--json", help="Print all results as JSON.")]


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
