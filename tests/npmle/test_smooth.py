"""One Gaussian population against a mixed model fitted with scipy, and the choice of the spread."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from vaneb.npmle.gaussian_prior import are_alone, gaussian_prior, with_lone_clients, without_loners
from vaneb.npmle.smooth import AGAINST_IF_MANY, AGAINST_THE_GAUSSIAN, _best, choose_spread, lots_of

from vaneb import VANEB, Reports
from vaneb.covariance import ConstantDiagonal, ConstantFull, QuadraticVariance
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.gaussian import gaussian_likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import poisson
from vaneb.npmle import smooth


def random_effects(n_clients: int, d: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Estimates (K, d) of a Gaussian population and the covariances of their errors (K, d, d)."""
    rng = np.random.default_rng(seed)
    root = np.tril(rng.normal(size=(d, d)))
    theta = np.arange(1.0, d + 1) + rng.normal(size=(n_clients, d)) @ root.T
    roots = rng.normal(size=(n_clients, d, d))
    noise = 0.3 * (roots @ np.swapaxes(roots, 1, 2)) + 0.1 * np.eye(d)
    return theta + (np.linalg.cholesky(noise) @ rng.normal(size=(n_clients, d, 1)))[:, :, 0], noise


def by_scipy(estimates: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Maximum likelihood of theta_hat_k ~ N(mu, noise_k + Gamma): mu, Gamma, average log-likelihood."""
    d = estimates.shape[1]
    lower = np.tril_indices(d)

    def unpack(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        root = np.zeros((d, d))
        root[lower] = x[d:]
        return x[:d], root @ root.T

    def loss(x: np.ndarray) -> float:
        mean, spread = unpack(x)
        total = noise + spread
        away = estimates - mean
        square = np.einsum("ki,kij,kj->k", away, np.linalg.inv(total), away)
        return 0.5 * float((square + np.linalg.slogdet(total)[1] + d * np.log(2 * np.pi)).mean())

    start = np.concatenate([estimates.mean(axis=0), np.eye(d)[lower]])
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    return *unpack(found.x), -found.fun


@pytest.mark.parametrize(("n_clients", "d"), [(25, 1), (60, 1), (60, 2), (80, 3)])
def test_it_is_the_random_effects_model(n_clients: int, d: int) -> None:
    estimates, noise = random_effects(n_clients, d, seed=d)
    likelihood = gaussian_likelihood(estimates, np.ones(n_clients), ConstantFull.from_covariances(noise))
    prior = gaussian_prior(likelihood)
    mean, spread, value = by_scipy(estimates, noise)
    assert_allclose(prior.atoms[0], mean, atol=1e-3)
    assert_allclose(prior.spread, spread, atol=2e-3)
    reached = np.mean(
        [
            multivariate_normal(prior.atoms[0], noise[k] + prior.spread).logpdf(estimates[k])
            for k in range(n_clients)
        ]
    )
    assert_allclose(reached, value, atol=1e-7)


def test_the_posterior_mean_is_the_mixed_models_prediction() -> None:
    estimates, noise = random_effects(60, 2, seed=4)
    reports = Reports(estimates, covariance=noise)
    model = VANEB().fit(reports)
    assert model.smooth_.single
    mean, spread, _ = by_scipy(estimates, noise)
    expected = mean + np.einsum("kij,kj->ki", spread @ np.linalg.inv(noise + spread), estimates - mean)
    post = model.personalize(reports)
    assert_allclose(post.mean, expected, atol=2e-2)
    assert_allclose(post.covariance, spread - spread @ np.linalg.inv(noise + spread) @ spread, atol=1e-2)


def test_a_diagonal_spread_is_fitted_coordinate_by_coordinate() -> None:
    rng = np.random.default_rng(5)
    errors = rng.uniform(0.5, 1.0, size=(50, 2))
    estimates = rng.normal(size=(50, 2)) * [1.0, 3.0] + errors * rng.normal(size=(50, 2))
    both = gaussian_prior(
        gaussian_likelihood(estimates, np.ones(50), ConstantDiagonal(errors**-2.0)), diagonal=True
    )
    assert both.spread[0, 1] == 0
    for i in range(2):
        mean, spread, _ = by_scipy(estimates[:, i : i + 1], errors[:, i, None, None] ** 2)
        assert_allclose(both.atoms[0, i], mean[0], atol=2e-3)
        assert_allclose(both.spread[i, i], spread[0, 0], rtol=1e-2)


def test_clients_more_alike_than_their_errors_have_no_spread() -> None:
    """The maximum is at the border: Gamma = 0 and the pooled mean."""
    rng = np.random.default_rng(6)
    estimates = 2.0 + 0.1 * rng.normal(size=(40, 1))
    prior = gaussian_prior(gaussian_likelihood(estimates, np.ones(40), ConstantDiagonal(np.ones((40, 1)))))
    assert prior.spread[0, 0] < 0.02
    assert_allclose(prior.atoms[0], estimates.mean(axis=0), atol=1e-3)


@pytest.mark.parametrize("shift", [0.0, 1e6])
@pytest.mark.parametrize("units", [np.array([1e5, 1e-5]), np.array([3000.0, 3000.0])])
def test_units_do_not_matter(units: np.ndarray, shift: float) -> None:
    estimates, noise = random_effects(60, 2, seed=7)
    here = gaussian_prior(gaussian_likelihood(estimates, np.ones(60), ConstantFull.from_covariances(noise)))
    there = gaussian_prior(
        gaussian_likelihood(
            units * (estimates + shift),
            np.ones(60),
            ConstantFull.from_covariances(noise * units[:, None] * units),
        )
    )
    assert_allclose(there.atoms[0] / units - shift, here.atoms[0], atol=1e-4 + 1e-9 * shift)
    assert_allclose(there.spread / units[:, None] / units, here.spread, atol=1e-4)


def test_singular_precisions_are_ordinary() -> None:
    """Half of the clients see one coordinate only; against the likelihood on what each one sees."""
    estimates, noise = random_effects(80, 2, seed=8)
    precision = np.linalg.inv(noise)
    precision[::2] = 0.0
    precision[::2, 0, 0] = 1 / noise[::2, 0, 0]
    prior = gaussian_prior(gaussian_likelihood(estimates, np.ones(80), ConstantFull(precision)))

    def loss(x: np.ndarray) -> float:
        root = np.array([[x[2], 0.0], [x[3], x[4]]])
        spread, total = root @ root.T, 0.0
        for k in range(80):
            seen = slice(0, 1) if k % 2 == 0 else slice(0, 2)
            covariance = noise[k][seen, seen] + spread[seen, seen]
            total -= multivariate_normal(x[:2][seen], covariance).logpdf(estimates[k][seen])
        return total / 80

    root = np.linalg.cholesky(prior.spread + 1e-9 * np.eye(2))
    start = np.concatenate([prior.atoms[0], root[np.tril_indices(2)]])
    best = minimize(loss, start, method="Nelder-Mead", options={"maxiter": 200, "fatol": 1e-9}).fun
    assert loss(start) <= best + 1e-6


def test_loners_are_left_out_and_given_a_component() -> None:
    estimates, noise = random_effects(40, 1, seed=9)
    estimates = np.concatenate([estimates, [[500.0]], [[-900.0]], [[-901.0]]])
    noise = np.concatenate([noise, np.full((3, 1, 1), 0.5)])
    likelihood = gaussian_likelihood(estimates, np.ones(43), ConstantFull.from_covariances(noise))
    prior = gaussian_prior(likelihood)
    without = gaussian_prior(likelihood.take(slice(0, 40)))
    assert_allclose(prior.atoms, without.atoms, atol=1e-3)
    assert_array_equal(np.flatnonzero(are_alone(likelihood, prior.atoms[0], prior.spread)), [40, 41, 42])
    # the two at -900 have each other
    assert without_loners(likelihood, prior).n_clients == 42
    whole = with_lone_clients(prior, likelihood)
    assert_allclose(whole.weights, [40 / 43, 1 / 43, 1 / 43, 1 / 43])
    assert_allclose(whole.atoms[1:], estimates[40:])
    assert with_lone_clients(without, likelihood.take(slice(0, 40))) is without


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize("seed", range(3))
def test_a_gaussian_population_is_one_gaussian(seed: int) -> None:
    rng = np.random.default_rng(seed)
    errors = rng.uniform(0.3, 0.6, size=(150, 1))
    estimates = rng.normal(size=(150, 1)) + errors * rng.normal(size=(150, 1))
    model = VANEB(smooth="auto").fit(Reports(estimates, standard_errors=errors))
    assert model.smooth_.single
    assert len(model.prior_.weights) == 1
    assert_allclose(model.prior_.spread, 1.0, atol=0.35)
    assert model.smooth_.shares[0] == 1.0
    assert len(model.smooth_.held_out) == len(model.smooth_.shares)


@pytest.mark.parametrize("seed", range(3))
def test_and_so_it_is_with_many_clients(seed: int) -> None:
    """There a mixture needs less of a lead; it must not get it by chance."""
    rng = np.random.default_rng(seed)
    errors = rng.uniform(0.3, 0.6, size=(1000, 1))
    estimates = rng.normal(size=(1000, 1)) + errors * rng.normal(size=(1000, 1))
    assert VANEB(smooth="auto").fit(Reports(estimates, standard_errors=errors)).smooth_.single


def test_the_lead_that_a_mixture_needs() -> None:
    """A lead of 1.5 standard errors over the Gaussian is enough with many clients, not with few."""
    noise = np.random.default_rng(0).normal(size=900)
    gaussian = np.full(900, -2.0)
    mixture = gaussian + 0.1 * (noise - noise.mean()) / noise.std() + 1.5 * 0.1 / 30
    scores, peak = np.stack([gaussian, mixture]), np.full(900, -1.0)
    chosen, _, lead = _best(scores, peak, AGAINST_IF_MANY)
    assert chosen == 1
    assert lead == pytest.approx(1.5)
    assert _best(scores, peak, AGAINST_THE_GAUSSIAN)[0] == 0


@pytest.mark.parametrize(("margin", "sizes"), [(5.0, [1500]), (1.0, [1500, 4000])])
def test_a_close_choice_looks_at_more_clients(monkeypatch, margin: float, sizes: list[int]) -> None:
    """Only where a likelihood takes long; others are all looked at at once."""
    rows = GroupedRows.from_columns(
        np.repeat(np.arange(5000), 2), np.ones((10_000, 1)), np.tile([0, 1], 5000)
    )
    slow = exact_likelihood(rows, poisson())
    looks = []

    def look(clients, *rest):
        looks.append(clients.n_clients)
        return None, margin

    monkeypatch.setattr(smooth, "_look", look)
    choose_spread(slow, diagonal=True, rng=np.random.default_rng(0))
    assert looks == sizes
    looks.clear()
    quick = gaussian_likelihood(np.zeros((5000, 1)), np.ones(5000), ConstantDiagonal(np.ones((5000, 1))))
    choose_spread(quick, diagonal=True, rng=np.random.default_rng(0))
    assert looks == [4000]


@pytest.mark.parametrize("seed", range(3))
def test_a_two_point_population_is_rough(seed: int) -> None:
    rng = np.random.default_rng(seed)
    errors = rng.uniform(0.3, 0.6, size=(150, 1))
    estimates = rng.choice([-2.0, 2.0], size=(150, 1)) + errors * rng.normal(size=(150, 1))
    reports = Reports(estimates, standard_errors=errors)
    model = VANEB(smooth="auto").fit(reports)
    assert not model.smooth_.single
    assert model.prior_.spread is None or model.prior_.spread[0, 0] < 0.3
    assert model.smooth_.held_out[model.smooth_.chosen] > model.smooth_.held_out[0] + 0.1
    # and shrinks towards the two points, not towards zero
    assert np.abs(np.abs(model.personalize(reports).mean) - 2).mean() < 0.2


def test_the_choice_does_not_depend_on_the_order_of_clients() -> None:
    rng = np.random.default_rng(3)
    estimates = rng.choice([-1.0, 1.0], size=(80, 1)) + 0.4 * rng.normal(size=(80, 1))
    order = rng.permutation(80)
    precision = ConstantDiagonal(np.full((80, 1), 1 / 0.16))
    choices = [
        choose_spread(
            gaussian_likelihood(x, np.ones(80), precision), diagonal=True, rng=np.random.default_rng(0)
        )
        for x in (estimates, estimates[order])
    ]
    assert choices[0].chosen == choices[1].chosen
    assert_allclose(choices[0].held_out, choices[1].held_out, atol=1e-3)


def test_a_clients_lot_is_its_own() -> None:
    estimates = np.random.default_rng(4).normal(size=(1000, 2))
    likelihood = gaussian_likelihood(estimates, np.ones(1000), ConstantDiagonal(np.ones((1000, 2))))
    lots = lots_of(likelihood)
    order = np.random.default_rng(5).permutation(1000)
    assert_array_equal(lots_of(likelihood.take(order)), lots[order])
    assert_array_equal(np.bincount(lots % 5) > 150, True)


def test_copies_of_a_client_cannot_vouch_for_each_other() -> None:
    """Every client three times over: a rough prior would fit the copies, and must not be chosen for it."""
    rng = np.random.default_rng(6)
    estimates = np.tile(rng.normal(size=(50, 1)), (3, 1))
    model = VANEB().fit(Reports(estimates, standard_errors=np.full((150, 1), 0.2)))
    assert model.smooth_.single


def test_identical_clients_are_no_reason_to_fail() -> None:
    model = VANEB().fit(Reports(np.full((20, 1), 3.0), standard_errors=np.full((20, 1), 0.5)))
    assert_allclose(model.prior_.mean, 3.0, atol=1e-6)
    assert model.prior_.covariance[0, 0] < 0.05


def test_two_clients_are_enough() -> None:
    reports = Reports([1.0, 2.0], standard_errors=[0.5, 0.5])
    post = VANEB().fit(reports).personalize(reports)
    assert np.isfinite(post.mean).all()
    assert ((post.mean >= 1.0) & (post.mean <= 2.0)).all()


def test_a_variance_function_is_chosen_a_spread_for_too() -> None:
    rng = np.random.default_rng(7)
    n = rng.integers(10, 40, size=100).astype(float)
    theta = np.exp(0.3 * rng.normal(size=100)) * 4
    estimates = rng.poisson(n * theta) / n
    reports = Reports(estimates, n=n, covariance=QuadraticVariance.poisson(1, 100))
    model = VANEB().fit(reports)
    post = model.personalize(reports)
    assert np.mean((post.mean[:, 0] - theta) ** 2) < np.mean((estimates - theta) ** 2)
    assert model.prior_.spread is not None
