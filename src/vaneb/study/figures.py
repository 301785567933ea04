"""Figures of the study: RMSE over K and over n_min, and the prior in space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vaneb.drawing import legend_on_the_right, pyplot, save
from vaneb.errors import InvalidOption
from vaneb.study.estimators import ESTIMATORS
from vaneb.study.prior_curves import CURVES, FiveCurves
from vaneb.study.tables import OFF_SCALE, ORACLE, Panel, Rows, panels_of, summarise

#: Estimators keep their colour and marker from figure to figure.
STYLE = {
    name: {"color": f"C{i}", "marker": "oDs^vPX*"[i], "linestyle": "--" if name == ORACLE else "-"}
    for i, name in enumerate(ESTIMATORS)
}


def draw_sweeps(rows: Rows, scenario: str, path: Path) -> None:
    """RMSE with standard errors over K and over n_min; what is off the scale is named below its panel."""
    panels = panels_of(summarise(rows), scenario)
    if not panels:
        raise InvalidOption(f"no results of scenario {scenario!r} to draw; run them first")
    plt = pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(2.5 + 4.3 * len(panels), 4.2), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        _draw_panel(axis, panel)
    axes[0, 0].set_ylabel("RMSE")
    figure.suptitle(f"{scenario}: mean over replicates, bars of one standard error", fontsize=11)
    save(figure, path, right=legend_on_the_right(figure, axes, ESTIMATORS, width=1.5))


def _draw_panel(axis: Any, panel: Panel) -> None:
    lines = panel.lines
    best = min(line.rmse for line in lines if line.estimator != ORACLE or len(lines) == 1)
    off = []
    for name in ESTIMATORS:
        own = sorted(
            (getattr(line.cell, panel.along), line.rmse, line.error)
            for line in lines
            if line.estimator == name
        )
        if not own:
            continue
        x, y, error = np.array(own).T
        if y.min() > OFF_SCALE * best:
            span = dict.fromkeys((f"{y.min():.2g}", f"{y.max():.2g}"))
            off.append(f"{name} ({' to '.join(span)})")
            continue
        axis.errorbar(x, y, np.nan_to_num(error), label=name, capsize=3, markersize=5, **STYLE[name])
    axis.set_xscale("log")
    axis.set_xticks(panel.places, [str(place) for place in panel.places])
    axis.minorticks_off()
    axis.set_ylim(0, min(axis.get_ylim()[1], panel.ceiling))
    axis.set_xlabel(panel.label + (f"\noff the scale: {', '.join(off)}" if off else ""))
    axis.grid(alpha=0.3)


def draw_prior(path: Path, prior: FiveCurves | None = None) -> None:
    """The five curves in space, with 400 clients drawn from them."""
    prior = FiveCurves() if prior is None else prior
    plt = pyplot()
    figure = plt.figure(figsize=(7, 6))
    axis = figure.add_subplot(projection="3d")
    t = np.linspace(-np.pi / 2, np.pi / 2, 400)
    for index, name in enumerate(CURVES):
        axis.plot(*prior.curve(index, t).T, color=f"C{index}", label=f"{name} ({prior.weights[index]:g})")
    axis.scatter(*prior.sample(400, np.random.default_rng(0)).T, s=6, color="0.3", alpha=0.5)
    axis.set(xlabel="theta 1", ylabel="theta 2", zlabel="theta 3", title="Prior: curves and their weights")
    axis.set_box_aspect((1, 1, 1))
    axis.legend(fontsize=8, loc="upper left")
    save(figure, path)
