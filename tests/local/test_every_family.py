"""What every family promises, whichever it is: this runs over ``vaneb.local.family.FAMILIES``.

A new family needs an entry in ``MADE`` (a member of it), ``DENSITIES`` (its log-likelihood, written once
more, by other means) and ``WRONG`` (a response that it must refuse).
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, optimize, stats

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local import families
from vaneb.local.data import GroupedRows
from vaneb.local.family import FAMILIES, family_class
from vaneb.local.fit import fit_clients, fit_pooled
from vaneb.local.report import report
from vaneb.posterior import posterior
from vaneb.prior import Prior
from vaneb.reports import ClientReport, Reports

MADE = {
    "gaussian": families.gaussian(0.7),
    "binomial": families.binomial(),
    "poisson": families.poisson(),
    "negative-binomial": families.negative_binomial(0.4),
    "multinomial": families.multinomial(3, 2),
    "gamma": families.gamma(0.5),
    "huber": families.huber(1.3),
    "cox": families.cox(),
    "cox-shared": family_class("cox-shared")(times=np.arange(1, 40) / 10, cumulative=np.arange(1, 40) / 10),
}


def efron(eta, y, w):
    """Minus the partial log-likelihood, event by event."""
    entry, time, event = y.T
    total = 0.0
    for t in np.unique(time[event == 1]):
        dead = (time == t) & (event == 1)
        at_risk = np.sum((w * np.exp(eta))[(entry < t) & (t <= time)])
        total -= np.sum(w[dead] * eta[dead])
        for tie in range(dead.sum()):
            gone = tie / dead.sum() * np.sum(w[dead] * np.exp(eta[dead]))
            total += w[dead].mean() * np.log(at_risk - gone)
    return -total


def hazard(family, eta, y, w):
    """Log-likelihood of events and exposures, without the baseline at the events."""
    entry, stop, event = y.T
    jumps = np.diff(family.cumulative, prepend=0)
    within = (family.times > entry[:, None]) & (family.times <= stop[:, None])
    exposure = within @ jumps
    counted = exposure > 0
    log_exposure = np.log(np.where(counted, exposure, 1.0))
    return np.sum(w * counted * (event * (eta + log_exposure) - exposure * np.exp(eta)))


#: log-likelihood(family, index, response, weight); where there is no density, up to a constant.
DENSITIES = {
    "gaussian": lambda f, eta, y, w: stats.norm.logpdf(y, eta, np.sqrt(0.7 / w)).sum(),
    "binomial": lambda f, eta, y, w: stats.binom.logpmf(np.round(y * w), w, 1 / (1 + np.exp(-eta))).sum(),
    "poisson": lambda f, eta, y, w: np.sum(w * stats.poisson.logpmf(y, np.exp(eta))),
    "negative-binomial": lambda f, eta, y, w: np.sum(
        w * stats.nbinom.logpmf(y, 2.5, 1 / (1 + 0.4 * np.exp(eta)))
    ),
    "multinomial": lambda f, eta, y, w: np.sum(
        w
        * (
            np.column_stack([np.zeros(len(eta)), eta])[np.arange(len(y)), y.astype(int)]
            - np.log(1 + np.exp(eta).sum(axis=1))
        )
    ),
    "gamma": lambda f, eta, y, w: stats.gamma.logpdf(y, 2 * w, scale=np.exp(eta) / (2 * w)).sum(),
    "huber": lambda f, eta, y, w: (
        -np.sum(w * np.where(abs(eta - y) <= 1.3, (eta - y) ** 2 / 2, 1.3 * (abs(eta - y) - 0.65)))
    ),
    "cox": lambda f, eta, y, w: efron(eta, y, w),
    "cox-shared": hazard,
}
#: Responses that are refused, and what the message says.
WRONG = {
    "gaussian": (np.inf, "a finite number"),
    "binomial": (1.5, "0 or 1"),
    "poisson": (2.5, "a count"),
    "negative-binomial": (-1.0, "a count"),
    "multinomial": (3.0, "class"),
    "gamma": (0.0, "a positive number"),
    "huber": (-np.inf, "a finite number"),
    "cox": ([1.0, 0.5, 1.0], "not after it entered"),
    "cox-shared": ([0.0, 0.5, 2.0], "neither 0 nor 1"),
}


def test_every_family_is_here():
    assert list(MADE) == list(DENSITIES) == list(WRONG) == list(FAMILIES)
    assert all(
        family_class(name).name == name and type(MADE[name]) is family_class(name) for name in FAMILIES
    )
    with pytest.raises(InvalidOption, match="choose one of gaussian"):
        family_class("guassian")


def make(name, n_clients=5, size=30, seed=0, columns=2, weights=True):
    """Rows of a family with offsets, weights, ties and censoring, and their coefficients (K, d)."""
    family, rng = MADE[name], np.random.default_rng(seed)
    if columns == 1 and family.n_index > 1:
        family = families.multinomial(family.n_index + 1, 1)
    client = np.repeat(np.arange(n_clients), size)
    z = np.column_stack([np.ones(len(client)), rng.normal(size=len(client))])[:, :columns]
    if not family.has_intercept:
        z = rng.normal(size=z.shape)
    theta = 0.4 * rng.normal(size=(n_clients, family.dimension(columns)))
    offset = np.zeros(len(z)) if family.n_index > 1 else 0.3 * rng.normal(size=len(z))
    weight = rng.integers(1, 4, len(z)).astype(float) if weights else np.ones(len(z))
    eta = family.index(theta[client], z, offset)
    heavy = eta if family.n_index > 1 else eta + rng.standard_t(3, len(z))
    y = family.simulate(eta, rng, weight) if family.is_likelihood else heavy
    if y.ndim == 2:
        censored = rng.exponential(2.0, len(y))
        y[:, 2] = y[:, 1] <= censored
        y[:, 1] = np.ceil(10 * np.minimum(y[:, 1], censored)) / 10  # ties
        late = rng.random(len(y)) < 0.2
        y[late, 0] = y[late, 1] - np.ceil(rng.random(late.sum()) * 10) / 10
    return GroupedRows.from_columns(client, z, y, offset=offset, weight=weight), family, theta


@pytest.fixture(params=list(FAMILIES), name="name")
def _name(request):
    return request.param


def log_density(name, family, rows, theta):
    """The log-likelihood of one client's rows by other means."""
    return DENSITIES[name](family, family.index(theta, rows.design, rows.offset), rows.response, rows.weight)


