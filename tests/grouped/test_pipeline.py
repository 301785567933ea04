"""Estimators for scikit-learn: its own checks, pipelines, and what names the groups."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose

sklearn = pytest.importorskip("sklearn", reason="scikit-learn is optional: pip install 'vaneb[sklearn]'")

from sklearn.base import clone  # noqa: E402
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from vaneb.errors import InvalidOption  # noqa: E402
from vaneb.grouped import GroupedClassifier, GroupedRegressor, fit_groups  # noqa: E402
from vaneb.population.options import Options  # noqa: E402

#: Populations are sampled briefly: the checks are of conventions.
BRIEF = Options(draws=10, burn=5, sweeps=10)


SETTINGS: dict[str, Any] = {"population": "gaussian", "options": BRIEF}


@parametrize_with_checks([GroupedRegressor(**SETTINGS)])
def test_regressor_follows_the_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


@parametrize_with_checks([GroupedClassifier(**SETTINGS)])
def test_classifier_follows_the_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


def rows(seed: int = 0, groups: int = 20, n: int = 6) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(groups), n)
    frame = pd.DataFrame({"school": k, "x": 3 + 2 * rng.standard_normal(len(k))})
    intercept = np.random.default_rng(99).standard_normal(groups)
    return frame, intercept[k] + 0.5 * frame.x.to_numpy() + 0.3 * rng.standard_normal(len(k))


def test_it_is_the_grouped_fit() -> None:
    frame, y = rows()
    made = GroupedRegressor(client="school", **SETTINGS).fit(frame, y)
    fit = fit_groups(frame.assign(response=y), client="school", formula="response ~ x", **SETTINGS)
    assert_allclose(made.predict(frame), fit.predict(frame))
    assert made.fit_.names == ("Intercept", "x")
    inside = made.predict_interval(frame, level=0.9)
    assert 0.8 < np.mean((inside.lower <= y) & (y <= inside.upper)) <= 1
    assert made.feature_names_in_.tolist() == ["school", "x"]


@pytest.mark.parametrize("client", ["first", "last"])
def test_arrays_name_the_group_by_its_place(client: str) -> None:
    frame, y = rows()
    x = frame.to_numpy() if client == "first" else frame.to_numpy()[:, ::-1]
    made = GroupedRegressor(client=0 if client == "first" else -1, **SETTINGS).fit(x, y)
    assert_allclose(
        made.predict(x), GroupedRegressor(client="school", **SETTINGS).fit(frame, y).predict(frame)
    )
    new = np.array([[77, 3.0]]) if client == "first" else np.array([[3.0, 77]])
    assert np.isfinite(made.predict(new)).all()


def test_polars_and_text() -> None:
    frame, y = rows()
    frame["school"] = [f"s{k}" for k in frame.school]
    frame["g"] = np.where(np.arange(len(frame)) % 3, "lo", "hi")
    made = GroupedRegressor(client="school", **SETTINGS).fit(pl.from_pandas(frame), y)
    assert made.fit_.names == ("Intercept", "x", "g[T.lo]")
    assert_allclose(made.predict(pl.from_pandas(frame)), made.predict(frame))
    square = GroupedRegressor("school", formula="I(x^2)", **SETTINGS).fit(frame, y)
    assert square.fit_.names == ("Intercept", "I(x ** 2)")


def test_in_a_pipeline_and_a_search() -> None:
    frame, y = rows()
    scale = ColumnTransformer([("x", StandardScaler(), ["x"])], remainder="passthrough")
    scale.set_output(transform="pandas")
    scale.set_params(verbose_feature_names_out=False)
    pipe = make_pipeline(scale, GroupedRegressor(client="school", **SETTINGS))
    alone = make_pipeline(scale, GroupedRegressor(formula="x", **SETTINGS))
    folds = [np.flatnonzero(np.arange(len(y)) % 3 == f) for f in range(3)]
    cv = [(np.setdiff1d(np.arange(len(y)), fold), fold) for fold in folds]
    grouped, plain = (cross_val_score(p, frame, y, cv=cv).mean() for p in (pipe, alone))
    assert grouped > plain + 0.05
    search = GridSearchCV(pipe, {"groupedregressor__formula": ["1", "x"]}, cv=cv).fit(frame, y)
    assert search.best_params_ == {"groupedregressor__formula": "x"}


def test_classes() -> None:
    frame, y = rows(groups=12, n=10)
    labels = np.where(y > np.median(y), "high", "low")
    made = GroupedClassifier(client="school", **SETTINGS).fit(frame, labels)
    assert made.classes_.tolist() == ["high", "low"]
    assert_allclose(made.predict_proba(frame).sum(axis=1), 1)
    assert made.score(frame, labels) > 0.8


def test_options_are_kept_and_slips_are_said() -> None:
    frame, y = rows()
    made = GroupedRegressor(client="school", family="huber", seed=3)
    assert clone(made).get_params() == made.get_params()
    for client, message in (
        ("class", "X has no such column"),
        (7, "name or the position"),
        (0.5, "position"),
    ):
        with pytest.raises(InvalidOption, match=message):
            GroupedRegressor(client=client).fit(frame, y)
    with pytest.raises(InvalidOption, match="right-hand side only"):
        GroupedRegressor(client="school", formula="y ~ x").fit(frame, y)
    with pytest.raises(ValueError, match="NaN, in column x"):
        GroupedRegressor(client="school", **SETTINGS).fit(frame.assign(x=np.nan), y)
    with pytest.raises(ValueError, match="one class"):
        GroupedClassifier(client="school").fit(frame, np.ones(len(y), dtype=int))


def test_scikit_learn_is_not_imported_without_being_asked_for() -> None:
    code = "import sys, vaneb.grouped; assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
