"""``vaneb run``: one table with a grouping column in, coefficients of every group out."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaneb.commands import options
from vaneb.commands.fitted import finish, population_rows, promise_missed, run_json
from vaneb.commands.options import Population, refuse_smooth
from vaneb.commands.outcome import complain, errors_in_words
from vaneb.commands.progress import progress_bar
from vaneb.commands.streams import (
    check_files,
    check_level,
    name_of,
    page_writer,
    posterior_writer,
    print_json,
    print_rows,
    summary_stream,
    table_writer,
    write_together,
)

if TYPE_CHECKING:
    from vaneb.grouped import GroupedFit

LikelihoodName = StrEnum("LikelihoodName", ["EXACT", "GAUSSIAN"])


def run(
    data: Annotated[Path, typer.Argument(help=f"Table of rows: {options.TABLE_IN}", metavar="DATA")],
    formula: Annotated[
        str,
        typer.Option(help='Model of every client, such as "y ~ x1 + x2" or "y ~ x + z + (1 + x | school)".'),
    ],
    client: Annotated[
        str | None,
        typer.Option(help="Column that names the client (group) of a row, unless the formula does."),
    ] = None,
    out: options.Out = None,
    family: options.Family = "gaussian",
    offset: options.Offset = None,
    weights: options.Weights = None,
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
    prior_out: options.PriorOut = None,
    posterior_out: options.PosteriorOut = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Also save the model (JSON), for vaneb predict; it holds no row.", metavar="MODEL"),
    ] = None,
    level: options.Level = 0.9,
    population: options.PopulationKind = Population.AUTO,
    smooth: options.Smooth = None,
    seed: options.Seed = 0,
    factor: options.Factor = None,
    na: options.Na = None,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    report: options.Page = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit a mixed model to rows, with a population of any shape."""
    with errors_in_words(as_json=as_json):
        begin = time.perf_counter()
        refuse_smooth(smooth)
        check_level(level)
        writes = {"--out": out, "--reports-out": reports_out, "--prior-out": prior_out, "--report": report}
        writes |= {"--posterior-out": posterior_out, "--save": save}
        if out is None and save is not None:
            del writes["--out"]  # the model is what is wanted
        check_files({"DATA": data}, writes, as_json)
        with progress_bar(quiet) as progress:
            progress("reading", 0, 1)
            from vaneb.dialect import TextOptions
            from vaneb.grouped import fit_groups
            from vaneb.grouped.saved import write_model
            from vaneb.sources import read_rows
            from vaneb.tables import reports_table, rounded, suffix_of

            if reports_out is not None:
                suffix_of(reports_out)
            ids = [c for c in (client, test_column) if c]
            rows, notes = read_rows(data, TextOptions(sep, decimal, encoding), ids, na or ())
            fit = fit_groups(
                rows,
                client=client,
                formula=formula,
                family=family,
                offset=offset,
                weights=weights,
                test_column=test_column,
                likelihood=likelihood.value,
                level=level,
                population=population.value,
                seed=seed,
                factors=factor or (),
                na=na or (),
                told=None if quiet else lambda line: complain(f"read: {line}"),
                progress=progress,
            )

            def content() -> dict[str, Any]:
                from vaneb.report import grouped_content

                title = f"{formula}, by {fit.design.client}: {name_of(data)}"
                return grouped_content(fit, seconds=time.perf_counter() - begin, title=title)

            progress("writing", 1, 2)
            write_together(
                (out, table_writer(fit.table(), lambda table: rounded(table, fit.names))),
                (prior_out, fit.prior.write),
                (reports_out, lambda path, kind: table_writer(reports_table(fit.reports))(path, kind)),
                (posterior_out, posterior_writer(fit.posterior, seed)),
                (save, lambda path, _: write_model(path, fit)),
                (report, page_writer(content)),
            )
        if not quiet:
            for note in (*notes, *fit.notes):
                complain(f"note: {note}")
            with summary_stream(out, as_json):
                _summarise(fit, time.perf_counter() - begin)
        missed = promise_missed(fit.model)
        if as_json:
            print_json(run_json(fit, (*notes, *fit.notes), bool(missed)))
        finish(missed)


def _summarise(fit: GroupedFit, seconds: float) -> None:
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
    if fit.local.family.has_dispersion or fit.local.family.dispersion != 1.0:
        rows["dispersion"] = f"{fit.local.family.dispersion:.5g}"
    if fit.local.family.parameter != 1.0:
        rows["family parameter"] = f"{fit.local.family.parameter:.5g}"
    rows |= {
        **population_rows(fit.model),
        "average shrinkage": f"{fit.posterior.shrinkage.mean():.3f}",
        "seconds": f"{seconds:.1f}",
    }
    print_rows(rows)
    if held_out is not None:
        print(f"\nheld-out {held_out.loss}")
        for name, loss in held_out.values.items():
            print(f"  {name:<16} {loss:>12.6g}{'  <- best' if name == held_out.best else ''}")
        if held_out.new_clients:
            print(
                f"  {held_out.new_clients:,} clients have test rows only: predicted by the population's mean"
            )
