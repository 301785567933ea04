"""Components with spreads of their own: the E-step against dense formulas, known mixtures, the choice."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal
from vaneb.npmle.ellipsoid_kernel import expect
from vaneb.npmle.gaussian_prior import gaussian_prior
from vaneb.npmle.smooth import _own_spreads

from vaneb import VANEB, Reports
from vaneb.covariance import ConstantDiagonal, ConstantFull, QuadraticVariance
from vaneb.likelihood.gaussian import gaussian_likelihood
from vaneb.npmle import ellipsoids as module
from vaneb.posterior import posterior
from vaneb.prior import Prior


def by_formulas(estimates, noise, centres, weights, covariances):
    """The sums of the E-step and log f_k from densities N(t; c, noise + Gamma), pair by pair."""
    d = estimates.shape[1]
    sums, terms = np.zeros((len(centres), 1 + d + d * d)), np.empty((len(estimates), len(centres)))
    for k, estimate in enumerate(estimates):
        for j, centre in enumerate(centres):
            total = noise[k, j] + covariances[j]
            terms[k, j] = np.log(weights[j]) + multivariate_normal(centre, total).logpdf(estimate)
    density = np.logaddexp.reduce(terms, axis=1)
    for k, estimate in enumerate(estimates):
        for j, centre in enumerate(centres):
            gain = covariances[j] @ np.linalg.inv(noise[k, j] + covariances[j])
            move = gain @ (estimate - centre)
            within = covariances[j] - gain @ covariances[j]
            share = np.exp(terms[k, j] - density[k])
            sums[j] += share * np.concatenate([[1.0], move, (within + np.outer(move, move)).ravel()])
    return sums, density


def random_problem(d: int, seed: int):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(4, d, d))
    covariances = roots @ np.swapaxes(roots, 1, 2) + 0.1 * np.eye(d)
    return rng.normal(size=(7, d)), rng.normal(size=(4, d)), rng.dirichlet(np.ones(4)), covariances, rng


def run(estimates, precision, half_logs, centres, weights, covariances, near=None):
    m, d = centres.shape
    sums, log_density = np.empty((m, 1 + d + d * d)), np.empty(len(estimates))
    look = near is None
    near = np.empty((len(estimates), m), dtype=np.bool_) if near is None else near
    half = 0.5 * np.linalg.slogdet(covariances)[1]
    expect(
        (0,) * d, estimates, precision, half_logs, centres, np.log(weights), np.linalg.inv(covariances),
        half, near, look, sums, log_density,
    )  # fmt: skip
    return sums, log_density, near


@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_step_is_that_of_full_constant_precisions(d: int) -> None:
    estimates, centres, weights, covariances, rng = random_problem(d, d)
    roots = rng.normal(size=(7, d, d))
    noise = roots @ np.swapaxes(roots, 1, 2) + 0.2 * np.eye(d)
    precision = np.linalg.inv(noise)[:, None]
    half = 0.5 * np.linalg.slogdet(precision)[1]
    sums, density, near = run(estimates, precision, half, centres, weights, covariances)
    expected, value = by_formulas(estimates, np.repeat(noise[:, None], 4, 1), centres, weights, covariances)
    assert_allclose(sums, expected, rtol=1e-7, atol=1e-7)
    assert_allclose(density - 0.5 * d * np.log(2 * np.pi), value, rtol=1e-9)
    again, _, _ = run(estimates, precision, half, centres, weights, covariances, near)
    assert_allclose(again, sums, rtol=1e-7, atol=1e-7)


def test_the_step_is_that_of_precisions_which_depend_on_the_component() -> None:
    estimates, centres, weights, covariances, rng = random_problem(3, 5)
    precision = rng.uniform(0.5, 4.0, size=(7, 4, 3))
    noise = np.eye(3) / precision[..., None]
    half = 0.5 * np.log(precision).sum(axis=2)
    sums, density, _ = run(estimates, precision[..., None].copy(), half, centres, weights, covariances)
    expected, value = by_formulas(estimates, noise, centres, weights, covariances)
    assert_allclose(sums, expected, rtol=1e-7, atol=1e-7)
    assert_allclose(density - 1.5 * np.log(2 * np.pi), value, rtol=1e-9)


def test_one_component_is_the_mixed_model() -> None:
    rng = np.random.default_rng(3)
    theta = rng.normal(size=(400, 2)) @ np.array([[1.0, 0.0], [0.8, 0.5]]).T
    likelihood = gaussian_likelihood(
        theta + 0.3 * rng.normal(size=theta.shape),
        np.ones(400),
        ConstantDiagonal(np.full((400, 2), 1 / 0.09)),
    )
    single = gaussian_prior(likelihood)
    found = module.fit_ellipsoids(module.summaries(likelihood, single), single.spread, 1, rng)
    assert_allclose(found.centres[0], single.atoms[0], atol=0.02)
    assert_allclose(found.covariances[0], single.spread, atol=0.02)


def test_a_thin_component_is_found_thin() -> None:
    """Clients on a segment: the component's spread across it is far below the noise."""
    rng = np.random.default_rng(4)
    theta = rng.normal(size=(1000, 1)) * np.array([1.0, 1.0]) / np.sqrt(2)
    likelihood = gaussian_likelihood(
        theta + 0.3 * rng.normal(size=theta.shape),
        np.ones(1000),
        ConstantDiagonal(np.full((1000, 2), 1 / 0.09)),
    )
    single = Prior(np.zeros((1, 2)), np.ones(1), np.eye(2))
    found = module.fit_ellipsoids(module.summaries(likelihood, single), single.spread, 1, rng)
    across, along = np.linalg.eigvalsh(found.covariances[0])
    assert across < 0.02
    assert 0.8 < along < 1.2


