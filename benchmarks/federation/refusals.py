"""How many honest models a site with the default policy refuses: simulated clients, no odd one among them.

    python benchmarks/federation/refusals.py > benchmarks/federation/refusals.md

Normal covariates, a third of a unit of effect; each client asks for itself, as a ward does.
"""

from __future__ import annotations

import datetime
from importlib.metadata import version

import numpy as np
import pandas as pd

from vaneb.flower.client_data import local_model
from vaneb.flower.policy import Policy, PolicyRefused
from vaneb.flower.settings import Settings

MODELS = (
    ("gaussian", "y ~ x", ""),
    ("gaussian", "y ~ x + z + u", ""),
    ("gaussian", "y ~ x * t", ""),
    ("gaussian", "y ~ x * z", ""),
    ("gaussian", "y ~ poly(x, 2, raw=TRUE)", ""),
    ("binomial", "died ~ x + t", ""),
    ("poisson", "count ~ x + z", ""),
    ("poisson", "count ~ x", "years"),
    ("gamma", "cost ~ x", ""),
    ("gamma", "cost ~ x + z", ""),
)
ROWS, CLIENTS = (20, 30, 50, 100), 60


def client(rows: int, number: int) -> pd.DataFrame:
    rng = np.random.default_rng([rows, number])
    x, z, u = rng.normal(size=(3, rows))
    return pd.DataFrame(
        {
            "x": x,
            "z": z,
            "u": u,
            "t": rng.integers(0, 2, rows),
            "y": x / 3 + rng.normal(size=rows),
            "died": (rng.random(rows) < 1 / (1 + np.exp(-x / 3))).astype(int),
            "count": rng.poisson(np.exp(1 + x / 3)),
            "cost": rng.gamma(2.0, np.exp(x / 3) / 2),
            "years": rng.uniform(-0.5, 0.5, rows),
        }
    )


def refused(family: str, formula: str, offset: str, rows: int) -> float:
    settings, count = Settings(formula=formula, family=family, offset=offset), 0
    for number in range(CLIENTS):
        try:
            Policy().check_model(local_model(client(rows, number), settings))
        except PolicyRefused:
            count += 1
    return count / CLIENTS


def main() -> None:
    now = datetime.datetime.now(datetime.UTC)
    print("# Honest models that are refused\n")
    print(f"`python benchmarks/federation/refusals.py`, {now:%Y-%m-%d}, vaneb {version('vaneb')},")
    print(f"numpy {np.__version__}. Share of {CLIENTS} simulated clients, by their rows.\n")
    print("| family | formula | offset | " + " | ".join(map(str, ROWS)) + " |")
    print("|" + "---|" * (3 + len(ROWS)))
    for family, formula, offset in MODELS:
        shares = " | ".join(f"{refused(family, formula, offset, rows):.2f}" for rows in ROWS)
        print(f"| {family} | `{formula}` | {offset} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
