"""What is lost when rows stay at their sites: held-out losses beside those of pooled rows, and dPQL's.

    python benchmarks/federation/lossless.py --data FOLDER -o benchmarks/federation/lossless.csv
    python benchmarks/federation/lossless.py --render benchmarks/federation/lossless.csv

Sets are those of ``benchmarks/grouped``: hsb82.csv and contraception.csv in ``--data``, and the simulated
ones.  What a file has already is not run again.  Each group is a site.  ``pooled``: ``vaneb run`` on all
rows.  ``one``, ``two``: from sums in one exchange, and for families that are not Gaussian in two.
``dpql_slopes``, ``dpql_intercept``: the algorithm of Luo et al. (2022) in five rounds, with coefficients that
all differ, or the intercept alone.  ``apart``: largest difference between the posterior means of ``pooled``
and ours, in posterior standard deviations.
Bytes: of all messages from one site, headers included.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import platform
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).parents[1] / "grouped"))
import blind_sets
from sets import SETS

from vaneb.estimators import VANEB
from vaneb.flower import wire
from vaneb.flower.client_data import LocalModel
from vaneb.flower.exchange import Answer
from vaneb.flower.lossless import fit_from_sums
from vaneb.flower.settings import FAMILIES, Settings
from vaneb.flower.site_sums import Population, site_sums
from vaneb.grouped import fit_groups
from vaneb.grouped.choice import fit_least_squares
from vaneb.grouped.from_sums import centred_sums
from vaneb.grouped.mixed_model import basis_of
from vaneb.grouped.predictive import expected_response
from vaneb.grouped.result import GroupedFit
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.loss_sums import Columns, LossSums
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family
from vaneb.local.family import family_class
from vaneb.local.fit import fit_clients
from vaneb.posterior import Posterior, posterior

REAL = {"hsb82": ("cses", "gaussian"), "contraception": ("age + urban", "binomial")}
ROUNDS = 5
COLUMNS = ("set", "family", "sites", "coefficients", "pooled", "one", "two", "one_percent", "two_percent")
COLUMNS += (
    "dpql_slopes",
    "dpql_intercept",
    "apart",
    "bytes_one",
    "bytes_two",
    "cpu_seconds",
    "pooled_cpu_seconds",
)


def positions(ids: tuple[str, ...], clients: np.ndarray) -> np.ndarray:
    """Position of each row's client, -1 for those that were not in the fit."""
    place = {name: k for k, name in enumerate(ids)}
    return np.array([place.get(name, -1) for name in clients])


class Sites:
    """Sites behind a line that never fails: each is asked by itself, about its own rows."""

    def __init__(self, rows: GroupedRows, family: Family, settings: Settings) -> None:
        self.models = [
            LocalModel(rows.take(slice(k, k + 1)), family, "", {}, False, np.arange(rows.n_rows[k]))
            for k in range(rows.n_clients)
        ]
        self.settings, self.bytes = settings, 0

    def report(self, k: int):
        found = site_sums(str(k), self.models[k], None)
        self.bytes += wire.size_of(wire.to_record({"report": found.to_wire()})) if k == 0 else 0
        return found

    def ask(self, kind: str, questions: dict):
        assert kind == "expand"
        for k, question in questions.items():
            population = Population.of(question, len(self.models[k].names), 3.0)
            found = site_sums(str(k), self.models[k], None, population)
            content = {"report": found.to_wire()}
            self.bytes += wire.size_of(wire.to_record(content)) if k == 0 else 0
            yield Answer(k, content)


def federated(rows: GroupedRows, settings: Settings) -> tuple[Posterior, int]:
    """Posteriors from sums, and the bytes of a site."""
    line = Sites(rows, family_class(settings.family)(), settings)
    sites = {k: line.report(k) for k in range(rows.n_clients)}
    model = VANEB(seed=settings.seed)
    found = fit_from_sums(line, sites, list(sites), rows.names, settings, model)  # type: ignore[arg-type]
    family = family_class(settings.family)().with_dispersion(found.dispersion)
    return posterior(exact_likelihood(rows, family), model.prior_), line.bytes


