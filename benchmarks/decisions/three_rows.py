"""Three rows of the calibration table were off by more than a point: chance, the rule, or the population?

    python benchmarks/decisions/three_rows.py --replicates 250 -o benchmarks/decisions/three_rows.csv

Fresh seeds.  Each decision is made twice from the same reports: with the population that vaneb learns, and
with the true one.  If the second keeps its promise and the first does not, the rule is right and the
population is not.  *gaussian rates* are *rates* whose estimates are Gaussian with the binomial variance.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from calibration import CLIENTS, SCENARIOS, Made, table
from scipy import stats

import vaneb
from vaneb.covariance import by_name
from vaneb.decisions import Decisions

FIRST_SEED = 10_000
POINTS = 4_000


def gaussian_rates(rng: np.random.Generator) -> Made:
    theta = rng.beta(8.0, 92.0, CLIENTS)
    n = rng.integers(50, 1000, CLIENTS)
    estimates = theta + np.sqrt(theta * (1 - theta) / n) * rng.standard_normal(CLIENTS)
    return vaneb.Reports(estimates, n=n, covariance=by_name("binomial", 1, CLIENTS)), theta, "1"


TRUE = {
    "skewed": stats.gamma(1.5),
    "alike": stats.norm(0, 0.1),
    "rates": stats.beta(8, 92),
    "gaussian_rates": stats.beta(8, 92),
}
MAKE = {**SCENARIOS, "gaussian_rates": gaussian_rates}


def errors(name: str, decisions: Decisions, truth: np.ndarray) -> tuple[str, int, float, float]:
    """The decision of this row: how many are named, the share of errors promised, and the share made."""
    if name == "alike":
        flags = decisions.flags(0.1)
        named = flags.direction != 0
        wrong = np.sign(truth - 0.1)[named] != flags.direction[named]
        return "differs from a benchmark", int(named.sum()), flags.wrong, wrong.mean() if named.any() else 0.0
    chosen = decisions.lowest(0.2, wrong=0.1)
    rank = np.argsort(np.argsort(truth))
    wrong = rank[chosen.chosen] >= chosen.places
    return "lowest 20%", int(chosen.chosen.sum()), chosen.wrong, wrong.mean() if len(wrong) else 0.0


def true_population(name: str) -> vaneb.Prior:
    """Equally likely quantiles: as good as continuous beside any client's noise."""
    return vaneb.Prior(
        TRUE[name].ppf((np.arange(POINTS) + 0.5) / POINTS)[:, None], np.full(POINTS, 1 / POINTS)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicates", type=int, default=400)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["scenario", "seed", "decision", "named", "promised", "made"])
        for seed in range(FIRST_SEED, FIRST_SEED + options.replicates):
            for at, name in enumerate(TRUE):
                reports, truth, of = MAKE[name](np.random.default_rng([seed, at]))
                learned = vaneb.VANEB(seed=seed).fit(reports).personalize(reports)
                known = vaneb.Oracle(true_population(name)).fit(reports).personalize(reports)
                for whose, posterior in (("learned", learned), ("true", known)):
                    what, *numbers = errors(name, posterior.decide(of, seed=seed), truth)
                    writer.writerow([name, seed, f"{what}, {whose} population", *numbers])
            file.flush()
    print(table(options.out))


if __name__ == "__main__":
    main()
