"""What commands that read and write tables share: their options, ``-`` for a stream, ``--json``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaneb.errors import InvalidOption
from vaneb.files import STANDARD

if TYPE_CHECKING:
    import pyarrow as pa

    from vaneb.column_choice import ColumnChoice

TABLE_IN = "CSV, .xlsx or .parquet; - for standard input."
TABLE_OUT = "Table to write, .csv, .xlsx or .parquet; - for standard output."

SepOption = Annotated[
    str | None, typer.Option(help="What separates columns, such as ';' or tab. Recognised by default.")
]
DecimalOption = Annotated[
    str | None, typer.Option(help="Decimal sign, '.' or ','. Recognised by default.", metavar="SIGN")
]
EncodingOption = Annotated[
    str | None, typer.Option(help="Such as utf-8, latin-1 or utf-16. Recognised by default.", metavar="NAME")
]
OutOption = Annotated[Path | None, typer.Option("--out", "-o", help=TABLE_OUT)]
LevelOption = Annotated[float, typer.Option(help="Probability of the intervals.")]
SeedOption = Annotated[int, typer.Option(help="Of the random numbers.", min=0)]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no summary.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write everything as JSON to standard output.")]
ClientOption = Annotated[
    str | None, typer.Option(help="Column with the clients' names. Guessed by default.", metavar="COLUMN")
]
EstimateOption = Annotated[
    list[str] | None,
    typer.Option(help="Column with estimates; repeat, or give a pattern such as 'b_*'.", metavar="COLUMN"),
]
ErrorOption = Annotated[
    list[str] | None,
    typer.Option("--se", help="Column with their standard errors; likewise.", metavar="COLUMN"),
]
VarianceOption = Annotated[
    list[str] | None, typer.Option(help="Or column with their variances; likewise.", metavar="COLUMN")
]
SizeOption = Annotated[
    str | None, typer.Option("--n", help="Column with sample sizes. n by default.", metavar="COLUMN")
]

NaOption = Annotated[
    list[str] | None,
    typer.Option(
        "--na", help="Text that stands for a missing value, such as NA or '.'; repeat.", metavar="TEXT"
    ),
]
FactorOption = Annotated[
    list[str] | None,
    typer.Option("--factor", help="Column that is a factor, whatever it holds; repeat.", metavar="COLUMN"),
]


def column_choice(
    client: str | None,
    estimate: list[str] | None,
    se: list[str] | None,
    variance: list[str] | None,
    n: str | None,
) -> ColumnChoice:
    """The columns that the options name."""
    from vaneb.column_choice import ColumnChoice

    return ColumnChoice(client, tuple(estimate or ()), tuple(se or ()), tuple(variance or ()), n)


def name_of(path: Path) -> str:
    """A file's name, for a title."""
    return "standard input" if str(path) == STANDARD else path.name


def check_files(reads: Mapping[str, Path | None], writes: Mapping[str, Path | None], as_json: bool) -> None:
    """Refuse files that cannot be written, or are the same, before any work is done."""
    from vaneb.files import check_writable

    streams = [option for option, path in writes.items() if path is not None and str(path) == STANDARD]
    streams += ["--json"] if as_json else []
    if len(streams) > 1:
        raise InvalidOption(f"{' and '.join(streams)}: only one can have standard output. Name a file.")
    if any(option != "--out" for option in streams if option != "--json"):
        raise InvalidOption(f"{streams[0]} -: only --out can have standard output. Name a file.")
    seen: dict[str, str] = {}
    for option, path in {**reads, **writes}.items():
        if path is None or str(path) == STANDARD:
            continue
        if option in writes:
            check_writable(path)
        real = os.path.realpath(path)
        if real in seen:
            raise InvalidOption(f"{option} {path}: is the same file as {seen[real]}. Name another one.")
        seen[real] = option


def check_out(out: Path | None, as_json: bool) -> None:
    """Refuse a table of a kind that is not written, and results that would go nowhere."""
    from vaneb.tables import suffix_of

    if out is not None:
        suffix_of(out)
    elif not as_json:
        raise typer.BadParameter(
            "name a file, - for standard output, or give --json.", param_hint="'--out' / '-o'"
        )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a file to write to; it becomes ``path``, or goes to standard output, if the block succeeds."""
    from vaneb.files import replacing

    if str(path) != STANDARD:
        with replacing(path) as temporary:
            yield temporary
        return
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "table"
        yield temporary
        sys.stdout.flush()
        sys.stdout.buffer.write(temporary.read_bytes())
        sys.stdout.buffer.flush()


def write_results(path: Path, results: pa.Table, names: tuple[str, ...], suffix: str) -> None:
    """Results: to meaningful digits where people read them, as computed in Parquet."""
    from vaneb.tables import rounded, write_content

    write_content(path, results if suffix == ".parquet" else rounded(results, names), suffix)


@contextlib.contextmanager
def summary_beside(out: Path | None, as_json: bool) -> Iterator[None]:
    """What is printed goes to standard error where standard output holds data."""
    if as_json or (out is not None and str(out) == STANDARD):
        with contextlib.redirect_stdout(sys.stderr):
            yield
    else:
        yield


def check_level(level: float | None) -> None:
    if level is not None and not 0 < level < 1:
        raise InvalidOption(f"--level {level:g}: must lie between 0 and 1; 0.9 gives 90% intervals.")


def print_json(content: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json.dumps(_plain(content), ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Values that JSON has; what is not a finite number is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)
