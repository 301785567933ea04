"""The command line: ``vaneb COMMAND``.  Each command is a module of ``vaneb.commands``."""

from __future__ import annotations

import signal
import sys
from typing import Annotated

import typer
import typer.core

from vaneb.commands.compare import compare
from vaneb.commands.demo import demo
from vaneb.commands.federate import federate
from vaneb.commands.outcome import ExitCode, complain
from vaneb.commands.personalize import personalize
from vaneb.commands.run import run
from vaneb.commands.study import study
from vaneb.commands.table import table
from vaneb.commands.train import train
from vaneb.commands.watch import watch

# Where rich is installed, typer writes a backslash before [required] even though its markup is off.
typer.core.HAS_RICH = False

app = typer.Typer(
    suggest_commands=False,  # click does
    name="vaneb",
    help="Personalised estimates for many clients, from what each of them reports.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (personalize, run, study, demo, train, table, compare, watch):
    app.command()(_command)
app.add_typer(federate)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"vaneb {version('vaneb')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Personalised estimates for many clients, from what each of them reports."""


def _terminate(*_: object) -> None:
    # Raised, not dealt: temporary files are removed on the way out.
    sys.exit(ExitCode.TERMINATED)


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except KeyboardInterrupt:
        complain("interrupted.")
        sys.exit(ExitCode.INTERRUPTED)
