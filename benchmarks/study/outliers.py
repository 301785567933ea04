"""What the share of outliers does for Gaussian reports (``VANEB(outliers=...)``).

    python benchmarks/study/outliers.py [--cells logistic:800:10 ...] [--shares 0 0.05] [--replicates 1]

Root mean squared errors, and in parentheses the coverage of 90% intervals, of ``VANEB()`` on clients' reports
with the information of their rows; beside them the oracle, the default on the rows themselves and NPEB on the
reports.  The draws are those of the study.
"""

from __future__ import annotations

import argparse

import numpy as np

from vaneb import VANEB
from vaneb.study.estimators import ESTIMATORS, Clients
from vaneb.study.scenarios import simulate
from vaneb.study.sweep import LEVEL, Cell, generator

CELLS = [
    f"{scenario}:{clients}:{n_min}"
    for scenario in ("logistic", "poisson")
    for clients, n_min in ((800, 5), (800, 10), (800, 40), (50, 40))
]
BESIDE = ("oracle", "vaneb", "npeb")


def error(mean: np.ndarray, truth: np.ndarray) -> float:
    return float(np.sqrt(((mean - truth) ** 2).sum(axis=1).mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=CELLS)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.02, 0.05, 0.1, 0.2])
    parser.add_argument("--replicates", type=int, default=1)
    options = parser.parse_args()
    heads = [*BESIDE, *(f"outliers {share:g}" for share in options.shares)]
    print(f"| scenario | K | n_min | replicate | {' | '.join(heads)} |")
    print("|---|---:|---:|---:|" + "---:|" * len(heads))
    for name in options.cells:
        scenario, clients, n_min = name.split(":")
        cell = Cell(scenario, int(clients), int(n_min))
        for replicate in range(options.replicates):
            own = Clients(simulate(*cell, generator(cell, replicate, 0)))
            truth = own.sample.theta
            row = [f"{error(ESTIMATORS[beside](own).mean, truth):.3f}" for beside in BESIDE]
            for share in options.shares:
                post = VANEB(outliers=share).fit(own.reports).personalize(own.reports)
                lower, upper = post.interval(LEVEL)
                held = float(((lower <= truth) & (truth <= upper)).mean())
                row.append(f"{error(post.mean, truth):.3f} ({held:.2f})")
            print(f"| {scenario} | {clients} | {n_min} | {replicate} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
