"""Reports of which a few may be off: a mixture of two Gaussians, and what it is for."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from vaneb.npmle.ellipsoids import ellipsoids

from vaneb import NPEB, VANEB, Reports
from vaneb.covariance import ConstantDiagonal, EmpiricalGLM, MomentPoisson, QuadraticVariance
from vaneb.covariance.user import callable_covariance
from vaneb.errors import InvalidOption
from vaneb.likelihood.contaminated import ContaminatedGaussian, with_outliers
from vaneb.likelihood.gaussian import ConstantGaussian, gaussian_likelihood
from vaneb.local.families import poisson, shared_softmax
from vaneb.local.fit import fit_clients
from vaneb.local.report import report
from vaneb.study.scenarios import CLASS_PROJECTIONS, simulate

K, D, SHARE = 7, 2, 0.1
RNG = np.random.default_rng(0)
ESTIMATES = 0.6 * RNG.normal(size=(K, D))
N = RNG.integers(3, 9, size=K).astype(float)
ATOMS = 0.5 * RNG.normal(size=(4, D))
LOG_WEIGHTS = RNG.normal(size=K)
MOMENTS = MomentPoisson(0.3 * RNG.normal(size=(K, D)), np.repeat(0.4 * np.eye(D)[None], K, axis=0))
SPREADS = {"discrete": None, "smooth": np.array([[0.3, 0.1], [0.1, 0.2]])}


@pytest.fixture(params=SPREADS, name="likelihood")
def _likelihood(request: pytest.FixtureRequest) -> ContaminatedGaussian:
    found = with_outliers(gaussian_likelihood(ESTIMATES, N, MOMENTS), SHARE)
    assert isinstance(found, ContaminatedGaussian)
    return found.smoothed(SPREADS[request.param])


def test_density_is_that_of_the_mixture(likelihood: ContaminatedGaussian) -> None:
    usual = gaussian_likelihood(ESTIMATES, N, MOMENTS).smoothed(likelihood.spread)
    fixed = N[:, None, None] * MOMENTS.precision(ESTIMATES[:, None])[:, 0]
    other = ConstantGaussian(ESTIMATES, fixed).smoothed(likelihood.spread)
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


def test_moments_within_a_component_are_those_of_the_mixture() -> None:
    """In one dimension, by quadrature, covariances taken at the atom."""
    covariance = MomentPoisson(np.full((1, 1), 0.2), np.full((1, 1, 1), 0.5))
    estimate, n, atom, spread = np.array([[1.2]]), np.array([4.0]), np.array([[0.1]]), np.array([[0.3]])
    found = with_outliers(gaussian_likelihood(estimate, n, covariance), SHARE).smoothed(spread)
    grid = np.linspace(-8, 8, 200_001)
    density = np.zeros_like(grid)
    for share, at in ((1 - SHARE, atom), (SHARE, estimate)):
        precision = 4 * covariance.precision(at[:, None])[0, 0, 0, 0]
        density += share * np.sqrt(precision) * np.exp(-0.5 * precision * (1.2 - grid) ** 2)
    density *= np.exp(-0.5 * (grid - 0.1) ** 2 / 0.3)
    density /= density.sum()
    mean = density @ grid
    components = found.components(atom)
    assert_allclose(components.mean, [[[mean]]], rtol=1e-6)
    assert_allclose(components.covariance, [[[[density @ (grid - mean) ** 2]]]], rtol=1e-6)


def test_the_likelier_part_is_one_of_the_two() -> None:
    found = with_outliers(gaussian_likelihood(ESTIMATES, N, MOMENTS), 0.5).smoothed(SPREADS["smooth"])
    usual, other = found.usual.log_likelihood(ATOMS), found.other.log_likelihood(ATOMS)
    first, second = found.usual.components(ATOMS).mean, found.other.components(ATOMS).mean
    is_usual = usual >= other
    assert is_usual.any()
    assert not is_usual.all()
    assert_allclose(found.likelier(ATOMS).mean, np.where(is_usual[..., None], first, second), rtol=1e-12)


def test_a_population_of_clients_of_two_minds_stays_where_they_are() -> None:
    """Moments of both minds together, taken for a Gaussian's, sent components a million times too far."""
    sample = simulate("logistic", 300, 10, np.random.default_rng(2))
    family = shared_softmax(CLASS_PROJECTIONS)
    reports = report(sample.rows, family, fit_clients(sample.rows, family), form="empirical")
    likelihood = with_outliers(reports.likelihood(), 0.1)
    fit = ellipsoids(likelihood, 2, diagonal=False, tol=1e-4, rng=np.random.default_rng(0))
    assert np.abs(fit.atoms).max() < 3 * np.abs(sample.theta).max()


def test_some_clients_are_the_same_as_in_all(likelihood: ContaminatedGaussian) -> None:
    rows = np.array([5, 2, 2])
    some = likelihood.take(rows)
    assert_allclose(some.log_likelihood(ATOMS), likelihood.log_likelihood(ATOMS)[rows], rtol=1e-13)
    assert_allclose(some.peak(), likelihood.peak()[rows])
    assert some.n_clients == 3


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
    plain, other = (VANEB("pseudo-em", "off", outliers=share).fit(reports) for share in (0.0, 0.3))
    assert_allclose(plain.prior_.atoms, other.prior_.atoms)
    assert type(other.personalize(reports).likelihood) is type(reports.likelihood())


def test_estimates_that_have_run_off_do_not_spoil_the_population() -> None:
    """Five to ten rows of counts: some maximum-likelihood estimates are a hundred times too large."""
    sample = simulate("poisson", 300, 5, np.random.default_rng(3))
    reports = report(sample.rows, poisson(), fit_clients(sample.rows, poisson()), form="empirical")

    def error(model) -> float:
        return float(np.sqrt(np.mean(np.sum((model.personalize(reports).mean - sample.theta) ** 2, axis=1))))

    assert isinstance(reports.covariance, EmpiricalGLM)
    spoilt, sound = (
        error(VANEB(population="discrete", outliers=share).fit(reports)) for share in (0.0, 0.05)
    )
    assert spoilt > 3.0
    assert sound < error(NPEB().fit(reports))
    assert sound < 2.5