def test_derivatives_agree_with_differences(name):
    rows, family, theta = make(name)
    family.check(rows)
    objective, everyone = family.objective(rows), np.arange(rows.n_clients)
    _, gradient, hessian = objective.terms(theta, everyone)
    step = 1e-5
    for c in range(theta.shape[1]):
        move = step * np.eye(theta.shape[1])[c]
        up, down = (objective.terms(theta + sign * move, everyone) for sign in (1, -1))
        assert_allclose(gradient[:, c], (up[0] - down[0]) / (2 * step), rtol=1e-6, atol=1e-6)
        if name != "huber":  # whose curvature is a bound (test_families)
            assert_allclose(hessian[:, c], (up[1] - down[1]) / (2 * step), rtol=1e-5, atol=1e-5)


def test_values_without_derivatives_are_the_same(name):
    rows, family, theta = make(name)
    objective, everyone = family.objective(rows), np.arange(rows.n_clients)
    assert_allclose(objective.values(theta, everyone), objective.terms(theta, everyone)[0], rtol=1e-13)
    some = np.array([2, 0])
    assert_allclose(
        objective.take(some).values(theta[some], np.arange(2)), objective.values(theta[some], some)
    )


def test_local_fits_are_those_of_another_optimiser(name):
    rows, family, theta = make(name)
    fits = fit_clients(rows, family)
    assert fits.exists.all()
    for k in range(rows.n_clients):
        part = rows.take(slice(k, k + 1))
        found = optimize.minimize(
            lambda t, part=part: -log_density(name, family, part, t),
            theta[k],
            method="BFGS",
            options={"gtol": 1e-8},
        )
        assert_allclose(fits.theta[k], found.x, atol=2e-5)


