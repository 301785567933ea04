"""Two clear groups of clients with rows enough of their own: are they found, and what is finding them worth?

    python benchmarks/grouped/two_groups.py

60 clients of 12 rows, y ~ x; levels are -4 or 4 with a standard deviation of 0.5, slopes have one of 0.3,
noise one of 1.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from vaneb.grouped import fit_groups

SETS, CLIENTS, ROWS, FIRST_SEED = 12, 60, 12, 9000


def main() -> None:
    found, gains = 0, []
    for seed in range(FIRST_SEED, FIRST_SEED + SETS):
        rng = np.random.default_rng(seed)
        client = np.repeat(np.arange(CLIENTS), ROWS)
        x = rng.standard_normal(len(client))
        level = 0.5 * rng.standard_normal(CLIENTS) + 4 * rng.choice([-1, 1], CLIENTS)
        slope = 0.5 + 0.3 * rng.standard_normal(CLIENTS)
        y = level[client] + slope[client] * x + rng.standard_normal(len(client))
        rows = pd.DataFrame({"client": client, "x": x, "y": y})
        errors = []
        for population in ("auto", "mixture"):
            fit = fit_groups(rows, client="client", formula="y ~ x", population=population)
            away = fit.posterior.mean - np.column_stack([level, slope])
            errors.append(float(np.sqrt((away**2).mean())))
            found += population == "auto" and fit.prior.kind == "mixture"
        gains.append(100 * (errors[1] / errors[0] - 1))
    spread = np.std(gains, ddof=1) / np.sqrt(SETS)
    print(f"found by default in {found} of {SETS}; a mixture's error: {np.mean(gains):+.1f} ± {spread:.1f}%")


if __name__ == "__main__":
    main()
