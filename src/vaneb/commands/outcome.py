"""How a command ends: exit codes, and errors as one line instead of a traceback."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from enum import IntEnum

import typer

from vaneb.errors import VanebError


class ExitCode(IntEnum):
    """What the shell is told."""

    OK = 0
    INTERNAL = 1
    """A bug: Python's own code after a traceback."""
    BAD_INPUT = 2
    """The options or the files cannot be used; nothing was written.  Also typer's code for bad usage."""
    NOT_CERTIFIED = 3
    """The output is written, but the fit did not reach the tolerance."""
    INTERRUPTED = 130
    TERMINATED = 143


def complain(message: str) -> None:
    """One line on the standard error stream."""
    print(printable(message), file=sys.stderr)


def printable(text: str) -> str:
    """One line without control characters: what a file holds must not drive a terminal."""
    return "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))


@contextlib.contextmanager
def errors_in_words(interrupted: str = "interrupted.", *, as_json: bool = False) -> Iterator[None]:
    """Turn errors that the user can do something about into a line and an exit code.

    ``interrupted``: what an interrupt leaves behind, and how to go on.  ``as_json``: for a script, too.
    """
    try:
        yield
    except VanebError as error:
        complain(f"error: {error}")
        if as_json:
            print(json.dumps({"error": str(error), "exit_code": int(ExitCode.BAD_INPUT)}, ensure_ascii=False))
        raise typer.Exit(ExitCode.BAD_INPUT) from None
    except KeyboardInterrupt:
        complain(interrupted)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
