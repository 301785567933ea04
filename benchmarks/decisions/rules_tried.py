"""Would a stricter rule keep the bound at the edge of the skewed population?

    python benchmarks/decisions/rules_tried.py --replicates 15 -o benchmarks/decisions/rules_tried.csv

The lowest fifth of *skewed*, with 10% wrong, by four rules from the same draws: the average (what is done);
the bound has to hold with probability 80%, or 90%; nobody is named whose own probability is below 90%.
Replicates that the file has already are not made again.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from calibration import SCENARIOS, table
from numpy.typing import NDArray

import vaneb
from vaneb.decisions.selection import most_sure

SHARE, WRONG = 0.2, 0.1
RULES = {"average": (None, 0.8), "80% sure": (0.8, 0.8), "90% sure": (0.9, 0.8), "each 90% sure": (None, 0.9)}


def named_by(
    inside: NDArray[np.bool_], places: int, sure: float | None, least: float
) -> tuple[NDArray[np.intp], float]:
    """Who is named by draws (S, K) of who is among the lowest, and the errors expected among them."""
    probability = inside.mean(axis=0)
    chosen, _ = most_sure(np.where(probability >= least, probability, 0.0), WRONG, places)
    order = np.flatnonzero(chosen)[np.argsort(-probability[chosen], kind="stable")]
    if sure is not None and len(order):
        wrong = np.cumsum(~inside[:, order], axis=1) / np.arange(1, len(order) + 1)
        holds = np.flatnonzero((wrong <= WRONG + 1e-12).mean(axis=0) >= sure)
        order = order[: holds[-1] + 1] if len(holds) else order[:0]
    return order, float(1 - probability[order].mean()) if len(order) else 0.0


def lines(seed: int, values: NDArray[np.floating], truth: NDArray[np.floating]) -> list[list[object]]:
    """What each rule names, promises and gets wrong, by draws (S, K) and the true values (K,)."""
    places = round(SHARE * len(truth))
    inside = values.argsort(axis=1).argsort(axis=1) < places
    right = truth.argsort().argsort() < places
    made: list[list[object]] = []
    for name, (sure, least) in RULES.items():
        named, promised = named_by(inside, places, sure, least)
        wrong = float((~right[named]).mean()) if len(named) else 0.0
        made.append(["skewed", seed, name, len(named), round(promised, 6), round(wrong, 6)])
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--replicates", type=int, default=15)
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    done = set()
    if asked.out.exists():
        with asked.out.open(newline="") as file:
            done = {int(row["seed"]) for row in csv.DictReader(file)}
    with asked.out.open("a", newline="") as file:
        writer = csv.writer(file)
        if not done:
            writer.writerow(["scenario", "seed", "decision", "named", "promised", "made"])
        for seed in range(asked.first_seed, asked.first_seed + asked.replicates):
            if seed not in done:
                at = list(SCENARIOS).index("skewed")
                reports, truth, of = SCENARIOS["skewed"](np.random.default_rng([seed, at]))
                posterior = vaneb.VANEB(seed=seed).fit(reports).personalize(reports)
                writer.writerows(lines(seed, posterior.decide(of, seed=seed).values, truth))
                file.flush()
    print(table(asked.out))


if __name__ == "__main__":
    main()
