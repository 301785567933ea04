"""Batch fits against other solvers, and every outcome that a fit can end in."""

import numpy as np
import pytest
from scipy import optimize

from vaneb.errors import InvalidOption
from vaneb.local import families
from vaneb.local.data import GroupedRows
from vaneb.local.fit import common_dispersion, fit_clients
from vaneb.study.scenarios import CLASS_PROJECTIONS, simulate


def response(name, eta, rng):
    mean = np.exp(eta)
    return {
        "gaussian": lambda: eta + rng.normal(size=len(eta)),
        "binomial": lambda: (rng.uniform(size=len(eta)) < 1 / (1 + np.exp(-eta))).astype(float),
        "poisson": lambda: rng.poisson(mean).astype(float),
        "gamma": lambda: rng.gamma(2.0, mean / 2) + 1e-9,
        "negative_binomial": lambda: rng.negative_binomial(2, 1 / (1 + 0.5 * mean)).astype(float),
        "huber": lambda: eta + rng.standard_t(1.5, size=len(eta)),
    }[name]()


def make(name, n_clients=25, size=40, seed=0, with_offset=False):
    rng = np.random.default_rng(seed)
    n = rng.integers(size // 2, 2 * size, n_clients)
    client = np.repeat(np.arange(n_clients), n)
    z = np.column_stack([np.ones(n.sum()), rng.normal(size=(n.sum(), 2))])
    offset = rng.normal(size=len(z)) if with_offset else np.zeros(len(z))
    theta = rng.normal(size=(n_clients, 3)) * 0.6
    eta = np.sum(z * theta[client], axis=1) + offset
    return GroupedRows.from_columns(client, z, response(name, eta, rng), offset=offset)


FAMILIES = {
    "gaussian": families.gaussian(),
    "binomial": families.binomial(),
    "poisson": families.poisson(),
    "gamma": families.gamma(),
    "negative_binomial": families.negative_binomial(0.5),
    "huber": families.huber(1.2),
}


def loss_of(rows, family, k, theta):
    part = rows.take(slice(k, k + 1))
    index = family.index(theta, part.design, part.offset)
    return family.derivatives(index, part.response)[0].sum()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("with_offset", [False, True])
def test_estimates_are_those_of_a_general_purpose_minimiser(name, with_offset):
    rows, family = make(name, 4, with_offset=with_offset, seed=3), FAMILIES[name]
    fits = fit_clients(rows, family)
    assert fits.exists.all()
    for k in range(rows.n_clients):
        best = optimize.minimize(lambda t, k=k: loss_of(rows, family, k, t), np.zeros(3), tol=1e-10)
        np.testing.assert_allclose(fits.theta[k], best.x, atol=2e-5)
        assert fits.loss[k] <= best.fun + 1e-9
        assert fits.loss[k] == pytest.approx(loss_of(rows, family, k, fits.theta[k]))


@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "gamma", "negative_binomial"])
def test_estimates_and_information_are_those_of_statsmodels(name):
    sm = pytest.importorskip("statsmodels.api")
    known = {
        "gaussian": sm.families.Gaussian(),
        "binomial": sm.families.Binomial(),
        "poisson": sm.families.Poisson(),
        "gamma": sm.families.Gamma(sm.families.links.Log()),
        "negative_binomial": sm.families.NegativeBinomial(alpha=0.5),
    }[name]
    rows = make(name, with_offset=name != "gaussian")
    fits = fit_clients(rows, FAMILIES[name])
    for k in range(rows.n_clients):
        part = rows.take(slice(k, k + 1))
        model = sm.GLM(part.response, part.design, family=known, offset=part.offset)
        theirs = model.fit(tol=1e-13, maxiter=200)
        np.testing.assert_allclose(fits.theta[k], theirs.params, atol=1e-6)
        observed = -model.hessian(theirs.params, scale=1.0)
        np.testing.assert_allclose(fits.hessian[k], observed, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("general", [True, False])
def test_softmax_estimates_minimise_their_loss(general):
    rows = simulate("logistic", 5, 60, np.random.default_rng(2)).rows
    family = families.multinomial(3, 3) if general else families.shared_softmax(CLASS_PROJECTIONS)
    fits = fit_clients(rows, family)
    assert fits.exists.all()
    for k in range(5):
        start = np.zeros(fits.theta.shape[1])
        best = optimize.minimize(lambda t, k=k: loss_of(rows, family, k, t), start, tol=1e-10)
        np.testing.assert_allclose(fits.theta[k], best.x, atol=1e-4)
        assert fits.loss[k] <= best.fun + 1e-9


def test_binomial_is_the_two_class_multinomial():
    rows = make("binomial", 10)
    one, two = fit_clients(rows, families.binomial()), fit_clients(rows, families.multinomial(2, 3))
    np.testing.assert_allclose(one.theta, two.theta, atol=1e-8)
    np.testing.assert_allclose(one.hessian, two.hessian, atol=1e-7)


def test_batching_changes_nothing_and_duplicated_rows_double_the_information():
    rows = make("poisson")
    fits = fit_clients(rows, families.poisson())
    alone = fit_clients(rows.take(np.array([7, 3])), families.poisson())
    np.testing.assert_array_equal(alone.theta, fits.theta[[7, 3]])
    twice = GroupedRows.from_columns(
        np.tile(rows.client_of_row, 2), np.tile(rows.design, (2, 1)), np.tile(rows.response, 2)
    )
    doubled = fit_clients(twice, families.poisson())
    np.testing.assert_allclose(doubled.theta, fits.theta, atol=1e-9)
    np.testing.assert_allclose(doubled.hessian, 2 * fits.hessian, rtol=1e-8)


def test_estimates_follow_a_change_of_units():
    rows = make("binomial")
    units = np.array([1.0, 1e4, 1e-5])
    scaled = GroupedRows.from_columns(rows.client_of_row, rows.design * units, rows.response)
    a, b = (fit_clients(r, families.binomial()) for r in (rows, scaled))
    np.testing.assert_array_equal(a.outcome, b.outcome)
    np.testing.assert_allclose(b.theta * units, a.theta, atol=1e-8)


def test_large_means_converge_from_the_start():
    rng = np.random.default_rng(5)
    z = np.column_stack([np.ones(60), rng.normal(size=60)])
    y = rng.poisson(np.exp(11 + 2 * z[:, 1])).astype(float)
    fits = fit_clients(GroupedRows.from_columns(np.zeros(60), z, y), families.poisson())
    assert fits.outcome[0] == "converged"
    np.testing.assert_allclose(fits.theta[0], [11, 2], atol=0.01)


def separable(z, y):
    """Whether some direction has all margins >= 0 and one > 0: a linear programme."""
    signed = z * (2 * y - 1)[:, None]
    best = optimize.linprog(
        -signed.sum(0), A_ub=-signed, b_ub=np.zeros(len(y)), bounds=[(-1, 1)] * z.shape[1]
    )
    return -best.fun > 1e-9


def test_separation_is_named_exactly_where_a_linear_programme_finds_it():
    rng = np.random.default_rng(8)
    n_clients, size = 150, 8
    z = np.column_stack([np.ones(n_clients * size), rng.integers(-2, 3, size=(n_clients * size, 2))])
    y = (rng.uniform(size=len(z)) < 1 / (1 + np.exp(-z[:, 1]))).astype(float)
    rows = GroupedRows.from_columns(np.repeat(np.arange(n_clients), size), z, y)
    fits = fit_clients(rows, families.binomial())
    parts = [rows.take(slice(k, k + 1)) for k in range(n_clients)]
    full = np.array([np.linalg.matrix_rank(part.design) == 3 for part in parts])
    np.testing.assert_array_equal(fits.outcome == "rank-deficient", ~full)
    expected = np.array([separable(part.design, part.response) for part in parts])
    named = np.isin(fits.outcome, ["separated", "constant-response"])
    np.testing.assert_array_equal(named[full], expected[full])
    assert 20 < named.sum() < 130
    constant = np.array([np.ptp(part.response) == 0 for part in parts])
    np.testing.assert_array_equal((fits.outcome == "constant-response")[full], constant[full])


def test_separated_counts_and_classes():
    z = np.column_stack([np.ones(6), [0, 0, 0, 1, 1, 1]])
    y = np.array([2.0, 1.0, 3.0, 0.0, 0.0, 0.0])
    rows = GroupedRows.from_columns(np.zeros(6), z, y)
    for family in (families.poisson(), families.negative_binomial(0.5)):
        fits = fit_clients(rows, family)
        assert fits.outcome[0] == "separated"
        assert np.isfinite(fits.theta).all()
    classes = GroupedRows.from_columns(np.zeros(6), z, [0, 1, 2, 1, 1, 1.0])
    assert fit_clients(classes, families.multinomial(3, 2)).outcome[0] == "separated"


def test_a_constant_response_with_a_minimum_is_converged():
    z = np.array([[1.0], [-1.0], [2.0]])
    rows = GroupedRows.from_columns(np.zeros(3), z, np.zeros(3))
    fits = fit_clients(rows, families.poisson())
    assert fits.outcome[0] == "converged"
    rate = np.exp(z @ fits.theta[0])
    assert rate @ z == pytest.approx(0, abs=1e-9)


def test_information_form_of_deficient_least_squares_is_exact():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(42, 3))
    y = rng.normal(size=42)
    rows = GroupedRows.from_columns(np.repeat([0, 1, 2], [1, 2, 39]), z, y)
    fits = fit_clients(rows, families.gaussian())
    assert list(fits.outcome) == ["rank-deficient", "rank-deficient", "converged"]
    estimate = fits.information_form()
    for k in range(3):
        part = rows.take(slice(k, k + 1))
        np.testing.assert_allclose(fits.hessian[k], part.design.T @ part.design, atol=1e-12)
        np.testing.assert_allclose(fits.hessian[k] @ estimate[k], part.design.T @ part.response, atol=1e-9)


