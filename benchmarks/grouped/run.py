"""Held-out loss of ``vaneb run`` beside R's lme4 on simulated grouped data, and on files of your own.

    python benchmarks/grouped/run.py --replicates 3 -o benchmarks/grouped/results.csv [--data FOLDER]

``--data`` names a folder with hsb82.csv and contraception.csv (columns client, y, covariates, test).
Needs Rscript with lme4 on the path.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sets import SETS

from vaneb.grouped import fit_groups

HERE = Path(__file__).parent
#: Replicates are counted from here: the rule that chooses the population was set on 0 and 1.
FIRST_SEED = 10
REAL = (
    ("hsb82", "y ~ cses", "(1 + cses | client)", "gaussian"),
    ("contraception", "y ~ age + urban", "(1 + age + urban | client)", "binomial"),
)
COLUMNS = ("set", "seed", "lme4", "local", "pooled", "personalised", "excess_percent", "atoms", "seconds")
COLUMNS += ("lme4_seconds",)


def lme4(path: Path, formula: str, random: str, family: str) -> tuple[float, float]:
    """Held-out loss, and seconds of the fit."""
    command = ["Rscript", str(HERE / "lme4.R"), str(path), f"{formula} + {random}", family]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loss, seconds, _ = answer.split(",")
    return float(loss), float(seconds)


def compare(name: str, seed: int, path: Path, formula: str, random: str, family: str) -> dict[str, object]:
    theirs, their_seconds = lme4(path, formula, random, family)
    begin = time.perf_counter()
    fit = fit_groups(pd.read_csv(path), client="client", formula=formula, family=family, test_column="test")
    seconds = time.perf_counter() - begin
    assert fit.held_out is not None
    ours = fit.held_out.values
    row: dict[str, object] = {"set": name, "seed": seed, "lme4": f"{theirs:.6g}"}
    row |= {method: f"{value:.6g}" for method, value in ours.items()}
    row |= {"excess_percent": f"{100 * (ours['personalised'] / theirs - 1):+.3f}"}
    return row | {
        "atoms": len(fit.prior.weights),
        "seconds": f"{seconds:.1f}",
        "lme4_seconds": f"{their_seconds:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=3)
    parser.add_argument("--data", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=HERE / "results.csv")
    options = parser.parse_args()
    with options.out.open("w", newline="") as file, tempfile.TemporaryDirectory() as folder:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()

        def write(row: dict[str, object]) -> None:
            writer.writerow(row)
            file.flush()
            print(*row.values())

        if options.data is not None:
            for name, formula, random, family in REAL:
                write(compare(name, 0, options.data / f"{name}.csv", formula, random, family))
        for i, one in enumerate(SETS):
            for seed in range(FIRST_SEED, FIRST_SEED + options.replicates):
                path = Path(folder) / f"{one.name}.csv"
                one.make(np.random.default_rng([seed, i])).to_csv(path, index=False)
                write(compare(one.name, seed, path, one.formula, one.random, one.family))


if __name__ == "__main__":
    main()
