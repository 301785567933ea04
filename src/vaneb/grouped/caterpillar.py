"""Estimates of all clients, in their order, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vaneb.errors import InvalidOption

if TYPE_CHECKING:
    from vaneb.grouped.result import GroupedResult

#: Up to here clients are named.
NAMED = 60


def caterpillar(fit: GroupedResult, coefficient: str | None, level: float) -> Any:
    """A matplotlib figure, made without touching the state of pyplot."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidOption("plots need matplotlib: pip install 'vaneb[plots]'") from None
    varying = np.flatnonzero(~fit.population.fixed)
    which: list[int] = varying.tolist() if coefficient is None else [fit.names.index(coefficient)]
    if not which:
        raise InvalidOption("plot: no coefficient varies between groups. Look at fit.fixef.")
    lower, upper = fit._interval(level)
    ids, mean = fit.known.ids, fit.known.mean
    height = 2 + 0.16 * min(len(ids), NAMED)
    figure = Figure(figsize=(1 + 3.5 * len(which), height), layout="constrained")
    FigureCanvasAgg(figure)
    for at, i in enumerate(which, start=1):
        axes = figure.add_subplot(1, len(which), at)
        order = np.argsort(mean[:, i], kind="stable")
        place = np.arange(len(order))
        axes.hlines(place, lower[order, i], upper[order, i], color="0.6", linewidth=1)
        axes.plot(mean[order, i], place, "o", markersize=3)
        axes.axvline(fit.population.mean[i], color="0.3", linewidth=0.8, linestyle=":")
        axes.set_xlabel(f"{fit.names[i]}, {100 * level:.3g}% intervals")
        if len(ids) <= NAMED:
            axes.set_yticks(place, [ids[k] for k in order], fontsize=6)
        else:
            axes.set_yticks([])
            axes.set_ylabel(f"{len(ids):,} groups")
    return figure
