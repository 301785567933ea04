"""Folders as ``vaneb study`` and ``vaneb train`` leave them, with numbers that are easy to check."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from vaneb.fl.results import Row, append_rows
from vaneb.growing_tables import appending
from vaneb.study import theory_study
from vaneb.study.sweep import COLUMNS


def study_folder(folder: Path) -> Path:
    """Three estimators over two values of K: vaneb at 1.5 times the oracle's error, local off the scale."""
    with appending(folder / "replicates.csv", COLUMNS) as file:
        for clients in (50, 200):
            for replicate in range(3):
                for name, error in (("oracle", 0.2), ("vaneb", 0.3), ("local", 9.0)):
                    row = dict.fromkeys(COLUMNS)
                    row |= {"scenario": "quadratic", "clients": clients, "n_min": 40, "replicate": replicate}
                    row |= {"seed": 0, "estimator": name, "cpu_seconds": 1.0, "coverage": 0.9, "status": "ok"}
                    file.write(row | {"rmse": error * (1 + 0.01 * replicate)})
    return folder


def theory_folder(folder: Path) -> Path:
    """Excess risks that fall as 1 / (n K) for vaneb, as 1 / n for local; Hellinger distances as 1 / K."""
    with appending(folder / "theory.csv", theory_study.THEORY.columns) as file:
        for prior in theory_study.PRIORS:
            for sweep, clients, n in (("K", 50, 20), ("K", 200, 20), ("n", 200, 10), ("n", 200, 40)):
                for replicate in range(2):
                    for name in ("vaneb", "local"):
                        own = name == "vaneb"
                        row = dict.fromkeys(theory_study.THEORY.columns)
                        row |= {"prior": prior, "sweep": sweep, "clients": clients, "n": n, "seed": 0}
                        row |= {"replicate": replicate, "estimator": name, "cpu_seconds": 1.0}
                        row |= {"excess": 1 / (n * clients) if own else 1 / n}
                        file.write(row | {"hellinger": 1 / clients if own else None})
    return folder


def result(method: str, mean: float, *, protocol: str, round: int = 20, last: bool = True) -> Row:
    deciles = {f"decile_{i}": mean - 10 + 2 * i for i in range(1, 10)}
    return Row(
        data="digits", clients=6, alpha=0.1, shift=1.0, method=method, evaluated=f"the {method} network",
        round=round, last=last, protocol=protocol, prior="none", own=True, seed=0, config=method.lower(),
        mean=mean, **deciles, worst_tenth=mean - 20, diverged=0, seconds=2.5,
    )  # fmt: skip


def train_folder(folder: Path) -> Path:
    """Two methods evaluated twice, per-client accuracies, two priors of heads, one stage under way."""
    rows = []
    for method, mean in (("FedAvg", 70.0), ("VANEB-FT (direct)", 80.0)):
        for protocol in ("balanced", "matched"):
            rows.append(result(method, mean - 15, protocol=protocol, round=10, last=False))
            rows.append(result(method, mean + 10 * (protocol == "matched"), protocol=protocol))
        (folder / "clients").mkdir(exist_ok=True)
        shares = {f"{p}_none": np.linspace(0.5, 1, 6) for p in ("balanced", "matched")}
        np.savez(folder / "clients" / f"{method.lower()}-0.npz", **shares)
    append_rows(folder / "results.csv", rows)
    rng = np.random.default_rng(0)
    for name, rounds, done in (("vaneb_ft-1", 1, 1), ("fedavg-2", 20, 5)):
        stage = folder / "stages" / name
        stage.mkdir(parents=True)
        about = {
            "title": f"{name}, digits, a title that is wider than any telephone is, whatever it is called",
            "algorithm": name[:-2],
            "rounds": rounds,
        }
        (stage / "stage.json").write_text(json.dumps(about))
        (stage / "manifest.json").write_text(json.dumps({"history": [{"seconds": 2.0}] * done}))
    heads = rng.standard_normal((6, 40)).astype(np.float32)
    arrays = {"reported": heads, "posterior": heads / 2, "atoms": heads[:2], "weights": np.array([0.5, 0.5])}
    arrays["responsibilities"] = np.full((6, 2), 0.5)
    for name in ("vaneb_ft-1", "fedavg-2"):
        np.savez(folder / "stages" / name / "info.npz", **{f"tensor/{k}": v for k, v in arrays.items()})
    return folder
