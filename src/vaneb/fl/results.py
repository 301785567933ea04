"""The results file: one line per method, protocol and treatment of the label prior, written as they come.

A line is appended in one write and flushed to disk, so that a run that is cut loses nothing it has
finished; an incomplete last line is ignored when the file is read.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from vaneb.fl.errors import MissingData

RESULTS = "results.csv"


@dataclass(frozen=True)
class Row:
    """One number of a table, and all that is needed to say what it is."""

    data: str
    clients: int
    alpha: float
    shift: float
    method: str
    """Label of the method."""
    evaluated: str
    """The model that was evaluated, in words."""
    round: int
    """Rounds trained when it was evaluated, over all stages of the method."""
    last: bool
    """Whether that was the end of training."""
    protocol: str
    """"balanced" or "matched"."""
    prior: str
    """What was done with the client's log-proportions: "none", "added" or "removed"."""
    own: bool
    """Whether that is how the method itself predicts under this protocol."""
    seed: int
    config: str
    """Fingerprint of everything else that decides the number, the code among it."""
    mean: float
    decile_1: float
    decile_2: float
    decile_3: float
    decile_4: float
    decile_5: float
    decile_6: float
    decile_7: float
    decile_8: float
    decile_9: float
    worst_tenth: float
    diverged: int
    """Client updates left out of rounds, and evaluated networks, that were not finite."""
    seconds: float
    """Training time of the method's own last stage."""
    code: str = ""
    """Fingerprint of the code alone; empty in rows from before it was recorded; what follows is then zero."""
    cpu_seconds: float = 0.0
    """Of all processes, for the training in all stages of the method."""
    megabytes: float = 0.0
    """Sent to clients and back in all stages."""
    peak_megabytes: float = 0.0
    """The most that one process held."""


def spread(accuracies: NDArray[np.float64]) -> dict[str, float]:
    """Columns of a row from accuracies (K,), shares of one: mean, deciles, mean of the worst tenth."""
    ordered = np.sort(100 * np.asarray(accuracies, dtype=np.float64))
    deciles = np.quantile(ordered, np.arange(1, 10) / 10)
    return {
        "mean": round(float(ordered.mean()), 4),
        **{f"decile_{i + 1}": round(float(value), 3) for i, value in enumerate(deciles)},
        "worst_tenth": round(float(ordered[: max(1, len(ordered) // 10)].mean()), 3),
    }


COLUMNS = [item.name for item in fields(Row)]
_TYPES = get_type_hints(Row)


def append_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a results file, creating it with its header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    complete = _complete_text(path)
    if not complete.startswith(",".join(COLUMNS).encode() + b"\n"):
        # A new file, or one from before a column was added: all of it is written again.
        rows = [*(read_rows(path) if complete else ()), *rows]
        complete = b""
        writer.writeheader()
    for row in rows:
        writer.writerow(asdict(row))
    with open(path, "r+b" if path.exists() else "xb") as file:
        # Cut off what an earlier run may have left of a line.
        file.truncate(len(complete))
        file.seek(0, os.SEEK_END)
        file.write(text.getvalue().encode())
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[Row]:
    """All complete rows of a results file; a folder stands for the file in it."""
    file = path / RESULTS if path.is_dir() else path
    if not file.exists():
        raise MissingData(f"{file}: no results there. Give a folder that `vaneb train ... -o` wrote.")
    try:
        text = _complete_text(file).decode()
    except UnicodeDecodeError:
        raise MissingData(f"{file}: not a results file, it is not UTF-8 text.") from None
    reader = csv.DictReader(io.StringIO(text))
    missing = {item.name for item in fields(Row) if item.default is MISSING} - set(reader.fieldnames or ())
    if missing:
        raise MissingData(f"{file}: not a results file, the column {sorted(missing)[0]!r} is missing.")
    try:
        return [
            Row(**{name: _parse(_TYPES[name], line[name]) for name in COLUMNS if name in line})
            for line in reader
        ]
    except (TypeError, ValueError) as error:
        raise MissingData(
            f"{file}: line {reader.line_num} cannot be read ({error}). Remove that line; the next "
            "`vaneb train` there makes up for it."
        ) from None


def _complete_text(path: Path) -> bytes:
    if not path.exists():
        return b""
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def _parse(kind: type, text: str) -> Any:
    return text == "True" if kind is bool else kind(text)
