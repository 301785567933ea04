"""What commands read and write: files that are checked first and appear together, ``-``, ``--json``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vaneb.errors import InvalidOption
from vaneb.files import STANDARD

if TYPE_CHECKING:
    import pyarrow as pa

    from vaneb.posterior import Posterior

#: Writes one file: to this path, what a file with this suffix holds.
Writer = Callable[[Path, str], object]
#: Suffixes that a file must have to be found again, and why.
SUFFIXES = {
    "--report": ((".html", ".htm"), "must end in .html, so that a browser opens it."),
    "--posterior-out": ((".parquet",), "must end in .parquet."),
}


def name_of(path: Path) -> str:
    """A file's name, for a title."""
    return "standard input" if str(path) == STANDARD else path.name


def check_files(
    reads: Mapping[str, Path | None], writes: Mapping[str, Path | None], as_json: bool = False
) -> None:
    """Refuse files that cannot be written, or are the same, before any work is done.

    ``--out`` among ``writes`` is a table; without it, results would go nowhere unless ``as_json``.
    """
    from vaneb.files import check_writable
    from vaneb.tables import suffix_of

    if "--out" in writes:
        if writes["--out"] is not None:
            suffix_of(writes["--out"])
        elif not as_json:
            raise typer.BadParameter(
                "name a file, - for standard output, or give --json.", param_hint="'--out' / '-o'"
            )
    streams = [option for option, path in writes.items() if path is not None and str(path) == STANDARD]
    streams += ["--json"] if as_json else []
    if len(streams) > 1:
        raise InvalidOption(f"{' and '.join(streams)}: only one can have standard output. Name a file.")
    if any(option != "--out" for option in streams if option != "--json"):
        raise InvalidOption(f"{streams[0]} -: only --out can have standard output. Name a file.")
    seen: dict[str, str] = {}
    for option, path in {**reads, **writes}.items():
        if path is None or str(path) == STANDARD:
            continue
        if option in writes:
            wanted, why = SUFFIXES.get(option, ((path.suffix.lower(),), ""))
            if path.suffix.lower() not in wanted:
                raise InvalidOption(f"{option} {path}: {why}")
            check_writable(path)
        real = os.path.realpath(path)
        if real in seen:
            raise InvalidOption(f"{option} {path}: is the same file as {seen[real]}. Name another one.")
        seen[real] = option


def check_level(level: float | None) -> None:
    if level is not None and not 0 < level < 1:
        raise InvalidOption(f"--level {level:g}: must lie between 0 and 1; 0.9 gives 90% intervals.")


def write_together(*wanted: tuple[Path | None, Writer]) -> None:
    """Write the files that have a path: all are complete before any takes its name."""
    from vaneb.files import replacing

    with contextlib.ExitStack() as stack:
        for path, write in wanted:
            if path is None:
                continue
            if str(path) == STANDARD:
                write(stack.enter_context(_to_standard_output()), ".csv")
            else:
                write(stack.enter_context(replacing(path)), path.suffix.lower())


@contextlib.contextmanager
def _to_standard_output() -> Iterator[Path]:
    """A file whose content is printed if the block succeeds."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "table"
        yield temporary
        sys.stdout.flush()
        sys.stdout.buffer.write(temporary.read_bytes())
        sys.stdout.buffer.flush()


def table_writer(table: pa.Table, readable: Callable[[pa.Table], pa.Table] = lambda table: table) -> Writer:
    """A table: as computed in Parquet, else as ``readable`` makes it for people."""

    def write(path: Path, suffix: str) -> None:
        from vaneb.tables import write_content

        write_content(path, table if suffix == ".parquet" else readable(table), suffix)

    return write


def posterior_writer(posterior: Posterior, seed: int) -> Writer:
    """The joint posterior, for `vaneb decide`."""

    def write(path: Path, _: str) -> None:
        from vaneb.decisions import JointPosterior
        from vaneb.decisions.saved import write_posterior

        write_posterior(path, JointPosterior.of(posterior, seed=seed))

    return write


def page_writer(content: Callable[[], Mapping[str, Any]]) -> Writer:
    """A page; its content is made when it is wanted."""

    def write(path: Path, _: str) -> None:
        from vaneb.report import page

        path.write_text(page(content()), encoding="utf-8")

    return write


@contextlib.contextmanager
def summary_stream(out: Path | None, as_json: bool) -> Iterator[None]:
    """What is printed goes to standard error where standard output holds data."""
    if as_json or (out is not None and str(out) == STANDARD):
        with contextlib.redirect_stdout(sys.stderr):
            yield
    else:
        yield


def print_rows(rows: Mapping[str, str]) -> None:
    """The lines of a summary."""
    for name, value in rows.items():
        print(f"{name:<18} {value}")


def print_json(content: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json.dumps(_plain(content), ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Values that JSON has; what is not a finite number is null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)