def test_even_normals_have_the_moments_of_normals() -> None:
    points = module.even_normals(500, 3)
    assert_allclose(points.mean(axis=0), 0.0, atol=0.05)
    assert_allclose(np.cov(points.T), np.eye(3), atol=0.1)
    assert_allclose(module.even_normals(1, 3), 0.0)


def test_fine_atoms_have_the_moments_of_the_mixture() -> None:
    mixture = module.Ellipsoids(
        np.array([[0.0, 0.0], [4.0, 0.0]]), np.array([0.3, 0.7]), np.array([np.eye(2), np.diag([0.01, 2.0])])
    )
    single = Prior(np.array([[2.0, 0.0]]), np.ones(1), np.diag([4.0, 1.0]))
    atoms, weights = module.fine_atoms(mixture, single, 2_000)
    assert weights.sum() == pytest.approx(1.0)
    share = module.BROAD
    assert_allclose(
        weights @ atoms, (1 - share) * np.array([2.8, 0.0]) + share * np.array([2.0, 0.0]), atol=0.02
    )
    second = (1 - share) * (0.3 * 1.0 + 0.7 * 2.0) + share * 1.0
    assert weights @ atoms[:, 1] ** 2 == pytest.approx(second, rel=0.05)


def test_steps_on_the_weights_raise_the_likelihood() -> None:
    rng = np.random.default_rng(0)
    matrix, weights = rng.uniform(size=(30, 9)), np.full(9, 1 / 9)
    values = [np.log(matrix @ module.weight_steps(matrix, weights, steps)).mean() for steps in (0, 1, 5, 50)]
    assert values == sorted(values)
    assert module.weight_steps(matrix, weights, 7).sum() == pytest.approx(1.0)


def test_singular_precisions_are_ordinary() -> None:
    """A client that knows one direction only says nothing of the other."""
    rng = np.random.default_rng(8)
    theta = rng.normal(size=(300, 2)) * [1.0, 0.2]
    precision = np.repeat(np.diag([10.0, 10.0])[None], 300, 0)
    precision[::2] = np.diag([10.0, 0.0])
    estimates = theta + rng.normal(size=theta.shape) / np.sqrt(10)
    estimates[::2, 1] = 77.0
    likelihood = gaussian_likelihood(estimates, np.ones(300), ConstantFull(precision))
    single = gaussian_prior(likelihood)
    found = module.fit_ellipsoids(module.summaries(likelihood, single), single.spread, 3, rng)
    assert np.abs(found.centres).max() < 4
    assert np.isfinite(found.covariances).all()


