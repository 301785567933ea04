"""``vaneb personalize``: a table of reports in, a table of personalised estimates out."""

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
from vaneb.commands.progress import progress_bar
from vaneb.commands.streams import (
    TABLE_IN,
    ClientOption,
    DecimalOption,
    EncodingOption,
    ErrorOption,
    EstimateOption,
    JsonOption,
    LevelOption,
    OutOption,
    QuietOption,
    SeedOption,
    SepOption,
    SizeOption,
    VarianceOption,
    check_files,
    check_level,
    check_out,
    column_choice,
    name_of,
    print_json,
    summary_beside,
    write_results,
    writing,
)
from vaneb.errors import InvalidOption

if TYPE_CHECKING:
    from vaneb.estimators import VANEB
    from vaneb.held_out import HeldOutScores
    from vaneb.posterior import Posterior


class Solver(StrEnum):
    """Values of ``--solver``."""

    CERTIFIED = "certified"
    PSEUDO_EM = "pseudo-em"
    GRID = "grid"


class Population(StrEnum):
    """Values of ``--population``."""

    AUTO = "auto"
    MIXTURE = "mixture"
    GAUSSIAN = "gaussian"
    DISCRETE = "discrete"


PopulationOption = Annotated[
    Population,
    typer.Option(
        help="What the population may be: a mixture of Gaussian groups (auto), one Gaussian, or atoms."
    ),
]


def refuse_smooth(value: str | None) -> None:
    """Say what has taken the place of ``--smooth``."""
    if value is not None:
        raise InvalidOption(
            f"--smooth {value}: is gone. Write --population discrete for --smooth off; leave it out for auto."
        )


SmoothOption = Annotated[str | None, typer.Option(hidden=True)]


def personalize(
    reports: Annotated[Path, typer.Argument(help=f"Table of reports: {TABLE_IN}", metavar="REPORTS")],
    out: OutOption = None,
    client: ClientOption = None,
    estimate: EstimateOption = None,
    se: ErrorOption = None,
    variance: VarianceOption = None,
    n: SizeOption = None,
    sep: SepOption = None,
    decimal: DecimalOption = None,
    encoding: EncodingOption = None,
    prior_out: Annotated[
        Path | None, typer.Option(help="Also save the population (.json, .parquet).")
    ] = None,
    prior_in: Annotated[
        Path | None, typer.Option(help="Use this saved population instead of fitting one.")
    ] = None,
    posterior_out: PosteriorOption = None,
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
            help="Columns that describe the clients and move the centre of the population, as in "
            "age,size; n and standard errors may be among them.",
            metavar="COLUMNS",
        ),
    ] = None,
    population: PopulationOption = Population.AUTO,
    solver: Annotated[
        Solver | None, typer.Option(help="How atoms are fitted; asks for --population discrete.")
    ] = None,
    smooth: SmoothOption = None,
    level: LevelOption = 0.9,
    tol: Annotated[float, typer.Option(help="Largest gap of the certificate (discrete).")] = 1e-4,
    seed: SeedOption = 0,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Work through a Parquet file block by block on this Ray cluster; 'local' starts one here. "
            "Workers must see the file.",
            metavar="ADDRESS",
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Also say how well the population predicts clients left out, beside one Gaussian and atoms.",
        ),
    ] = False,
    report: PageOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Improve each client's estimate with the reports of all."""
    with told_to_user(as_json=as_json):
        begin = time.perf_counter()
        refuse_smooth(smooth)
        check_out(out, as_json)
        _check(prior_out, prior_in, report, level, tol)
        check_posterior_out(posterior_out)
        writes = {"--out": out, "--prior-out": prior_out, "--report": report}
        writes["--posterior-out"] = posterior_out
        check_files({"REPORTS": reports, "--prior-in": prior_in}, writes, as_json)
        from vaneb.estimators import VANEB
        from vaneb.files import replacing

        if ray is not None or _too_large(reports):
            plain = not any((client, estimate, se, variance, n, variance_function, client_covariates))
            extra = any((report, posterior_out, compare, as_json))
            if not plain or extra or out is None or out.suffix != ".parquet" or reports.suffix != ".parquet":
                why = "--ray is given" if ray is not None else "it does not fit into memory"
                raise InvalidOption(
                    f"{reports}: is worked through in blocks, since {why}. That goes from .parquet to "
                    ".parquet, with columns client, n, theta_<name> and se_<name>, and without --report, "
                    "--posterior-out, --compare and --json."
                )
            method = None if solver is None else solver.value
            wanted = VANEB(population=population.value, solver=method, tol=tol, seed=seed)
            _by_blocks(reports, out, prior_in, prior_out, wanted, level, ray, quiet)
            return
        from vaneb.dialect import TextOptions
        from vaneb.prior import Prior
        from vaneb.tables import read_reports, results_table, suffix_of

        described = tuple(c.strip() for c in (client_covariates or "").split(",") if c.strip())
        if described and (prior_in is not None or prior_out is not None):
            raise InvalidOption(
                "--client-covariates: a population with covariates is not saved or loaded yet. Leave "
                "--prior-in and --prior-out out."
            )
        if compare and (described or prior_in is not None):
            raise InvalidOption(
                "--compare fits populations without covariates to parts of the clients. Leave it out, or "
                "leave --client-covariates and --prior-in out."
            )
        if described and report is not None:
            raise InvalidOption("--client-covariates: pages do not show covariates yet. Leave --report out.")
        prior = None if prior_in is None else Prior.load(prior_in)
        table = read_reports(
            reports,
            variance_function,
            names=prior.names if prior else None,
            choice=column_choice(client, estimate, se, variance, n),
            options=TextOptions(sep, decimal, encoding),
            covariates=described,
        )
        with progress_bar(quiet) as progress:
            if prior is None:
                method = None if solver is None else solver.value
                model = VANEB(population=population.value, solver=method, tol=tol, seed=seed)
                model.fit(table.reports, progress=progress, covariates=table.covariates)
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
            progress("writing", 2, 2)
            with contextlib.ExitStack() as stack:
                # All files are complete before any takes its name.
                if out is not None:
                    write_results(stack.enter_context(writing(out)), results, posterior.names, suffix_of(out))
                if prior_out is not None:
                    model.prior_.write(stack.enter_context(replacing(prior_out)), prior_out.suffix)
                if posterior_out is not None:
                    from vaneb.decisions import JointPosterior
                    from vaneb.decisions.saved import write_posterior

                    joint = JointPosterior.of(posterior, seed=seed)
                    write_posterior(stack.enter_context(replacing(posterior_out)), joint)
                if report is not None:
                    from vaneb.report import fit_content, page

                    seconds = time.perf_counter() - begin
                    few = ", ".join(posterior.names) if len(posterior.names) <= 3 else "Estimates"
                    title = f"{few}, by {table.client_column}: {name_of(reports)}"
                    content = fit_content(
                        model,
                        posterior,
                        table.reports,
                        level=level,
                        seconds=seconds,
                        title=title,
                        reading=table.notes,
                        client=table.client_column,
                    )
                    stack.enter_context(replacing(report)).write_text(page(content), encoding="utf-8")

        if not quiet:
            for note in (*table.notes, *getattr(model, "notes_", ())):
                complain(f"note: {note}")
            with summary_beside(out, as_json):
                _summarise(model, posterior, scores, time.perf_counter() - begin)
        missed = prior is None and promise_missed(model)
        if as_json:
            from vaneb.commands.as_json import personalize_json

            print_json(personalize_json(model, posterior, results, table.notes, level, bool(missed), scores))
        if missed:
            complain(
                f"warning: {missed}. The results are written; the average log-likelihood may be that far "
                "below the best."
            )
            raise typer.Exit(ExitCode.NOT_CERTIFIED)


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
    from vaneb.files import replacing
    from vaneb.outofcore import connect, fit_file, in_turn, personalize_file, ray_map
    from vaneb.prior import Prior

    if ray is not None:
        connect(ray)
    with progress_bar(quiet) as progress:
        progress("learning the population", 0, 2)
        prior = fit_file(reports, model).prior_ if prior_in is None else Prior.load(prior_in)
        progress("personalising", 1, 2)
        personalize_file(reports, prior, out, level=level, map_over=in_turn if ray is None else ray_map)
        if prior_out is not None:
            with replacing(prior_out) as path:
                prior.write(path, prior_out.suffix)
    if not quiet:
        print(f"{'population':<18} {prior}")
        print(f"{'clients':<18} worked through in blocks; the population is learnt from a part of them")


