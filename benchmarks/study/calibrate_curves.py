"""Sizes of the five curves, from the six numbers that the paper prints.

    python benchmarks/study/calibrate_curves.py --trefoil 0.5 1 2 --helix 0.5 1 2 --others 0.5 1 2

The paper gives the centres of the curves, their weights and their names, not their sizes.  It prints six
mean RMSEs, all of the Poisson scenario.  Every combination of the given sizes is tried: Algorithm 1 and NPEB
in paper mode, on a seed that no table uses.  The best has the smallest root mean square of
log(ours / printed).  Three sizes are varied, since six numbers cannot tell five: trefoil, helix, and one for
the ellipse, Gerono's and Viviani's curve.  Rows are added to ``results/calibration.csv``;
what is there is not run again.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import numpy as np

from vaneb.growing_tables import appending, read_rows
from vaneb.study.paper_mode import PAPER_ESTIMATORS, PaperClients
from vaneb.study.prior_curves import FiveCurves
from vaneb.study.scenarios import simulate
from vaneb.study.statements import PRINTED
from vaneb.study.sweep import generator

PATH = Path(__file__).resolve().parent / "results" / "calibration.csv"
SIZES = ("trefoil", "helix", "others")
ESTIMATORS = ("algorithm-1", "npeb", "fedavg")
#: Clients in all replicates of a cell, at least: few clients need many replicates.
CLIENTS = 2_000
SEED = 1
COLUMNS = (
    *SIZES,
    "replicates",
    "distance",
    *(f"{name} K={cell.clients} n={cell.n_min}" for cell in PRINTED for name in ESTIMATORS),
)


def errors(sizes: tuple[float, ...], replicates: int) -> list[float]:
    """Mean RMSE of ``ESTIMATORS`` in each of the printed cells."""
    prior = FiveCurves(sizes=(*sizes[:2], *[sizes[2]] * 3))
    out = []
    for cell in PRINTED:
        found = []
        for replicate in range(max(replicates, CLIENTS // cell.clients)):
            sample = simulate(*cell, generator(cell, replicate, SEED), prior)
            clients = PaperClients(sample, prior)
            means = [PAPER_ESTIMATORS[name](clients).mean for name in ESTIMATORS]
            found.append([np.sqrt(np.mean(np.sum((mean - sample.theta) ** 2, axis=1))) for mean in means])
        out += np.mean(found, axis=0).tolist()
    return out


def distance(found: list[float]) -> float:
    """Root mean square of log(ours / printed)."""
    printed = np.array(list(PRINTED.values()))
    ours = np.reshape(found, (len(PRINTED), len(ESTIMATORS)))[:, :2]
    return float(np.sqrt(np.mean(np.log(ours / printed) ** 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Sizes of the five curves, from six printed numbers.")
    for name in SIZES:
        parser.add_argument(f"--{name}", type=float, nargs="+", required=True)
    parser.add_argument("--replicates", type=int, default=2, help="of the cells with 3,200 clients")
    asked = vars(parser.parse_args())
    replicates = asked["replicates"]
    done = {(*(float(row[name]) for name in SIZES), int(row["replicates"])) for row in read_rows(PATH)}
    with appending(PATH, COLUMNS) as file:
        for sizes in product(*(asked[name] for name in SIZES)):
            if (*sizes, replicates) not in done:
                found = errors(sizes, replicates)
                values = (*sizes, replicates, distance(found), *(round(value, 4) for value in found))
                file.write(dict(zip(COLUMNS, values, strict=True)))
    for row in sorted(read_rows(PATH), key=lambda row: float(row["distance"]))[:10]:
        print({name: round(float(value), 3) for name, value in row.items()})


if __name__ == "__main__":
    main()
