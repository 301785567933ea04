"""Results in a CSV file that only ever grows: rows are written as they come, safe to cut and to take up.

A line is there once its newline is.  What a killed process left behind it is removed when the file is
opened again, so a row is either complete or missing, and missing rows are computed again.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from vaneb.errors import InvalidOption

Value = str | int | float | None
Row = dict[str, Value]


def read_rows(path: Path) -> list[dict[str, str]]:
    """The complete rows of ``path``; none if there is no such file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    try:
        complete = content[: content.rfind(b"\n") + 1].decode("utf-8")
        rows = list(csv.DictReader(io.StringIO(complete, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidOption(f"{path} is not a table of results ({error}); name another folder") from None
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise InvalidOption(
                f"{path}, line {line}: not as many values as columns; remove the line and start again"
            )
    return rows


class RowFile:
    """An open file of rows; see ``appending``."""

    def __init__(self, file: BinaryIO, columns: Sequence[str]) -> None:
        self._file = file
        self._columns = tuple(columns)

    def write(self, row: Row) -> None:
        """Append a row; numbers are written so that they read back exactly."""
        values = ["" if row[name] is None else row[name] for name in self._columns]
        self._file.write(_line([repr(float(v)) if isinstance(v, float) else str(v) for v in values]))
        self._file.flush()


@contextlib.contextmanager
def appending(path: Path, columns: Sequence[str]) -> Iterator[RowFile]:
    """Open ``path`` to append rows with these ``columns``; a half-written last line is cut off first."""
    try:
        file = open(path, "ab+")  # noqa: SIM115 - closed below, with what else has to be undone
    except OSError as error:
        raise InvalidOption(f"{path}: cannot be written ({error.strerror}). Name another folder.") from None
    with file:
        _lock(file, path)
        file.seek(0)
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
        header = _line(columns)
        if not content.count(b"\n"):
            file.write(header)
            file.flush()
        elif content.split(b"\n", 1)[0] + b"\n" != header:
            raise InvalidOption(f"{path} has other columns than are written now; name another folder")
        yield RowFile(file, columns)
        os.fsync(file.fileno())


def _line(values: Sequence[str]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().replace("\r", " ").encode("utf-8")


def _lock(file: BinaryIO, path: Path) -> None:
    """Two runs on one file would do everything twice.  Where there are no locks, trust the user."""
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidOption(
            f"{path}: another run is writing to it; wait for it or name another folder"
        ) from None
    except OSError:
        return  # a file system without locks
