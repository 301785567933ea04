"""``vaneb study``: the simulation study, its figures and tables."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vaneb.commands import options
from vaneb.commands.outcome import ExitCode, complain, errors_in_words
from vaneb.commands.progress import duration, terminal_bar
from vaneb.commands.streams import check_files
from vaneb.drawing import check_format
from vaneb.errors import InvalidOption
from vaneb.files import make_folder

if TYPE_CHECKING:
    from vaneb.blocks import Progress


Subject = StrEnum("Subject", ["QUADRATIC", "LOGISTIC", "POISSON", "ALL", "THEORY", "DENSITY", "PRIOR"])
Sweep = StrEnum("Sweep", {"K": "K", "N": "n", "BOTH": "both"})


def study(
    scenario: Annotated[
        Subject,
        typer.Argument(
            help="A scenario, all three of them, the theory's rates, the theory's bounds for a prior with a "
            "density, or only the picture of the prior.",
            metavar="quadratic|logistic|poisson|all|theory|density|prior",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results; made if it is not there.")],
    sweep: Annotated[
        Sweep, typer.Option(help="Vary the number of clients K, the smallest sample size n, or both in turn.")
    ] = Sweep.BOTH,
    replicates: Annotated[int, typer.Option(help="Of every cell.", min=1)] = 200,
    workers: Annotated[int, typer.Option(help="Processes, with one thread each.", min=1)] = 1,
    estimators: Annotated[
        str | None, typer.Option(help="Names separated by commas; all by default.", metavar="A,B,...")
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(
            help="Values of K, separated by commas; the largest is the K of the other sweep.", metavar="K,..."
        ),
    ] = None,
    n_min: Annotated[
        str | None,
        typer.Option(
            help="Values of n, separated by commas; the largest is the n of the other sweep.", metavar="N,..."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all replicates.", min=0)] = 0,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's own six estimators, to the letter, on its curves.")
    ] = False,
    form: Annotated[str, typer.Option("--format", help="Of the figures: png, svg or pdf.")] = "png",
    report: options.Page = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
) -> None:
    """Run the simulation study.

    Run it again to resume, or to add replicates.
    """
    with errors_in_words():
        check_format(form)
        numbers = {
            name: _numbers(text, f"--{name.replace('_', '-')}")
            for name, text in (("clients", clients), ("n_min", n_min))
            if text is not None
        }
        check_files({}, {"--report": report})
        rates = scenario in (Subject.THEORY, Subject.DENSITY)
        if (rates or scenario == Subject.PRIOR) and estimators is not None:
            raise InvalidOption(f"--estimators does not go with {scenario.value}: leave it out")
        if rates and paper:
            raise InvalidOption(f"--paper does not go with {scenario.value}: leave it out")
        if scenario == Subject.DENSITY and report is not None:
            raise InvalidOption("--report does not go with density: its table is density.md in the folder")
        make_folder(out)
        asked = Request(out, form, replicates, workers, seed, numbers, quiet)
        if scenario == Subject.PRIOR:
            from vaneb.study.figures import draw_prior
            from vaneb.study.sweep import mode

            draw_prior(out / f"prior.{form}", mode(paper).prior)
        elif rates:
            _rates(asked, scenario)
        else:
            names = None if estimators is None else [name.strip() for name in estimators.split(",")]
            _scenarios(asked, scenario, sweep, names, paper)
        if report is not None:
            from vaneb.report import curves_content, study_content, write_page

            content = curves_content(paper) if scenario == Subject.PRIOR else study_content(out, paper)
            write_page(report, content)


class Request(NamedTuple):
    """What all subjects are asked."""

    out: Path
    form: str
    replicates: int
    workers: int
    seed: int
    numbers: dict[str, list[int]]
    quiet: bool

    def run(self, path: Path, work: Callable[..., None], **options: Any) -> None:
        """Do ``work``; an interrupt ends the command with what is saved and how to go on."""
        from vaneb.growing_tables import read_rows

        common = {"replicates": self.replicates, "seed": self.seed, "workers": self.workers}
        try:
            with _progress(self.quiet) as progress:
                work(path=path, **common, **options, progress=progress)
        except KeyboardInterrupt:
            complain(
                f"interrupted: {len(read_rows(path))} rows are saved in {path}; the same command resumes."
            )
            raise typer.Exit(ExitCode.INTERRUPTED) from None

    def write(self, name: str, text: str) -> None:
        from vaneb.files import write_atomically

        write_atomically(self.out / name, (text.rstrip() + "\n").encode())


def _scenarios(asked: Request, scenario: Subject, sweep: Sweep, names: list[str] | None, paper: bool) -> None:
    from vaneb.growing_tables import read_rows
    from vaneb.study.figures import draw_sweeps
    from vaneb.study.scenarios import SCENARIOS
    from vaneb.study.sweep import cells, run_sweep
    from vaneb.study.tables import as_table

    path = asked.out / ("paper.csv" if paper else "replicates.csv")
    chosen = list(SCENARIOS) if scenario == Subject.ALL else [scenario.value]
    wanted = cells(chosen, sweep.value, **asked.numbers)
    asked.run(path, run_sweep, wanted=wanted, estimators=names, paper=paper)
    rows = read_rows(path)
    prefix = "paper-" if paper else ""
    for each in sorted({row["scenario"] for row in rows}):
        draw_sweeps(rows, each, asked.out / f"{prefix}{each}.{asked.form}")
    for suffix, kind in (("md", "markdown"), ("csv", "csv")):
        asked.write(f"{prefix}table.{suffix}", as_table(rows, kind))
    if paper:
        from vaneb.study.statements import as_markdown, in_short, verdicts

        asked.write("paper-statements.md", as_markdown(rows))
    if not asked.quiet:
        print(as_table([row for row in rows if row["scenario"] in chosen]))
        if paper:
            print()
            for text, findings in verdicts(rows).items():
                print(in_short(text, findings))


def _rates(asked: Request, subject: Subject) -> None:
    from vaneb.growing_tables import read_rows
    from vaneb.study.density_study import DENSITY, as_markdown
    from vaneb.study.rates import run_rates, slopes, slopes_as_markdown
    from vaneb.study.theory_study import THEORY, draw_theory

    path = asked.out / f"{subject.value}.csv"
    study = DENSITY if subject == Subject.DENSITY else THEORY
    sizes = {"clients": asked.numbers.get("clients", ()), "n": asked.numbers.get("n_min", ())}
    asked.run(path, run_rates, study=study, **sizes)
    rows = read_rows(path)
    if subject == Subject.THEORY:
        draw_theory(rows, asked.out / f"theory.{asked.form}")
        table = slopes_as_markdown(slopes(THEORY, rows))
    else:
        table = as_markdown(rows)
    asked.write(f"{subject.value}.md", table)
    if not asked.quiet:
        print(table)


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """A bar with the time left, on a terminal; elsewhere a line for every tenth of the work."""
    from rich.progress import BarColumn

    tenths, began = 0, time.monotonic()
    with terminal_bar(quiet, BarColumn()) as bar:

        def step(what: str, done: int, expected: int) -> None:
            nonlocal tenths
            left = duration((time.monotonic() - began) * (expected - done) / done)
            bar.update(description=what, completed=done, total=expected, note=f"{left} left")
            if 10 * done // expected > tenths and not (quiet or bar.seen):
                tenths = 10 * done // expected
                complain(f"{10 * tenths}% done, {left} left")

        yield step


def _numbers(text: str, option: str) -> list[int]:
    """Whole numbers separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidOption(
            f"{option} {text}: give whole numbers separated by commas, as in 50,200"
        ) from None
