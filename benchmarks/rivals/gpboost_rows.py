"""Held-out loss and processor time of vaneb and GPBoost on the same rows.

    python benchmarks/rivals/gpboost_rows.py draw ROWS [--real FOLDER]     # ten splits of each set
    python benchmarks/rivals/gpboost_rows.py vaneb ROWS >> RESULTS         # where vaneb is installed
    python benchmarks/rivals/gpboost_rows.py forms ROWS >> RESULTS         # the same, bends written down
    python benchmarks/rivals/gpboost_rows.py gpboost ROWS >> RESULTS       # where gpboost is installed
    python benchmarks/rivals/gpboost_rows.py table RESULTS

FOLDER holds hsb82.csv and contraception.csv (from the R package mlmRev); without it only simulated sets
are drawn.  GPBoost runs twice: its linear mixed model, and trees whose number is chosen by 4-fold
cross-validation.  Both get a random intercept and a random slope for the covariates of SLOPES.  vaneb gets
a formula and nothing else: all covariates, once as they are and once with the bends of FORMS written down.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pandas as pd

SPLITS = 10
BINARY = {"contraception"}
SLOPES = {"hsb82": ["cses"], "contraception": ["urban"], "two-groups": ["x"], "curve": ["x"]}

#: What somebody would write who has looked at the data.
FORMS = {
    "contraception": "y ~ age + I(age ** 2) + urban",
    "curve": "y ~ bs(x, df=6) + z + x:z + (1 + x | client)",
}


def two_groups(rng: np.random.Generator) -> pd.DataFrame:
    """140 schools: the slope is near 0 in a third of them, near 4 in the others."""
    client = np.repeat(np.arange(140), rng.integers(8, 24, 140))
    slope = np.where(rng.random(140) < 1 / 3, 0.0, 4.0) + 0.2 * rng.standard_normal(140)
    level = 12 + 0.8 * rng.standard_normal(140)
    x = rng.standard_normal(len(client))
    y = level[client] + slope[client] * x + 2 * rng.standard_normal(len(client))
    return pd.DataFrame({"client": client, "x": x, "y": y})


def curve(rng: np.random.Generator) -> pd.DataFrame:
    """200 groups that share a curve and an interaction of two covariates; levels and slopes are Gaussian."""
    client = np.repeat(np.arange(200), 20)
    own = rng.standard_normal((200, 2)) * [1.0, 0.3]
    x, z = rng.uniform(-2, 2, (2, len(client)))
    y = own[client, 0] + own[client, 1] * x + 2 * np.sin(2 * x) + x * z + rng.standard_normal(len(client))
    return pd.DataFrame({"client": client, "x": x, "z": z, "y": y})


def draw(folder: Path, real: Path | None) -> None:
    """Write SPLITS files of each set: simulated sets are drawn anew, rows of real ones are split anew."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(SPLITS):
        rng = np.random.default_rng(seed)
        sets = {"two-groups": two_groups(rng), "curve": curve(rng)}
        if real is not None:
            sets |= {name: pd.read_csv(real / f"{name}.csv") for name in ("hsb82", "contraception")}
        for name, rows in sets.items():
            rows = rows.assign(test=(rng.random(len(rows)) < 0.5).astype(int))
            rows.to_csv(folder / f"{name}-{seed}.csv", index=False)


def by_vaneb(train: pd.DataFrame, test: pd.DataFrame, name: str, formula: str = "") -> np.ndarray:
    import vaneb

    formula = formula or "y ~ " + " + ".join(covariates(train))
    family = "binomial" if name in BINARY else "gaussian"
    fit = vaneb.grouped.fit_groups(train, client="client", formula=formula, family=family)
    return np.asarray(fit.predict(test))


