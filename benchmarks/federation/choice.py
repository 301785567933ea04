"""How often a federation chooses what differs between clients as pooled rows do, and what that is worth.

    python benchmarks/federation/choice.py > benchmarks/federation/choice.md

Simulated clients: intercepts with a standard deviation of 0.5, slopes with one of 0, 0.15 or 0.3, noise with
one of 1.  ``same``: share of the sets in which rows and sums choose the same.  ``rows``, ``sums``: error
(RMSE) of the clients' estimates under the Gaussian population that each of them chose.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import platform
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np

from vaneb.flower.client_data import LocalModel
from vaneb.flower.lossless import client_sums
from vaneb.flower.sums import site_sums, stacked
from vaneb.grouped.from_sums import find_structure_of_sums
from vaneb.grouped.population import Structure, find_structure
from vaneb.likelihood.loss_sums import Columns
from vaneb.likelihood.seam import Array
from vaneb.local.data import GroupedRows
from vaneb.local.families import gaussian

#: Clients and rows of each, coefficients, standard deviations of slopes.
SIZES, COEFFICIENTS, SPREADS = ((10, 40), (20, 10), (60, 12), (200, 6)), (2, 4), (0.0, 0.15, 0.3)


def simulated(rng: np.random.Generator, clients: int, each: int, d: int, spread: float):
    theta = 1 + np.where(np.arange(d) == 0, 0.5, spread) * rng.standard_normal((clients, d))
    design = rng.standard_normal((clients, each, d))
    design[:, :, 0] = 1
    response = np.einsum("knd,kd->kn", design, theta) + rng.standard_normal((clients, each))
    names = ("Intercept", *(f"x{j}" for j in range(1, d)))
    ids = np.repeat([f"{k:04d}" for k in range(clients)], each)
    return theta, GroupedRows.from_columns(ids, design.reshape(-1, d), response.ravel(), names=names)


def both(rows: GroupedRows) -> tuple[Structure, Structure]:
    """What pooled rows choose, and what sums choose."""
    family, everything = gaussian(), np.ones(len(rows.names), dtype=bool)
    local = SimpleNamespace(family=family)
    pooled = find_structure(rows, local, everything, asked=False)  # type: ignore[arg-type]
    one = stacked(
        [site_sums("site", LocalModel(rows, family, "", {}, False, np.arange(len(rows.design))), None)]
    )
    columns = Columns.pooled(one.whole.n, one.mean, one.scale)
    return pooled, find_structure_of_sums(client_sums(one, columns), family, known=False)


def error(found: Structure, theta: Array) -> float:
    assert found.fitted is not None
    return float(np.sqrt(((found.fitted.points @ found.basis.T - theta) ** 2).sum(axis=1).mean()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sets", type=int, default=40)
    sets = parser.parse_args().sets
    now = datetime.datetime.now(datetime.UTC)
    print(f"`python benchmarks/federation/choice.py --sets {sets}`, {now:%d %B %Y}; Python")
    print(f"{platform.python_version()}, numpy {version('numpy')}, scipy {version('scipy')};")
    print(f"{sets} sets a line\n")
    print("| coefficients | clients | rows of each | sd of slopes | same | rows | sums |")
    print("|---|---|---|---|---|---|---|")
    for d, (clients, each), spread in itertools.product(COEFFICIENTS, SIZES, SPREADS):
        same, errors = [], []
        for seed in range(sets):
            rng = np.random.default_rng([77, seed, clients, each, d, round(100 * spread)])
            theta, rows = simulated(rng, clients, each, d, spread)
            pooled, sums = both(rows)
            same.append(np.array_equal(pooled.varying, sums.varying))
            errors.append((error(pooled, theta), error(sums, theta)))
        one, other = np.mean(errors, axis=0)
        print(f"| {d} | {clients} | {each} | {spread:g} | {np.mean(same):.0%} | {one:.4f} | {other:.4f} |")


if __name__ == "__main__":
    main()
