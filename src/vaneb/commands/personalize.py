"""``vaneb personalize``: a table of reports in, a table of personalised estimates out."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaneb.commands import options, streams
from vaneb.commands.fitted import finish, personalize_json, population_rows, promise_missed
from vaneb.commands.outcome import complain, errors_in_words
from vaneb.commands.progress import progress_bar
from vaneb.errors import InvalidOption

if TYPE_CHECKING:
    from vaneb.estimators import VANEB
    from vaneb.held_out import HeldOutScores
    from vaneb.posterior import Posterior
    from vaneb.prior import Prior

Solver = StrEnum("Solver", {"CERTIFIED": "certified", "PSEUDO_EM": "pseudo-em", "GRID": "grid"})


def personalize(
    reports: Annotated[Path, typer.Argument(help=f"Table of reports: {options.TABLE_IN}", metavar="REPORTS")],
    out: options.Out = None,
    client: options.Client = None,
    estimate: options.Estimate = None,
    se: options.Error = None,
    variance: options.Variance = None,
    lower: options.Lower = None,
    upper: options.Upper = None,
    limits_level: options.LimitsLevel = None,
    limits_scale: options.LimitsScale = None,
    n: options.Size = None,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    prior_out: options.PriorOut = None,
    prior_in: Annotated[
        Path | None, typer.Option(help="Use this saved population instead of fitting one.")
    ] = None,
    posterior_out: options.PosteriorOut = None,
    variance_function: Annotated[
        str | None,
        typer.Option(
            help="Variance of one observation as a function of theta, instead of standard errors: "
            "poisson, binomial, normal:VARIANCE, gamma:SHAPE, negative-binomial:SIZE, squared. Needs n."
        ),
    ] = None,
    client_covariates: Annotated[
        str | None,
        typer.Option(
            help="Columns that describe the clients and shift the centre of the population, as in "
            "age,size. n and standard errors may be among them.",
            metavar="COLUMNS",
        ),
    ] = None,
    population: options.PopulationKind = options.Population.AUTO,
    solver: Annotated[
        Solver | None, typer.Option(help="How to fit atoms; implies --population discrete.")
    ] = None,
    smooth: options.Smooth = None,
    level: options.Level = 0.9,
    tol: Annotated[
        float, typer.Option(help="Largest gap that the certificate may leave, with --population discrete.")
    ] = 1e-4,
    seed: options.Seed = 0,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Process a Parquet file block by block on this Ray cluster; 'local' starts one here. "
            "All workers must be able to read the file.",
            metavar="ADDRESS",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Also say how well the population predicts left-out clients, and two other kinds of it.",
        ),
    ] = False,
    report: options.Page = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Improve each client's estimate by learning from all of them."""
    with errors_in_words(as_json=as_json):
        begin = time.perf_counter()
        limits = lower, upper, limits_level, limits_scale
        options.refuse_smooth(smooth)
        streams.check_level(level)
        if not tol > 0:
            raise InvalidOption(f"--tol {tol:g}: must be positive; 1e-4 is the default.")
        if prior_in is not None and prior_out is not None:
            raise InvalidOption("--prior-out with --prior-in: no prior is fitted. Leave one of them out.")
        writes = {"--out": out, "--prior-out": prior_out, "--report": report}
        writes["--posterior-out"] = posterior_out
        streams.check_files({"REPORTS": reports, "--prior-in": prior_in}, writes, as_json)
        from vaneb.estimators import VANEB

        method = None if solver is None else solver.value
        wanted = VANEB(population=population.value, solver=method, tol=tol, seed=seed)
        if ray is not None or _too_large(reports):
            named = (client, estimate, se, variance, n, *limits)
            plain = not any((*named, variance_function, client_covariates))
            extra = any((report, posterior_out, compare, as_json))
            if not plain or extra or out is None or out.suffix != ".parquet" or reports.suffix != ".parquet":
                why = "--ray is given" if ray is not None else "it does not fit into memory"
                raise InvalidOption(
                    f"{reports}: is worked through in blocks, since {why}. That goes from .parquet to "
                    ".parquet, with columns client, n, theta_<name> and se_<name>, and without --report, "
                    "--posterior-out, --compare and --json."
                )
            _by_blocks(reports, out, prior_in, prior_out, wanted, level, ray, quiet)
            return
        described = tuple(c.strip() for c in (client_covariates or "").split(",") if c.strip())
        if compare and (described or prior_in is not None):
            raise InvalidOption(
                "--compare fits populations without covariates to parts of the clients. Leave it out, or "
                "leave --client-covariates and --prior-in out."
            )
        from vaneb.dialect import TextOptions
        from vaneb.prior import Prior
        from vaneb.tables import read_reports, results_table, rounded

        prior = None if prior_in is None else Prior.load(prior_in)
        if prior is not None:
            described = _covariates_of(prior, described)
        table = read_reports(
            reports,
            variance_function,
            names=prior.names[: prior.parameters] if prior else None,
            choice=options.column_choice(client, estimate, se, variance, limits, n),
            options=TextOptions(sep, decimal, encoding),
            covariates=described,
        )
        with progress_bar(quiet) as progress:
            if prior is None:
                model = wanted.fit(table.reports, progress=progress, covariates=table.covariates)
            else:
                model = VANEB.from_prior(prior)
            scores = None
            if compare:
                from vaneb.held_out import KINDS, held_out_scores

                progress("comparing populations", 0, 1)
                first = model.kind
                scores = held_out_scores(table.reports, (first, *(k for k in KINDS if k != first)), seed=seed)
            progress("personalising", 1, 2)
            posterior = model.personalize(table.reports, covariates=table.covariates)
            results = results_table(posterior, level, table.client_type)

            def content() -> dict[str, Any]:
                from vaneb.report import fit_content
                from vaneb.report.quantities import ratio_of

                few = ", ".join(posterior.names) if len(posterior.names) <= 3 else "Estimates"
                few = table.ratio or few
                return fit_content(
                    model,
                    posterior,
                    table.reports,
                    level=level,
                    seconds=time.perf_counter() - begin,
                    title=f"{few}, by {table.client_column}: {streams.name_of(reports)}",
                    reading=table.notes,
                    client=table.client_column,
                    outcome=None if table.ratio is None else ratio_of(table.ratio),
                )

            progress("writing", 2, 2)
            streams.write_together(
                (out, streams.table_writer(results, lambda table: rounded(table, posterior.names))),
                (prior_out, model.prior_.write),
                (posterior_out, streams.posterior_writer(posterior, seed)),
                (report, streams.page_writer(content)),
            )
        if not quiet:
            for note in (*table.notes, *getattr(model, "notes_", ())):
                complain(f"note: {note}")
            with streams.summary_stream(out, as_json):
                _summarise(model, posterior, scores, time.perf_counter() - begin)
        missed = promise_missed(model) if prior is None else ""
        if as_json:
            streams.print_json(
                personalize_json(model, posterior, results, table.notes, level, bool(missed), scores)
            )
        finish(missed)


