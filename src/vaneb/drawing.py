"""Figures by matplotlib, which is an extra: drawn without a screen, and written whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vaneb.errors import InvalidOption
from vaneb.files import replacing

FORMATS = ("png", "svg", "pdf")


def check_format(form: str) -> None:
    if form not in FORMATS:
        raise InvalidOption(f"--format {form}: use png, svg or pdf.")


def pyplot() -> Any:
    """matplotlib's pyplot, drawing to files."""
    try:
        import matplotlib
    except ImportError:
        raise InvalidOption("figures need matplotlib. pip install 'vaneb[plots]'.") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path, right: float = 1.0) -> None:
    """Write ``figure`` to ``path`` in the format of its suffix, in one step; ``right`` leaves room there."""
    figure.tight_layout(rect=(0, 0, right, 1))
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lstrip(".") or "png", dpi=150)
    pyplot().close(figure)


def legend_on_the_right(figure: Any, axes: Any, order: Iterable[str], width: float) -> float:
    """One legend for all panels, in ``order`` and ``width`` inches wide; the share left to the panels."""
    found = {
        label: handle
        for axis in axes.flat
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    named = [name for name in order if name in found]
    figure.legend([found[name] for name in named], named, loc="center right", fontsize=8)
    return 1 - width / figure.get_size_inches()[0]
