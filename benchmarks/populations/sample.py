"""Is a population learnt from an even sample of 100,000 clients as good as one learnt from all 1,000,000?

    python benchmarks/populations/sample.py [--clients K] [--populations A,B] [--results FILE]

A file that does not fit into memory is fitted by such a sample (``vaneb.outofcore``).  Here both fits are
made in memory, and the fit on all clients a second time with another seed: what two seeds differ by is no
fault of the sample.  Differences are between estimates, and between ends of 90% intervals, of 50,000
clients, in posterior standard deviations.  ``rare`` is ``clusters`` with a fourth group far out that one
client in 10,000 belongs to; its clients are also shown by themselves.
"""

# ruff: noqa: E402 -- the number of threads must be set before numpy is imported

from __future__ import annotations

import argparse
import os

for name in ("OPENBLAS", "OMP", "MKL", "NUMBA"):
    os.environ[f"{name}_NUM_THREADS"] = "1"
os.environ["VANEB_THREADS"] = "1"

import time
from pathlib import Path

import numpy as np
from populations import POPULATIONS
from run import append, context, read, rounded, say

import vaneb

HERE = Path(__file__).resolve().parent
DIMENSION, SAMPLE, WATCHED, SHARE, FAR = 3, 100_000, 50_000, 1e-4, 6.0
NAMES = ("clusters", "heavy", "skewed", "ring", "rare")


def draw(name: str, K: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """True parameters, and who belongs to the rare group."""
    theta, _ = POPULATIONS["clusters" if name == "rare" else name](K, DIMENSION, rng)
    odd = rng.random(K) < (SHARE if name == "rare" else 0.0)
    theta[odd] = FAR + 0.5 * rng.standard_normal((odd.sum(), DIMENSION))
    return theta, odd


def fitted(x: np.ndarray, se: np.ndarray, seed: int) -> tuple[vaneb.VANEB, float]:
    began = time.process_time()
    model = vaneb.VANEB(seed=seed).fit(vaneb.Reports(x, standard_errors=se))
    return model, time.process_time() - began


def compared(name: str, K: int) -> dict[str, object]:
    rng = np.random.default_rng(5)
    theta, odd = draw(name, K, rng)
    se = rng.uniform(0.2, 1.5, theta.shape)
    x = theta + se * rng.standard_normal(theta.shape)
    some = np.linspace(0, K - 1, min(SAMPLE, K // 10)).astype(int)
    fits = {"all": fitted(x, se, 0), "other seed": fitted(x, se, 1), "sample": fitted(x[some], se[some], 0)}
    watched = np.unique(np.concatenate([np.linspace(0, K - 1, WATCHED).astype(int), np.flatnonzero(odd)]))
    reports = vaneb.Reports(x[watched], standard_errors=se[watched])
    after = {which: model.personalize(reports) for which, (model, _) in fits.items()}
    base, row = after["all"], {"population": name, "clients": K}
    ends = {which: np.stack(own.interval(0.9)) for which, own in after.items()}
    for which, own in after.items():
        row |= {
            f"cpu {which}": fits[which][1],
            f"rmse {which}": float(np.sqrt(((own.mean - theta[watched]) ** 2).mean())),
        }
        if which == "all":
            continue
        moved = np.abs(own.mean - base.mean) / base.sd
        end = np.abs(ends[which] - ends["all"]).max(axis=0) / base.sd
        for what, shift in (("mean", moved), ("end", end)):
            row |= {
                f"{what} 95% {which}": np.quantile(shift, 0.95),
                f"{what} 99.9% {which}": np.quantile(shift, 0.999),
            }
        if odd.any():
            row[f"mean 95% rare {which}"] = np.quantile(moved[odd[watched]], 0.95)
            row[f"end 95% rare {which}"] = np.quantile(end[odd[watched]], 0.95)
    return {key: float(v) if isinstance(v, np.floating) else v for key, v in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--populations", default=",".join(NAMES))
    parser.add_argument("--results", type=Path, default=HERE / "results" / "sample.jsonl")
    options = parser.parse_args()
    run = context()
    done = {(row["population"], row["clients"]) for row in read(options.results)}
    for name in options.populations.split(","):
        if (name, options.clients) not in done:
            row = rounded(compared(name, options.clients) | run)
            append(options.results, row)
            say(str(row))


if __name__ == "__main__":
    main()
