"""``vaneb train``: federated training of networks, many methods under one protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaneb.commands import options
from vaneb.commands.outcome import errors_in_words
from vaneb.commands.progress import duration, terminal_bar
from vaneb.commands.streams import check_files
from vaneb.errors import InvalidOption

if TYPE_CHECKING:
    from vaneb.fl.config import Config
    from vaneb.fl.experiment import OnProgress, TrainingProgress


def train(
    config: Annotated[
        Path | None,
        typer.Argument(
            help="Experiment as a TOML file; without one, scikit-learn's digits.", metavar="CONFIG"
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results and checkpoints.")] = Path(
        "run"
    ),
    data: Annotated[str | None, typer.Option(help="Data set: digits, mnist or cifar10.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the data set's files (or set VANEB_DATA).")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Method or group of methods (all, baselines, vaneb_ft, ...); repeat."),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients.")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Label skew: Dirichlet(alpha), small is skewed.")
    ] = None,
    shift: Annotated[float | None, typer.Option(help="Strength of the covariate shift: 0, 1 or 2.")] = None,
    seed: Annotated[int | None, typer.Option(help="Decides everything random.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds.")] = None,
    evaluate_every: Annotated[
        int | None, typer.Option(help="Also evaluate every so many rounds of the last stage.")
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Worker processes, one thread each; 0 works in this process.")
    ] = 0,
    keep_client_states: Annotated[
        bool, typer.Option("--keep-client-states", help="Keep what methods store per client.")
    ] = False,
    keep_networks: Annotated[
        bool, typer.Option("--keep-networks", help="Keep every client's network, for load_personal.")
    ] = False,
    report: options.Page = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")] = False,
) -> None:
    """Train and personalise networks over many clients.

    Results are written row by row.  Run the same command again to resume after an interruption.
    """
    with errors_in_words(f"interrupted: finished rounds are saved in {out}; the same command resumes."):
        _need_torch()
        check_files({}, {"--report": report})
        from vaneb.fl.experiment import run_experiment

        experiment = _experiment(config, data, method, clients, alpha, shift, seed, rounds, evaluate_every)
        with _live(quiet) as on_progress:
            rows = run_experiment(
                experiment,
                out,
                workers=workers,
                data_dir=data_dir,
                keep_client_states=keep_client_states,
                keep_networks=keep_networks,
                on_progress=on_progress,
            )
        if report is not None:
            from vaneb.report import train_content, write_page

            write_page(report, train_content(out))
        if not quiet:
            import sys

            from vaneb.fl.tables import as_text, make_panels

            print(as_text(make_panels(rows), bold=sys.stdout.isatty()))
            print(f"Written to {out}; see `vaneb table {out}` for other forms.")


def _need_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise InvalidOption("training networks needs torch. pip install 'vaneb[nn]'.")


def _experiment(
    path: Path | None,
    data: str | None,
    methods: list[str] | None,
    clients: int | None,
    alpha: float | None,
    shift: float | None,
    seed: int | None,
    rounds: int | None,
    evaluate_every: int | None,
) -> Config:
    """The configuration in the file, or the defaults of the data set, with the flags put over it."""
    from vaneb.fl.config import default_config, read_config

    config = default_config(data or "digits") if path is None else read_config(path)
    if path is not None and data is not None and data != config.data.name:
        raise InvalidOption(f"--data {data}: {path} is for {config.data.name}. Give one of the two.")
    chosen: dict[str, Any] = {"clients": clients, "alpha": alpha, "shift": shift, "seed": seed}
    if config.data.path and (clients, alpha, shift) != (None, None, None):
        raise InvalidOption(f"--clients, --alpha, --shift: {path} has data of its own. Leave them out.")
    config = config.at(**{name: value for name, value in chosen.items() if value is not None})
    if methods:
        config = replace(config, methods=tuple(methods))
    if rounds is not None:
        config = replace(config, training=replace(config.training, rounds=rounds))
    if evaluate_every is not None:
        config = replace(config, evaluate_every=evaluate_every)
    return config


@contextlib.contextmanager
def _live(quiet: bool) -> Iterator[OnProgress | None]:
    """A line for every method that has ended; on a terminal, a bar with round, time left and accuracy."""
    from rich.progress import BarColumn, MofNCompleteColumn

    with terminal_bar(quiet, BarColumn(20), MofNCompleteColumn()) as bar:
        accuracy = ""

        def tell(progress: TrainingProgress) -> None:
            nonlocal accuracy
            if progress.accuracy is not None:
                accuracy = ", ".join(f"{name} {value:.2f}%" for name, value in progress.accuracy.items())
                lost = f", {progress.diverged} diverged client updates left out" if progress.diverged else ""
                bar.say(f"{progress.setting}: {progress.method}: {accuracy}{lost}")
            stage = f" ({progress.stage}/{progress.stages})" if progress.stages > 1 else ""
            bar.update(
                description=f"{progress.method}{stage}",
                completed=progress.round,
                total=progress.rounds,
                note=f"{duration(progress.seconds_left)} left  {accuracy}",
            )

        yield None if quiet else tell
