"""What the odds of "slopes differ" and the prior of standard deviations cost in losses, and give in coverage.

    Rscript benchmarks/grouped/real_sets.R REAL EXTRA
    python benchmarks/grouped/what_differs.py losses REAL       # appends to what_differs_losses.csv
    python benchmarks/grouped/what_differs.py coverage          # appends to what_differs_coverage.csv
    python benchmarks/grouped/what_differs.py tables            # prints both as tables
    python benchmarks/grouped/what_differs.py candidates REAL radon 1   # each one of a split

Odds are those of "nothing differs : the intercept differs : slopes differ" beforehand; 0:0:1 is a model in
which slopes always differ.  ``share`` is the package's prior of a standard deviation s, uniform in
s^2 / (s^2 + b^2); ``flat`` is flat in s near zero, half a Cauchy distribution with the same scale b.  Splits
and seeds are others than those on which the package's rules were set.  All candidates are fitted once; only
what weighs them differs.
"""

from __future__ import annotations

import csv
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import vaneb.grouped.analysis as analysis
import vaneb.grouped.gaussian_posterior as gaussian_posterior
from vaneb.grouped import fit_groups
from vaneb.grouped.population import Structure

HERE = Path(__file__).parent
ODDS = {
    "1:2:60": (1.0, 2.0, 60.0),
    "1:2:10": (1.0, 2.0, 10.0),
    "1:1:1": (1.0, 1.0, 1.0),
    "0:0:1": (1e-9, 1e-9, 1.0),
}
VARIANTS = [*(("share", odds) for odds in ODDS), ("flat", "1:2:60"), ("flat", "0:0:1")]
SETS = ["radon", "cake", "chem97", "bacteria", "exam", "contraception", "cbpp", "medpar", "guprenat", "hsb82"]
SETS += ["gcsemv", "sleepstudy", "orthodont", "penicillin", "machines", "grunfeld"]
SPLITS = range(9, 25)
#: Sets that take long have fewer splits.
FEW = {"chem97": 4, "guprenat": 6, "bacteria": 8, "cbpp": 8, "medpar": 8, "contraception": 8}
FIRST_SEED = 920_000
#: Clients and replicates of Gaussian rows; of binary rows, which take long, half as many.
REPLICATES = {10: 60, 20: 40, 50: 20}


class Flat(gaussian_posterior._Target):
    """Standard deviations flat near zero."""

    def log_prior(self, points: Any) -> Any:
        away = points[:, : self.r] - self.log_reach
        share = math.log(2.0) + 2 * away - 2 * np.logaddexp(0.0, 2 * away)
        flat = math.log(2 / math.pi) + away - np.logaddexp(0.0, 2 * away)
        return super().log_prior(points) + (flat - share).sum(axis=1)


Package = gaussian_posterior._Target


@contextmanager
def weighed_by(density: str, odds: str) -> Iterator[None]:
    before = gaussian_posterior._Target, gaussian_posterior.log_odds.__defaults__
    gaussian_posterior._Target = Flat if density == "flat" else Package
    gaussian_posterior.log_odds.__defaults__ = (np.array(ODDS[odds]),)
    try:
        yield
    finally:
        gaussian_posterior._Target, gaussian_posterior.log_odds.__defaults__ = before


def under_all_variants(fit: Callable[[], Any]) -> Iterator[tuple[str, str, Any]]:
    """The fit under each variant; candidates are those of the first."""
    kept: dict[str, Any] = {}
    find, alone = analysis.find_structure, analysis.fit_local

    def found_once(*values: Any, **options: Any) -> Structure:
        if "structure" not in kept:
            kept["structure"] = find(*values, **options)
        made = kept["structure"]
        again = tuple(gaussian_posterior.weigh_candidate(one.fitted) for one in made.found)
        return replace(made, found=again) if None not in again else made

    def fitted_once(*values: Any) -> Any:
        if "local" not in kept:
            kept["local"] = alone(*values)
        return kept["local"]

    analysis.find_structure, analysis.fit_local = found_once, fitted_once
    try:
        for density, odds in VARIANTS:
            with weighed_by(density, odds):
                yield density, odds, fit()
    finally:
        analysis.find_structure, analysis.fit_local = find, alone


def appended(path: Path, columns: tuple[str, ...], keys: int) -> tuple[Any, set[tuple[str, ...]]]:
    """A function that writes a line, and the first ``keys`` columns of those that are there."""
    done = set()
    if path.is_file():
        with path.open(newline="") as file:
            done = {tuple(row[:keys]) for row in csv.reader(file)}
    else:
        path.write_text(",".join(columns) + "\n")

    def write(*values: Any) -> None:
        with path.open("a", newline="") as file:
            csv.writer(file).writerow(values)

    return write, done


def losses(folder: Path) -> None:
    from run import REAL

    columns = ("set", "split", "density", "odds", "pooled", "loss")
    write, done = appended(HERE / "what_differs_losses.csv", columns, 2)
    for name in SETS:
        right, family = REAL[name]
        frame = pd.read_csv(folder / f"{name}.csv")
        factors = [
            c for c in frame if c not in ("client", "y") and not pd.api.types.is_numeric_dtype(frame[c])
        ]
        for split in SPLITS[: FEW.get(name, 16)]:
            if (name, str(split)) in done:
                continue

            settings: dict[str, Any] = {"client": "client", "formula": f"y ~ {right}", "family": family}
            fit = partial(fit_groups, frame, **settings, test_column=f"test{split}", factors=factors)
            for density, odds, found in under_all_variants(fit):
                values = found.held_out.values
                write(name, split, density, odds, f"{values['pooled']:.7g}", f"{values['personalised']:.7g}")
            print(name, split, flush=True)


