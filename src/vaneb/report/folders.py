"""Which page a folder of results has, and when it last changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaneb.fl.results import RESULTS
from vaneb.report.study import PAPER, REPLICATES, THEORY, study_content
from vaneb.report.train import train_content


def content_of_folder(folder: Path) -> dict[str, Any]:
    """The page of a study or of federated training, running or finished.

    Raises ``InvalidOption`` where there is nothing of either yet.
    """
    if any((folder / name).exists() for name in (REPLICATES, THEORY)):
        return study_content(folder)
    if (folder / PAPER).exists():
        return study_content(folder, paper=True)
    return train_content(folder)


def last_change(folder: Path) -> int:
    """Newest modification time of what a page is made from, in nanoseconds; 0 where there is nothing."""
    names = (REPLICATES, PAPER, THEORY, RESULTS, "stages/*/manifest.json", "stages/*/info.npz")
    times = [0]
    for pattern in names:
        for path in folder.glob(pattern):
            try:
                times.append(path.stat().st_mtime_ns)
            except FileNotFoundError:  # replaced just now
                continue
    return max(times)
