"""A progress bar behind the callback that the solvers call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numba.core.event import Event, Listener
    from rich.console import Console

Callback = Callable[[str, int, int], None]


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Callback]:
    """Yield a callback (what is being done, steps done, steps expected) that draws on a terminal.

    Draws on the standard error stream, removes itself at the end, and is silent if ``quiet`` or if the
    stream is not a terminal.  Where inner loops are compiled meanwhile, which can take most of a minute, it
    says so.
    """
    from numba.core.event import install_listener
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    silent = quiet or not console.is_terminal
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(Progress(*columns, console=console, transient=True, disable=silent))
        if not silent:
            stack.enter_context(install_listener("numba:compile", _tells_of_compilation(console)))
        task = bar.add_task("starting", total=None)

        def step(what: str, done: int, expected: int) -> None:
            bar.update(task, description=what, completed=done, total=expected)

        yield step


def _tells_of_compilation(console: Console) -> Listener:
    """Say once that something is being compiled; what was compiled before is loaded, and no event."""
    from numba.core.event import Listener

    class Tells(Listener):
        told = False

        def on_start(self, event: Event) -> None:
            if not self.told:
                self.told = True
                console.print("Compiling inner loops that this installation has not used before; once.")

        def on_end(self, event: Event) -> None:
            pass

    return Tells()