def candidates(folder: Path, name: str, split: str) -> None:
    from run import REAL

    right, family = REAL[name]
    frame = pd.read_csv(folder / f"{name}.csv")
    factors = [c for c in frame if c not in ("client", "y") and not pd.api.types.is_numeric_dtype(frame[c])]
    find, made = analysis.find_structure, []

    def only(*values: Any, at: int, **options: Any) -> Structure:
        made[:] = made or [find(*values, **options)]
        return replace(made[0], found=made[0].found[at : at + 1])

    at = 0
    while not made or at < len(made[0].found):
        analysis.find_structure = partial(only, at=at)
        fit = fit_groups(
            frame, client="client", formula=f"y ~ {right}", family=family, test_column=f"test{split}",
            factors=factors, population="gaussian",
        )  # fmt: skip
        one = made[0].found[at]
        model = one.fitted.model
        losses_of = fit.held_out.values
        print(
            f"{model.varying.tolist()} correlated {one.fitted.correlated}: "
            f"log evidence {one.log_evidence:.2f}, "
            f"restricted deviance {model.deviance:.2f}, loss {losses_of['personalised']:.5g}, "
            f"pooled {losses_of['pooled']:.5g}"
        )
        at += 1
    analysis.find_structure = find


def coverage() -> None:
    sys.path.insert(0, str(HERE.parent / "populations"))  # its ``run`` is another one
    import rows_coverage

    columns = ("family", "clients", "slope_sd", "replicate", "density", "odds", "coverage_intercept")
    columns += ("coverage_slope", "length_intercept", "length_slope", "error_slope")
    write, done = appended(HERE / "what_differs_coverage.csv", columns, 4)
    for family in ("gaussian", "binomial"):
        for clients, replicates in REPLICATES.items():
            for slope_sd in (0.4, 0.0):
                cell = rows_coverage.Cell(family, slope_sd, 8, clients)
                for replicate in range(replicates if family == "gaussian" else replicates // 2):
                    if (family, str(clients), str(slope_sd), str(replicate)) in done:
                        continue
                    frame, theta = rows_coverage.grouped(cell, FIRST_SEED + replicate)

                    fit = partial(fit_groups, frame, client="group", formula="y ~ x", family=family)
                    for density, odds, found in under_all_variants(fit):
                        lower, upper = found.posterior.interval(rows_coverage.LEVEL)
                        inside = ((lower <= theta) & (theta <= upper)).mean(axis=0)
                        error = np.sqrt(((found.posterior.mean - theta) ** 2).mean(axis=0))[1]
                        numbers = (*inside, *(upper - lower).mean(axis=0), error)
                        write(
                            family,
                            clients,
                            slope_sd,
                            replicate,
                            density,
                            odds,
                            *(f"{v:.5g}" for v in numbers),
                        )
                print(*cell, flush=True)


def tables() -> None:
    rows = pd.read_csv(HERE / "what_differs_losses.csv")
    names = [f"{density}, {odds}" for density, odds in VARIANTS]
    print(line("set (splits)", *names[1:], "over pooled"), line("---", *["---:"] * len(names)), sep="\n")
    for name in dict.fromkeys(rows["set"]):
        part = rows[rows["set"] == name]
        wide = part.pivot(index="split", columns=["density", "odds"], values="loss").dropna()
        base, pooled = wide["share", "1:2:60"], part.groupby("split").pooled.first()
        cells = [said(100 * (wide[variant] / base - 1)) for variant in VARIANTS[1:]]
        print(line(f"{name} ({len(wide)})", *cells, said(100 * (base / pooled.loc[wide.index] - 1))))
    rows = pd.read_csv(HERE / "what_differs_coverage.csv")
    print()
    print(line("family, clients, sd (replicates)", *names), line("---", *["---:"] * len(names)), sep="\n")
    for (family, clients, slope_sd), part in rows.groupby(["family", "clients", "slope_sd"], sort=False):
        cells = []
        for density, odds in VARIANTS:
            own = part[(part.density == density) & (part.odds == odds)]
            cells.append(
                f"{said(100 * own.coverage_slope, sign='-', digits=1)}; {own.length_slope.mean():.2f}"
            )
        print(line(f"{family}, {clients}, {slope_sd} ({len(own)})", *cells))


def line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def said(values: Any, sign: str = "+", digits: int = 2) -> str:
    error = values.std() / math.sqrt(len(values))
    return f"{values.mean():{sign}.{digits}f} ± {error:.{digits}f}"


def main() -> None:
    warnings.simplefilter("ignore")
    match sys.argv[1:]:
        case ["losses", folder]:
            losses(Path(folder))
        case ["coverage"]:
            coverage()
        case ["candidates", folder, name, split]:
            candidates(Path(folder), name, split)
        case ["tables"]:
            tables()
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
