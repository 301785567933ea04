"""Survival between sites: held-out loss of two exchanges beside that of pooled rows.

    Rscript -e 'write.csv(na.omit(survival::lung), "lung.csv")'
    python benchmarks/federation/cox.py --lung lung.csv

Each site has a baseline hazard of its own (family cox).  Loss: minus the partial log-likelihood of the
held-out rows within each site, per row; 30% of each site's rows are held out, anew in each replicate.
``local`` has each site's own estimate, ``one stratum`` the same coefficients at all sites.
"""

from __future__ import annotations

import argparse
import datetime
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from lossless import Sites

from vaneb.estimators import VANEB
from vaneb.flower.lossless import fit_from_sums
from vaneb.flower.settings import Settings
from vaneb.grouped import fit_groups
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import cox
from vaneb.local.fit import fit_clients
from vaneb.posterior import posterior

FORMULA = {"lung": "Surv(time, status) ~ age + sex + ph.ecog"}
SIMULATED = {"slopes differ": (20, 40, 0.4), "alike": (20, 40, 0.0), "five sites": (5, 100, 0.4)}


def simulated(clients: int, n: int, spread: float, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(clients), n)
    x, z = rng.standard_normal((2, len(k)))
    index = (0.5 + spread * rng.standard_normal(clients))[k] * x + (-0.3 + spread / 2 * x.mean()) * z
    time = rng.exponential(np.exp(-index)) * rng.gamma(2.0, 1.0, clients)[k]
    end = rng.exponential(3.0, len(k))
    return pd.DataFrame({"site": k, "x": x, "z": z, "t": np.minimum(time, end), "d": (time <= end) * 1})


def loss(rows: GroupedRows, theta: np.ndarray) -> float:
    """Minus the partial log-likelihood, per row."""
    values = cox().objective(rows).terms(theta, np.arange(rows.n_clients))[0]
    return float(values.sum() / rows.n_rows.sum())


def compare(frame: pd.DataFrame, formula: str, seed: int) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    test = np.zeros(len(frame), dtype=bool)
    for places in frame.groupby("site").indices.values():
        test[rng.choice(places, int(0.3 * len(places)), replace=False)] = True
    pooled = fit_groups(frame[~test], client="site", formula=formula, family="cox")
    rows = pooled.rows
    held = pooled.design.rows(frame[test], response=True)
    held_rows = GroupedRows.from_columns(held.clients, held.covariates, held.response, names=pooled.names)
    at = [rows.ids.index(name) for name in held_rows.ids]
    found = {"pooled": pooled.posterior.mean}
    for exchanges in (1, 2):
        settings = Settings(formula=formula, family="cox", exchanges=exchanges)
        line, model = Sites(rows, cox(), settings), VANEB()
        sites = {k: line.report(k) for k in range(rows.n_clients)}
        fit_from_sums(line, sites, list(sites), pooled.names, settings, model)  # type: ignore[arg-type]
        found[f"exchanges {exchanges}"] = posterior(exact_likelihood(rows, cox()), model.prior_).mean
    found["local"] = fit_clients(rows, cox()).theta
    together = cox().pooled_objective(rows)
    theta = np.zeros((1, rows.design.shape[1]))
    for _ in range(30):
        _, gradient, hessian = together.terms(theta, np.array([0]))
        theta = theta - np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
    found["one stratum"] = np.repeat(theta, rows.n_clients, axis=0)
    return {name: loss(held_rows, values[at]) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lung", type=Path)
    parser.add_argument("--replicates", type=int, default=10)
    options = parser.parse_args()
    print(f"{datetime.date.today()}, vaneb {version('vaneb')}, Python {platform.python_version()}\n")
    print("| set | pooled | one exchange, % | two exchanges, % | local, % | one stratum, % |")
    print("|---|---|---|---|---|---|")
    for name in (*SIMULATED, *(["lung"] if options.lung else [])):
        rows = []
        for seed in range(options.replicates):
            if name == "lung":
                frame = pd.read_csv(options.lung).rename(columns={"inst": "site"})
                frame = frame[frame.groupby("site").site.transform("size") >= 8]
            else:
                frame = simulated(*SIMULATED[name], 100 + seed)
            rows.append(compare(frame, FORMULA.get(name, "Surv(t, d) ~ x + z"), seed))
        table = pd.DataFrame(rows)
        more = 100 * (table.div(table.pooled, axis=0) - 1)
        cells = [f"{more[c].mean():+.3f} ± {more[c].sem():.3f}" for c in table.columns if c != "pooled"]
        print(f"| {name} | {table.pooled.mean():.4f} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
