"""Local fits of many small clients: one batch against statsmodels one client at a time.

    python benchmarks/local/run.py [--clients 10000] [--rows 50] [--sample 300]

CPU seconds of this process, one thread each.  statsmodels is timed on the first ``--sample`` clients and
the time multiplied up; estimates are compared on the same clients.  Writes ``results.csv`` beside it.
"""

# ruff: noqa: E402 -- the number of threads must be set before numpy is imported

from __future__ import annotations

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VANEB_THREADS"):
    os.environ[name] = "1"

import argparse
import csv
import platform
import time
import warnings
from pathlib import Path

import numpy as np
import statsmodels
import statsmodels.api as sm

import vaneb.local.families as families
from vaneb.local.data import GroupedRows
from vaneb.local.fit import fit_clients

ALPHA = 0.5


def make(name: str, n_clients: int, n_rows: int, rng: np.random.Generator) -> GroupedRows:
    """Intercept and three covariates; coefficients N(0, 0.5^2), different for each client."""
    client = np.repeat(np.arange(n_clients), n_rows)
    design = np.column_stack([np.ones(len(client)), rng.normal(size=(len(client), 3))])
    theta = 0.5 * rng.normal(size=(n_clients, 4))
    eta = np.sum(design * theta[client], axis=1)
    mean = np.exp(eta)
    draws = {
        "gaussian": lambda: eta + rng.normal(size=len(eta)),
        "binomial": lambda: (rng.uniform(size=len(eta)) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": lambda: rng.poisson(mean).astype(float),
        "gamma": lambda: np.maximum(rng.gamma(2.0, mean / 2), 1e-12),
        "negative_binomial": lambda: rng.negative_binomial(1 / ALPHA, 1 / (1 + ALPHA * mean)).astype(float),
    }
    return GroupedRows.from_columns(client, design, draws[name]())


CASES = {
    "gaussian": (families.gaussian(), lambda: sm.families.Gaussian()),
    "binomial": (families.binomial(), lambda: sm.families.Binomial()),
    "poisson": (families.poisson(), lambda: sm.families.Poisson()),
    "gamma": (families.gamma(), lambda: sm.families.Gamma(sm.families.links.Log())),
    "negative_binomial": (
        families.negative_binomial(ALPHA),
        lambda: sm.families.NegativeBinomial(alpha=ALPHA),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--sample", type=int, default=300, help="clients that statsmodels is timed on")
    options = parser.parse_args()
    table = []
    for name, (family, theirs) in CASES.items():
        rows = make(name, options.clients, options.rows, np.random.default_rng(1))
        fit_clients(rows.take(slice(0, 3)), family)  # compile, or load what was compiled before
        started = time.process_time()
        fits = fit_clients(rows, family)
        ours = time.process_time() - started
        estimates = np.full((options.sample, 4), np.nan)
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for k in range(options.sample):
                part = slice(rows.starts[k], rows.starts[k + 1])
                model = sm.GLM(rows.response[part], rows.design[part], family=theirs())
                estimates[k] = model.fit(tol=1e-12, maxiter=200).params
        one_by_one = (time.process_time() - started) * options.clients / options.sample
        exists = fits.exists[: options.sample]
        difference = np.abs(fits.theta[: options.sample] - estimates)[exists].max()
        table.append(
            {
                "family": name,
                "batch_seconds": round(ours, 3),
                "statsmodels_seconds": round(one_by_one, 1),
                "ratio": round(one_by_one / ours),
                "largest_difference": f"{difference:.1e}",
                "converged": int(fits.exists.sum()),
            }
        )
        print(table[-1], flush=True)
    with (Path(__file__).parent / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0].keys())
        writer.writeheader()
        writer.writerows(table)
    print(
        f"python {platform.python_version()}, numpy {np.__version__}, statsmodels {statsmodels.__version__}"
    )


if __name__ == "__main__":
    main()