def _covariates_of(prior: Prior, given: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that a saved population asks for."""
    known = prior.covariates.names if prior.covariates else ()
    if given and given != known:
        said = f"was fitted with {', '.join(known)}" if known else "knows no covariates"
        raise InvalidOption(
            f"--client-covariates {','.join(given)}: the population of --prior-in {said}. Leave the option "
            "out: the columns are then found by their names."
        )
    return known


def _too_large(reports: Path) -> bool:
    if reports.suffix != ".parquet" or not reports.is_file():
        return False
    from vaneb.outofcore import fits_in_memory

    return not fits_in_memory(reports)


def _by_blocks(
    reports: Path,
    out: Path,
    prior_in: Path | None,
    prior_out: Path | None,
    model: VANEB,
    level: float,
    ray: str | None,
    quiet: bool,
) -> None:
    """The population from clients all over the file; then block by block."""
    from vaneb.outofcore import connect, fit_file, in_turn, personalize_file, ray_map
    from vaneb.prior import Prior

    if ray is not None:
        connect(ray)
    with progress_bar(quiet) as progress:
        progress("learning the population", 0, 2)
        prior = fit_file(reports, model).prior_ if prior_in is None else Prior.load(prior_in)
        progress("personalising", 1, 2)
        personalize_file(reports, prior, out, level=level, map_over=in_turn if ray is None else ray_map)
        streams.write_together((prior_out, prior.write))
    if not quiet:
        how = "worked through in blocks; the population is learnt from a part of them"
        streams.print_rows({"population": str(prior), "clients": how})


def _effect_rows(model: VANEB, names: tuple[str, ...]) -> dict[str, str]:
    """What a unit of each covariate does to each parameter."""
    effects = getattr(model, "effects_", None)
    if effects is None:
        return {}
    return {
        f"per {z}": ", ".join(
            f"{name} {m:.4g} (sd {s:.2g})"
            for name, m, s in zip(names, effects.mean[:, i], effects.sd[:, i], strict=True)
        )
        for i, z in enumerate(effects.covariates)
    }


def _summarise(model: VANEB, posterior: Posterior, scores: HeldOutScores | None, seconds: float) -> None:
    streams.print_rows(
        {
            "clients": f"{len(posterior):,}",
            "parameters": f"{len(posterior.names)}",
            **population_rows(model),
            **({} if scores is None else {"held out": str(scores)}),
            **_effect_rows(model, posterior.names),
            "average shrinkage": f"{posterior.shrinkage.mean():.3f}",
            "flagged clients": f"{sum(map(bool, posterior.flag)):,}",
            "seconds": f"{seconds:.1f}",
        }
    )
