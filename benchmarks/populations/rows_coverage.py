"""Coverage and length of the 90% intervals of ``vaneb run``, coefficient by coefficient.

    python benchmarks/populations/rows_coverage.py [--quick]

Groups have y ~ x with intercepts that differ by a standard deviation of 0.8 and slopes by 0.4, or not at
all.  The oracle knows the population and the noise, and integrates over the two coefficients on a grid.
One line of JSON for every cell and replicate is appended to ``results/rows.jsonl``; rows that are there
already are not computed again.
"""

from __future__ import annotations

from run import FIRST_SEED, HERE, Row, append, context, mend, read, rounded, say

# isort: split
import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from mixtures import Answer, Array
from scipy.interpolate import PchipInterpolator
from scipy.special import gammaln

from vaneb.grouped import fit_groups

LEVEL = 0.9
INTERCEPT_SD = 0.8
#: Mean intercept and slope: rates and counts neither near zero nor huge.
MEANS = {"gaussian": (1.0, 0.5), "binomial": (-0.3, 0.5), "poisson": (0.7, 0.3), "gamma": (0.5, 0.3)}
NOISE_SD, GAMMA_SHAPE = 1.0, 2.0
#: The oracle's grid: points for each coefficient, over so many standard deviations either side.
POINTS, REACH = 81, 5.0


class Cell(NamedTuple):
    family: str
    slope_sd: float
    rows: int
    K: int


def wanted(K: int) -> int:
    """Replicates: few clients need many, since a replicate has little to say."""
    return 40 if K <= 50 else 20 if K <= 150 else 10


def grouped(cell: Cell, seed: int) -> tuple[pd.DataFrame, Array]:
    """Rows of the groups, and the true coefficients (K, 2)."""
    rng = np.random.default_rng(seed)
    sds = np.array([INTERCEPT_SD, cell.slope_sd])
    theta = np.array(MEANS[cell.family]) + sds * rng.standard_normal((cell.K, 2))
    group = np.repeat(np.arange(cell.K), cell.rows)
    x = rng.standard_normal(len(group))
    index = theta[group, 0] + theta[group, 1] * x
    if cell.family == "gaussian":
        y = index + NOISE_SD * rng.standard_normal(len(x))
    elif cell.family == "binomial":
        y = (rng.random(len(x)) < 1 / (1 + np.exp(-index))).astype(float)
    elif cell.family == "poisson":
        y = rng.poisson(np.exp(index)).astype(float)
    else:
        y = rng.gamma(GAMMA_SHAPE, np.exp(index) / GAMMA_SHAPE)
    # Ids of one length: their order as text is their order as numbers.
    return pd.DataFrame({"group": [f"g{g:05d}" for g in group], "x": x, "y": y}), theta


def log_density(family: str, y: Array, index: Array) -> Array:
    """Log density of responses at linear indices."""
    if family == "gaussian":
        return -0.5 * ((y - index) / NOISE_SD) ** 2
    if family == "binomial":
        return y * index - np.logaddexp(0, index)
    if family == "poisson":
        return y * index - np.exp(index) - gammaln(y + 1)
    return -GAMMA_SHAPE * (index + y * np.exp(-index))


def quantiles(at: Array, mass: Array) -> Array:
    """Ends of the interval of a density that is known, times the step, at points of an even grid."""
    if len(at) == 1:
        return np.repeat(at, 2)
    # Sum of masses up to the middle between two points, as the midpoint rule has it with its next term.
    middles = (at[1:] + at[:-1]) / 2
    below = mass.cumsum()[:-1] + np.diff(mass) / 24
    fine = np.linspace(middles[0], middles[-1], 20 * len(at))
    with np.errstate(all="ignore"):  # far from the posterior the curve is flat to the last digit
        curve = PchipInterpolator(middles, below)(fine)
    return np.interp([(1 - LEVEL) / 2, (1 + LEVEL) / 2], curve, fine)