def promise_missed(model: VANEB) -> str:
    """What was promised and not reached, in words; "" where all is well.

    The certified solver promises a gap.  A sampled population promises nothing but what it says of itself.
    """
    certificate = model.certificate_
    if certificate is None or model.solver not in (None, Solver.CERTIFIED) or certificate.reached:
        return ""
    return f"the fit stopped at a gap of {certificate.gap:.2g}, above the tolerance {model.tol:g}"


def population_rows(model: VANEB) -> dict[str, str]:
    """Lines of a summary: the population, and how well it is known."""
    prior = model.prior_
    effects = getattr(model, "effects_", None)
    own = slice(0, prior.dimension if effects is None else len(effects.mean))  # without the covariates'
    numbers = zip(prior.names[own], prior.mean[own], prior.typical_sd[own], strict=True)
    names = [f"{name} {m:.4g} (sd {s:.3g})" for name, m, s in numbers]
    rows = {
        "population": str(prior),
        "mean and sd": ", ".join(names[:6]) + (", ..." if len(names) > 6 else ""),
    }
    if getattr(model, "certificate_", None) is not None:
        rows["certificate"] = str(model.certificate_)
    elif getattr(model, "sampling_", None) is not None:
        rows["sampling"] = str(model.sampling_)
    else:
        rows["certificate"] = "none, the population was given"
    return rows


def _check(
    prior_out: Path | None, prior_in: Path | None, report: Path | None, level: float, tol: float
) -> None:
    """Refuse what cannot end well before any work is done."""
    check_page(report)
    check_level(level)
    if not tol > 0:
        raise InvalidOption(f"--tol {tol:g}: must be positive; 1e-4 is the default.")
    if prior_in is not None and prior_out is not None:
        raise InvalidOption("--prior-out with --prior-in: no prior is fitted. Leave one of them out.")


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
    rows = {
        "clients": f"{len(posterior):,}",
        "parameters": f"{len(posterior.names)}",
        **population_rows(model),
        **({} if scores is None else {"held out": str(scores)}),
        **_effect_rows(model, posterior.names),
        "average shrinkage": f"{posterior.shrinkage.mean():.3f}",
        "flagged clients": f"{sum(map(bool, posterior.flag)):,}",
        "seconds": f"{seconds:.1f}",
    }
    for name, value in rows.items():
        print(f"{name:<18} {value}")
