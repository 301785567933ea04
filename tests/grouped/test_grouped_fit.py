"""Grouped fits: limiting cases, invariances, held-out losses, predictions, and the choice of population."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped import fit_groups
from vaneb.grouped.mixture import halves_of_rows, predicts_better
from vaneb.grouped.population import find_structure
from vaneb.local.data import GroupedRows
from vaneb.local.family import family_class


def simulated(seed: int = 0, clients: int = 40, rows: int = 6, family: str = "gaussian") -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(clients), rows)
    theta = rng.multivariate_normal([1, 0.5], [[1, 0.2], [0.2, 0.3]], clients)
    x = rng.standard_normal(len(k))
    index = theta[k, 0] + theta[k, 1] * x
    draw = {
        "gaussian": lambda: index + rng.standard_normal(len(k)),
        "huber": lambda: index + rng.standard_t(2, len(k)),
        "binomial": lambda: (rng.random(len(k)) < expit(index)).astype(int),
        "poisson": lambda: rng.poisson(np.exp(index / 2)),
        "gamma": lambda: rng.gamma(4, np.exp(index / 2) / 4),
        "multinomial": lambda: np.where(rng.random(len(k)) < 0.3, "c", np.where(index > 1, "b", "a")),
    }[family]
    test = (np.arange(len(k)) % 3 == 0).astype(int)
    return pd.DataFrame({"site": k, "x": x, "y": draw(), "test": test})


@pytest.mark.parametrize("family", ["gaussian", "binomial", "poisson", "gamma", "huber", "multinomial"])
@pytest.mark.parametrize("likelihood", ["exact", "gaussian"])
def test_every_family_personalises_better_than_local(family: str, likelihood: str) -> None:
    frame = simulated(1, family=family)
    fit = fit_groups(
        frame, client="site", formula="y ~ x", family=family, test_column="test", likelihood=likelihood
    )
    assert fit.held_out is not None
    values = fit.held_out.values
    assert np.isfinite(values["personalised"])
    assert values["personalised"] < values["local"]
    names = ["Intercept", "x"]
    if family == "multinomial":
        names = ["b:Intercept", "b:x", "c:Intercept", "c:x"]
    assert list(fit.names) == names
    blocks = ("theta", "sd", "lower", "upper", "own", "own_se")
    columns = [f"{block}_{name}" for block in blocks for name in names]
    assert list(fit.coefficients.columns) == [
        *columns, "shrinkage", "log_marginal", "flag", "n", "outcome",
    ]  # fmt: skip
    assert fit.coefficients.n.sum() == (frame.test == 0).sum()
    assert (fit.likelihood == "gaussian") == (likelihood == "gaussian" or family == "huber")


def test_least_squares_reports_say_all_that_rows_say() -> None:
    frame = simulated(2)
    exact, reports = (
        fit_groups(frame, client="site", formula="y ~ x", likelihood=kind, population="discrete")
        for kind in ("exact", "gaussian")
    )
    assert_allclose(exact.posterior.mean, reports.posterior.mean, atol=1e-6)


def test_order_of_rows_does_not_matter() -> None:
    frame = simulated(3, clients=20, family="binomial")
    shuffled = frame.sample(frac=1, random_state=1)
    options = {"client": "site", "formula": "y ~ center(x)", "family": "binomial", "test_column": "test"}
    first, second = fit_groups(frame, **options), fit_groups(shuffled, **options)
    pd.testing.assert_frame_equal(first.coefficients, second.coefficients, check_exact=True)
    assert first.held_out is not None
    assert second.held_out is not None
    assert_allclose(list(first.held_out.values.values()), list(second.held_out.values.values()))


def test_large_clients_keep_their_own_estimates() -> None:
    frame = simulated(4, clients=12, rows=3000)
    fit = fit_groups(frame, client="site", formula="y ~ x")
    assert_allclose(fit.posterior.mean, fit.local.fits.theta, atol=0.02)


def test_equal_clients_are_pooled() -> None:
    frame = simulated(5, clients=60, rows=5)
    rng = np.random.default_rng(5)
    frame["y"] = 1 + 2 * frame.x + rng.standard_normal(len(frame))
    fit = fit_groups(frame, client="site", formula="y ~ x")
    assert_allclose(fit.posterior.mean, np.tile(fit.local.pooled.theta, (60, 1)), atol=0.25)


def test_held_out_losses_are_those_of_the_predictions() -> None:
    frame = simulated(6, family="poisson")
    fit = fit_groups(frame, client="site", formula="y ~ x", family="poisson", test_column="test")
    test = frame[frame.test == 1]
    assert fit.held_out is not None
    assert fit.held_out.rows == len(test)
    for use, value in fit.held_out.values.items():
        mean = fit.predict(test, use=use)
        y = test.y.to_numpy(dtype=float)
        deviance = 2 * np.where(y > 0, y * np.log(np.maximum(y, 1) / mean), 0) - 2 * (y - mean)
        assert value == pytest.approx(deviance.mean())
    assert fit.held_out.best == min(fit.held_out.values, key=fit.held_out.values.get)


def test_missing_rows_are_counted_and_change_nothing_else() -> None:
    frame = simulated(7)
    holes = frame.copy()
    holes.loc[[3, 50], "x"] = np.nan
    holes.loc[60, "site"] = np.nan
    kept = frame.drop([3, 50, 60])
    first = fit_groups(holes, client="site", formula="y ~ x")
    second = fit_groups(kept, client="site", formula="y ~ x")
    assert first.dropped == 3
    assert second.dropped == 0
    pd.testing.assert_frame_equal(first.coefficients, second.coefficients, check_exact=True)


def test_clients_that_were_not_in_the_fit_get_the_populations_mean() -> None:
    frame = simulated(8)
    frame.loc[frame.site == 0, "test"] = 1
    fit = fit_groups(frame, client="site", formula="y ~ x", test_column="test")
    assert fit.held_out is not None
    assert fit.held_out.new_clients == 1
    assert "0" not in fit.rows.ids
    new = pd.DataFrame({"site": ["nobody", 5, 5], "x": [2.0, 2.0, np.nan]})
    predicted = fit.predict(new)
    assert predicted[0] == pytest.approx(fit.prior.mean @ [1, 2])
    assert predicted[1] == pytest.approx(fit.posterior.mean[fit.rows.ids.index("5")] @ [1, 2])
    assert np.isnan(predicted[2])


def test_an_offset_is_a_known_part_of_the_index() -> None:
    frame = simulated(9, family="poisson")
    frame["exposure"] = np.log(2.0)
    plain = fit_groups(frame, client="site", formula="y ~ x", family="poisson", population="discrete")
    shifted = fit_groups(
        frame, client="site", formula="y ~ x", family="poisson", offset="exposure", population="discrete"
    )
    assert_allclose(
        plain.local.fits.theta - shifted.local.fits.theta, np.tile([np.log(2), 0], (40, 1)), atol=1e-5
    )
    assert_allclose(plain.predict(frame), shifted.predict(frame), rtol=1e-2)


def test_multinomial_probabilities_sum_to_one_and_new_frames_may_be_polars() -> None:
    polars = pytest.importorskip("polars")
    frame = simulated(10, family="multinomial")
    fit = fit_groups(polars.from_pandas(frame), client="site", formula="y ~ x", family="multinomial")
    mean = fit.predict(polars.from_pandas(frame))
    assert mean.shape == (len(frame), 3)
    assert_allclose(mean.sum(axis=1), 1)


FLOORED = pytest.mark.xfail(
    strict=True, reason="curvature is floored in coordinates that are nearly collinear"
)


@pytest.mark.parametrize(
    "family",
    ["gaussian", pytest.param("binomial", marks=FLOORED), pytest.param("poisson", marks=FLOORED)],
)
def test_units_and_zero_of_a_covariate_change_no_prediction(family: str) -> None:
    frame = simulated(15, family=family)
    moved = frame.assign(x=1e6 + 1e3 * frame.x)
    options = {"client": "site", "formula": "y ~ x", "family": family, "test_column": "test"}
    first, second = fit_groups(frame, **options), fit_groups(moved, **options)
    assert_allclose(second.predict(moved), first.predict(frame), rtol=2e-3, atol=2e-3)
    slopes = (fit.coefficients.theta_x.to_numpy() for fit in (first, second))
    assert_allclose(next(slopes), 1e3 * next(slopes), atol=0.02)


def test_predictions_of_binary_rows_are_averaged_over_the_posterior() -> None:
    frame = simulated(16, family="binomial")
    fit = fit_groups(frame, client="site", formula="y ~ x", family="binomial")
    at_mean = expit(
        (fit.posterior.mean[frame.site] * np.column_stack([np.ones(len(frame)), frame.x])).sum(axis=1)
    )
    averaged = fit.predict(frame)
    # An average of probabilities is nearer to one half than the probability at the average.
    assert (np.abs(averaged - 0.5) <= np.abs(at_mean - 0.5) + 0.02).mean() > 0.95
    stranger = pd.DataFrame({"site": ["nobody"], "x": [1.0]})
    theta = fit.prior.sample(20_000, np.random.default_rng(0))
    assert fit.predict(stranger)[0] == pytest.approx(expit(theta @ [1, 1]).mean(), abs=0.01)


def test_a_row_far_out_does_not_end_in_an_error() -> None:
    frame = simulated(17, family="poisson")
    frame.loc[7, "x"] = 5e3
    fit = fit_groups(frame, client="site", formula="y ~ x", family="poisson")
    assert np.isfinite(fit.posterior.mean).all()


def test_fewer_clients_than_variances_and_covariances() -> None:
    frame = simulated(20, clients=20)
    frame["f"] = np.random.default_rng(20).choice(list("pqr"), len(frame))
    fit = fit_groups(frame, client="site", formula="y ~ x * f", test_column="test")
    assert fit.held_out is not None
    assert fit.held_out.best == "personalised"


@pytest.mark.parametrize("family", ["gaussian", "binomial"])
def test_tiny_data(family: str) -> None:
    frame = pd.DataFrame({"g": list("aabbc"), "y": [0, 1, 1, 0, 1], "x": [0.1, 0.2, 0.5, 0.4, 0.3]})
    fit = fit_groups(frame, client="g", formula="y ~ 1", family=family)
    assert np.isfinite(fit.posterior.mean).all()
    assert fit.coefficients.index.tolist() == ["a", "b", "c"]
    one = fit_groups(frame[frame.g == "a"].assign(y=[0, 1]), client="g", formula="y ~ 1", family=family)
    assert np.isfinite(one.posterior.mean).all()


def test_one_row_per_client_is_pooled_and_said() -> None:
    frame = simulated(11, clients=80, rows=1).assign(test=0)
    fit = fit_groups(frame, client="site", formula="y ~ 1")
    assert any("too few rows" in note for note in fit.notes)
    # Rows alone cannot tell noise from population; that the population may have some width is counted in.
    assert_allclose(fit.posterior.mean, fit.local.pooled.theta[0, 0], atol=0.35)
    assert fit.posterior.shrinkage.min() > 0.8


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"client": "sit"}, InvalidReport, "column sit: missing; client names it.*Did you mean 'site'"),
        ({"test_column": "y"}, InvalidReport, "neither 0"),
        ({"family": "cauchy"}, InvalidOption, "family: choose one of"),
        ({"likelihood": "laplace"}, InvalidOption, "likelihood: choose one of"),
        ({"population": "normal"}, InvalidOption, "population"),
        ({"level": 1.5}, InvalidOption, "level"),
        ({"formula": "y ~ 0"}, InvalidReport, "right-hand side is empty"),
    ],
)
def test_mistakes(options: dict, error: type[Exception], message: str) -> None:
    given = {"client": "site", "formula": "y ~ x", **options}
    with pytest.raises(error, match=message):
        fit_groups(simulated(12), **given)


def test_all_rows_for_testing() -> None:
    with pytest.raises(InvalidReport, match="every row as a test row"):
        fit_groups(simulated(12).assign(test=1), client="site", formula="y ~ x", test_column="test")


@pytest.mark.parametrize(
    ("family", "y", "mean", "expected"),
    [
        ("gaussian", [1.0, 2.0], [0.0, 4.0], 2.5),
        ("binomial", [1.0, 0.0], [0.8, 0.8], -(np.log(0.8) + np.log(0.2)) / 2),
        ("multinomial", [2.0, 0.0], [[0.1, 0.2, 0.7], [0.5, 0.3, 0.2]], -(np.log(0.7) + np.log(0.5)) / 2),
        ("poisson", [0.0, 2.0], [1.0, 2.0], 1.0),
        ("gamma", [2.0], [1.0], 2 * (1 - np.log(2))),
    ],
)
def test_losses(family: str, y: list, mean: list, expected: float) -> None:
    assert family_class(family).score(np.array(y), np.array(mean)) == pytest.approx(expected)


def test_halves_share_each_clients_rows() -> None:
    rows = GroupedRows.from_columns(np.repeat([0, 1, 2], [2, 3, 5]), np.ones((10, 1)), np.arange(10.0))
    first, second = halves_of_rows(rows, 0)
    assert_array_equal(first.n_rows, [1, 2, 3])
    assert_array_equal(second.n_rows, [1, 1, 2])
    assert_array_equal(np.sort(np.concatenate([first.response, second.response])), np.arange(10.0))


def test_halves_are_taken_at_random_whatever_the_order_of_rows() -> None:
    """Rows stand in the order of their responses; halves must not be more alike than chance has it."""
    rng = np.random.default_rng(1)
    y = np.sort(rng.standard_normal((2000, 6)), axis=1)
    rows = GroupedRows.from_columns(np.repeat(np.arange(2000), 6), np.ones((12000, 1)), y.ravel())
    first, second = halves_of_rows(rows, 1)
    means = [half.response.reshape(2000, 3).mean(axis=1) for half in (first, second)]
    assert abs(np.corrcoef(*means)[0, 1]) < 0.1


def clusters(apart: float, clients: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(14)
    k = np.repeat(np.arange(clients), 6)
    centre = np.where(rng.random(clients) < 0.5, -apart, apart) + rng.standard_normal(clients)
    return pd.DataFrame({"k": k, "y": centre[k] + 3 * rng.standard_normal(len(k))})


def test_halves_of_a_client_do_not_depend_on_the_others() -> None:
    rng = np.random.default_rng(2)
    rows = GroupedRows.from_columns(np.repeat(np.arange(5), 9), rng.random((45, 2)), rng.random(45))
    for whole, alone in zip(halves_of_rows(rows, 7), halves_of_rows(rows.take(slice(3, 4)), 7), strict=True):
        assert_array_equal(whole.take(slice(3, 4)).response, alone.response)


@pytest.mark.parametrize("apart", [0.0, 3.0])
def test_rows_know_whether_the_population_has_two_clusters(apart: float) -> None:
    fit = fit_groups(clusters(apart), client="k", formula="y ~ 1")
    structure = find_structure(fit.rows, fit.local, np.array([True]), asked=True)
    assert predicts_better(fit.rows, structure, 0) == (apart > 0)
    assert fit.prior.kind == ("mixture" if apart else "gaussian")
    if apart:
        assert fit.prior.group_counts()[0] >= 2


def test_few_clients_cannot_tell_and_what_is_asked_for_is_not_compared() -> None:
    few = fit_groups(clusters(3.0, 19), client="k", formula="y ~ 1")
    structure = find_structure(few.rows, few.local, np.array([True]), asked=True)
    assert not predicts_better(few.rows, structure, 0)
    assert few.prior.kind == "gaussian"
    for kind in ("mixture", "gaussian", "discrete"):
        asked = fit_groups(clusters(3.0, 30), client="k", formula="y ~ 1", population=kind)
        assert asked.prior.kind == kind
        assert (asked.model.certificate_ is None) == (kind != "discrete")
        assert (asked.model.sampling_ is None) == (kind == "discrete")


@pytest.mark.parametrize(
    ("file", "formula", "family", "lme4"),
    [
        ("hsb82.csv", "y ~ cses", "gaussian", 38.444),
        ("contraception.csv", "y ~ age + urban", "binomial", 0.6375),
    ],
)
def test_no_worse_than_a_mixed_model_on_real_data(file: str, formula: str, family: str, lme4: float) -> None:
    folder = os.environ.get("VANEB_DATA")
    path = Path(folder or "") / "groups" / file
    if not folder or not path.is_file():
        pytest.skip(f"set VANEB_DATA to a folder with groups/{file} (columns client, y, covariates, test)")
    fit = fit_groups(pd.read_csv(path), client="client", formula=formula, family=family, test_column="test")
    assert fit.held_out is not None
    values = fit.held_out.values
    assert values["personalised"] <= lme4
    assert values["personalised"] < min(values["local"], values["pooled"])


def test_counts_of_which_half_say_little_do_not_end_in_an_error() -> None:
    """In this draw rounds of Gaussian factors for half of the rows went further and further out."""
    rng = np.random.default_rng(2026)
    theta = np.array([0.7, 0.3]) + np.array([0.8, 0.4]) * rng.standard_normal((50, 2))
    group = np.repeat(np.arange(50), 8)
    x = rng.standard_normal(400)
    y = rng.poisson(np.exp(theta[group, 0] + theta[group, 1] * x))
    rows = pd.DataFrame({"group": [f"g{g:05d}" for g in group], "x": x, "y": y.astype(float)})
    after = fit_groups(rows, client="group", formula="y ~ x", family="poisson").posterior
    assert np.sqrt(np.mean((after.mean - theta) ** 2)) < 0.4