def dpql(fit: GroupedFit, *, slopes: bool) -> np.ndarray:
    """Coefficients (K, d) by penalised quasi-likelihood from sites' sums, in five rounds.

    In each round a site sends X'WX, X'Wz and z'Wz of its working response z with weights W at its present
    coefficients; the server fits a linear mixed model to them.  Luo, Islam, Sheils, Buresh, Schuemie, Doshi,
    Werner, Asch, Chen: JAMIA 29 (2022).
    """
    rows, family = fit.rows, family_class(fit.local.family.name)()
    d = rows.design.shape[1]
    theta = np.tile(fit_clients(rows.pooled(), family).theta, (rows.n_clients, 1))
    basis = basis_of(Columns.of(rows.design))[0]
    varying = np.arange(d if slopes else 1)
    for _ in range(ROUNDS):
        mean = family.mean(family.index(theta[rows.client_of_row], rows.design, rows.offset))
        weight = np.maximum(mean * (1 - mean) if family.name == "binomial" else mean, 1e-10)
        sums = LossSums.of(rows, family, theta)
        # Half the weighted sum of squares of z - X theta = (y - mean) / weight.
        square = np.add.reduceat((rows.response - mean) ** 2 / weight, rows.starts[:-1])
        mixed = fit_least_squares(centred_sums(replace(sums, loss=square / 2), basis), varying).model
        mean, spread = basis @ mixed.mean, basis @ mixed.spread @ basis.T / mixed.variance
        # Best linear unbiased predictors, in a form that a singular covariance allows.
        left = sums.slope(mean)
        inner = np.eye(d) + sums.hessian @ spread
        theta = mean - np.linalg.solve(inner, left[:, :, None])[:, :, 0] @ spread
    return theta


def compare(name: str, frame: pd.DataFrame, right: str, family: str) -> dict[str, object]:
    began = time.process_time()
    formula = f"y ~ {right}"
    fit = fit_groups(frame, client="client", formula=formula, family=family, test_column="test")
    pooled_seconds = time.process_time() - began
    assert fit.held_out is not None
    test = fit.design.rows(frame[frame.test == 1], response=True)
    assert test.response is not None
    at, own = positions(fit.rows.ids, test.clients), fit.local.family
    row: dict[str, object] = {"set": name, "family": family, "sites": fit.rows.n_clients}
    row |= {"coefficients": len(fit.names), "pooled": fit.held_out.values["personalised"]}
    for exchanges in (1,) if family == "gaussian" else (1, 2):
        began = time.process_time()
        settings = Settings(formula=formula, family=family, exchanges=exchanges)
        found, sent = federated(fit.rows, settings)
        row["cpu_seconds"] = f"{time.process_time() - began:.1f}"
        word = {1: "one", 2: "two"}[exchanges]
        value = family_class(family).score(
            test.response, expected_response(own, found, at, test.covariates, test.offset)
        )
        row |= {word: value, f"bytes_{word}": sent}
        row[f"{word}_percent"] = f"{100 * (value / fit.held_out.values['personalised'] - 1):+.5f}"
        row["apart"] = f"{np.abs((found.mean - fit.posterior.mean) / fit.posterior.sd).max():.2g}"
    if family in ("binomial", "poisson"):
        for word, slopes in (("slopes", True), ("intercept", False)):
            theta = dpql(fit, slopes=slopes)
            theta = np.vstack([theta, theta.mean(axis=0)])[at]
            index = own.index(theta, test.covariates, test.offset)
            mean = expit(index) if family == "binomial" else np.exp(index)
            row[f"dpql_{word}"] = family_class(family).score(test.response, mean)
    row["pooled_cpu_seconds"] = f"{pooled_seconds:.1f}"
    return {key: f"{value:.6f}" if isinstance(value, float) else value for key, value in row.items()}


def measured(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(line for line in path.open() if not line.startswith("#")))


def render(path: Path) -> str:
    rows = measured(path)
    head = [line[2:].strip() for line in path.open() if line.startswith("#")]
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row[c] for c in COLUMNS) + " |" for row in rows]
    return "\n".join([*head, "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--most", type=int, default=2500, help="skip simulated sets with more groups")
    parser.add_argument("--render", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("lossless.csv"))
    options = parser.parse_args()
    if options.render:
        print(render(options.render))
        return
    cases = []
    for name, (right, family) in REAL.items() if options.data else ():
        cases.append((name, lambda name=name: pd.read_csv(options.data / f"{name}.csv"), right, family))
    simulated = [(one.name, one.make, one.formula.partition("~")[2].strip(), one.family) for one in SETS]
    simulated += [(name, *one) for name, one in blind_sets.SETS.items()]
    for i, (name, make, right, family) in enumerate(simulated):
        cases.append((name, lambda make=make, i=i: make(np.random.default_rng([10, i])), right, family))
    done = {row["set"] for row in measured(options.out)} if options.out.exists() else set()
    with options.out.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not file.tell():
            now = datetime.datetime.now(datetime.UTC)
            file.write(f"# {now:%d %B %Y}; Python {platform.python_version()}, ")
            file.write(", ".join(f"{p} {version(p)}" for p in ("numpy", "scipy", "pandas")) + "\n")
            writer.writeheader()
        for name, make, right, family in cases:
            if (options.only and name not in options.only) or family not in FAMILIES or name in done:
                continue
            frame = make()
            if frame.client.nunique() > options.most:
                continue
            try:
                row = compare(name, frame, right, family)
            except np.linalg.LinAlgError as error:  # of the pooled fit or of ours: said, and the others go on
                print(name, "failed:", error, flush=True)
                continue
            writer.writerow(row)
            file.flush()
            print(*(f"{k}={v}" for k, v in row.items()), flush=True)


if __name__ == "__main__":
    main()
