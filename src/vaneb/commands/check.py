"""``vaneb check``: what would be read of a file, and all that is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaneb.commands import options, streams
from vaneb.commands.outcome import ExitCode, errors_in_words, printable
from vaneb.errors import InvalidOption, VanebError

if TYPE_CHECKING:
    from vaneb.dialect import TextOptions
    from vaneb.problems import Findings

#: Problems that are printed; --json has them all.
SHOWN = 100


def check(
    file: Annotated[
        Path, typer.Argument(help=f"Table of reports, or of rows: {options.TABLE_IN}", metavar="FILE")
    ],
    client: options.Client = None,
    estimate: options.Estimate = None,
    se: options.Error = None,
    variance: options.Variance = None,
    lower: options.Lower = None,
    upper: options.Upper = None,
    limits_level: options.LimitsLevel = None,
    limits_scale: options.LimitsScale = None,
    n: options.Size = None,
    variance_function: Annotated[
        str | None, typer.Option(help="As for personalize: takes the place of standard errors, and needs n.")
    ] = None,
    formula: Annotated[
        str | None, typer.Option(help='The file holds rows for this model, such as "y ~ x".')
    ] = None,
    family: options.Family = "gaussian",
    offset: Annotated[str | None, typer.Option(help="Column to add to the linear predictor.")] = None,
    weights: options.Weights = None,
    factor: options.Factor = None,
    na: options.Na = None,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    as_json: options.Json = False,
) -> None:
    """Show how a file would be read, and everything wrong with it.

    Nothing is fitted or written. Row 1 is the first row below the header.
    """
    with errors_in_words(as_json=as_json):
        from vaneb.dialect import TextOptions

        text = TextOptions(sep, decimal, encoding)
        if formula is None:
            from vaneb.problems import find_problems

            limits = lower, upper, limits_level, limits_scale
            choice = options.column_choice(client, estimate, se, variance, limits, n)
            found = find_problems(file, variance_function, choice=choice, options=text)
            said, problems = _of_reports(found), list(found.problems)
            if found.kind is not None and found.layout is None:
                said["rows_or_estimates"] = "for rows instead of estimates, add --client and --formula"
        else:
            if estimate or se or variance or lower or upper or n or variance_function:
                raise InvalidOption(
                    "--formula: is for rows, which have no columns of estimates. Leave those out."
                )
            if client is None:
                raise InvalidOption("--formula without --client: name the column that says whose a row is.")
            said, problems = _of_rows(
                file, text, client, formula, family, offset, weights, factor or (), na or ()
            )
        if as_json:
            code = int(ExitCode.BAD_INPUT if problems else ExitCode.OK)
            streams.print_json(
                {"command": "check", "exit_code": code, "file": file, **said, "problems": problems}
            )
        else:
            _tell(streams.name_of(file), said, problems)
        if problems:
            raise typer.Exit(ExitCode.BAD_INPUT)


def _of_reports(found: Findings) -> dict[str, Any]:
    said: dict[str, Any] = {"format": found.kind, "columns": list(found.columns)}
    layout = found.layout
    if layout is None:
        return said
    noise = {"se_": "standard errors", "variance": "variances", "cov_": "covariances", "prec_": "precisions"}
    noise["limits"] = f"{100 * (layout.limits_level or 0):.3g}% limits"
    said["clients"] = found.clients
    said["client_column"] = layout.client
    said["parameters"] = list(layout.names)
    said["estimate_columns"] = list(layout.estimates)
    said["uncertainty"] = None if layout.noise is None else noise[layout.noise]
    said["uncertainty_columns"] = list(layout.noise_columns)
    said["n_column"] = layout.size
    said["ignored_columns"] = list(layout.ignored)
    said["notes"] = list(found.limits)
    said["ranges"] = {column: list(ends) for column, ends in found.ranges.items()}
    return said


def _of_rows(
    file: Path,
    text: TextOptions,
    client: str,
    formula: str,
    family: str,
    offset: str | None,
    weights: str | None,
    factors: Sequence[str],
    na: Sequence[str],
) -> tuple[dict[str, Any], list[str]]:
    """Rows: the table, then its columns, then the model; what comes later needs what comes before."""
    from vaneb.grouped import frames
    from vaneb.grouped.client_reports import code_rows
    from vaneb.sources import open_table

    said: dict[str, Any] = {}
    problems: list[str] = []
    try:
        opened = open_table(file, text)
        said = {"format": opened.kind, "columns": list(opened.columns)}
        data = frames.as_pandas(opened.inferred([client], ["", *na]))
    except VanebError as error:
        return said, [str(error)]
    said["rows"] = len(data)
    said["missing_values"] = {c: int(k) for c, k in data.isna().sum().items() if k}
    for column, wanted_by in ((client, "--client"), (offset, "--offset"), (weights, "--weights")):
        try:
            if column is not None:
                frames.need_column(data, column, wanted_by)
        except VanebError as error:
            problems.append(str(error))
    try:
        if problems:
            # Still look at the formula, any other column in the client's place, without offset and weights.
            others = [column for column in data.columns if column not in formula]
            if not others:
                return said, problems
            client, offset, weights = others[0], None, None
        coded = code_rows(
            data,
            client=client,
            formula=formula,
            family=family,
            offset=offset,
            weights=weights,
            factors=factors,
            na=na,
        )
    except VanebError as error:
        return said, [*problems, str(error)]
    if not problems:
        rows = coded.rows.n_rows
        said["clients"] = coded.rows.n_clients
        said["rows_of_a_client"] = [int(rows.min()), int(rows.max())]
        said["coefficients"] = list(coded.names)
        said["dropped_rows"] = coded.dropped
        said["read"] = list(coded.reading.columns)
        said["notes"] = list(coded.reading.notes)
    return said, problems


def _tell(name: str, said: dict[str, Any], problems: list[str]) -> None:
    print(name)
    for what, value in said.items():
        if value is None or value in ([], {}):
            continue
        if isinstance(value, dict):
            value = "; ".join(f"{key} {_words(item, ' to ')}" for key, item in value.items())
        if what in ("read", "notes"):
            for line in value:
                print(f"  {what.removesuffix('s'):<20} {printable(line)}")
            continue
        between = " to " if what == "rows_of_a_client" else ", "
        print(f"  {what.replace('_', ' '):<20} {printable(_words(value, between))}")
    if not problems:
        print("no problems")
        return
    print(f"{len(problems):,} problem{'s' if len(problems) > 1 else ''}")
    for problem in problems[:SHOWN]:
        print(f"  {printable(problem)}")
    if len(problems) > SHOWN:
        print(f"  and {len(problems) - SHOWN:,} more; --json lists them all")


def _words(value: Any, between: str) -> str:
    if isinstance(value, list):
        return between.join(_words(item, between) for item in value)
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
