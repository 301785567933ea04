"""The results file: one line per method, protocol and treatment of the label prior, written as they come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from vaneb import growing_tables
from vaneb.files import replacing
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
    before = growing_tables.read_rows(path)
    if before and list(before[0]) != COLUMNS:  # from before a column was added
        with replacing(path) as temporary:
            _append(temporary, read_rows(path))
    _append(path, rows)


def _append(path: Path, rows: Iterable[Row]) -> None:
    with growing_tables.appending(path, COLUMNS) as file:
        for row in rows:
            file.write(asdict(row))


def read_rows(path: Path) -> list[Row]:
    """All complete rows of a results file; a folder stands for the file in it."""
    file = path / RESULTS if path.is_dir() else path
    if not file.exists():
        raise MissingData(f"{file}: no results there. Give a folder that `vaneb train ... -o` wrote.")
    found = []
    for number, line in enumerate(growing_tables.read_rows(file), start=2):
        missing = {item.name for item in fields(Row) if item.default is MISSING} - line.keys()
        if missing:
            raise MissingData(f"{file}: not a results file, the column {min(missing)!r} is missing.")
        try:
            found.append(Row(**{name: _parse(_TYPES[name], line[name]) for name in COLUMNS if name in line}))
        except ValueError as error:
            raise MissingData(
                f"{file}: line {number} cannot be read ({error}). Remove that line; the next `vaneb train` "
                "there makes up for it."
            ) from None
    return found


def _parse(kind: type, text: str) -> Any:
    return text == "True" if kind is bool else kind(text)
