"""The page of a federation, from the server's folder: who took part, what was exchanged, the population.

Results are not on it: the server does not have them.  Each site has a page of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.prior import Prior
from vaneb.report.embed import numbers
from vaneb.report.fit import prior_content
from vaneb.report.population import coordinates
from vaneb.report.quantities import INTERCEPT

#: Parameters, at most, whose population is drawn.
MOST = 40
#: What clients are asked, in the words of the page.
QUESTIONS = {
    "report": "Reports of the sites",
    "expand": "Reports under a first population",
    "personalise": "The population, to each site",
}


def federation_content(folder: Path) -> dict[str, Any]:
    """What the page shows of a server's folder."""
    try:
        outcome = json.loads((folder / "outcome.json").read_text())
        model = json.loads((folder / "model.json").read_text())
    except (OSError, ValueError):
        raise InvalidOption(f"{folder}: no run has ended here. Name the server's folder.") from None
    found = folder / "prior.json"
    prior = Prior.load(found) if found.exists() and "error" not in outcome else None
    return {
        "kind": "federation",
        "title": "A federation",
        "sentence": _sentence(outcome, prior),
        "model": _model(model, outcome),
        "sites": _sites(outcome),
        "exchanges": _exchanges(outcome),
        "parameters": [] if prior is None else _parameters(prior),
        "prior": None if prior is None else _prior(prior),
    }


def _sentence(outcome: dict[str, Any], prior: Prior | None) -> str:
    if "error" in outcome:
        return f"The run came to nothing: {outcome['error']}"
    served, clients = len(outcome["served"]), outcome.get("clients") or 0
    sent = sum(outcome.get(way, 0) for way in ("bytes_up", "bytes_down"))
    said = f"**{served}** {'site has' if served == 1 else 'sites have'} their own results"
    if prior is not None:
        said += f", from a population of **{clients:,}** clients ({prior})"
    return f"{said}. {outcome['messages']:,} messages, {_bytes(sent)}; no row left a site."


def _model(model: dict[str, Any], outcome: dict[str, Any]) -> list[list[str]]:
    names = {"formula": "Formula", "family": "Family", "mode": "Mode", "form": "Form of a report"}
    rows = [[word, str(model[name])] for name, word in names.items() if model.get(name)]
    if model.get("epsilon"):
        rows.append(["Privacy", f"epsilon {model['epsilon']:g}, delta {model['delta']:g}, for a whole site"])
    if outcome.get("dispersion") and model.get("family") in ("gaussian", "gamma"):
        rows.append(["Dispersion, of all sites", f"{outcome['dispersion']:.6g}"])
    if "differs" in outcome:
        rows.append(["Differs between clients", ", ".join(outcome["differs"]) or "nothing"])
    if outcome.get("expanded"):
        rows.append(["Sites that answered twice", str(outcome["expanded"])])
    return rows


def _sites(outcome: dict[str, Any]) -> list[list[str]]:
    """Site, clients behind it, and what became of it; those without results first."""
    counts = outcome.get("sites", {})
    rows = {name: "has its results" for name in outcome.get("served", [])}
    for trouble in outcome.get("troubles", []):
        kind = "lost" if "lost" in trouble else "refused"
        rows[trouble["client"]] = f"{kind}: {trouble[kind]}"
    rows |= {name: "registered, did not come" for name in outcome.get("absent", []) if name not in rows}
    in_order = sorted(rows.items(), key=lambda row: (row[1] == "has its results", _natural(row[0])))
    return [[name, str(counts.get(name, "–")), state] for name, state in in_order]


def _natural(name: str) -> list[tuple[bool, int | str]]:
    """Clinic 2 comes before clinic 10."""
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else part)
        for part in re.split(r"(\d+)", name)
        if part
    ]


def _exchanges(outcome: dict[str, Any]) -> list[list[str]]:
    """Question, messages, bytes to the sites, bytes from them."""
    kinds = outcome.get("by_kind", {})
    return [
        [QUESTIONS.get(kind, kind), f"{c['messages']:,}", _bytes(c["bytes_down"]), _bytes(c["bytes_up"])]
        for kind, c in kinds.items()
    ]


def _parameters(prior: Prior) -> list[list[Any]]:
    """Name, mean over clients, typical standard deviation among them."""
    pairs = zip(prior.names, numbers(prior.mean), numbers(np.asarray(prior.typical_sd)), strict=True)
    return [[name, mean, sd] for name, mean, sd in pairs]


def _prior(prior: Prior) -> dict[str, Any]:
    """The picture looks as far as clients are expected: three standard deviations to both sides.

    It opens on what differs most, not on an intercept if anything else differs.
    """
    axes = coordinates(prior, prior.atoms, MOST)
    middle = axes.of(prior.mean[None])[0]
    reach = 3 * np.sqrt(np.einsum("ia,ab,ib->i", axes.map, prior.covariance, axes.map))
    reach = np.where(reach > 0, reach, np.maximum(0.06 * np.abs(middle), 1e-6))
    spread = np.array([prior.typical_sd[i] for i in axes.shown])
    slopes = spread * [prior.names[i] != INTERCEPT for i in axes.shown]
    opens = int(np.argmax(slopes if slopes.any() else spread))
    return {**prior_content(prior, axes, np.stack([middle - reach, middle + reach])), "opens": opens}


def _bytes(count: int) -> str:
    if count < 10_000:
        return f"{count:,} bytes"
    return f"{count / 1e3:,.0f} kB" if count < 1e7 else f"{count / 1e6:,.0f} MB"
