"""python gpboost_rival.py DATA.csv TEST RIGHT FAMILY, where GPBoost is installed: two lines "loss,seconds".

The mixed model with random slopes for all covariates, and with a random intercept, of rows whose column TEST
is 0, scored on rows where it is 1 as in rivals.R.  Random effects are independent: GPBoost has no others.
"""

from __future__ import annotations

import sys
import time

import gpboost
import numpy as np
import pandas as pd

LIKELIHOODS = {"gaussian": "gaussian", "binomial": "bernoulli_logit", "poisson": "poisson"}


def loss(y: np.ndarray, mean: np.ndarray, family: str) -> float:
    """Mean squared error, log-loss or deviance."""
    if family == "gaussian":
        return float(np.mean((y - mean) ** 2))
    with np.errstate(all="ignore"):
        if family == "binomial":
            return float(-np.mean(np.where(y == 1, np.log(mean), np.log1p(-mean))))
        return float(np.mean(2 * (np.where(y > 0, y * np.log(np.maximum(y, 1) / mean), 0) - (y - mean))))


def measured(rows: pd.DataFrame, test: np.ndarray, x: np.ndarray, family: str, slopes: bool) -> str:
    seen, later = ~test, test
    begin = time.process_time()
    random = x[:, 1:] if slopes and x.shape[1] > 1 else None
    more = {} if random is None else {"ind_effect_group_rand_coef": [1] * random.shape[1]}
    client = rows.client.astype(str).to_numpy()
    model = gpboost.GPModel(
        group_data=client[seen], likelihood=LIKELIHOODS[family],
        group_rand_coef_data=None if random is None else random[seen], **more,
    )  # fmt: skip
    model.fit(y=rows.y.to_numpy(float)[seen], X=x[seen])
    mean = model.predict(
        X_pred=x[later], group_data_pred=client[later], predict_response=True,
        group_rand_coef_data_pred=None if random is None else random[later],
    )["mu"]  # fmt: skip
    seconds = time.process_time() - begin
    return f"{loss(rows.y.to_numpy(float)[later], mean, family):.10g},{seconds:.3f}"


def main() -> None:
    path, test, right, family = sys.argv[1:]
    rows = pd.read_csv(path)
    names = [] if right == "1" else right.split(" + ")
    rows = rows.dropna(subset=["client", "y", *names])
    columns = (
        pd.get_dummies(rows[names], drop_first=True).to_numpy(float) if names else np.empty((len(rows), 0))
    )
    x = np.column_stack([np.ones(len(rows)), columns])
    for slopes in (True, False):
        try:
            line = measured(rows, rows[test].to_numpy() == 1, x, family, slopes)
        except Exception as error:  # of another program: a line in the table, not the end of the run
            line = f"nan,0,{type(error).__name__}: {error}".replace("\n", " ")
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
