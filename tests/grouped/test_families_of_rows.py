"""Formulas of every kind of response: trials, weights, scatter, survival; and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped import fit_groups, load
from vaneb.grouped.client_reports import code_rows, report_rows
from vaneb.local import families
from vaneb.local.family import family_class
from vaneb.local.fit import fit_clients


def frame(n_clients: int = 30, size: int = 12, seed: int = 0, alpha: float = 0.5) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    g = np.repeat(np.arange(n_clients), size)
    x = rng.normal(size=len(g))
    eta = 1 + 0.5 * rng.normal(size=n_clients)[g] + 0.3 * x
    trials = rng.integers(1, 12, len(g))
    time, censored = rng.exponential(np.exp(-eta)), rng.exponential(1.0, len(g))
    return pd.DataFrame(
        {
            "g": g, "x": x, "trials": trials, "won": rng.binomial(trials, 1 / (1 + np.exp(1 - eta))),
            "count": rng.poisson(np.exp(eta)), "w": rng.integers(1, 4, len(g)),
            "wild": rng.negative_binomial(1 / alpha, 1 / (1 + alpha * np.exp(eta))),
            "y": eta + rng.normal(size=len(g)), "time": np.minimum(time, censored),
            "dead": (time <= censored).astype(int), "arm": rng.choice(["a", "b"], len(g)),
        }
    )  # fmt: skip


def one_row_per_trial(data: pd.DataFrame) -> pd.DataFrame:
    rows = data.loc[data.index.repeat(data.trials)]
    place = rows.groupby(level=0).cumcount()
    return rows.assign(y=(place < rows.won).astype(int)).reset_index(drop=True)


def test_successes_among_trials_shares_with_weights_and_single_trials_are_the_same() -> None:
    data = frame()
    data["share"] = data.won / data.trials
    trials = code_rows(data, client="g", formula="won | trials ~ x", family="binomial")
    shares = code_rows(data, client="g", formula="share ~ x", family="binomial", weights="trials")
    single = code_rows(one_row_per_trial(data), client="g", formula="y ~ x", family="binomial")
    made = report_rows(trials)
    assert made.names == ("Intercept", "x")
    for other in (shares, single):
        again = report_rows(other)
        assert_allclose(again.estimate, made.estimate, atol=1e-8)
        points = made.estimate[:, None]
        assert_allclose(
            again.n[:, None, None] * again.covariance.precision(points)[:, 0],
            made.n[:, None, None] * made.covariance.precision(points)[:, 0],
            rtol=1e-6,
        )


def test_rows_without_trials_or_weight_are_left_out() -> None:
    data = frame()
    data.loc[:3, ["won", "trials"]] = 0
    assert code_rows(data, client="g", formula="won | trials ~ x", family="binomial").dropped == 4
    data["w"] = np.where(data.index < 5, 0, 1)
    weighted = code_rows(data, client="g", formula="y ~ x", weights="w")
    plain = code_rows(data[5:], client="g", formula="y ~ x")
    assert_allclose(weighted.rows.design, plain.rows.design)


def test_weighted_least_squares_are_those_of_statsmodels() -> None:
    sm = pytest.importorskip("statsmodels.api")
    data = frame(n_clients=2, size=60)
    coded = code_rows(data, client="g", formula="y ~ x", weights="w")
    fits = fit_clients(coded.rows, coded.family)
    for k, (_, part) in enumerate(data.groupby("g")):
        theirs = sm.WLS(part.y, sm.add_constant(part.x), weights=part.w).fit()
        assert_allclose(fits.theta[k], theirs.params, atol=1e-8)


def test_weights_of_a_mixed_model_scale_its_noise() -> None:
    data = frame()
    plain = fit_groups(data, client="g", formula="y ~ x", population="gaussian")
    data["four"] = 4.0
    four = fit_groups(data, client="g", formula="y ~ x", weights="four", population="gaussian")
    assert four.local.family.dispersion == pytest.approx(4 * plain.local.family.dispersion, rel=1e-6)
    assert_allclose(four.posterior.mean, plain.posterior.mean, atol=0.02)


def test_scatter_of_counts_is_estimated_and_said() -> None:
    data = frame(n_clients=40)
    fit = fit_groups(data, client="g", formula="wild ~ x", family="negative-binomial")
    assert fit.local.family.parameter == pytest.approx(0.5, rel=0.35)
    assert not any("scatter" in note for note in fit.notes)
    poisson = fit_groups(data, client="g", formula="wild ~ x", family="poisson")
    assert any(
        "scatter more than Poisson's" in note and "negative-binomial" in note for note in poisson.notes
    )


def test_alpha_is_that_of_glmmtmb() -> None:
    """glmmTMB 1.1 on the same rows, y ~ x + (1 | g): its size is 1 / alpha."""
    i = np.arange(240)
    data = pd.DataFrame({"g": i % 24, "x": (i * 7 % 13 - 6) / 6})
    data["y"] = (i * i * 31 + i * 17) % 97 % (3 + i % 24 % 5 * 2) * (1 + (i * 5 % 11 > 8) * 3)
    coded = code_rows(data, client="g", formula="y ~ 1", family="negative-binomial")
    found, _ = coded.family.estimated(coded.rows, fit_clients(coded.rows, coded.family), np.eye(1))
    assert found.parameter == pytest.approx(GLMMTMB_ALPHA, rel=0.01)


GLMMTMB_ALPHA = 0.942777


@pytest.mark.parametrize("seed", range(6))
def test_ordinary_counts_are_not_accused(seed: int) -> None:
    data = frame(n_clients=20, size=8, seed=seed)
    for family, formula in (("poisson", "count ~ x"), ("binomial", "won | trials ~ x")):
        fit = fit_groups(data, client="g", formula=formula, family=family)
        assert fit.local.family.dispersion == 1
        assert not any("scatter" in note for note in fit.notes)


def test_successes_with_too_much_scatter_are_noticed() -> None:
    data, rng = frame(), np.random.default_rng(1)
    data["trials"] = 40
    data["won"] = rng.binomial(40, rng.beta(2, 2, len(data)))
    fit = fit_groups(data, client="g", formula="won | trials ~ x", family="binomial")
    assert any("successes scatter more" in note for note in fit.notes)
    # Var of a beta binomial share: p q (1 + (n - 1) / 5) / n.
    assert fit.local.family.dispersion == pytest.approx(1 + 39 / 5, rel=0.35)
    single = fit_groups(one_row_per_trial(data), client="g", formula="y ~ x", family="binomial")
    assert not any("scatter" in note for note in single.notes)


def test_scatter_of_counts_is_not_taken_for_differences() -> None:
    """The same mean everywhere, variance three times the mean: nobody differs."""
    variances = []
    for seed in range(3, 8):
        rng = np.random.default_rng(seed)
        data = pd.DataFrame({"g": np.repeat(np.arange(60), 6), "x": rng.standard_normal(360)})
        data["y"] = rng.negative_binomial(4.0, 1 / 3, 360)
        fit = fit_groups(data, client="g", formula="y ~ x", family="poisson")
        assert fit.local.family.dispersion == pytest.approx(3, rel=0.25)
        variances.append(np.diagonal(fit.prior.covariance))
    # Taken for differences, the scatter would be a standard deviation of 0.2.
    assert np.sqrt(np.mean(variances, axis=0)).max() < 0.1
    later = fit.predict(data, interval="prediction", level=0.9)
    assert np.mean((later.lower <= data.y) & (data.y <= later.upper)) == pytest.approx(0.92, abs=0.05)


def test_counts_that_scatter_no_more_than_poissons_are_told_so() -> None:
    data = frame(n_clients=40)
    data["even"] = 5 + data.index % 2
    fit = fit_groups(data, client="g", formula="even ~ 1", family="negative-binomial")
    assert any("no more than Poisson's" in note for note in fit.notes)
    alone = family_class("negative-binomial").for_rows(fit.rows)
    assert alone.parameter == pytest.approx(1e-4)


@pytest.mark.parametrize("family", ["cox", "cox-shared"])
def test_survival_from_formula_to_prediction(family: str) -> None:
    data = frame()
    data["test"] = (data.index % 4 == 0).astype(int)
    fit = fit_groups(
        data, client="g", formula="Surv(time, dead) ~ x + arm", family=family, test_column="test"
    )
    names = ("x", "arm[T.b]")
    assert fit.names == (names if family == "cox" else ("Intercept", *names))
    assert fit.held_out.loss == "1 - concordance"
    assert 0 < fit.held_out.values["personalised"] < 0.55
    risk = fit.predict(data.drop(columns=["time", "dead"]))
    assert risk.shape == (len(data),)
    assert (risk > 0).all()
    # A hazard ratio: one step in x multiplies it by about e^0.3.
    twin = data.assign(x=data.x + 1)
    assert np.median(fit.predict(twin) / risk) == pytest.approx(np.exp(0.3), rel=0.3)
    assert fit.reports.estimate.shape == (30, len(fit.names))


def test_events_may_be_coded_as_r_has_them() -> None:
    data = frame(n_clients=3, size=40)
    zero = code_rows(data, client="g", formula="Surv(time, dead) ~ x", family="cox")
    for column in (data.dead + 1, data.dead == 1):
        again = code_rows(data.assign(s=column), client="g", formula="Surv(time, s) ~ x", family="cox")
        assert_allclose(again.rows.response, zero.rows.response)
    entry = code_rows(
        data.assign(start=-1.0), client="g", formula="Surv(start, time, dead) ~ x", family="cox"
    )
    assert_allclose(entry.rows.response, zero.rows.response)
    doubled = code_rows(data, client="g", formula="Surv(I(2 * time), dead) ~ x", family="cox")
    assert_allclose(doubled.rows.response[:, 1], 2 * zero.rows.response[:, 1])


@pytest.mark.parametrize(
    ("formula", "family", "change", "message"),
    [
        ("Surv(time, dead) ~ x", "gaussian", {}, "Surv.* is a response of family cox"),
        ("y ~ x", "cox", {}, r"needs Surv\(time, event\)"),
        ("Surv(time, dead) ~ 1", "cox", {}, "has no intercept"),
        ("Surv(time, dead) ~ x", "cox", {"dead": 3}, r"3 is not 1 \(event\) or 0"),
        ("Surv(time, dead) ~ x", "cox", {"time": -1.0}, "negative"),
        ("Surv(x, time, dead) ~ arm", "cox", {"x": 9.0, "time": 2.0}, "after the time of entry"),
        ("Surv(arm, dead) ~ x", "cox", {}, "text, not numbers"),
        ("won | trials ~ x", "poisson", {}, "is a response of family binomial"),
        ("won | trials ~ x", "binomial", {"won": 99}, "among the row's trials"),
        ("won | trials ~ x", "binomial", {"trials": 2.5}, "number of trials"),
        ("won ~ x", "binomial", {"won": 7}, r"won \| trials"),
        ("count ~ x", "negative-binomial", {"count": -2}, "is not a count"),
        ("y ~ x + time", "cox", {}, "Surv"),
        ("Surv(time, dead) ~ time", "cox", {}, "response time stands on the right"),
    ],
)
def test_responses_that_do_not_fit_their_family(
    formula: str, family: str, change: dict[str, float], message: str
) -> None:
    data = frame(n_clients=2)
    for column, value in change.items():
        data[column] = data[column].astype(float)
        data.loc[3, column] = value
    with pytest.raises((InvalidOption, InvalidReport), match=message):
        fit_groups(data, client="g", formula=formula, family=family)


@pytest.mark.parametrize(("value", "message"), [(-1.0, "-1 is no weight"), (np.inf, "inf is no weight")])
def test_weights_that_are_none(value: float, message: str) -> None:
    data = frame(n_clients=2)
    data["w"] = np.where(data.index == 3, value, 1.0)
    with pytest.raises(InvalidReport, match=message):
        fit_groups(data, client="g", formula="y ~ x", weights="w")
    with pytest.raises(InvalidReport, match="weights names it"):
        fit_groups(data, client="g", formula="y ~ x", weights="wieght")
    with pytest.raises(InvalidReport, match="not numbers"):
        fit_groups(data, client="g", formula="y ~ x", weights="arm")


def test_forms_of_reports_that_do_not_know_weights_are_refused() -> None:
    from vaneb.local.report import report

    coded = code_rows(frame(), client="g", formula="count ~ x", family="poisson", weights="w")
    with pytest.raises(InvalidOption, match="does not take weights"):
        report(coded.rows, families.poisson(), form="empirical")


@pytest.mark.parametrize(
    ("formula", "family", "weights"),
    [
        ("won | trials ~ x", "binomial", None),
        ("share ~ x", "binomial", "trials"),
        ("wild ~ x", "negative-binomial", None),
        ("Surv(time, dead) ~ x + arm", "cox", None),
        ("Surv(time, twice) ~ x", "cox-shared", None),
        ("y ~ x", "gaussian", "w"),
    ],
)
def test_saved_models_of_every_kind_of_response(
    formula: str, family: str, weights: str | None, tmp_path: Path
) -> None:
    data = frame()
    data["share"], data["twice"] = data.won / data.trials, data.dead + 1
    fit = fit_groups(data, client="g", formula=formula, family=family, weights=weights, population="gaussian")
    fit.save(tmp_path / "model.json")
    loaded = load(tmp_path / "model.json")
    assert_allclose(loaded.predict(data), fit.predict(data), rtol=1e-12)
    assert loaded.score(data) == pytest.approx(fit.score(data), rel=1e-12)
    assert 0 < fit.score(data) < 1
    assert loaded.design.coding == fit.design.coding
    assert loaded.design.weights == weights
    if family not in ("cox", "cox-shared"):
        assert_allclose(
            loaded.predict(data, interval="prediction"), fit.predict(data, interval="prediction"), rtol=1e-12
        )
        return
    with pytest.raises(InvalidOption, match="predicts risks, not times"):
        _ = fit.residuals
    with pytest.raises(InvalidOption, match="how responses scatter"):
        fit.predict(data, interval="prediction")


def test_bars_say_what_differs_between_survivals() -> None:
    data = frame()
    fit = fit_groups(data, formula="Surv(time, dead) ~ x + arm + (x | g)", family="cox")
    assert fit.varying == ("x",)
    assert_allclose(fit.prior.covariances[:, 1], 0, atol=1e-12)
    assert np.ptp(fit.posterior.mean[:, 1]) < 0.01
    with pytest.raises(InvalidOption, match="no intercept that could differ"):
        fit_groups(data, formula="Surv(time, dead) ~ x + (1 | g)", family="cox")
    frail = fit_groups(data, formula="Surv(time, dead) ~ x + (1 | g)", family="cox-shared")
    assert frail.varying == ("Intercept",)


def test_clients_that_do_not_differ_have_the_pooled_coefficients_and_their_error() -> None:
    data = frame()
    fit = fit_groups(data, client="g", formula="Surv(time, dead) ~ x", family="cox")
    assert fit.varying == ()
    pooled = fit.local.pooled
    error = pooled.hessian[0, 0, 0] ** -0.5
    assert fit.fixed.estimate[0] == pytest.approx(pooled.theta[0, 0], abs=0.2 * error)
    assert fit.fixed.covariance[0, 0] ** 0.5 == pytest.approx(error, rel=0.15)