def by_gpboost(train: pd.DataFrame, test: pd.DataFrame, name: str, trees: bool) -> np.ndarray:
    import gpboost

    slopes, columns = SLOPES[name], covariates(train)
    model = gpboost.GPModel(
        group_data=train.client.to_numpy(),
        group_rand_coef_data=train[slopes].to_numpy(float),
        ind_effect_group_rand_coef=[1] * len(slopes),
        likelihood="bernoulli_logit" if name in BINARY else "gaussian",
    )
    new = {
        "group_data_pred": test.client.to_numpy(),
        "group_rand_coef_data_pred": test[slopes].to_numpy(float),
    }
    seen, unseen = (part[columns].to_numpy(float) for part in (train, test))
    y = train.y.to_numpy(float)
    if not trees:
        one = np.ones((len(seen), 1))
        model.fit(y=y, X=np.hstack([one, seen]))
        ones = np.ones((len(unseen), 1))
        return model.predict(X_pred=np.hstack([ones, unseen]), predict_response=True, **new)["mu"]
    options = {"learning_rate": 0.1, "max_depth": 3, "min_data_in_leaf": 10, "verbose": 0}
    data = gpboost.Dataset(seen, y)
    found = gpboost.cv(
        options, data, gp_model=model, num_boost_round=300, nfold=4, early_stopping_rounds=10, seed=0,
        use_gp_model_for_validation=True,
    )  # fmt: skip
    rounds = len(next(iter(found.values())))
    fit = gpboost.train(options, gpboost.Dataset(seen, y), gp_model=model, num_boost_round=rounds)
    return fit.predict(data=unseen, pred_latent=False, **new)["response_mean"]


def covariates(rows: pd.DataFrame) -> list[str]:
    return [name for name in rows.columns if name not in ("client", "y", "test")]


def loss(y: np.ndarray, mean: np.ndarray, name: str) -> float:
    """Mean squared error, or log-loss of binary responses."""
    if name not in BINARY:
        return float(np.mean((y - mean) ** 2))
    mean = np.clip(mean, 1e-12, 1 - 1e-12)
    return float(-np.mean(y * np.log(mean) + (1 - y) * np.log1p(-mean)))


def measure(
    folder: Path, methods: dict[str, Callable[..., np.ndarray]], only: Collection[str] = tuple(SLOPES)
) -> None:
    for path in sorted(folder.glob("*.csv")):
        name, _, seed = path.stem.rpartition("-")
        if name not in only:
            continue
        rows = pd.read_csv(path)
        train, test = rows[rows.test == 0].drop(columns="test"), rows[rows.test == 1].drop(columns="test")
        for method, predict in methods.items():
            begin = time.process_time()
            mean = predict(train, test, name)
            spent = time.process_time() - begin
            value = loss(test.y.to_numpy(), mean, name)
            sys.stdout.write(f"{name},{seed},{method},{value!r},{spent:.3f}\n")
            sys.stdout.flush()


def table(results: Path) -> None:
    """Means over splits; in brackets what a method loses to vaneb, with its paired standard error."""
    rows = pd.read_csv(results, names=["set", "seed", "method", "loss", "seconds"])
    losses = rows.pivot(index=["set", "seed"], columns="method", values="loss")
    seconds = rows.groupby(["set", "method"]).seconds.median()
    others = [name for name in losses.columns if name != "vaneb"]
    sys.stdout.write(f"| set | vaneb | {' | '.join(others)} | CPU s: vaneb | {' | '.join(others)} |\n")
    sys.stdout.write("|---" + "|---:" * (2 + 2 * len(others)) + "|\n")
    for name, part in losses.groupby(level="set"):
        cells = [f"{part.vaneb.mean():.5g}"]
        for other in others:
            if part[other].isna().all():
                cells.append("")
                continue
            over = (part[other] / part.vaneb - 1) * 100
            error = over.std(ddof=1) / np.sqrt(len(over))
            cells.append(f"{part[other].mean():.5g} ({over.mean():+.2f} ± {error:.2f}%)")
        cells += [
            f"{seconds[name, method]:.2g}" if (name, method) in seconds else ""
            for method in ("vaneb", *others)
        ]
        sys.stdout.write(f"| {name} | {' | '.join(cells)} |\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("draw", "vaneb", "forms", "gpboost", "table"))
    parser.add_argument("where", type=Path)
    parser.add_argument("--real", type=Path)
    asked = parser.parse_args()
    if asked.what == "draw":
        draw(asked.where, asked.real)
    elif asked.what == "vaneb":
        measure(asked.where, {"vaneb": by_vaneb})
    elif asked.what == "forms":
        written = lambda train, test, name: by_vaneb(train, test, name, FORMS[name])  # noqa: E731
        measure(asked.where, {"vaneb with bends": written}, FORMS)
    elif asked.what == "gpboost":
        kinds = {"GPBoost linear": False, "GPBoost trees": True}
        measure(
            asked.where,
            {label: lambda *data, trees=trees: by_gpboost(*data, trees) for label, trees in kinds.items()},
        )
    else:
        table(asked.where)


if __name__ == "__main__":
    main()
