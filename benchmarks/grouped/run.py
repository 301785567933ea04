"""Held-out loss of ``vaneb run`` beside R's lme4 on grouped data.

    python benchmarks/grouped/run.py --replicates 3 -o benchmarks/grouped/results.csv [--data FOLDER]
    python benchmarks/grouped/run.py --blind -o benchmarks/grouped/blind.csv [--real FOLDER] [--only NAME ...]

The first runs ``sets.py`` and, from ``--data``, hsb82.csv and contraception.csv (columns client, y,
covariates, test); ``--blind`` runs ``blind_sets.py`` instead, and ``--real`` what real_sets.R wrote.
lme4 gets random slopes for all covariates, and then a random intercept only.  Needs Rscript with lme4.
``--cache FOLDER`` keeps lme4's answers and uses them again; ``--lme4-only`` does nothing else.
Seconds: ours of processor time (a busy machine does not matter), lme4's elapsed.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import blind_sets
import numpy as np
import pandas as pd
from sets import SETS

from vaneb.grouped import fit_groups

HERE = Path(__file__).parent
#: Replicates are counted from here: the rule that chooses the population was set on 0 and 1.
FIRST_SEED = 10
REAL = {"hsb82": ("cses", "gaussian"), "contraception": ("age + urban", "binomial")}
PACKAGES = {
    "sleepstudy": ("Days", "gaussian"),
    "machines": ("Machine", "gaussian"),
    "verbagg": ("Anger + Gender + btype + situ", "binomial"),
    "insteval-s": ("service + studage", "gaussian"),
    "insteval-d": ("service", "gaussian"),
    "cbpp": ("period", "binomial"),
    "grouseticks": ("cH", "poisson"),
    "orthodont": ("age", "gaussian"),
    "penicillin": ("1", "gaussian"),
    "cake": ("temp", "gaussian"),
    "chem97": ("g + gender", "gaussian"),
    "exam": ("standLRT + sex", "gaussian"),
    "guimmun-mom": ("kid2p", "binomial"),
    "guimmun-comm": ("kid2p + mom25p", "binomial"),
    "guprenat": ("childAge + indig", "binomial"),
    "scotssec": ("verbal + sex", "gaussian"),
    "egsingle": ("year", "gaussian"),
    "bacteria": ("trt + week", "binomial"),
    "epil": ("lb + trt + V4", "poisson"),
    "ohio": ("age + smoke", "binomial"),
    "respiratory": ("treat + visit + baseline", "binomial"),
    "dietox": ("Time", "gaussian"),
    "males": ("exper + un + school", "gaussian"),
    "gcsemv": ("gender + course", "gaussian"),
    "chickweight": ("Time", "gaussian"),
    "star": ("gr", "gaussian"),
    "socatt": ("year", "gaussian"),
    "bodyweight": ("Time", "gaussian"),
    "grunfeld": ("value + capital", "gaussian"),
    "cigar": ("lp + ln", "gaussian"),
}
COLUMNS = ("set", "seed", "slopes", "intercept", "local", "pooled", "personalised", "over_slopes_percent")
COLUMNS += ("over_intercept_percent", "atoms", "seconds", "lme4_seconds")


class Case(NamedTuple):
    name: str
    seed: int
    path: Path
    right: str
    """Right-hand side of the formula."""
    family: str


def lme4(case: Case, cache: Path | None) -> tuple[float, float, float]:
    """Held-out loss with random slopes, and with a random intercept; seconds of the first fit."""
    random = [f"(1 + {case.right} | client)", "(1 | client)"]
    command = ["Rscript", str(HERE / "lme4.R"), str(case.path), f"y ~ {case.right}", case.family, *random]
    kept = None if cache is None else cache / f"{case.name}-{case.seed}.txt"
    if kept is not None and kept.is_file():
        answer = kept.read_text()
    else:
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if kept is not None:
            kept.write_text(answer)
    slopes, intercept = (line.split(",") for line in answer.strip().splitlines())
    return float(slopes[0]), float(intercept[0]), float(slopes[1])


def compare(case: Case, likelihood: str, cache: Path | None) -> dict[str, object]:
    slopes, intercept, their_seconds = lme4(case, cache)
    begin = time.process_time()
    fit = fit_groups(
        pd.read_csv(case.path),
        client="client",
        formula=f"y ~ {case.right}",
        family=case.family,
        test_column="test",
        likelihood=likelihood,
    )
    seconds = time.process_time() - begin
    assert fit.held_out is not None
    ours = fit.held_out.values
    row: dict[str, object] = {"set": case.name, "seed": case.seed, "slopes": f"{slopes:.6g}"}
    row |= {"intercept": f"{intercept:.6g}"} | {method: f"{value:.6g}" for method, value in ours.items()}
    row |= {
        f"over_{name}_percent": f"{100 * (ours['personalised'] / theirs - 1):+.3f}"
        for name, theirs in (("slopes", slopes), ("intercept", intercept))
    }
    return row | {
        "atoms": len(fit.prior.weights),
        "seconds": f"{seconds:.1f}",
        "lme4_seconds": f"{their_seconds:.1f}",
    }


def cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    for given, known in ((options.data, REAL), (options.real, PACKAGES)):
        for name, (right, family) in known.items() if given is not None else ():
            if not options.only or name in options.only:
                yield Case(name, 0, given / f"{name}.csv", right, family)
    simulated = (
        [(name, *one) for name, one in blind_sets.SETS.items()]
        if options.blind
        else [(one.name, one.make, one.formula.partition("~")[2].strip(), one.family) for one in SETS]
    )
    for i, (name, make, right, family) in enumerate(simulated):
        if options.only and name not in options.only:
            continue
        for seed in range(FIRST_SEED, FIRST_SEED + options.replicates):
            path = folder / f"{name}.csv"
            make(np.random.default_rng([seed, i])).to_csv(path, index=False)
            yield Case(name, seed, path, right, family)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--replicates", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--likelihood", default="exact", choices=("exact", "gaussian"))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--lme4-only", action="store_true")
    parser.add_argument("-o", "--out", type=Path, default=HERE / "results.csv")
    options = parser.parse_args()
    if options.cache is not None:
        options.cache.mkdir(parents=True, exist_ok=True)
    if options.lme4_only:
        with tempfile.TemporaryDirectory() as folder:
            for case in cases(options, Path(folder)):
                print(case.name, case.seed, *lme4(case, options.cache), flush=True)
        return
    with options.out.open("w", newline="") as file, tempfile.TemporaryDirectory() as folder:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for case in cases(options, Path(folder)):
            row = compare(case, options.likelihood, options.cache)
            writer.writerow(row)
            file.flush()
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
