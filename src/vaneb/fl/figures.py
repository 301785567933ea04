"""Figures of results: accuracy against the number of clients, and what a fitted prior looks like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb.drawing import legend_on_the_right, pyplot, save
from vaneb.errors import InvalidOption
from vaneb.fl.errors import MissingData
from vaneb.fl.results import Row
from vaneb.fl.tables import make_panels

Array = NDArray[np.float64]


@dataclass(frozen=True)
class HeadPrior:
    """What an empirical Bayes step left in a stage's folder.

    Parameters
    ----------
    title : which method and setting.
    reported, posterior : (K, d), the clients' heads before and after.
    atoms : (m, d)
    weights : (m,)
    responsibilities : (K, m)
    """

    title: str
    reported: Array
    posterior: Array
    atoms: Array
    weights: Array
    responsibilities: Array


def read_head_priors(output: Path) -> list[HeadPrior]:
    """The priors of all empirical Bayes stages in a run's folder."""
    from vaneb.fl.trees import load_tree

    priors = []
    for info in sorted((output / "stages").glob("*/info.npz")):
        about = json.loads((info.parent / "stage.json").read_text())
        content = load_tree(info)
        arrays = {
            name: content[name].numpy().astype(np.float64)
            for name in ("reported", "posterior", "atoms", "weights", "responsibilities")
        }
        priors.append(HeadPrior(about["title"], **arrays))
    if not priors:
        raise MissingData(f"{output}: no method with a prior was run there. Train with --method vaneb_ft.")
    return priors


def principal_plane(points: Array) -> tuple[Array, Array]:
    """Mean (d,) and the first two principal directions (d, 2) of points (K, d).

    From the K x K Gram matrix: d may be the number of weights of a network.
    """
    centre = points.mean(0)
    values, vectors = np.linalg.eigh((points - centre) @ (points - centre).T)
    top = vectors[:, -2:][:, ::-1] / np.sqrt(np.maximum(values[-2:][::-1], 1e-300))
    return centre, (points - centre).T @ top


def draw_prior(prior: HeadPrior, path: Path) -> None:
    """Heads, atoms and posterior heads in the plane of the heads' first two principal components, the
    atoms' masses, and how concentrated each client's responsibilities are."""
    plt = pyplot()
    centre, plane = principal_plane(prior.reported)
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
        left.scatter(*((points - centre) @ plane).T, **style)
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
