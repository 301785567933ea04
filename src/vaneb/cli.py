"""The command line: ``vaneb COMMAND``.  Each command is a module of ``vaneb.commands``."""

from __future__ import annotations

import atexit
import gc
import signal
import sys
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from vaneb.commands.check import check
from vaneb.commands.compare import compare
from vaneb.commands.decide import decide
from vaneb.commands.demo import demo
from vaneb.commands.examples import epilog
from vaneb.commands.federate import federate
from vaneb.commands.outcome import ExitCode, complain
from vaneb.commands.personalize import personalize
from vaneb.commands.predict import predict
from vaneb.commands.report import report
from vaneb.commands.run import run
from vaneb.commands.study import study
from vaneb.commands.table import table
from vaneb.commands.train import train
from vaneb.commands.watch import watch

# Where rich is installed, typer writes a backslash before [required] even though its markup is off.
typer.core.HAS_RICH = False


class _Argument(typer.core.TyperArgument):
    """Keeps its help: click has such an attribute of its own by now, and typer sets it too early."""

    def __init__(self, *, help: str | None = None, **options: Any) -> None:
        super().__init__(help=help, **options)
        self.help = help


typer.main.TyperArgument = _Argument  # type: ignore[misc]

# From click 8.5 on, click lists arguments by itself; typer does, too.
if hasattr(typer.core.TyperCommand, "format_arguments"):
    typer.core.TyperCommand.format_arguments = lambda *_: None  # type: ignore[method-assign]

# click names the command that was meant; the copy of it in newer versions of typer leaves that to typer.
_CLICK_SUGGESTS = any(base.__module__.startswith("click.") for base in typer.core.TyperGroup.__mro__)

app = typer.Typer(
    suggest_commands=not _CLICK_SUGGESTS,
    name="vaneb",
    help="Better estimates for many clients, learned from what all of them report.",
    epilog=epilog("vaneb"),
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _command in (check, personalize, run, predict, report, decide, demo, study, train, table, compare, watch):
    app.command(epilog=epilog(_command.__name__))(_command)
for _info in federate.registered_commands:
    _info.epilog = epilog(getattr(_info.callback, "__name__", ""))
app.add_typer(federate, epilog=epilog("federate"))


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"vaneb {version('vaneb')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Better estimates for many clients, learned from what all of them report."""


def _terminate(*_: object) -> None:
    # Raised, not dealt: temporary files are removed on the way out.
    sys.exit(ExitCode.TERMINATED)


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGTERM, _terminate)
    # Else the collector looks at everything once more, for a third of a second, before the process ends.
    atexit.register(gc.freeze)
    try:
        app()
    except KeyboardInterrupt:
        complain("interrupted.")
        sys.exit(ExitCode.INTERRUPTED)
