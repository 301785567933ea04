"""Figures of the study: RMSE over K and over n_min, and the prior in space."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vaneb.drawing import legend_on_the_right, pyplot, save
from vaneb.errors import InvalidOption
from vaneb.study.estimators import ESTIMATORS
from vaneb.study.prior_curves import CURVES, FiveCurves
from vaneb.study.tables import ORACLE, Rows, Summary, summarise

#: Estimators keep their colour and marker from figure to figure.
STYLE = {
    name: {"color": f"C{i}", "marker": "oDs^vPX*"[i], "linestyle": "--" if name == ORACLE else "-"}
    for i, name in enumerate(ESTIMATORS)
}
#: An estimator further than this from the best of its panel is left out, and named below it.
OFF_SCALE = 3.0


def draw_sweeps(rows: Rows, scenario: str, path: Path) -> None:
    """RMSE with standard errors over K (at the largest n_min) and over n_min (at the largest K)."""
    lines = [line for line in summarise(rows) if line.cell.scenario == scenario and line.replicates]
    if not lines:
        raise InvalidOption(f"no results of scenario {scenario!r} to draw; run them first")
    n_min, clients = max(line.cell.n_min for line in lines), max(line.cell.clients for line in lines)
    panels = [
        ("clients", f"clients K (n_min = {n_min})", [x for x in lines if x.cell.n_min == n_min]),
        ("n_min", f"smallest n_min (K = {clients})", [x for x in lines if x.cell.clients == clients]),
    ]
    # A sweep of which there is only one place is no picture, unless there is nothing else.
    drawn = [panel for panel in panels if len({getattr(x.cell, panel[0]) for x in panel[2]}) > 1] or panels[
        :1
    ]
    plt = pyplot()
    figure, axes = plt.subplots(1, len(drawn), figsize=(2.5 + 4.3 * len(drawn), 4.2), squeeze=False)
    for axis, (along, label, own) in zip(axes[0], drawn, strict=True):
        _panel(axis, own, along, label)
    axes[0, 0].set_ylabel("RMSE")
    figure.suptitle(f"{scenario}: mean over replicates, bars of one standard error", fontsize=11)
    save(figure, path, right=legend_on_the_right(figure, axes, ESTIMATORS, width=1.5))


def _panel(axis: Any, lines: Sequence[Summary], along: str, label: str) -> None:
    best = min(line.rmse for line in lines if line.estimator != ORACLE or len(lines) == 1)
    off = []
    for name in ESTIMATORS:
        own = sorted(
            (getattr(line.cell, along), line.rmse, line.error) for line in lines if line.estimator == name
        )
        if not own:
            continue
        x, y, error = np.array(own).T
        if y.min() > OFF_SCALE * best:
            span = dict.fromkeys((f"{y.min():.2g}", f"{y.max():.2g}"))
            off.append(f"{name} ({' to '.join(span)})")
            continue
        axis.errorbar(x, y, np.nan_to_num(error), label=name, capsize=3, markersize=5, **STYLE[name])
    ticks = sorted({getattr(line.cell, along) for line in lines})
    axis.set_xscale("log")
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()
    # One method that falls apart must not flatten all others.
    ceiling = OFF_SCALE * max(_smallest_by(lines, along).values())
    axis.set_ylim(0, min(axis.get_ylim()[1], ceiling))
    axis.set_xlabel(label + (f"\noff the scale: {', '.join(off)}" if off else ""))
    axis.grid(alpha=0.3)


def _smallest_by(lines: Sequence[Summary], along: str) -> dict[int, float]:
    """The smallest RMSE at each place of a panel."""
    smallest: dict[int, float] = {}
    for line in lines:
        place = getattr(line.cell, along)
        smallest[place] = min(line.rmse, smallest.get(place, np.inf))
    return smallest


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
