import numpy as np
import pytest

from vaneb.errors import InvalidOption
from vaneb.study.prior_curves import FiveCurves
from vaneb.study.scenarios import CLASS_PROJECTIONS, quadratic_variance, random_covariances, simulate


def point_prior(x: float, y: float, z: float) -> FiveCurves:
    """All clients at (very nearly) one point, so that laws can be checked on many clients."""
    return FiveCurves(centres=((x, y, z),) * 5, sizes=(1e-9,) * 5)


@pytest.mark.parametrize("name", ["quadratic", "logistic", "poisson"])
def test_same_seed_same_sample_and_sizes_in_range(name):
    a, b = (simulate(name, 40, 5, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(a.theta, b.theta)
    np.testing.assert_array_equal(a.n, b.n)
    assert a.n.min() >= 5
    assert a.n.max() <= 10
    if a.rows is not None:
        np.testing.assert_array_equal(a.rows.n_rows, a.n)
        np.testing.assert_array_equal(a.rows.response, b.rows.response)
        assert a.rows.design.shape == (a.n.sum(), 3)


def test_sizes_reach_both_ends():
    n = simulate("quadratic", 2000, 5, np.random.default_rng(0)).n
    assert set(np.unique(n)) == set(range(5, 11))


def test_quadratic_moments():
    sample = simulate("quadratic", 20_000, 6, np.random.default_rng(1), point_prior(2.0, -0.05, 20.0))
    variance = quadratic_variance(np.array([2.0, -0.05, 20.0]))
    np.testing.assert_allclose(variance, [4.0, 0.01, 100.0])
    z = (sample.means - sample.theta) * np.sqrt(sample.n[:, None] / variance)
    np.testing.assert_allclose(z.var(axis=0), 1, atol=0.04)
    np.testing.assert_allclose(sample.variances.mean(axis=0), variance, rtol=0.02)


def test_covariances_have_their_eigenvalues_and_no_preferred_direction():
    s = random_covariances(20_000, np.random.default_rng(2))
    eigenvalues = np.linalg.eigvalsh(s)
    assert eigenvalues.min() >= 0.5
    assert eigenvalues.max() <= 2.0
    np.testing.assert_allclose(s.mean(axis=0), 1.25 * np.eye(3), atol=0.02)


def test_poisson_score_has_mean_zero_at_the_truth():
    sample = simulate("poisson", 2000, 20, np.random.default_rng(4))
    z, y = sample.rows.design, sample.rows.response
    rate = np.exp(np.sum(z * np.repeat(sample.theta, sample.n, axis=0), axis=1))
    score = (y - rate)[:, None] * z
    standardised = score.sum(0) / np.sqrt((rate[:, None] * z**2).sum(0))
    assert np.abs(standardised).max() < 4
    assert np.var((y - rate) / np.sqrt(rate)) == pytest.approx(1, abs=0.03)


def test_logistic_classes_follow_the_softmax():
    sample = simulate("logistic", 2000, 20, np.random.default_rng(5))
    z = sample.rows.design
    scores = np.einsum("ni,cij,nj->nc", z, CLASS_PROJECTIONS, np.repeat(sample.theta, sample.n, axis=0))
    probability = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    residual = np.eye(3)[sample.rows.response.astype(int)] - probability
    for covariate in (np.ones(len(z)), z[:, 0], z[:, 1] * scores[:, 0]):
        t = (residual * covariate[:, None]).sum(0)
        scale = np.sqrt((probability * (1 - probability) * covariate[:, None] ** 2).sum(0))
        assert np.abs(t / scale).max() < 4


def test_covariates_have_the_clients_own_covariance():
    sample = simulate("poisson", 3, 40_000, np.random.default_rng(6))
    for k in range(3):
        z = sample.rows.take(slice(k, k + 1)).design
        np.testing.assert_allclose(z.T @ z / len(z), sample.covariate_covariance[k], atol=2e-4)


def test_impossible_requests_are_refused():
    with pytest.raises(InvalidOption, match="unknown"):
        simulate("cubic", 3, 5, np.random.default_rng(0))
    with pytest.raises(InvalidOption, match="n_min"):
        simulate("poisson", 3, 1, np.random.default_rng(0))
