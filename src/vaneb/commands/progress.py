"""A progress bar behind the callbacks that long work calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from vaneb.commands.outcome import complain

if TYPE_CHECKING:
    from numba.core.event import Event, Listener
    from rich.progress import ProgressColumn

Callback = Callable[[str, int, int], None]


class Bar(NamedTuple):
    """A bar on the standard error stream; nothing is drawn where that is no terminal."""

    seen: bool
    say: Callable[[str], None]
    """Print a line above the bar."""
    update: Callable[..., None]
    """Takes ``description``, ``completed``, ``total`` and ``note``."""


@contextlib.contextmanager
def terminal_bar(quiet: bool, *columns: ProgressColumn, total: float | None = None) -> Iterator[Bar]:
    """A bar between its description and its note, which removes itself at the end."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    console = Console(stderr=True)
    seen = console.is_terminal and not quiet
    say = partial(console.print, highlight=False, markup=False) if seen else complain
    parts = (TextColumn("{task.description}"), *columns, TextColumn("{task.fields[note]}"))
    with Progress(*parts, console=console, transient=True, disable=not seen) as progress:
        task = progress.add_task("starting", total=total, note="")
        yield Bar(seen, say, partial(progress.update, task))


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Callback]:
    """Yield a callback (what is being done, steps done, steps expected) that draws on a terminal.

    Where inner loops are compiled meanwhile, which can take most of a minute, it says so.
    """
    from numba.core.event import install_listener
    from rich.progress import BarColumn, TimeElapsedColumn

    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(terminal_bar(quiet, BarColumn(), TimeElapsedColumn()))
        if bar.seen:
            stack.enter_context(install_listener("numba:compile", _tells_of_compilation(bar.say)))
        yield lambda what, done, expected: bar.update(description=what, completed=done, total=expected)


def _tells_of_compilation(say: Callable[[str], None]) -> Listener:
    """Say once that something is being compiled; what was compiled before is loaded, and no event."""
    from numba.core.event import Listener

    class Tells(Listener):
        told = False

        def on_start(self, event: Event) -> None:
            if not self.told:
                self.told = True
                say("Compiling inner loops that this installation has not used before; once.")

        def on_end(self, event: Event) -> None:
            pass

    return Tells()


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
