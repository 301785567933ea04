"""``vaneb run``: one table with a grouping column in, coefficients of every group out."""

from __future__ import annotations

import contextlib
import os
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaneb.commands.outcome import ExitCode, complain, told_to_user
from vaneb.commands.page import PageOption, check_page
from vaneb.commands.personalize import Smooth
from vaneb.commands.progress import progress_bar
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.files import absent

if TYPE_CHECKING:
    import pyarrow as pa

    from vaneb.grouped import GroupedFit


class FamilyName(StrEnum):
    """Values of ``--family``."""

    GAUSSIAN = "gaussian"
    BINOMIAL = "binomial"
    POISSON = "poisson"
    MULTINOMIAL = "multinomial"
    GAMMA = "gamma"
    HUBER = "huber"


class LikelihoodName(StrEnum):
    """Values of ``--likelihood``."""

    EXACT = "exact"
    GAUSSIAN = "gaussian"


def run(
    data: Annotated[Path, typer.Argument(help="Table of rows, .csv or .parquet.", metavar="DATA")],
    client: Annotated[str, typer.Option(help="Column that names the client (group) of a row.")],
    formula: Annotated[str, typer.Option(help='Model of every client, such as "y ~ x1 + x2".')],
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write, .csv or .parquet.")],
    family: Annotated[FamilyName, typer.Option(help="Of the response.")] = FamilyName.GAUSSIAN,
    offset: Annotated[
        str | None, typer.Option(help="Column added to the linear index, such as log exposure.")
    ] = None,
    test_column: Annotated[
        str | None, typer.Option(help="Column that is 1 in rows to predict, 0 in rows to fit.")
    ] = None,
    likelihood: Annotated[
        LikelihoodName,
        typer.Option(help="exact: the rows themselves; gaussian: what a federation of reports would give."),
    ] = LikelihoodName.EXACT,
    reports_out: Annotated[
        Path | None, typer.Option(help="Also write the clients' reports, .csv or .parquet.")
    ] = None,
    prior_out: Annotated[Path | None, typer.Option(help="Also save the fitted prior (JSON).")] = None,
    level: Annotated[float, typer.Option(help="Probability of the credible intervals.")] = 0.9,
    smooth: Annotated[Smooth, typer.Option(help="Gaussian spread around the atoms.")] = Smooth.AUTO,
    seed: Annotated[int, typer.Option(help="Of the random starting points.", min=0)] = 0,
    report: PageOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no summary.")] = False,
) -> None:
    """Fit a model to every group of a table, each helped by what the others say of the population."""
    with told_to_user():
        begin = time.perf_counter()
        _check(data, out, reports_out, prior_out, report, level)
        with progress_bar(quiet) as progress:
            progress("reading", 0, 1)
            from vaneb.files import replacing
            from vaneb.grouped import fit_groups
            from vaneb.tables import suffix_of, write_content, write_reports

            fit = fit_groups(
                _read(data, {client, test_column}),
                client=client,
                formula=formula,
                family=family.value,
                offset=offset,
                test_column=test_column,
                likelihood=likelihood.value,
                level=level,
                smooth=smooth.value,
                seed=seed,
                progress=progress,
            )
            progress("writing", 1, 2)
            table = fit.table()
            with contextlib.ExitStack() as stack:
                # All files are complete before any takes its name.
                write_content(stack.enter_context(replacing(out)), table, suffix_of(out))
                if prior_out is not None:
                    fit.prior.save(stack.enter_context(replacing(prior_out)))
                if reports_out is not None:
                    write_reports(reports_out, fit.reports)
                if report is not None:
                    from vaneb.report import grouped_content, page

                    title = f"{formula}, by {client}: {data.name}"
                    content = grouped_content(fit, seconds=time.perf_counter() - begin, title=title)
                    stack.enter_context(replacing(report)).write_text(page(content), encoding="utf-8")
        if not quiet:
            for note in fit.notes:
                complain(f"note: {note}")
            _summarise(fit, time.perf_counter() - begin)
        if not _certified(fit):
            complain(
                f"warning: the fit stopped at a gap of {fit.model.certificate_.gap:.2g}, above the tolerance "
                f"{fit.model.tol:g}. {out} is written; the average log-likelihood may be that far below "
                "the best."
            )
            raise typer.Exit(ExitCode.NOT_CERTIFIED)


def _certified(fit: GroupedFit) -> bool:
    """Where held-out clients preferred a smoother population, no certificate was promised."""
    promised = fit.model.smooth_ is None or fit.model.smooth_.certifies
    return not promised or fit.model.certificate_.reached