def test_likelihood_is_the_one_written_by_other_means(name):
    rows, family, theta = make(name, n_clients=4, size=8)
    if not family.is_likelihood:
        with pytest.raises(InvalidOption, match="sandwich"):
            exact_likelihood(rows, family)
        return
    clients = exact_likelihood(rows, family)
    expected = np.array(
        [[log_density(name, family, rows.take(slice(k, k + 1)), a) for a in theta] for k in range(4)]
    )
    if not family.by_row:  # a partial likelihood has no constant
        expected += (clients.log_likelihood(theta) - expected)[:, :1]
    assert_allclose(clients.log_likelihood(theta), expected, rtol=1e-9, atol=1e-9)
    assert_allclose(clients.at(theta), np.diagonal(expected), rtol=1e-9, atol=1e-9)
    part = np.array([2, 0])
    assert_allclose(clients.take(part).log_likelihood(theta), expected[part], rtol=1e-9, atol=1e-9)
    # The posterior mean by the library's sums over atoms, and by quadrature.
    rows, family, _ = make(name, n_clients=2, size=4, columns=1)
    if family.dimension(1) > 1:
        return
    atoms = np.linspace(-6, 6, 601)[:, None]
    prior = Prior(atoms, np.exp(-(atoms[:, 0] ** 2) / 2))
    ours = posterior(exact_likelihood(rows, family), prior).mean[:, 0]
    for k in range(2):
        part = rows.take(slice(k, k + 1))
        density = lambda t, part=part: np.exp(  # noqa: E731
            log_density(name, family, part, np.array([t]))
            - log_density(name, family, part, np.zeros(1))
            - t**2 / 2
        )
        mass = integrate.quad(density, -6, 6, limit=200)[0]
        mean = integrate.quad(lambda t, f=density: t * f(t), -6, 6, limit=200)[0] / mass
        assert ours[k] == pytest.approx(mean, abs=1e-6)


def test_ascent_is_the_gradient_of_its_value(name):
    rows, family, theta = make(name, n_clients=4, size=8)
    if not family.is_likelihood:
        return
    clients = exact_likelihood(rows, family)
    log_weights = -clients.log_likelihood(theta).max(axis=1)
    got = clients.ascent(theta, log_weights)
    for c in range(theta.shape[1]):
        move = 1e-5 * np.eye(theta.shape[1])[c]
        up, down = (clients.ascent(theta + sign * move, log_weights) for sign in (1, -1))
        assert_allclose(got.gradient[:, c], (up.value - down.value) / 2e-5, rtol=1e-5, atol=1e-6)
        information = np.broadcast_to(got.information, got.outer.shape)
        hessian = (got.outer - information)[:, c]
        assert_allclose(hessian, (up.gradient - down.gradient) / 2e-5, rtol=1e-4, atol=1e-5)


def test_reports_come_back_from_the_wire(name):
    rows, family, _ = make(name)
    made = report(rows, family)
    wires = [json.loads(json.dumps(client.to_wire(), allow_nan=False)) for client in made]
    back = Reports.from_clients([ClientReport.from_wire(wire) for wire in wires], made.names)
    assert_allclose(back.estimate, made.estimate, rtol=1e-12)
    points = made.estimate[:, None]
    assert_allclose(back.covariance.precision(points), made.covariance.precision(points), rtol=1e-12)
    if family.is_likelihood and not family.has_dispersion:
        fits = fit_clients(rows, family)
        assert_allclose(made.n[:, None, None] * made.covariance.precision(points)[:, 0], fits.hessian)


def test_simulated_coefficients_are_found_again(name):
    family, rng = MADE[name], np.random.default_rng(5)
    n, truth = 20_000, np.array([0.3, -0.5, 0.2, 0.4])[: family.dimension(2)]
    z = np.column_stack([np.ones(n), rng.normal(size=n)])
    if not family.has_intercept:
        z = rng.normal(size=z.shape)
    eta = family.index(truth, z)
    y = family.simulate(eta, rng) if family.is_likelihood else eta + rng.normal(size=n)
    rows = GroupedRows.from_columns(np.zeros(n), z, y)
    if name == "cox-shared":  # the baseline is estimated, too, and takes the intercept
        found = fit_clients(rows, type(family).for_rows(rows)).theta[0]
        assert_allclose(found, [0.0, -0.5], atol=0.04)
        return
    fits = fit_clients(rows, family)
    error = np.sqrt(np.diagonal(np.linalg.inv(fits.hessian[0] / family.dispersion)))
    assert (np.abs(fits.theta[0] - truth) < 4.5 * error).all()
    assert (error < 0.05).all()


