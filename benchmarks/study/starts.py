"""Algorithm 1 from each of its starts, and NPEB, on curves of unit size.

    python benchmarks/study/starts.py logistic 3200 10 --replicates 2
    python benchmarks/study/starts.py poisson 800 10 --replicates 2 --empirical

The draws are those of ``vaneb study`` (seed 0).  ``--empirical``: Poisson clients report the information of
their own rows instead of the population's.
"""

from __future__ import annotations

import argparse

import numpy as np

from vaneb import paper
from vaneb.local.report import report
from vaneb.paper.algorithm_1 import STARTS
from vaneb.study.paper_mode import PaperClients
from vaneb.study.prior_curves import FiveCurves
from vaneb.study.scenarios import SCENARIOS, simulate
from vaneb.study.sweep import Cell, generator


def main() -> None:
    parser = argparse.ArgumentParser(description="Algorithm 1 from each of its starts, and NPEB.")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("clients", type=int)
    parser.add_argument("n_min", type=int)
    parser.add_argument("--replicates", type=int, default=1)
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=["fixed-covariance", "coupled"])
    parser.add_argument("--empirical", action="store_true")
    asked = parser.parse_args()
    cell = Cell(asked.scenario, asked.clients, asked.n_min)
    for replicate in range(asked.replicates):
        sample = simulate(*cell, generator(cell, replicate, 0), FiveCurves())
        clients = PaperClients(sample, FiveCurves())
        reports, fixed = clients.reports, clients.fixed
        if asked.empirical:
            reports = fixed = report(sample.rows, clients.family, clients.fits, form="empirical")
        models = {start: (paper.Algorithm1(start=start), reports) for start in asked.starts}
        models["npeb"] = (paper.NPEB(), fixed)
        said = []
        for name, (model, own) in models.items():
            result = model.fit(own).personalize(own)
            rmse = np.sqrt(np.mean(np.sum((result.mean - sample.theta) ** 2, axis=1)))
            said.append(f"{name} {rmse:.3f} ({len(result.weights)} atoms)")
        print(f"{cell.scenario} K={cell.clients} n={cell.n_min} #{replicate}: {'; '.join(said)}", flush=True)


if __name__ == "__main__":
    main()
