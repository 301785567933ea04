"""Counts of clients without rows in the fit: the mean response, or the response at the mean index?

    python benchmarks/grouped/new_clients.py REAL

All rows of a fifth of the clients are left out, so that luck with few of them does not decide.  vaneb
predicts a client of which nothing is known by the average of its expected response over the population; mixed
models in R take the response at the average index.  Deviances are averages over folds.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from run import REAL

from vaneb.grouped import fit_groups

FOLDS = 5
#: How often clients are dealt to folds.
DEALS = {"epil": 4, "grouseticks": 2, "azpro": 3, "medpar": 2}


def deviance(y: np.ndarray, mean: np.ndarray) -> float:
    return float(np.mean(2 * (np.where(y > 0, y * np.log(np.maximum(y, 1) / mean), 0) - (y - mean))))


def main(folder: Path) -> None:
    for name, deals in DEALS.items():
        right, family = REAL[name]
        rows = pd.read_csv(folder / f"{name}.csv")
        factors = [c for c in rows if c not in ("client", "y") and not pd.api.types.is_numeric_dtype(rows[c])]
        rows = rows.dropna(subset=["client", "y", *(c for c in rows if c in right.split(" + "))])
        found = []
        for deal in range(deals):
            fold_of = np.random.default_rng(deal).permutation(rows.client.nunique()) % FOLDS
            fold = fold_of[pd.factorize(rows.client)[0]]
            for k in range(FOLDS):
                fit = fit_groups(
                    rows[fold != k], client="client", formula=f"y ~ {right}", family=family, factors=factors
                )
                later = rows[fold == k]
                coded = fit.design.rows(later, response=True)
                at_mean = np.exp(coded.covariates @ fit.prior.mean + coded.offset)
                y = later.y.to_numpy()[coded.kept]
                found.append([deviance(y, np.asarray(fit.predict(later))[coded.kept]), deviance(y, at_mean)])
        ours, theirs = np.array(found).T
        error = np.std(theirs - ours, ddof=1) / np.sqrt(len(found))
        print(
            f"{name}: mean response {ours.mean():.3f}, response at the mean index {theirs.mean():.3f} "
            f"({np.mean(theirs - ours):+.3f} ± {error:.3f})"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
