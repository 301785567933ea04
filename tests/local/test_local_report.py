"""Sandwich precisions and the reports made of local fits."""

import numpy as np
import pytest

from vaneb.errors import InvalidOption
from vaneb.local import families
from vaneb.local.data import GroupedRows
from vaneb.local.fit import fit_clients
from vaneb.local.m_estimator import MEstimator
from vaneb.local.report import report
from vaneb.local.sandwich import sandwich_precision
from vaneb.study.scenarios import CLASS_PROJECTIONS, simulate


def linear_rows(n_clients=20, size=40, seed=0, noise=None):
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(n_clients), size)
    z = np.column_stack([np.ones(len(client)), rng.normal(size=len(client))])
    theta = rng.normal(size=(n_clients, 2))
    draw = rng.normal(size=len(client)) if noise is None else noise(rng, z)
    return GroupedRows.from_columns(client, z, np.sum(z * theta[client], axis=1) + draw), theta


FORMS = {
    "gaussian": families.gaussian(),
    "binomial": families.binomial(),
    "poisson": families.poisson(),
    "gamma": families.gamma(),
    "negative_binomial": families.negative_binomial(0.5),
    "shared_softmax": families.shared_softmax(CLASS_PROJECTIONS),
    "multinomial": families.multinomial(3, 3),
}


def rows_for(name):
    if name in ("shared_softmax", "multinomial"):
        return simulate("logistic", 4, 60, np.random.default_rng(2)).rows
    rows = simulate("poisson", 4, 60, np.random.default_rng(2)).rows
    rng = np.random.default_rng(0)
    y = {"binomial": rng.integers(0, 2, len(rows.response)), "gamma": rng.gamma(2.0, 0.5, len(rows.response))}
    return GroupedRows.from_columns(rows.client_of_row, rows.design, y.get(name, rows.response))


@pytest.mark.parametrize("name", FORMS)
def test_the_empirical_function_at_the_estimate_is_the_constant_information(name):
    rows, family = rows_for(name), FORMS[name]
    fits = fit_clients(rows, family)
    constant, empirical = (report(rows, family, fits, form=form) for form in ("constant", "empirical"))
    points = fits.theta[:, None, :]
    at_estimate = empirical.covariance.precision(points)[:, 0]
    # With a link that is not canonical, observed and expected information agree only on average.
    tolerance = (
        {"rtol": 0.3, "atol": 0.1}
        if name in ("gamma", "negative_binomial")
        else {"rtol": 1e-8, "atol": 1e-10}
    )
    scale = np.abs(at_estimate).max()
    np.testing.assert_allclose(
        constant.covariance.precision(points)[:, 0] / scale, at_estimate / scale, **tolerance
    )
    np.testing.assert_array_equal(constant.n, rows.n_rows)
    assert set(constant.status) == {"ok"}
    assert constant.names == family.parameter_names(rows.names)


@pytest.mark.parametrize("name", ["poisson", "binomial", "shared_softmax", "multinomial", "gaussian"])
def test_moments_are_close_to_the_rows_they_summarise(name):
    scenario = "logistic" if "softmax" in name or name == "multinomial" else "poisson"
    rows = simulate(scenario, 3, 3000, np.random.default_rng(1)).rows
    if name == "binomial":
        y = np.minimum(rows.response, 1)
        rows = GroupedRows.from_columns(rows.client_of_row, rows.design, y)
    family = FORMS[name]
    fits = fit_clients(rows, family)
    empirical, moments = (
        report(rows, family, fits, form=form).covariance for form in ("empirical", "moments")
    )
    points = fits.theta[:, None, :]
    a, b = empirical.precision(points), moments.precision(points)
    np.testing.assert_allclose(a / np.abs(a).max(), b / np.abs(a).max(), atol=0.06)


def test_sandwich_of_heteroskedastic_least_squares_covers_the_truth():
    """Noise that grows with the covariate: the model's standard errors are too small, the sandwich's not."""
    rows, theta = linear_rows(800, 200, noise=lambda rng, z: rng.normal(size=len(z)) * np.abs(z[:, 1]))
    fits = fit_clients(rows, families.gaussian())
    ratio = {}
    for kind in ("model", "sandwich"):
        got = report(rows, families.gaussian(), fits, kind=kind)
        precision = got.covariance.precision(theta[:1][None])[:, 0] * got.n[:, None, None]
        variance = np.linalg.inv(precision)[:, 1, 1]
        ratio[kind] = np.mean((got.estimate - theta)[:, 1] ** 2) / variance.mean()
    assert ratio["model"] > 2.5
    assert ratio["sandwich"] == pytest.approx(1.0, abs=0.15)