def _read(path: Path, columns: set[str | None]) -> pa.Table:
    """The table behind ``path``.

    Types are inferred, but ids that look like numbers with leading zeros stay what they are: text.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    from vaneb.tables import suffix_of

    try:
        if suffix_of(path) == ".parquet":
            with path.open("rb") as handle:
                return pq.read_table(handle)
        missing = ["", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "null", "NULL", "#N/A", "<NA>"]
        options = pa.csv.ConvertOptions(null_values=missing, strings_can_be_null=True)
        parse = pa.csv.ParseOptions(newlines_in_values=True)
        table = pa.csv.read_csv(path, parse_options=parse, convert_options=options)
        ids = [c for c in columns if c is not None and c in table.column_names]
        padded = {c: pa.string() for c in ids if _has_leading_zeros(path, c)}
        if padded:
            options = pa.csv.ConvertOptions(
                null_values=missing, strings_can_be_null=True, column_types=padded
            )
            table = pa.csv.read_csv(path, parse_options=parse, convert_options=options)
        _check_text(path, table)
        return table
    except FileNotFoundError:
        raise InvalidReport(absent(path)) from None
    except IsADirectoryError:
        raise InvalidReport(f"{path}: is a folder. Name a .csv or .parquet file.") from None
    except PermissionError:
        raise InvalidReport(f"{path}: no permission to read it.") from None
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        reason = (str(error).splitlines() or ["unknown reason"])[0]
        raise InvalidReport(f"{path}: cannot be read as a table ({reason}).") from None


def _check_text(path: Path, table: pa.Table) -> None:
    """Refuse a .csv that was read, but not as its author meant it."""
    import pyarrow as pa

    only = table.column_names[0] if table.num_columns == 1 else ""
    for separator, name in ((";", "semicolons"), ("\t", "tabs")):
        if separator in only:
            raise InvalidReport(f"{path}: its columns are separated by {name}. Save it with commas.")
    for column, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_binary(kind):
            raise InvalidReport(f"{path}: column {column} is not UTF-8 text. Save the file as UTF-8.")


def _has_leading_zeros(path: Path, column: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    options = pa.csv.ConvertOptions(include_columns=[column], column_types={column: pa.string()})
    parse = pa.csv.ParseOptions(newlines_in_values=True)
    texts = pa.csv.read_csv(path, parse_options=parse, convert_options=options)[column]
    return bool(pc.any(pc.match_substring_regex(texts, r"^0\d")).as_py())


def _check(
    data: Path, out: Path, reports_out: Path | None, prior_out: Path | None, report: Path | None, level: float
) -> None:
    """Refuse what cannot end well before any work is done."""
    from vaneb.files import check_writable
    from vaneb.tables import suffix_of

    suffix_of(data)
    for path in (out, reports_out):
        if path is not None:
            suffix_of(path)
            check_writable(path)
    if prior_out is not None:
        check_writable(prior_out)
    check_page(report)
    if not 0 < level < 1:
        raise InvalidOption(f"--level {level:g}: must lie between 0 and 1; 0.9 gives 90% intervals.")
    files = {"DATA": data, "--out": out, "--reports-out": reports_out, "--prior-out": prior_out}
    files["--report"] = report
    seen: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        real = os.path.realpath(path)
        if real in seen:
            raise InvalidOption(f"{option} {path}: is the same file as {seen[real]}. Name another one.")
        seen[real] = option


def _summarise(fit: GroupedFit, seconds: float) -> None:
    prior = fit.prior
    spread = "none" if prior.spread is None else " ".join(f"{v**0.5:.3g}" for v in prior.spread.diagonal())
    held_out = fit.held_out
    test_rows = "" if held_out is None else f" fitted, {held_out.rows:,} tested"
    rows = {
        "clients": f"{fit.rows.n_clients:,}",
        "rows": f"{len(fit.rows.response):,}{test_rows}",
        "dropped rows": f"{fit.dropped:,}" + (" (missing values)" if fit.dropped else ""),
        "coefficients": ", ".join(fit.names),
        "local fits": ", ".join(f"{outcome} {count:,}" for outcome, count in fit.outcomes.items()),
        "likelihood": fit.likelihood,
    }
    if fit.local.family.name in ("gaussian", "gamma"):
        rows["dispersion"] = f"{fit.local.family.dispersion:.5g}"
    rows |= {
        "atoms": f"{len(prior.weights)}",
        "spread (sd)": spread,
        "average shrinkage": f"{fit.posterior.shrinkage.mean():.3f}",
        "seconds": f"{seconds:.1f}",
    }
    for name, value in rows.items():
        print(f"{name:<18} {value}")
    if held_out is not None:
        print(f"\nheld-out {held_out.loss}")
        for name, loss in held_out.values.items():
            print(f"  {name:<16} {loss:>12.6g}{'  <- best' if name == held_out.best else ''}")
        if held_out.new_clients:
            print(
                f"  {held_out.new_clients:,} clients have test rows only: predicted by the population's mean"
            )