def oracle(cell: Cell, frame: pd.DataFrame) -> Answer:
    """Posterior of every group's coefficients under the true population; (K, 2) each."""
    sds = np.array([INTERCEPT_SD, cell.slope_sd])
    steps = np.linspace(-REACH, REACH, POINTS)
    at = [m + sd * (steps if sd else np.zeros(1)) for m, sd in zip(MEANS[cell.family], sds, strict=True)]
    prior = -0.5 * steps[:, None] ** 2 - 0.5 * (steps**2 if cell.slope_sd else np.zeros(1))
    x, y = (frame[c].to_numpy().reshape(cell.K, cell.rows) for c in ("x", "y"))
    out = np.empty((3, cell.K, 2))
    for k in range(cell.K):
        index = at[0][:, None, None] + at[1][:, None] * x[k]
        value = prior + log_density(cell.family, y[k], index).sum(2)
        joint = np.exp(value - value.max())
        joint /= joint.sum()
        for c in range(2):
            mass = joint.sum(1 - c)
            out[:, k, c] = mass @ at[c], *quantiles(at[c], mass)
    return Answer(*out)


def measured(cell: Cell, seed: int, formula: str) -> Row:
    frame, theta = grouped(cell, seed)
    began = time.process_time()
    try:
        after = fit_groups(frame, client="group", formula=formula, family=cell.family).posterior
        lower, upper = after.interval(LEVEL)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    seconds = time.process_time() - began
    assert list(after.ids) == sorted(frame["group"].unique())
    out: Row = {"cpu": seconds}
    best = oracle(cell, frame)
    for c, name in enumerate(("intercept", "slope")):
        inside = (lower[:, c] <= theta[:, c]) & (theta[:, c] <= upper[:, c])
        length = (upper[:, c] - lower[:, c]).mean()
        out[f"coverage_{name}"] = float(inside.mean())
        out[f"length_{name}"] = float(length)
        if name == "intercept" or cell.slope_sd:
            error, least = (((mean[:, c] - theta[:, c]) ** 2).mean() for mean in (after.mean, best.mean))
            known = (best.lower[:, c] <= theta[:, c]) & (theta[:, c] <= best.upper[:, c])
            out[f"oracle_coverage_{name}"] = float(known.mean())
            out[f"length_ratio_{name}"] = float(length / (best.upper[:, c] - best.lower[:, c]).mean())
            out[f"ratio_{name}"] = float(np.sqrt(error / least))
    return out


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    chosen = itertools.product(options.clients, options.rows, options.slope_sd, options.families)
    for K, rows, slope_sd, family in chosen:
        yield Cell(family, slope_sd, rows, K)


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=lambda t: t.split(","), default=list(MEANS))
    parser.add_argument("--clients", type=numbers, default=[10, 20, 50, 150, 500])
    parser.add_argument("--rows", type=numbers, default=[8, 30])
    parser.add_argument("--slope-sd", type=lambda t: [float(w) for w in t.split(",")], default=[0.4, 0.0])
    parser.add_argument("--replicates", type=int, help="default: 40 up to K = 50, 20 up to 150, else 10")
    parser.add_argument("--formula", default="y ~ x", help="another one wants a folder of its own")
    parser.add_argument("--quick", action="store_true", help="five replicates, K up to 50")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER")
    options = parser.parse_args()
    if unknown := set(options.families) - set(MEANS):
        parser.error(f"no family {', '.join(sorted(unknown))}: choose of {', '.join(MEANS)}")
    if options.quick:
        options.replicates = options.replicates or 5
        options.clients = [K for K in options.clients if K <= 50]
    path = options.results / "rows.jsonl"
    done = {(*(row[f] for f in Cell._fields), row["replicate"]) for row in read(path) if "K" in row}
    run = context()
    begun = False
    warm: set[str] = set()
    for cell in cells(options):
        began, count = time.process_time(), 0
        for replicate in range(options.replicates or wanted(cell.K)):
            if (*cell, replicate) in done:
                continue
            if not begun:
                mend(path)
                append(path, {"run": run})
                begun = True
            if cell.family not in warm:
                measured(cell._replace(K=12, rows=8), 0, options.formula)
                warm.add(cell.family)
            row = {
                **cell._asdict(),
                "replicate": replicate,
                **measured(cell, FIRST_SEED + replicate, options.formula),
            }
            append(path, rounded(row | {"version": run["version"], "commit": run["commit"]}))
            count += 1
        if count:
            say(f"{' '.join(map(str, cell))}: {count} rows, {time.process_time() - began:.1f} CPU s")


if __name__ == "__main__":
    main()
