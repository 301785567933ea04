"""Figures beside R that are no held-out losses of one grouping column, and speed.

    Rscript benchmarks/grouped/beside.R FOLDER
    python benchmarks/grouped/beside.py crossed FOLDER   # students and instructors: loss and processor time
    python benchmarks/grouped/beside.py errors FOLDER    # standard errors of fixed effects
    python benchmarks/grouped/beside.py cox FOLDER       # coefficients, and concordance at real sites
    python benchmarks/grouped/beside.py sites            # concordance at simulated sites
    python benchmarks/grouped/beside.py equal            # how often equal clients are found to differ
    python benchmarks/grouped/beside.py speed            # large tables

Seconds are of processor time; with one thread if OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from vaneb.grouped import fit_groups
from vaneb.population.options import QUICK

#: Seeds that no rule was set on.
FIRST_SEED = 70_000
EQUAL_SETS, SITE_SETS = 40, 20


def crossed(folder: Path) -> None:
    theirs = pd.read_csv(folder / "crossed.csv")
    formula = "y ~ service + (1 | s) + (1 | d)"
    for split, loss, seconds in theirs.itertuples(index=False):
        rows = pd.read_csv(folder / f"crossed-{int(split)}.csv")
        for _ in range(2):
            begin = time.process_time()
            fit = fit_groups(rows, formula=formula, test_column="test", factors=["service"])
            spent = time.process_time() - begin
        assert fit.held_out is not None
        ours = fit.held_out.values["personalised"]
        print(
            f"split {int(split)}: loss {ours:.5f}, lme4 {loss:.5f} ({100 * (ours / loss - 1):+.3f}%); "
            f"{spent:.1f} s, lme4 {seconds:.1f} s"
        )


def errors(folder: Path) -> None:
    for (name, formula), part in pd.read_csv(folder / "errors.csv").groupby(["set", "formula"], sort=False):
        rows = pd.read_csv(folder / f"{name}.csv")
        factors = [c for c in rows if not pd.api.types.is_numeric_dtype(rows[c]) and f"| {c})" not in formula]
        fit = fit_groups(rows, formula=formula, factors=factors)
        own = fit.fixef
        over = np.abs(own.se.to_numpy() / part.error.to_numpy() - 1).max()
        away = (np.abs(own.estimate.to_numpy() - part.estimate.to_numpy()) / part.error.to_numpy()).max()
        print(
            f"{name}: standard errors within {100 * over:.2f}% of lme4's, estimates within {away:.4f} of one"
        )


def cox(folder: Path) -> None:
    for (name, right), part in pd.read_csv(folder / "cox.csv").groupby(["set", "right"], sort=False):
        rows = pd.read_csv(folder / f"{name}-cox.csv")
        formula = f"Surv(time, event) ~ {right}"
        fit = fit_groups(rows, client="site", formula=formula, family="cox", options=QUICK)
        away = np.abs(fit.estimates["pooled"][0] - part.estimate.to_numpy()).max()
        found = []
        for split in "123":
            one = fit_groups(rows, client="site", formula=formula, family="cox", test_column=f"test{split}")
            found.append(concordance(one))
        print(f"{name}: {rows.site.nunique()} sites, {len(rows)} rows; coefficients within {away:.1e}")
        print(f"    {said(found)}")


def concordance(fit: object) -> list[float]:
    return [1 - fit.held_out.values[use] for use in ("local", "pooled", "personalised")]


def said(found: list[list[float]]) -> str:
    """Averages, and what personalising gains with its standard error over replicates."""
    local, pooled, ours = np.array(found).T
    gains = [ours - local, ours - pooled]
    text = [f"{gain.mean():+.4f} ± {gain.std(ddof=1) / np.sqrt(len(gain)):.4f}" for gain in gains]
    return (
        f"concordance: local {local.mean():.4f}, pooled {pooled.mean():.4f}, vaneb {ours.mean():.4f} "
        f"({text[0]} over local, {text[1]} over pooled)"
    )


def sites() -> None:
    """40 sites of 60 rows; coefficients of two covariates differ by a standard deviation of 0.5, or not."""
    for spread in (0.5, 0.0):
        found = []
        for seed in range(FIRST_SEED, FIRST_SEED + SITE_SETS):
            rng = np.random.default_rng(seed)
            site = np.repeat(np.arange(40), 60)
            x = rng.standard_normal((len(site), 2))
            own = [0.5, -0.3] + spread * rng.standard_normal((40, 2))
            rate = np.exp((own[site] * x).sum(axis=1) + rng.standard_normal(40)[site])
            at, last = rng.exponential(1 / rate), rng.exponential(2.0, len(site))
            rows = pd.DataFrame({"site": site, "a": x[:, 0], "b": x[:, 1], "time": np.minimum(at, last)})
            rows = rows.assign(event=(at <= last).astype(int), test=(rng.random(len(site)) < 0.5).astype(int))
            fit = fit_groups(
                rows, client="site", formula="Surv(time, event) ~ a + b", family="cox", test_column="test"
            )
            found.append(concordance(fit))
        print(f"coefficients differ by {spread}: {said(found)}")


def equal() -> None:
    """200 clients of 8 rows that do not differ."""
    for family in ("gaussian", "binomial"):
        counts: Counter[str] = Counter()
        largest, within = [], []
        for seed in range(FIRST_SEED, FIRST_SEED + EQUAL_SETS):
            rng = np.random.default_rng(seed)
            client, x = np.repeat(np.arange(200), 8), rng.standard_normal(1600)
            index = 1 + 0.5 * x
            y = index + rng.standard_normal(1600)
            if family == "binomial":
                y = (rng.random(1600) < 1 / (1 + np.exp(-index))).astype(float)
            rows = pd.DataFrame({"client": client, "x": x, "y": y})
            fit = fit_groups(rows, client="client", formula="y ~ x", family=family)
            counts[" and ".join(fit.varying) or "nothing"] += 1
            largest.append(fit.population.sd.max())
            within.append(fit.posterior.mean.std(axis=0).max())
        print(f"{family}: found to differ in sets: {dict(counts)}; of {EQUAL_SETS} sets of 200 clients")
        print(f"    largest sd between clients: median {np.median(largest):.3f}, largest {max(largest):.3f}")
        print(f"    sd of the estimates, largest: {max(within):.3f}")


def speed() -> None:
    rng = np.random.default_rng(FIRST_SEED)
    sizes = {
        "50,000 groups of 1 to 3 rows": rng.integers(1, 4, 50_000),
        "10^6 rows in 10^5 groups": np.full(100_000, 10),
    }
    for what, rows_each in sizes.items():
        client = np.repeat(np.arange(len(rows_each)), rows_each)
        own = [1.0, 0.5] + [0.8, 0.4] * rng.standard_normal((len(rows_each), 2))
        x = rng.standard_normal(len(client))
        y = own[client, 0] + own[client, 1] * x + rng.standard_normal(len(client))
        rows = pd.DataFrame({"client": client, "x": x, "y": y})
        fit_groups(rows[:3000], client="client", formula="y ~ x")
        begin = time.process_time()
        fit_groups(rows, client="client", formula="y ~ x")
        print(f"{what}, y ~ x: {time.process_time() - begin:.2f} s")


def main() -> None:
    what = {"crossed": crossed, "errors": errors, "cox": cox, "sites": sites, "equal": equal, "speed": speed}
    if len(sys.argv) < 2 or sys.argv[1] not in what:
        raise SystemExit(__doc__)
    what[sys.argv[1]](*map(Path, sys.argv[2:]))


if __name__ == "__main__":
    main()
