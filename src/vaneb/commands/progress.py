"""A progress bar behind the callback that the solvers call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Callback = Callable[[str, int, int], None]


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[Callback]:
    """Yield a callback (what is being done, steps done, steps expected) that draws on a terminal.

    Draws on the standard error stream, removes itself at the end, and is silent if ``quiet`` or if the
    stream is not a terminal.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def step(what: str, done: int, expected: int) -> None:
            bar.update(task, description=what, completed=done, total=expected)

        yield step
