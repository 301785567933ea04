"""Heart disease at four hospitals: personalised models beside local and pooled ones, and FLamby's.

    python benchmarks/hospitals/run.py --data heart.csv -o benchmarks/hospitals/results.csv [--splits 20]
    python benchmarks/hospitals/render.py

``heart.csv``: UCI heart disease, split as in FLamby's Fed-Heart-Disease (columns hospital, ten covariates, y,
test).  Numbers are scaled within hospitals, by their training rows, which every hospital can do by itself;
chest pain and the electrocardiogram are factors.  Split 0 is the given one; the others draw as many training
rows from each hospital at random, the same share of both classes.  Losses: mean over hospitals of the
accuracy, and log-loss of all test rows.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).parents[1] / "federation"))
from lossless import federated, positions

from vaneb.flower.settings import Settings
from vaneb.grouped import fit_groups
from vaneb.grouped.design import learn_design
from vaneb.grouped.formula import parse
from vaneb.grouped.predictive import expected_response
from vaneb.likelihood.base import Array
from vaneb.local.data import GroupedRows
from vaneb.local.families import binomial
from vaneb.local.family.binomial import Binomial

NUMBERS = ("age", "trestbps", "chol", "thalach", "oldpeak")
FORMULA = "y ~ age + sex + C(cp) + trestbps + chol + fbs + C(restecg) + thalach + exang + oldpeak"
#: Ridge penalties of the local and pooled models; scikit-learn's default is 1.
PENALTIES = (0.0, 1.0, 10.0)
COLUMNS = (
    "split",
    "method",
    "accuracy",
    "log_loss",
    "cleveland",
    "hungarian",
    "switzerland",
    "va",
    "cpu_seconds",
)


def scaled(frame: pd.DataFrame) -> pd.DataFrame:
    out = frame.copy()
    for _, rows in frame.groupby("hospital"):
        train = rows[rows.test == 0]
        for column in NUMBERS:
            scale = train[column].std(ddof=0)
            out.loc[rows.index, column] = (rows[column] - train[column].mean()) / (
                scale if scale > 0 else 1.0
            )
    return out


def split(frame: pd.DataFrame, number: int) -> pd.DataFrame:
    """The given split, or another with as many training rows of each class at each hospital."""
    if number == 0:
        return frame
    rng, out = np.random.default_rng([21, number]), frame.copy()
    for _, rows in frame.groupby("hospital"):
        share = (rows.test == 0).mean()
        test = pd.Series(1, index=rows.index)
        for _, own in rows.groupby("y"):
            test[rng.permutation(own.index)[: round(share * len(own))]] = 0
        out.loc[rows.index, "test"] = test
    return out


def ridge(design: Array, y: Array, penalty: float, free: Array) -> Array:
    """Logistic regression with a ridge on all coefficients but the ``free`` ones, by Newton's method."""
    weight = np.where(free, 1e-6, max(penalty, 1e-6))
    theta = np.zeros(design.shape[1])
    for _ in range(100):
        p = expit(design @ theta)
        gradient = design.T @ (p - y) + weight * theta
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.diag(weight)
        step = np.linalg.solve(hessian, gradient)
        theta = theta - step * min(1.0, 5 / np.abs(step).max())
        if np.abs(step).max() < 1e-8:
            break
    return theta


def scores(test: pd.DataFrame, probability: Array) -> dict[str, object]:
    right = (probability > 0.5) == (test.y.to_numpy() == 1)
    by = {str(h): float(right[(test.hospital == h).to_numpy()].mean()) for h in sorted(set(test.hospital))}
    loss = Binomial.score(test.y.to_numpy(float), probability)
    named = dict(zip(("cleveland", "hungarian", "switzerland", "va"), by.values(), strict=True))
    return {"accuracy": np.mean(list(by.values())), "log_loss": loss, **named}


def methods(frame: pd.DataFrame, *, from_rows: bool) -> dict[str, Callable[[], Array]]:
    """Probabilities of the test rows, by method."""
    train, test = frame[frame.test == 0], frame[frame.test == 1]
    formula = parse(FORMULA, train, ["hospital", "test"])
    design = learn_design(train, formula, "binomial", client="hospital", offset=None)
    mine, theirs = design.rows(train, response=True, new=False), design.rows(test, response=True)
    assert mine.response is not None
    x, y, z = mine.covariates, mine.response, theirs.covariates
    rows = GroupedRows.from_columns(mine.clients, x, y, names=design.names)
    free = np.array([name == "Intercept" for name in design.names])
    hospitals = sorted(set(train.hospital))

    def plain(penalty: float, how: str) -> Array:
        if how == "pooled":
            return expit(z @ ridge(x, y, penalty, free))
        at = [np.array([part.hospital == h for h in hospitals], float).T for part in (train, test)]
        if how == "intercepts":
            wide, new = np.hstack([x[:, ~free], at[0]]), np.hstack([z[:, ~free], at[1]])
            return expit(new @ ridge(wide, y, penalty, np.arange(wide.shape[1]) >= (~free).sum()))
        out = np.zeros(len(test))
        for own, other in zip(at[0].T == 1, at[1].T == 1, strict=True):
            out[other] = expit(z[other] @ ridge(x[own], y[own], penalty, free))
        return out

    def from_sums(exchanges: int) -> Array:
        found, _ = federated(rows, Settings(formula=FORMULA, family="binomial", exchanges=exchanges))
        return expected_response(binomial(), found, positions(rows.ids, theirs.clients), z, theirs.offset)

    def ours() -> Array:
        fit = fit_groups(frame, client="hospital", formula=FORMULA, family="binomial", test_column="test")
        return fit.predict(test)

    plan: dict[str, Callable[[], Array]] = {"ours from rows": ours} if from_rows else {}
    plan |= {
        "ours in one exchange": lambda: from_sums(1),
        "ours in two exchanges": lambda: from_sums(2),
    }
    for how, word in (("local", "local"), ("pooled", "pooled"), ("intercepts", "pooled with intercepts")):
        for penalty in PENALTIES:
            plan[f"{word}, penalty {penalty:g}"] = lambda how=how, penalty=penalty: plain(penalty, how)
    return plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--from-rows", type=int, default=20, help="re-splits with a fit of rows")
    parser.add_argument("-o", "--out", type=Path, default=Path("results.csv"))
    options = parser.parse_args()
    given = pd.read_csv(options.data)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for number in range(options.splits + 1):
            frame = scaled(split(given, number))
            test = frame[frame.test == 1]
            for method, predict in methods(frame, from_rows=number <= options.from_rows).items():
                began = time.process_time()
                row = {"split": number, "method": method, **scores(test, predict())}
                row["cpu_seconds"] = time.process_time() - began
                writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
                file.flush()
                print(*(f"{v:.4f}" if isinstance(v, float) else v for v in row.values()), flush=True)


if __name__ == "__main__":
    main()
