"""``vaneb run``: one table with a grouping column in, coefficients of every group out."""

from __future__ import annotations

import contextlib
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaneb.commands.decide import PosteriorOption, check_posterior_out
from vaneb.commands.outcome import ExitCode, complain, told_to_user
from vaneb.commands.page import PageOption, check_page
from vaneb.commands.personalize import (
    Population,
    PopulationOption,
    SmoothOption,
    population_rows,
    promise_missed,
    refuse_smooth,
)
from vaneb.commands.progress import progress_bar
from vaneb.commands.streams import (
    TABLE_IN,
    DecimalOption,
    EncodingOption,
    FactorOption,
    JsonOption,
    LevelOption,
    NaOption,
    OutOption,
    QuietOption,
    SeedOption,
    SepOption,
    check_files,
    check_level,
    check_out,
    name_of,
    print_json,
    summary_beside,
    write_results,
    writing,
)
from vaneb.local.family import FAMILIES

if TYPE_CHECKING:
    from vaneb.grouped import GroupedFit


FamilyOption = Annotated[
    str,
    typer.Option(help=f"Of the response: {', '.join(FAMILIES)}.", autocompletion=lambda: list(FAMILIES)),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(help="Column of what a row counts for; of a share of successes, the trials."),
]


class LikelihoodName(StrEnum):
    """Values of ``--likelihood``."""

    EXACT = "exact"
    GAUSSIAN = "gaussian"


def run(
    data: Annotated[Path, typer.Argument(help=f"Table of rows: {TABLE_IN}", metavar="DATA")],
    formula: Annotated[
        str,
        typer.Option(help='Model of every client, such as "y ~ x1 + x2" or "y ~ x + z + (1 + x | school)".'),
    ],
    client: Annotated[
        str | None,
        typer.Option(help="Column that names the client (group) of a row, unless the formula does."),
    ] = None,
    out: OutOption = None,
    family: FamilyOption = "gaussian",
    offset: Annotated[
        str | None, typer.Option(help="Column added to the linear index, such as log exposure.")
    ] = None,
    weights: WeightsOption = None,
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
    prior_out: Annotated[
        Path | None, typer.Option(help="Also save the population (.json, .parquet).")
    ] = None,
    posterior_out: PosteriorOption = None,
    save: Annotated[
        Path | None,
        typer.Option(help="Also save the model (JSON), for vaneb predict; it holds no row.", metavar="MODEL"),
    ] = None,
    level: LevelOption = 0.9,
    population: PopulationOption = Population.AUTO,
    smooth: SmoothOption = None,
    seed: SeedOption = 0,
    factor: FactorOption = None,
    na: NaOption = None,
    sep: SepOption = None,
    decimal: DecimalOption = None,
    encoding: EncodingOption = None,
    report: PageOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Fit a mixed model to rows, with a population of any shape."""
    with told_to_user(as_json=as_json):
        begin = time.perf_counter()
        refuse_smooth(smooth)
        if save is None or out is not None:
            check_out(out, as_json)
        check_page(report)
        check_level(level)
        check_posterior_out(posterior_out)
        writes = {"--out": out, "--reports-out": reports_out, "--prior-out": prior_out, "--report": report}
        writes["--posterior-out"] = posterior_out
        writes["--save"] = save
        check_files({"DATA": data}, writes, as_json)
        with progress_bar(quiet) as progress:
            progress("reading", 0, 1)
            from vaneb.dialect import TextOptions
            from vaneb.files import replacing
            from vaneb.grouped import fit_groups
            from vaneb.sources import read_rows
            from vaneb.tables import suffix_of, write_reports

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
            progress("writing", 1, 2)
            table = fit.table()
            with contextlib.ExitStack() as stack:
                # All files are complete before any takes its name.
                if out is not None:
                    write_results(stack.enter_context(writing(out)), table, fit.names, suffix_of(out))
                if prior_out is not None:
                    fit.prior.write(stack.enter_context(replacing(prior_out)), prior_out.suffix)
                if reports_out is not None:
                    write_reports(reports_out, fit.reports)
                if posterior_out is not None:
                    from vaneb.decisions import JointPosterior
                    from vaneb.decisions.saved import write_posterior

                    joint = JointPosterior.of(fit.posterior, seed=seed)
                    write_posterior(stack.enter_context(replacing(posterior_out)), joint)
                if save is not None:
                    from vaneb.grouped.saved import write_model

                    write_model(stack.enter_context(replacing(save)), fit)
                if report is not None:
                    from vaneb.report import grouped_content, page

                    title = f"{formula}, by {fit.design.client}: {name_of(data)}"
                    content = grouped_content(fit, seconds=time.perf_counter() - begin, title=title)
                    stack.enter_context(replacing(report)).write_text(page(content), encoding="utf-8")
        if not quiet:
            for note in (*notes, *fit.notes):
                complain(f"note: {note}")
            with summary_beside(out, as_json):
                _summarise(fit, time.perf_counter() - begin)
        missed = promise_missed(fit.model)
        if as_json:
            from vaneb.commands.as_json import run_json

            print_json(run_json(fit, (*notes, *fit.notes), bool(missed)))
        if missed:
            complain(
                f"warning: {missed}. The results are written; the average log-likelihood may be that far "
                "below the best."
            )
            raise typer.Exit(ExitCode.NOT_CERTIFIED)


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
