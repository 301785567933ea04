"""Reports of which a few may be off: a mixture of two Gaussians, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from vaneb import VANEB, Reports
from vaneb.covariance import ConstantDiagonal, EmpiricalGLM, MomentPoisson, QuadraticVariance
from vaneb.covariance.user import callable_covariance
from vaneb.errors import InvalidOption
from vaneb.likelihood.contaminated import ContaminatedGaussian, with_outliers
from vaneb.likelihood.gaussian import ConstantGaussian, gaussian_likelihood
from vaneb.local.families import poisson
from vaneb.local.fit import fit_clients
from vaneb.local.report import report
from vaneb.study.scenarios import simulate

K, D, SHARE = 7, 2, 0.1
RNG = np.random.default_rng(0)
ESTIMATES = 0.6 * RNG.normal(size=(K, D))
N = RNG.integers(3, 9, size=K).astype(float)
ATOMS = 0.5 * RNG.normal(size=(4, D))
LOG_WEIGHTS = RNG.normal(size=K)
MOMENTS = MomentPoisson(0.3 * RNG.normal(size=(K, D)), np.repeat(0.4 * np.eye(D)[None], K, axis=0))


@pytest.fixture(name="likelihood")
def _likelihood() -> ContaminatedGaussian:
    found = with_outliers(gaussian_likelihood(ESTIMATES, N, MOMENTS), SHARE)
    assert isinstance(found, ContaminatedGaussian)
    return found


def test_density_is_that_of_the_mixture(likelihood: ContaminatedGaussian) -> None:
    usual = gaussian_likelihood(ESTIMATES, N, MOMENTS)
    fixed = N[:, None, None] * MOMENTS.precision(ESTIMATES[:, None])[:, 0]
    other = ConstantGaussian(ESTIMATES, fixed)
    expected = (1 - SHARE) * np.exp(usual.log_likelihood(ATOMS)) + SHARE * np.exp(other.log_likelihood(ATOMS))
    assert_allclose(np.exp(likelihood.log_likelihood(ATOMS)), expected, rtol=1e-12)


def test_sums_are_those_of_the_density_and_of_its_derivatives(likelihood: ContaminatedGaussian) -> None:
    def value(atoms: np.ndarray) -> np.ndarray:
        return np.exp(likelihood.log_likelihood(atoms) + LOG_WEIGHTS[:, None]).sum(axis=0)

    sums, step = likelihood.ascent(ATOMS, LOG_WEIGHTS), 1e-5
    assert_allclose(sums.value, value(ATOMS), rtol=1e-12)
    for c, move in enumerate(step * np.eye(D)):
        difference = (value(ATOMS + move) - value(ATOMS - move)) / (2 * step)
        assert_allclose(sums.gradient[:, c], difference, rtol=1e-6, atol=1e-9)


def test_diagonals_and_matrices_add_up() -> None:
    """A diagonal function has a full information, its fixed value a diagonal one."""
    covariance = callable_covariance(lambda points, client: 0.5 + points**2, K, D, diagonal=True)
    found = with_outliers(gaussian_likelihood(ESTIMATES, N, covariance), SHARE)
    parts = found.usual.ascent(ATOMS, LOG_WEIGHTS), found.other.ascent(ATOMS, LOG_WEIGHTS)
    assert [part.information.ndim for part in parts] == [3, 2]
    own = found.ascent(ATOMS, LOG_WEIGHTS).information
    expected = (1 - SHARE) * parts[0].information + SHARE * parts[1].information[:, :, None] * np.eye(D)
    assert_allclose(own, expected, rtol=1e-12)


def test_some_clients_are_the_same_as_in_all(likelihood: ContaminatedGaussian) -> None:
    rows = np.array([5, 2, 2])
    some = likelihood.take(rows)
    assert_allclose(some.log_likelihood(ATOMS), likelihood.log_likelihood(ATOMS)[rows], rtol=1e-13)
    assert_allclose(some.peak(), likelihood.peak()[rows])
    assert some.n_clients == 3


def test_at_is_the_density_at_points_of_the_clients_own(likelihood: ContaminatedGaussian) -> None:
    points = ATOMS[np.arange(K) % len(ATOMS)] + 0.1 * ESTIMATES
    assert_allclose(likelihood.at(points), np.diagonal(likelihood.log_likelihood(points)), rtol=1e-12)


def test_peak_is_the_density_at_the_own_estimate() -> None:
    found = with_outliers(gaussian_likelihood(ESTIMATES, N, MOMENTS), SHARE)
    assert_allclose(found.peak(), np.diagonal(found.log_likelihood(ESTIMATES)), rtol=1e-12)


@pytest.mark.parametrize(
    "covariance",
    [ConstantDiagonal(np.ones((K, D))), QuadraticVariance.squared(D, K, low=0.1, high=9.0)],
    ids=["constant", "shared"],
)
def test_only_functions_of_their_own_are_doubted(covariance) -> None:
    likelihood = gaussian_likelihood(ESTIMATES, N, covariance)
    assert with_outliers(likelihood, SHARE) is likelihood


def test_a_share_of_zero_is_none() -> None:
    likelihood = gaussian_likelihood(ESTIMATES, N, MOMENTS)
    assert with_outliers(likelihood, 0.0) is likelihood


def test_a_function_that_does_not_depend_on_theta_is_not_changed() -> None:
    covariance = callable_covariance(
        lambda points, client: np.full(points.shape, 1.0 + client), K, D, diagonal=True
    )
    likelihood = gaussian_likelihood(ESTIMATES, N, covariance)
    found = with_outliers(likelihood, 0.3)
    assert_allclose(found.log_likelihood(ATOMS), likelihood.log_likelihood(ATOMS), rtol=1e-12)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan"), "many"])
def test_a_share_must_be_one(share) -> None:
    with pytest.raises(InvalidOption, match="outliers"):
        VANEB(outliers=share).fit(Reports(ESTIMATES, n=N, covariance=MOMENTS))


def test_the_papers_algorithm_knows_no_outliers() -> None:
    reports = Reports(ESTIMATES, n=N, covariance=MOMENTS)
    plain, other = (VANEB(solver="pseudo-em", outliers=share).fit(reports) for share in (0.0, 0.3))
    assert_allclose(plain.prior_.atoms, other.prior_.atoms)
    assert type(other.personalize(reports).likelihood) is type(reports.likelihood())


def test_estimates_that_have_run_off_do_not_spoil_the_population() -> None:
    """Five to ten rows of counts: some maximum-likelihood estimates are a hundred times too large."""
    sample = simulate("poisson", 300, 5, np.random.default_rng(3))
    reports = report(sample.rows, poisson(), fit_clients(sample.rows, poisson()), form="empirical")

    def error(model) -> float:
        return float(np.sqrt(np.mean(np.sum((model.personalize(reports).mean - sample.theta) ** 2, axis=1))))

    assert isinstance(reports.covariance, EmpiricalGLM)
    spoilt, sound = (error(VANEB("discrete", outliers=share).fit(reports)) for share in (0.0, 0.05))
    assert spoilt > 1.2 * sound
    assert sound < 2.5