def test_the_penalty_is_worth_the_rows_it_says_and_vanishes_with_them():
    rows = make("binomial", 30, size=6, seed=4)
    some = fit_clients(rows, families.binomial())
    lost = ~some.exists
    assert lost.any()
    assert some.exists.any()
    stiff = fit_clients(rows, families.binomial(), ridge_rows=1e7)
    pooled = fit_clients(rows.pooled(), families.binomial())
    np.testing.assert_allclose(stiff.theta[lost], np.tile(pooled.theta, (lost.sum(), 1)), atol=1e-4)
    np.testing.assert_array_equal(stiff.theta[~lost], some.theta[~lost])
    information = pooled.hessian[0] / len(rows.response)
    pull = (some.theta - pooled.theta) @ information
    np.testing.assert_allclose(some.gradient[lost], -pull[lost], atol=1e-6)


def test_dispersion_is_pooled_within_clients():
    rng = np.random.default_rng(7)
    client = np.repeat(np.arange(300), 6)
    z = np.column_stack([np.ones(1800), rng.normal(size=1800)])
    mean = 5 + 10 * rng.normal(size=300)[client]
    rows = GroupedRows.from_columns(client, z, mean + 1.5 * rng.normal(size=1800))
    fits = fit_clients(rows, families.gaussian())
    assert common_dispersion(rows, families.gaussian(), fits) == pytest.approx(2.25, rel=0.1)
    positive = GroupedRows.from_columns(client, z, rng.gamma(4.0, np.exp(mean / 10) / 4.0))
    fits = fit_clients(positive, families.gamma())
    assert common_dispersion(positive, families.gamma(), fits) == pytest.approx(0.25, rel=0.12)
    single = GroupedRows.from_columns(np.arange(1800), z, rows.response)
    alone = common_dispersion(single, families.gaussian(), fit_clients(single, families.gaussian()))
    assert alone == pytest.approx(np.var(rows.response), rel=0.05)


def test_options_out_of_range_are_refused():
    with pytest.raises(InvalidOption, match="ridge_rows"):
        fit_clients(make("binomial", 2), families.binomial(), ridge_rows=0)
