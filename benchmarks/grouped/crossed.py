"""Nested and crossed groups of rows that are not Gaussian: python crossed.py FOLDER, after crossed.R.

The population of the clients is one Gaussian, as glmmTMB's; the other groups' always is.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from vaneb.grouped import fit_groups

SETS = {
    "verbagg": ("y ~ Anger + Gender + (1 | id) + (1 | item)", "binomial"),
    "guimmun": ("y ~ kid2p + (1 | comm/mom)", "binomial"),
    "ticks": ("y ~ cH + (1 | loc/brood)", "poisson"),
    "ticks-nb": ("y ~ cH + (1 | loc/brood)", "negative-binomial"),
}
GROUPS = dict.fromkeys(("id", "item", "mom", "comm", "brood", "loc"), str)


def main(folder: Path) -> None:
    for name, (formula, family) in SETS.items():
        rows = pd.read_csv(folder / f"{name}.csv", dtype=GROUPS)
        for _ in range(2):
            begin = time.process_time()
            fit = fit_groups(rows, formula=formula, family=family, test_column="test", population="gaussian")
            seconds = time.process_time() - begin
        assert fit.held_out is not None
        fixed, others = fit.fixed, fit.design.others
        sds = [float(fit.population.sd[0]), *(float(np.sqrt(one.covariance[0, 0])) for one in others)]
        print(
            f"{name} loss {fit.held_out.values['personalised']:.4f} seconds {seconds:.2f} "
            f"fixed {fixed.estimate.round(3)} se {fixed.standard_error.round(3)} "
            f"sd {fit.design.client} {sds[0]:.3f}, {others[0].name} {sds[1]:.3f} "
            f"size {1 / fit.family.parameter:.2f} dispersion {fit.family.dispersion:.2f}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
