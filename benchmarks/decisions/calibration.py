"""Are the errors that decisions promise those that they make?  Populations with known truth, many replicates.

    python benchmarks/decisions/calibration.py --replicates 200 -o benchmarks/decisions/calibration.csv
    python benchmarks/decisions/calibration.py --table benchmarks/decisions/calibration.csv

One line for each replicate and decision: how many were named, the share of errors promised (the posterior
expectation), and the share made.  The table has means over replicates; where nobody is named both are zero.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

import vaneb
from vaneb.covariance import by_name

CLIENTS = 200
Truth = np.ndarray
Made = tuple[vaneb.Reports, Truth, str | dict[str, float]]


def _reports(theta: np.ndarray, errors: np.ndarray, rng: np.random.Generator) -> vaneb.Reports:
    return vaneb.Reports(theta + errors * rng.standard_normal(theta.shape), standard_errors=errors)


def one_group(rng: np.random.Generator) -> Made:
    theta = rng.standard_normal(CLIENTS)
    return _reports(theta, rng.uniform(0.3, 1.0, CLIENTS), rng), theta, "1"


def two_groups(rng: np.random.Generator) -> Made:
    theta = np.where(rng.random(CLIENTS) < 0.2, 3.0, 0.0) + 0.5 * rng.standard_normal(CLIENTS)
    return _reports(theta, rng.uniform(0.3, 1.0, CLIENTS), rng), theta, "1"


def skewed(rng: np.random.Generator) -> Made:
    theta = rng.gamma(1.5, 1.0, CLIENTS)
    return _reports(theta, rng.uniform(0.3, 1.0, CLIENTS), rng), theta, "1"


def alike(rng: np.random.Generator) -> Made:
    """Almost no differences: hardly anybody should be named."""
    theta = 0.1 * rng.standard_normal(CLIENTS)
    return _reports(theta, rng.uniform(0.3, 1.0, CLIENTS), rng), theta, "1"


def rates(rng: np.random.Generator) -> Made:
    """Noise that depends on the parameter: deaths among 50 to 1,000 cases."""
    theta = rng.beta(8.0, 92.0, CLIENTS)
    n = rng.integers(50, 1000, CLIENTS)
    covariance = by_name("binomial", 1, CLIENTS)
    return vaneb.Reports(rng.binomial(n, theta) / n, n=n, covariance=covariance), theta, "1"


def contrast(rng: np.random.Generator) -> Made:
    """A difference of two correlated parameters."""
    root = np.linalg.cholesky(np.array([[1.0, 0.6], [0.6, 1.0]]))
    theta = rng.standard_normal((CLIENTS, 2)) @ root.T
    reports = _reports(theta, rng.uniform(0.3, 0.8, (CLIENTS, 2)), rng)
    return reports, theta[:, 1] - theta[:, 0], {"1": -1.0, "2": 1.0}


SCENARIOS: dict[str, Callable[[np.random.Generator], Made]] = {
    each.__name__: each for each in (one_group, two_groups, skewed, alike, rates, contrast)
}


def replicate(name: str, seed: int) -> list[dict[str, object]]:
    """All decisions of one replicate."""
    reports, truth, of = SCENARIOS[name](np.random.default_rng([seed, list(SCENARIOS).index(name)]))
    posterior = vaneb.VANEB(seed=seed).fit(reports).personalize(reports)
    begin = time.process_time()
    decisions = posterior.decide(of, seed=seed)
    lines: list[dict[str, object]] = []

    def note(what: str, named: int, promised: float, made: float) -> None:
        lines.append(
            {
                "scenario": name,
                "seed": seed,
                "decision": what,
                "named": named,
                "promised": round(promised, 6),
                "made": round(made, 6),
            }
        )

    rank = np.empty(CLIENTS, dtype=int)
    rank[np.argsort(-truth)] = np.arange(1, CLIENTS + 1)
    for side, true_rank in (("highest", rank), ("lowest", CLIENTS + 1 - rank)):
        chosen = getattr(decisions, side)(0.2, wrong=0.1)
        wrong = (true_rank[chosen.chosen] > chosen.places).mean() if chosen.chosen.any() else 0.0
        note(f"{side} 20%, 10% wrong", int(chosen.chosen.sum()), chosen.wrong, wrong)
    benchmark = float(np.quantile(truth, 0.7)) if name != "alike" else 0.1
    for what, beside, value in (
        ("differs from the others, 5% wrong", truth.mean(), None),
        ("differs from a benchmark, 5% wrong", benchmark, benchmark),
    ):
        flags = decisions.flags(value)
        named = flags.direction != 0
        wrong = (np.sign(truth - beside)[named] != flags.direction[named]).mean() if named.any() else 0.0
        note(what, int(named.sum()), flags.wrong, wrong)
    ranks = decisions.ranks(0.9)
    outside = ((rank < ranks.lower) | (rank > ranks.upper)).mean()
    note("rank outside its 90% interval", CLIENTS, 1 - float(ranks.holds.mean()), outside)
    grades = decisions.grades(0.05)
    apart = grades.grade[:, None] < grades.grade
    wrong = (truth[:, None] < truth)[apart].mean() if apart.any() else 0.0
    note("pairs in different grades, 5% misordered", int(grades.grade.max()), grades.misordered, wrong)
    lines.append({**lines[0], "decision": "cpu seconds", "promised": 0, "made": time.process_time() - begin})
    return lines


def run(path: Path, scenarios: list[str], replicates: int) -> None:
    """Replicate after replicate; those that ``path`` has already are not made again."""
    done = set()
    if path.exists():
        with path.open(newline="") as file:
            done = {(row["scenario"], int(row["seed"])) for row in csv.DictReader(file)}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, ["scenario", "seed", "decision", "named", "promised", "made"])
        if not done:
            writer.writeheader()
        for seed in range(replicates):
            for name in scenarios:
                if (name, seed) not in done:
                    writer.writerows(replicate(name, seed))
                    file.flush()


def table(path: Path) -> str:
    """Means over replicates, in percent, as Markdown."""
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["decision"] != "cpu seconds":
                numbers = float(row["named"]), float(row["promised"]), float(row["made"])
                found[row["scenario"], row["decision"]].append(numbers)
    lines = ["| population | decision | replicates | named | promised % | made % | difference ± se |"]
    lines.append("|---|---|---|---|---|---|---|")
    for (scenario, decision), rows in found.items():
        named, promised, made = np.array(rows).T
        gap = 100 * (made - promised)
        error = gap.std(ddof=1) / np.sqrt(len(gap))
        lines.append(
            f"| {scenario.replace('_', ' ')} | {decision} | {len(rows)} | {named.mean():.1f} | "
            f"{100 * promised.mean():.2f} | {100 * made.mean():.2f} | {gap.mean():+.2f} ± {error:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--replicates", type=int, default=200)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS))
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.out:
        run(options.out, options.scenario or list(SCENARIOS), options.replicates)
    print(table(options.table or options.out))
