"""Held-out loss of ``vaneb run`` beside R's lme4 and glmmTMB, and GPBoost, on grouped data.

    Rscript benchmarks/grouped/real_sets.R REAL [EXTRA]
    python benchmarks/grouped/run.py --real REAL --gpboost PYTHON -o benchmarks/grouped/results.csv
    python benchmarks/grouped/run.py --simulated --replicates 3 -o simulated.csv

``--real``: what real_sets.R wrote, three splits of each set.  ``--given FOLDER``: hsb82.csv and
contraception.csv with a column ``test``.  ``--simulated``: ``sets.py`` and ``blind_sets.py``.  The rivals get
random slopes for all covariates, and then a random intercept only.  Needs Rscript with lme4 and glmmTMB;
PYTHON is an interpreter with gpboost, without which there is no such rival.
``--cache FOLDER`` keeps the rivals' answers and uses them again; ``--rivals-only`` does nothing else.  Rows
that the output has already are kept.  Seconds are of processor time, of a second fit in the same process.
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
GIVEN = {"hsb82": ("cses", "gaussian"), "contraception": ("age + urban", "binomial")}
REAL = GIVEN | {
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
    "arabidopsis": ("nutrient + amd + status", "poisson"),
    "radon": ("basement + uranium", "gaussian"),
    "medpar": ("white + hmo + type", "poisson"),
    "azpro": ("procedure + sex + admit + age75", "poisson"),
    "rwm": ("age + outwork + female", "poisson"),
    "movielens": ("1", "gaussian"),
}
RIVALS = ("slopes", "intercept", "gpboost_slopes", "gpboost_intercept")
COLUMNS = ("set", "split", *RIVALS, "local", "pooled", "personalised", "over_best_percent")
COLUMNS += (
    "over_intercept_percent",
    "over_pooled_percent",
    "seconds",
    *(f"{name}_seconds" for name in RIVALS),
)


class Case(NamedTuple):
    name: str
    split: str
    path: Path
    test: str
    """Column that marks rows to be predicted."""
    right: str
    """Right-hand side of the formula."""
    family: str


class Rival(NamedTuple):
    loss: float
    seconds: float


def rivals(case: Case, options: argparse.Namespace) -> dict[str, Rival]:
    """Each with random slopes for all covariates, and with a random intercept."""
    data = [str(case.path), case.test]
    formulas = [f"(1 + {case.right} | client)", "(1 | client)"]
    lines = answer(
        case,
        options.cache,
        "",
        ["Rscript", str(HERE / "rivals.R"), *data, f"y ~ {case.right}", case.family, *formulas],
    )
    if options.gpboost is not None:
        command = [options.gpboost, str(HERE / "gpboost_rival.py"), *data, case.right, case.family]
        lines += answer(case, options.cache, "-gpboost", command)
    return {name: Rival(*map(float, line.split(",")[:2])) for name, line in zip(RIVALS, lines, strict=False)}


def answer(case: Case, cache: Path | None, kind: str, command: list[str]) -> list[str]:
    """Lines that a rival writes, or wrote before; GPBoost writes its warnings there, too."""
    kept = None if cache is None else cache / f"{case.name}-{case.split}{kind}.txt"
    if kept is not None and kept.is_file():
        text = kept.read_text()
    else:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        if kept is not None:
            kept.write_text(text)
    return [line for line in text.splitlines() if line and not line.startswith("[")]


def compare(case: Case, options: argparse.Namespace) -> dict[str, object]:
    theirs = rivals(case, options)
    frame = pd.read_csv(case.path)
    factors = [c for c in frame if c not in ("client", "y") and not pd.api.types.is_numeric_dtype(frame[c])]
    for _ in range(2):
        begin = time.process_time()
        fit = fit_groups(
            frame, client="client", formula=f"y ~ {case.right}", family=case.family, test_column=case.test,
            factors=factors,
        )  # fmt: skip
        seconds = time.process_time() - begin
    assert fit.held_out is not None
    ours = fit.held_out.values
    against = {
        "best": np.nanmin([rival.loss for rival in theirs.values()]),
        "intercept": theirs["intercept"].loss,
        "pooled": ours["pooled"],
    }
    row: dict[str, object] = {"set": case.name, "split": case.split, "seconds": f"{seconds:.3f}"}
    row |= {method: f"{value:.6g}" for method, value in ours.items()}
    for name, rival in theirs.items():
        row |= {name: f"{rival.loss:.6g}", f"{name}_seconds": f"{rival.seconds:.3f}"}
    return row | {
        f"over_{name}_percent": f"{100 * (ours['personalised'] / loss - 1):+.3f}"
        for name, loss in against.items()
    }


def cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    def wanted(name: str) -> bool:
        return not options.only or name in options.only

    for name, model in GIVEN.items() if options.given else ():
        if wanted(name):
            yield Case(name, "given", options.given / f"{name}.csv", "test", *model)
    for name, model in REAL.items() if options.real else ():
        path = options.real / f"{name}.csv"
        for split in options.splits if wanted(name) and path.is_file() else ():
            yield Case(name, split, path, f"test{split}", *model)
    simulated = [(one.name, one.make, one.formula.partition("~")[2].strip(), one.family) for one in SETS]
    for group in (simulated, [(name, *one) for name, one in blind_sets.SETS.items()]):
        for i, (name, make, right, family) in enumerate(group if options.simulated else ()):
            for seed in range(FIRST_SEED, FIRST_SEED + options.replicates) if wanted(name) else ():
                path = folder / f"{name}.csv"
                make(np.random.default_rng([seed, i])).to_csv(path, index=False)
                yield Case(name, f"seed {seed}", path, "test", right, family)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--given", type=Path)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--replicates", type=int, default=1)
    parser.add_argument("--splits", nargs="+", default=["1", "2", "3"])
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--gpboost", metavar="PYTHON")
    parser.add_argument("--rivals-only", action="store_true")
    parser.add_argument("-o", "--out", type=Path, default=HERE / "results.csv")
    options = parser.parse_args()
    if options.cache is not None:
        options.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        found = cases(options, Path(folder))
        if options.rivals_only:
            for case in found:
                print(case.name, case.split, *rivals(case, options).values(), flush=True)
            return
        done = set()
        if options.out.is_file():
            with options.out.open(newline="") as file:
                done = {(row["set"], row["split"]) for row in csv.DictReader(file)}
        with options.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if not done:
                writer.writeheader()
            for case in found:
                if (case.name, case.split) not in done:
                    row = compare(case, options)
                    writer.writerow(row)
                    file.flush()
                    print(*(row.get(column, "") for column in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