def ring(n_clients: int, seed: int):
    """A population on a circle, with noise that a shared spread cannot follow around it."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, n_clients)
    theta = 3 * np.column_stack([np.cos(angle), np.sin(angle)])
    n = rng.integers(20, 40, n_clients).astype(float)
    sd = np.sqrt(np.clip(theta**2, 0.01, 100) / n[:, None])
    function = QuadraticVariance.squared(2, n_clients)
    return theta, Reports(theta + sd * rng.standard_normal(theta.shape), n=n, covariance=function)


def test_on_a_curve_they_come_nearer_to_the_truth_than_atoms() -> None:
    theta, reports = ring(1200, 1)
    likelihood = reports.likelihood()
    fit = module.ellipsoids(likelihood, 2, diagonal=True, tol=1e-4, rng=np.random.default_rng(0))
    found = posterior(likelihood, Prior(fit.atoms, fit.weights))
    away = ((found.mean - theta) ** 2).sum(axis=1).mean()
    discrete = VANEB(population="discrete", tol=1e-2).fit(reports).personalize(reports).mean
    assert away < 0.9 * ((discrete - theta) ** 2).sum(axis=1).mean()
    low, high = found.interval(0.9)
    assert 0.85 < ((low <= theta) & (theta <= high)).mean() < 0.95


def test_an_average_of_fits_has_the_average_density() -> None:
    _, reports = ring(300, 3)
    likelihood = reports.likelihood()
    single = gaussian_prior(likelihood, diagonal=True)
    clients, rng = module.summaries(likelihood, single), np.random.default_rng(1)
    fits = [module.fit_ellipsoids(clients, single.spread, 6, rng) for _ in range(3)]
    assert not np.allclose(fits[0].centres[0], fits[1].centres[0])
    points = 4 * rng.normal(size=(50, 2))

    def density(mixture: module.Ellipsoids) -> np.ndarray:
        parts = zip(mixture.weights, mixture.centres, mixture.covariances, strict=True)
        return sum(w * multivariate_normal(c, spread).pdf(points) for w, c, spread in parts)

    together = density(module.average(fits))
    assert_allclose(together, np.mean([density(fit) for fit in fits], axis=0), rtol=1e-12)
    # Hence no client is worse off on average, by the concavity of the logarithm.
    alone = np.mean([np.log(density(fit)).mean() for fit in fits])
    assert np.log(together).mean() > alone


def test_they_are_chosen_where_held_out_clients_say_so() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(2, 200)) - 3.0
    peak = np.zeros(200)
    better = np.stack([scores[1] - 1.0, scores[1] + 1.0])
    steps, averages, lead = _own_spreads(scores, better, 1, peak, 1.0)
    assert steps == module.STEPS[1]
    assert averages.argmax() == 1
    assert lead > 1.0
    assert _own_spreads(scores, scores[1] - better * 0 - 0.1, 1, peak, 1.0)[0] is None
    # Whatever was best gives way only to a clear lead.
    slight = scores[0] + np.stack([rng.normal(size=200)])
    slight += 0.05 - (slight - scores[0]).mean()
    steps, _, lead = _own_spreads(scores, slight, 0, peak, 2.0)
    assert steps is None
    assert 0.0 < lead < 2.0


def test_a_gaussian_population_keeps_its_single_gaussian() -> None:
    rng = np.random.default_rng(2)
    theta = rng.normal(size=(400, 2))
    reports = Reports(theta + 0.5 * rng.normal(size=theta.shape), standard_errors=np.full((400, 2), 0.5))
    model = VANEB().fit(reports)
    assert model.smooth_.single
    assert model.smooth_.steps is None
    assert len(model.smooth_.held_out_steps) == len(module.STEPS)


def test_a_client_far_from_all_others_keeps_an_atom() -> None:
    _, reports = ring(300, 5)
    estimates = np.array(reports.estimate)
    estimates[0] = 500.0
    far = gaussian_likelihood(estimates, reports.n, reports.covariance)
    fit = module.ellipsoids(far, 2, diagonal=True, tol=1e-4, rng=np.random.default_rng(0))
    assert np.abs(fit.atoms - 500.0).max(axis=1).min() < 1
    assert fit.weights.sum() == pytest.approx(1.0)


def test_a_population_without_spread_is_no_trouble() -> None:
    rng = np.random.default_rng(6)
    reports = Reports(1.0 + 0.5 * rng.normal(size=(300, 2)), standard_errors=np.full((300, 2), 0.5))
    fit = module.ellipsoids(reports.likelihood(), 0, diagonal=False, tol=1e-4, rng=rng)
    assert np.isfinite(fit.atoms).all()
    assert_allclose(fit.weights @ fit.atoms, 1.0, atol=0.15)
    assert VANEB().fit(reports).smooth_.steps is None
