"""Does keeping more populations bring two seeds closer?  Paired: the same clients, the same two seeds.

    python benchmarks/core/kept_populations.py 400,1600 --replicates 2 > moves.jsonl

One line for each cell and number of populations kept: how far estimates and ends of 90% intervals of two
seeds are apart, in posterior standard deviations (95% point and largest), CPU seconds of a fit, of its means
and intervals, sweeps, and MiB of the saved prior.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "populations"))
from populations import draw

from vaneb import VANEB, Reports
from vaneb.population.options import Options

POPULATIONS = ("clusters", "normal", "sparse", "heavy", "twoscale")
CLIENTS, DIMENSIONS = (20, 50, 200), (1, 3, 10)


def cell(name: str, n_clients: int, d: int, replicate: int, kept: int) -> dict[str, object]:
    one = draw(name, n_clients, d, "uniform", 100 + replicate)
    reports = Reports(one.estimates, standard_errors=one.standard_errors)
    fits, fit_seconds, personal_seconds, sweeps = [], 0.0, 0.0, 0
    for seed in (0, 1):
        start = time.process_time()
        model = VANEB(seed=seed, options=Options(draws=kept)).fit(reports)
        middle = time.process_time()
        post = model.personalize(reports)
        fits.append((post.mean, post.sd, np.stack(post.interval(0.9))))
        fit_seconds += (middle - start) / 2
        personal_seconds += (time.process_time() - middle) / 2
        sweeps += model.sampling_.sweeps // 2
    (mean, sd, ends), (other_mean, _, other_ends) = fits
    away, far = np.abs(other_mean - mean) / sd, (np.abs(other_ends - ends) / sd).max(axis=0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prior.json"
        model.prior_.save(path)
        size = path.stat().st_size / 2**20
    return {
        "population": name, "clients": n_clients, "dimension": d, "replicate": replicate, "kept": kept,
        "mean_95": float(np.quantile(away, 0.95)), "mean_max": float(away.max()),
        "end_95": float(np.quantile(far, 0.95)), "end_max": float(far.max()),
        "fit_cpu": fit_seconds, "personalise_cpu": personal_seconds, "sweeps": sweeps, "prior_mib": size,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kept", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--replicates", type=int, default=1)
    options = parser.parse_args()
    for replicate in range(options.replicates):
        for n_clients in CLIENTS:
            for d in DIMENSIONS:
                for name in POPULATIONS:
                    for kept in options.kept:
                        print(json.dumps(cell(name, n_clients, d, replicate, kept)), flush=True)


if __name__ == "__main__":
    main()
