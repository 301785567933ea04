"""Federated training as a page: accuracy by round and by client, methods side by side, heads and their prior.

Read from the folder of the run alone, while it is being written too; torch is not needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.fl.head_priors import HeadPrior, principal_axes, read_head_priors
from vaneb.fl.results import RESULTS, Row, read_rows
from vaneb.report.embed import numbers

PROTOCOLS = {
    "balanced": "every class equally often (balanced)",
    "matched": "labels as in the client's own data (matched)",
}
Setting = tuple[str, float, float, int]
DECILES = [f"decile_{i}" for i in range(1, 10)]
#: Pictures of heads that a page holds.
MOST_HEADS = 24


def train_content(folder: Path) -> dict[str, Any]:
    """Everything that ``vaneb train ... -o FOLDER`` has left there so far."""
    rows = read_rows(folder) if (folder / RESULTS).exists() else []
    stages = _stages(folder)
    if not rows and not stages:
        raise InvalidOption(f"{folder}: nothing of `vaneb train` there yet.")
    settings = list(dict.fromkeys(_setting(row) for row in rows))
    return {
        "kind": "train",
        "title": f"Federated training: {folder.resolve().name}",
        "sentence": _sentence(rows, settings, stages),
        "notes": _notes(rows),
        "settings": [_setting_content(folder, rows, each) for each in settings],
        "running": [stage for stage in stages if stage["done"] < stage["rounds"]],
        "heads": [_picture(prior) for prior in islice(read_head_priors(folder), MOST_HEADS)],
    }


def _setting(row: Row) -> Setting:
    return row.data, row.alpha, row.shift, row.clients


def _title(setting: Setting) -> str:
    data, alpha, shift, clients = setting
    return f"{data}, {clients:,} clients, alpha {alpha:g}, shift {shift:g}"


def _last(rows: Sequence[Row], setting: Setting, protocol: str) -> dict[str, dict[int, Row]]:
    """Rows of the last round, by method and seed; a later line replaces an earlier one."""
    found: dict[str, dict[int, Row]] = {}
    for row in rows:
        if row.last and row.own and row.protocol == protocol and _setting(row) == setting:
            found.setdefault(row.method, {})[row.seed] = row
    return found


def _sentence(rows: Sequence[Row], settings: Sequence[Setting], stages: Sequence[dict[str, Any]]) -> str:
    if not rows:
        rounds = sum(stage["done"] for stage in stages)
        return f"Training has begun: **{rounds} rounds** are done, and no method has been evaluated yet."
    methods = {row.method for row in rows if row.last}
    seeds = {row.seed for row in rows}
    parts = [
        f"**{len(methods)} {'method' if len(methods) == 1 else 'methods'}** in "
        f"**{len(settings)} {'setting' if len(settings) == 1 else 'settings'}**"
        + (f", {len(seeds)} seeds" if len(seeds) > 1 else "")
    ]
    if len(settings) == 1:
        parts.append(f" ({_title(settings[0])})")
    wins = []
    for protocol in PROTOCOLS:
        best = []
        for setting in settings:
            means = {m: _mean(by_seed, "mean") for m, by_seed in _last(rows, setting, protocol).items()}
            if means:
                best.append(max(means.items(), key=lambda item: item[1]))
        if not best:
            continue
        names = [name for name, _ in best]
        top = max(dict.fromkeys(names), key=names.count)
        if len(best) == 1:
            wins.append(f"With {protocol} test labels **{top}** is best at **{best[0][1]:.1f}%**")
        else:
            wins.append(
                f"With {protocol} test labels **{top}** is best in "
                f"**{names.count(top)} of {len(best)}** settings"
            )
    if wins:
        parts.append(". " + ". ".join(wins))
    seconds = sum({(r.config, r.seed): r.seconds for r in rows if r.last}.values())
    parts.append(
        f". Accuracies are means over clients after the last round. Training took **{seconds:,.0f} seconds**."
    )
    return "".join(parts)


def _notes(rows: Sequence[Row]) -> list[str]:
    lost = {(row.method, row.config, row.seed): row.diverged for row in rows if row.last and row.diverged}
    if not lost:
        return []
    names = ", ".join(sorted({method for method, _, _ in lost}))
    return [f"{sum(lost.values()):,} client updates were not finite and were left out of rounds ({names})."]


def _mean(by_seed: dict[int, Row], value: str) -> float:
    return float(np.mean([getattr(row, value) for row in by_seed.values()]))


def _setting_content(folder: Path, rows: Sequence[Row], setting: Setting) -> dict[str, Any]:
    own = [row for row in rows if _setting(row) == setting]
    methods = list(dict.fromkeys(row.method for row in own))
    protocols = []
    for protocol, words in PROTOCOLS.items():
        last = _last(rows, setting, protocol)
        protocols.append(
            {
                "name": protocol,
                "words": words,
                "methods": [
                    {
                        "name": method,
                        "index": methods.index(method),
                        "mean": numbers(_mean(last[method], "mean")),
                        "worst": numbers(_mean(last[method], "worst_tenth")),
                        "deciles": [numbers(_mean(last[method], name)) for name in DECILES],
                        "clients": _accuracies(folder, next(iter(last[method].values()))),
                        "seeds": len(last[method]),
                    }
                    for method in methods
                    if method in last
                ],
                "rounds": [_rounds(own, protocol, method, methods.index(method)) for method in methods],
            }
        )
    details = []
    for method in methods:
        ends = [row for row in own if row.method == method and row.last and row.own]
        if ends:
            seconds = float(np.mean([row.seconds for row in ends]))
            details.append({"name": method, "evaluated": ends[0].evaluated, "seconds": numbers(seconds)})
    return {"name": _title(setting), "protocols": protocols, "details": details}


def _rounds(rows: Sequence[Row], protocol: str, method: str, index: int) -> dict[str, Any]:
    """Accuracy by round, averaged over seeds."""
    by_round: dict[int, dict[int, float]] = {}
    for row in rows:
        if row.method == method and row.protocol == protocol and row.own:
            by_round.setdefault(row.round, {})[row.seed] = row.mean
    points = [[r, numbers(np.mean(list(v.values()))), 0, f"round {r}"] for r, v in sorted(by_round.items())]
    return {"name": method, "index": index, "points": points, "dashed": False}


def _accuracies(folder: Path, row: Row) -> list[float]:
    """Percent, of every client, for one seed; empty where the file is missing."""
    try:
        with np.load(folder / "clients" / f"{row.config}-{row.seed}.npz", allow_pickle=False) as file:
            return numbers(100 * file[f"{row.protocol}_{row.prior}"])
    except (OSError, KeyError, ValueError):  # not there, or being written just now
        return []


def _stages(folder: Path) -> list[dict[str, Any]]:
    """Stages of the run, as their checkpoints tell."""
    found = []
    for about in sorted((folder / "stages").glob("*/stage.json")):
        try:
            stage = json.loads(about.read_text())
            history = json.loads((about.parent / "manifest.json").read_text())["history"]
        except (OSError, ValueError, KeyError):
            continue
        seconds = sum(entry["seconds"] for entry in history)
        rounds = stage["rounds"]
        left = seconds / len(history) * (rounds - len(history)) if history else None
        found.append(
            {
                "title": stage["title"],
                "algorithm": stage["algorithm"],
                "done": len(history),
                "rounds": rounds,
                "seconds": round(seconds, 1),
                "left": None if left is None else round(left, 1),
            }
        )
    return found


def _picture(prior: HeadPrior) -> dict[str, Any]:
    """Clients' heads before and after the empirical Bayes step, and the atoms, in principal components."""
    axes = principal_axes(prior.reported, 3)
    return {
        "title": prior.title,
        "prior": {
            "axes": [f"component {i + 1} ({share:.0%})" for i, share in enumerate(axes.shares)],
            "dimension": len(axes.shares),
            "atoms": numbers(axes.of(prior.atoms)),
            "weights": numbers(prior.weights),
            "spreads": None,
        },
        "own": numbers(axes.of(prior.reported).T),
        "mean": numbers(axes.of(prior.posterior).T),
        "parameters": prior.reported.shape[1],
        "largest": numbers(prior.responsibilities.max(axis=1)),
    }
