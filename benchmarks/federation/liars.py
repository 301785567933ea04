"""Sites that lie about their sums: by how much the honest ones' error grows.

    python benchmarks/federation/liars.py > benchmarks/federation/liars.md

200 sites of 20 rows, two coefficients, noise of standard deviation 1; one in ten lies.  ``before``: error
(RMSE) of the honest sites' estimates in a federation of their own; ``after``: among liars; ``local``: least
squares.  Liars send cross-products of rows that they have made up: a thousand rows, exactly fitted by
coefficients of their choice, or rows with another noise.
"""

from __future__ import annotations

import argparse
import datetime
import platform
from importlib.metadata import version

import numpy as np

from vaneb.estimators import VANEB
from vaneb.flower.client_data import LocalModel
from vaneb.flower.lossless import fit_from_sums
from vaneb.flower.settings import Settings
from vaneb.flower.site_sums import SiteSums, site_sums
from vaneb.likelihood.base import Array
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import gaussian
from vaneb.posterior import posterior

SITES, EACH, SHARE = 200, 20, 0.1
CENTRES = np.array([[-2.0, 0.0], [1.0, 1.5], [2.0, -2.0]])
SETTINGS = Settings(formula="y ~ x")


def truth(rng: np.random.Generator, population: str) -> Array:
    if population == "three groups":
        return CENTRES[rng.integers(0, 3, SITES)] + 0.2 * rng.standard_normal((SITES, 2))
    return rng.standard_normal((SITES, 2)) * (1.0, 0.4)


def rows_of(rng: np.random.Generator, theta: Array, noise: float = 1.0, each: int = EACH) -> GroupedRows:
    design = np.stack([np.ones((len(theta), each)), rng.standard_normal((len(theta), each))], axis=2)
    response = np.einsum("knd,kd->kn", design, theta) + noise * rng.standard_normal(design.shape[:2])
    ids = np.repeat([f"{k:04d}" for k in range(len(theta))], each)
    return GroupedRows.from_columns(ids, design.reshape(-1, 2), response.ravel(), names=("Intercept", "x"))


def reports(rows: GroupedRows, first: int = 0) -> dict[int, SiteSums]:
    found = {}
    for k in range(rows.n_clients):
        own = rows.take(slice(k, k + 1))
        model = LocalModel(own, gaussian(), "", {}, False, np.arange(len(own.response)))
        found[first + k] = site_sums(f"{first + k:04d}", model, None)
    return found


def errors(rows: GroupedRows, theta: Array, everyone: dict[int, SiteSums]) -> tuple[float, float]:
    """Error of the honest, and the noise's variance that was found."""
    model = VANEB(seed=0)
    found = fit_from_sums(None, everyone, [], rows.names, SETTINGS, model)  # type: ignore[arg-type]
    own = posterior(exact_likelihood(rows, gaussian(found.dispersion)), model.prior_)
    return rmse(own.mean, theta), found.dispersion


def rmse(found: Array, theta: Array) -> float:
    return float(np.sqrt(((found - theta) ** 2).sum(axis=1).mean()))


def lies(rng: np.random.Generator, kind: str, count: int, theta: Array) -> GroupedRows:
    """Rows that were made up."""
    if kind == "scattered":
        return rows_of(rng, rng.uniform(-5, 5, (count, 2)), 1e-3, 1000)
    if kind == "one place":
        return rows_of(rng, np.zeros((count, 2)), 1e-3, 1000)
    if kind == "a million away":
        return rows_of(rng, rng.uniform(-1e6, 1e6, (count, 2)), 1e-3, 1000)
    if kind in NOISES:
        return rows_of(rng, theta[:count], NOISES[kind])
    return rows_of(rng, theta[:count], 1e-3, 1000)  # no noise


POPULATIONS = ("one group", "three groups")
#: Standard deviations; the second is as much as passes for usual.
NOISES = {"much noise": 100.0, "three times the noise": 3.0}
KINDS = ("scattered", "one place", "a million away", *NOISES, "no noise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    repeats, now = parser.parse_args().repeats, datetime.datetime.now(datetime.UTC)
    print(f"`python benchmarks/federation/liars.py --repeats {repeats}`, {now:%d %B %Y}; Python")
    print(f"{platform.python_version()}, numpy {version('numpy')}, scipy {version('scipy')}\n")
    print("| population | liars | before | after | factor | noise variance found | local |")
    print("|---|---|---|---|---|---|---|")
    for population in POPULATIONS:
        for kind in KINDS:
            table = []
            for repeat in range(repeats):
                rng = np.random.default_rng([4, repeat])
                theta, count = truth(rng, population), int(SHARE * SITES)
                rows = rows_of(rng, theta)
                honest, own = rows.take(slice(count, None)), reports(rows)
                alone = {k: one for k, one in own.items() if k >= count}
                before, _ = errors(honest, theta[count:], alone)
                made_up = reports(lies(rng, kind, count, theta))
                after, noise = errors(honest, theta[count:], alone | made_up)
                fits = [np.linalg.lstsq(x, y)[0] for x, y in parts(honest)]
                table.append((before, after, after / before, noise, rmse(np.array(fits), theta[count:])))
            found = " | ".join(f"{value:.3g}" for value in np.mean(table, axis=0))
            print(f"| {population} | {kind} | {found} |", flush=True)


def parts(rows: GroupedRows) -> list[tuple[Array, Array]]:
    edges = rows.starts[1:-1]
    return list(zip(np.split(rows.design, edges), np.split(rows.response, edges), strict=True))


if __name__ == "__main__":
    main()
