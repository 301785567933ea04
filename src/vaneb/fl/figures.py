"""Figures of results: accuracy against the number of clients, and what a fitted prior looks like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vaneb.drawing import legend_on_the_right, pyplot, save
from vaneb.errors import InvalidOption
from vaneb.fl.errors import MissingData
from vaneb.fl.head_priors import HeadPrior, principal_axes
from vaneb.fl.results import Row
from vaneb.fl.tables import make_panels


def draw_prior(prior: HeadPrior, path: Path) -> None:
    """Heads, atoms and posterior heads in the plane of the heads' first two principal components, the
    atoms' masses, and how concentrated each client's responsibilities are."""
    plt = pyplot()
    axes = principal_axes(prior.reported, 2)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.6))
    for points, style in (
        (prior.reported, {"color": "0.7", "s": 12, "label": "fine-tuned heads"}),
        (prior.atoms, {"color": "tab:red", "s": 90, "marker": "*", "label": "atoms"}),
        # Hollow and around the atoms: posterior means often lie on them.
        (
            prior.posterior,
            {"facecolors": "none", "edgecolors": "tab:blue", "s": 50, "label": "posterior means"},
        ),
    ):
        left.scatter(*axes.of(points).T, **style)
    figure.suptitle(prior.title, fontsize=11)
    left.set(xlabel="first principal component", ylabel="second", title="heads")
    left.legend(fontsize=8)
    middle.bar(np.arange(1, len(prior.weights) + 1), np.sort(prior.weights)[::-1], color="tab:red")
    middle.set(xlabel="atom", ylabel="mass", title="mass of the atoms", ylim=(0, 1))
    right.hist(prior.responsibilities.max(1), bins=20, range=(0, 1), color="tab:blue")
    right.set(xlabel="largest responsibility of a client", ylabel="clients", title="concentration")
    save(figure, path)


def draw_client_scaling(rows: Sequence[Row], path: Path, methods: Sequence[str] = ()) -> None:
    """Accuracy against the number of clients: one column of panels per alpha, one row per protocol.

    Parameters
    ----------
    methods : labels of the methods to show; all by default.
    """
    panels = make_panels(rows)
    if not panels[0].columns:
        raise MissingData("no results to draw. Train first.")
    shown = [name for name in panels[0].cells if not methods or name in methods]
    if not shown:
        raise InvalidOption(f"none of {', '.join(methods)} is in the results: {', '.join(panels[0].cells)}.")
    settings = sorted({column[:3] for column in panels[0].columns})
    plt = pyplot()
    figure, axes = plt.subplots(
        len(panels), len(settings), figsize=(4.6 * len(settings) + 2, 7), squeeze=False, sharex=True
    )
    styles = _styles(shown, plt)
    for axis_row, panel in zip(axes, panels, strict=True):
        for axis, setting in zip(axis_row, settings, strict=True):
            for method in shown:
                points = sorted(
                    (column[3], cell.value)
                    for column, cell in panel.cells.get(method, {}).items()
                    if column[:3] == setting
                )
                if points:
                    axis.plot(*zip(*points, strict=True), label=method, **styles[method])
            axis.set(xscale="log", xlabel="clients", ylabel="accuracy (%)")
            axis.set_title(f"{panel.protocol}, alpha = {setting[1]:g}, shift = {setting[2]:g}", fontsize=9)
            ticks = sorted({column[3] for column in panel.columns})
            axis.set_xticks(ticks, [str(tick) for tick in ticks])
            axis.minorticks_off()
            axis.grid(alpha=0.3)
    save(figure, path, right=legend_on_the_right(figure, axes, shown, width=2))


def _styles(methods: Sequence[str], plt: Any) -> dict[str, dict[str, Any]]:
    """Colours and marks: VANEB with full lines and dots, what it is compared with dashed and with crosses."""
    colours = plt.get_cmap("tab20").colors
    styles = {}
    for i, method in enumerate(methods):
        ours = method.startswith("VANEB")
        styles[method] = {
            "color": colours[(2 * i + 2 * i // 20) % 20],
            "marker": "o" if ours else "x",
            "linestyle": "-" if ours else "--",
            "linewidth": 1.6 if ours else 1.1,
            "markersize": 5,
        }
    return styles