def test_wrong_responses_are_refused_by_name(name):
    family, (value, message) = MADE[name], WRONG[name]
    good = make(name, weights=False)[0]
    response = good.response.copy()
    response[-1] = value
    with pytest.raises(InvalidReport, match=rf"client 4.*{message}"):
        family.check(replace(good, response=response))


def test_a_client_counted_twice_by_its_weight_is_two_clients(name):
    rows, family, theta = make(name, n_clients=1, weights=False)
    everyone = np.zeros(1, dtype=np.intp)
    once = family.objective(rows).terms(theta, everyone)
    twice = family.objective(replace(rows, weight=2 * rows.weight)).terms(theta, everyone)
    if not isinstance(family, families.cox):  # weights multiply shares of the hazard
        for a, b in zip(once, twice, strict=True):
            assert_allclose(2 * a, b, rtol=1e-12)
    nothing = rows.some_rows(np.arange(len(rows.weight) - 3))
    without = replace(rows, weight=np.r_[rows.weight[:-3], np.zeros(3)])
    for a, b in zip(
        family.objective(nothing).terms(theta, everyone),
        family.objective(without).terms(theta, everyone),
        strict=True,
    ):
        assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_pooled_fits_and_hopeless_clients(name):
    rows, family, _ = make(name, n_clients=4)
    pooled = fit_pooled(rows, family)
    assert pooled.exists.all()
    tiny = rows.some_rows(np.flatnonzero((rows.client_of_row > 0) | (np.arange(len(rows.weight)) < 1)))
    fits = fit_clients(tiny, family)
    assert not fits.exists[0]
    assert np.isfinite(fits.theta).all()
    assert np.isfinite(fits.information_form()).all()


def test_average_is_the_mean_over_an_uncertain_index(name):
    family, rng = MADE[name], np.random.default_rng(0)
    if name.startswith("cox"):  # the median of a relative risk
        assert family.average(np.array([[0.3]]), np.array([[[0.5]]])) == pytest.approx(np.exp(0.3))
        return
    centre, root = rng.normal(size=family.n_index) * 0.5, np.tri(family.n_index) * 0.6
    draws = centre + rng.normal(size=(200_000, family.n_index)) @ root.T
    index = draws[:, 0] if family.n_index == 1 else draws
    found = family.average(centre[None], (root @ root.T)[None])
    assert_allclose(found[0], family.mean(index).mean(axis=0), atol=0.01)


def test_scores_prefer_the_truth(name):
    rows, family, theta = make(name, size=400, weights=False)
    index = family.index(theta[rows.client_of_row], rows.design, rows.offset)
    group = rows.client_of_row.astype(object)
    truth, other = (
        family.score(rows.response, family.mean(i), rows.weight, group) for i in (index, index[::-1])
    )
    assert truth < other
    by_client = family.client_scores(rows, family.mean(index))
    assert by_client.shape == (5,)
    assert by_client.mean() < family.client_scores(rows, family.mean(index[::-1])).mean()


def test_numbers_restore_the_family(name):
    family = MADE[name]
    again = type(family).restored(family.parameter, family.dispersion, family.n_index + 1, 2)
    assert (again.parameter, again.dispersion, again.n_index) == (
        family.parameter,
        family.dispersion,
        family.n_index,
    )


@pytest.mark.parametrize("name", ["gaussian", "binomial", "poisson", "negative-binomial", "gamma"])
def test_distribution_of_responses_is_that_of_draws(name):
    family, rng = MADE[name], np.random.default_rng(1)
    index = np.full(100_000, 0.4)
    y = family.simulate(index, rng)
    for point in (-1.0, 0.0, 1.0, 2.0):
        expected = family.below(np.array([point]), family.mean(index[:1]))[0]
        assert np.mean(y <= point) == pytest.approx(expected, abs=0.006)
    residual = (y - family.mean(index)) ** 2 / family.variance(family.mean(index))
    assert residual.mean() == pytest.approx(family.dispersion, rel=0.05)