def test_sandwich_collapses_when_the_model_is_right():
    rows = simulate("poisson", 40, 4000, np.random.default_rng(5)).rows
    fits = fit_clients(rows, families.poisson())
    model = fits.hessian / fits.n[:, None, None]
    ratio = np.linalg.solve(model, sandwich_precision(rows, families.poisson(), fits))
    assert np.trace(ratio, axis1=1, axis2=2).mean() / 3 == pytest.approx(1, abs=0.02)


def test_sandwich_is_whites_estimate_when_nothing_is_pooled():
    rows, _ = linear_rows(3, 50)
    fits = fit_clients(rows, families.gaussian())
    precision = sandwich_precision(rows, families.gaussian(), fits, prior_rows=0.0)
    for k in range(3):
        part = rows.take(slice(k, k + 1))
        z, residual = part.design, part.response - part.design @ fits.theta[k]
        bread = np.linalg.inv(z.T @ z)
        white = bread @ (z.T * residual**2) @ z @ bread * (50 / 48)
        np.testing.assert_allclose(np.linalg.inv(precision[k] * 50), white, rtol=1e-8)
    tiny, _ = linear_rows(2, 2)
    tiny_fits = fit_clients(tiny, families.gaussian())
    with pytest.raises(InvalidOption, match="prior_rows"):
        sandwich_precision(tiny, families.gaussian(), tiny_fits, prior_rows=0.0)


def test_empirical_sandwich_agrees_with_the_constant_one_at_the_estimate():
    rows = simulate("poisson", 5, 3000, np.random.default_rng(6)).rows
    fits = fit_clients(rows, families.poisson())
    points = fits.theta[:, None, :]
    constant, empirical = (
        report(rows, families.poisson(), fits, kind="sandwich", form=form).covariance.precision(points)
        for form in ("constant", "empirical")
    )
    np.testing.assert_allclose(constant, empirical, atol=0.01 * np.abs(empirical).max())


@pytest.mark.parametrize("as_function", [False, True])
def test_huber_reports_have_the_right_spread(as_function):
    rows, theta = linear_rows(800, 60, noise=lambda rng, z: rng.standard_t(3, size=len(z)))
    if as_function:
        pytest.importorskip("torch")

        def loss(z, y, t):
            size = ((z * t).sum(-1) - y).abs()
            inner = size.clamp(max=1.345)
            return inner * (size - inner / 2)

        rows, theta = rows.take(slice(0, 200)), theta[:200]
        model = MEstimator(loss, 2, derivatives="torch")
    else:
        model = families.huber(1.345)
    got = report(rows, model)
    assert set(got.status) == {"ok"}
    precision = got.covariance.precision(theta[:1][None])[:, 0] * got.n[:, None, None]
    squared = np.einsum("ki,kij,kj->k", got.estimate - theta, precision, got.estimate - theta)
    assert squared.mean() == pytest.approx(2, rel=0.25 if as_function else 0.15)


def test_clients_without_an_estimate_are_flagged_and_say_no_more_than_their_rows():
    rng = np.random.default_rng(1)
    z = np.column_stack([np.ones(43), rng.normal(size=43)])
    y = (rng.uniform(size=43) < 0.5).astype(float)
    y[40:42] = 1.0
    rows = GroupedRows.from_columns(np.repeat(["big", "all ones", "one row"], [40, 2, 1]), z, y)
    got = report(rows, families.binomial())
    assert list(got.status) == ["ok", "constant-response", "rank-deficient"]
    assert np.isfinite(got.estimate).all()
    eigenvalues = np.linalg.eigvalsh(got.covariance.precision(np.zeros((1, 1, 2)))[:, 0])
    assert eigenvalues[2, 0] == pytest.approx(0, abs=1e-12)
    assert eigenvalues[2, 1] > 0
    penalised = report(rows, families.binomial(), unidentified="penalised")
    np.testing.assert_array_equal(got.estimate[0], penalised.estimate[0])
    assert np.abs(got.estimate[1] - penalised.estimate[1]).max() > 0.1


def test_forms_that_do_not_exist_are_refused():
    rows, _ = linear_rows(3, 20)
    cases = (
        (families.huber(1.0), {"kind": "model"}, "Fisher"),
        (families.gaussian(), {"kind": "robust"}, "kind"),
        (families.gaussian(), {"form": "spline"}, "form"),
        (families.gaussian(), {"kind": "sandwich", "form": "moments"}, "sandwich"),
        (families.gaussian(), {"unidentified": "drop"}, "unidentified"),
    )
    for family, options, word in cases:
        with pytest.raises(InvalidOption, match=word):
            report(rows, family, **options)
    exact = GroupedRows.from_columns(rows.client_of_row, rows.design, rows.design @ np.ones(2))
    assert report(exact, families.gaussian(), dispersion=1.0).status[0] == "ok"
    shifted = GroupedRows.from_columns(
        rows.client_of_row, rows.design, np.abs(np.round(rows.response)), offset=np.ones(len(rows.response))
    )
    with pytest.raises(InvalidOption, match="offset"):
        report(shifted, families.poisson(), form="empirical")
