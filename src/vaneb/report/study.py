"""The simulation study as a page: sweeps, coverage, the theory's rates, and all numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.growing_tables import read_rows
from vaneb.report.embed import numbers
from vaneb.study.estimators import ESTIMATORS
from vaneb.study.tables import HEADER, ORACLE, Panel, Summary, as_csv, panels_of, summarise

REPLICATES, PAPER, THEORY = "replicates.csv", "paper.csv", "theory.csv"


def study_content(folder: Path, paper: bool = False) -> dict[str, Any]:
    """Everything that ``vaneb study ... -o FOLDER`` has left there so far, with ``--paper`` or without."""
    rows = read_rows(folder / (PAPER if paper else REPLICATES))
    theory = [] if paper else read_rows(folder / THEORY)
    if not rows and not theory:
        raise InvalidOption(f"{folder}: no results of `vaneb study` there yet.")
    lines = summarise(rows)
    return {
        "kind": "study",
        "title": f"Simulation study{', paper mode' if paper else ''}: {folder.resolve().name}",
        "sentence": _sentence(rows, lines, theory),
        "notes": _notes(rows, lines) + (_statements(rows) if paper else []),
        "estimators": [name for name in ESTIMATORS if any(line.estimator == name for line in lines)],
        "scenarios": [
            {"name": name, "panels": [_panel(each) for each in panels_of(lines, name)]}
            for name in dict.fromkeys(line.cell.scenario for line in lines)
        ],
        "table": {
            "head": list(HEADER),
            "rows": list(csv.reader(io.StringIO(as_csv(lines))))[1:],
            "best": [line.best for line in lines],
        },
        "theory": _theory(theory) if theory else None,
    }


def _sentence(rows: Sequence[Any], lines: Sequence[Summary], theory: Sequence[Any]) -> str:
    parts = []
    if lines:
        cells = {line.cell for line in lines}
        counts = [line.replicates + line.failed for line in lines]
        seconds = sum(float(row["cpu_seconds"]) for row in rows if row["cpu_seconds"])
        ran = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        parts.append(
            f"**{len(cells)} cells** of {', '.join(dict.fromkeys(c.scenario for c in sorted(cells)))} with "
            f"**{ran} replicates** each took **{seconds:,.0f} CPU seconds**."
        )
        # A cell where some estimators are still missing has no winner.
        names = {line.estimator for line in lines}
        complete = [c for c in cells if {x.estimator for x in lines if x.cell == c and x.replicates} == names]
        rivals = [line for line in lines if line.best and line.cell in complete]
        won = sum(line.estimator == "vaneb" for line in rivals)
        ratios = [line.ratio for line in lines if line.estimator == "vaneb" and not np.isnan(line.ratio)]
        if ratios:
            parts.append(
                " The default, vaneb, has the smallest error of all but the oracle in "
                f"**{won} of {len(rivals)}** complete cells, and **{min(ratios):.2f} to {max(ratios):.2f}** "
                "times the oracle's."
            )
    if theory:
        parts.append(f" **{len(theory):,} rows** of excess risks and Hellinger distances show the rates.")
    return "".join(parts).strip()


def _notes(rows: Sequence[Any], lines: Sequence[Summary]) -> list[str]:
    failed = sum(line.failed for line in lines)
    above = sum(row["status"] == "above-tolerance" for row in rows)
    notes = []
    if failed:
        notes.append(
            f"{failed:,} rows ended without an estimate; they are counted below and left out of means."
        )
    if above:
        notes.append(f"{above:,} of {len(rows):,} fits stopped above the tolerance of their certificate.")
    return notes


def _statements(rows: Sequence[dict[str, str]]) -> list[str]:
    """Which of the paper's statements hold."""
    from vaneb.study.statements import in_short, verdicts

    return [in_short(text, findings) for text, findings in verdicts(rows).items()]


def _panel(panel: Panel) -> dict[str, Any]:
    highest = 1.08 * max(line.rmse + np.nan_to_num(line.error) for line in panel.lines)
    return {
        "label": panel.label,
        "places": panel.places,
        "ceiling": min(panel.ceiling, highest),
        "off": sorted({line.estimator for line in panel.lines if line.rmse > panel.ceiling}),
        "rmse": [_series(name, panel, "rmse") for name in ESTIMATORS],
        "coverage": [_series(name, panel, "coverage") for name in ESTIMATORS],
    }


def _series(name: str, panel: Panel, value: str) -> dict[str, Any]:
    points = []
    for line in sorted(panel.lines, key=lambda each: each.cell):
        if line.estimator == name and not np.isnan(getattr(line, value)):
            error = numbers(line.error) if value == "rmse" else 0
            place, note = getattr(line.cell, panel.along), f"{line.replicates} replicates"
            points.append([place, numbers(getattr(line, value)), error or 0, note])
    return {
        "name": name,
        "points": points,
        "index": list(ESTIMATORS).index(name),
        "dashed": name == ORACLE,
    }


def _theory(rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    from vaneb.study.rates import HEADER as SLOPES
    from vaneb.study.rates import curve, slope_cells, slopes
    from vaneb.study.theory_study import MEASURES, PRIORS, THEORY

    panels = []
    for prior in PRIORS:
        for measure in MEASURES:
            for sweep in ("K", "n"):
                series = []
                for index, estimator in enumerate(("vaneb", "local")):
                    places, values = curve(rows, prior, sweep, measure, estimator)
                    if values.size:
                        mean = values.mean(axis=0)
                        points = [[x, y, 0, ""] for x, y in zip(numbers(places), numbers(mean), strict=True)]
                        series.append({"name": estimator, "points": points, "index": index, "dashed": False})
                if series:
                    what = "excess risk" if measure == "excess" else "squared Hellinger distance"
                    panels.append({"title": f"{prior}: {what}", "along": sweep, "series": series})
    found = [slope_cells(each)[:-1] for each in slopes(THEORY, rows)]
    return {"panels": panels, "head": list(SLOPES[:-1]), "slopes": found}


def curves_content(paper: bool = False) -> dict[str, Any]:
    """The prior of the study, five curves in space, with 400 clients drawn from it."""
    from vaneb.study.prior_curves import CURVES
    from vaneb.study.sweep import mode

    prior = mode(paper).prior
    atoms, weights = prior.atoms(60)
    clients = prior.sample(400, np.random.default_rng(0))
    shares = ", ".join(f"{name} {w:g}" for name, w in zip(CURVES, prior.weights, strict=True))
    return {
        "kind": "study",
        "title": "The prior of the simulation study",
        "sentence": f"Clients have parameters on **five curves** in space: {shares}.",
        "notes": [],
        "estimators": [],
        "scenarios": [],
        "table": None,
        "theory": None,
        "curves": {
            "prior": {
                "axes": ["theta 1", "theta 2", "theta 3"],
                "dimension": 3,
                "atoms": numbers(atoms),
                "weights": numbers(weights),
                "spreads": None,
            },
            "mean": numbers(clients.T),
        },
    }
