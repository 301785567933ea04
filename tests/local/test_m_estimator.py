import numpy as np
import pytest

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.local import families
from vaneb.local.data import GroupedRows
from vaneb.local.fit import fit_clients
from vaneb.local.m_estimator import MEstimator


def rows_of(family, n_clients=12, seed=0):
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(n_clients), 30)
    z = np.column_stack([np.ones(len(client)), rng.normal(size=len(client))])
    eta = np.sum(z * rng.normal(size=(n_clients, 2))[client] * 0.5, axis=1)
    y = rng.poisson(np.exp(eta)) if family == "poisson" else eta + rng.standard_t(2, size=len(eta))
    return GroupedRows.from_columns(client, z, y)


def poisson_loss(z, y, theta):
    eta = (z * theta).sum(-1)
    exponential = eta.exp() if hasattr(eta, "exp") else np.exp(eta)
    return exponential - y * eta


@pytest.mark.parametrize("derivatives", ["numeric", "torch"])
def test_a_poisson_loss_given_as_a_function_gives_the_poisson_fit(derivatives):
    if derivatives == "torch":
        pytest.importorskip("torch")
    rows = rows_of("poisson")
    known = fit_clients(rows, families.poisson())
    estimator = MEstimator(poisson_loss, 2, derivatives=derivatives)
    fits = estimator.fit(rows)
    assert fits.exists.all()
    np.testing.assert_allclose(fits.theta, known.theta, atol=1e-6)
    np.testing.assert_allclose(fits.hessian, known.hessian, rtol=1e-4)
    residual = np.exp(np.sum(rows.design * known.theta[rows.client_of_row], axis=1)) - rows.response
    np.testing.assert_allclose(
        estimator.scores(rows, known.theta), residual[:, None] * rows.design, atol=1e-6
    )


@pytest.mark.parametrize("derivatives", ["numeric", "torch"])
def test_a_loss_that_is_not_convex_ends_at_a_stationary_point(derivatives):
    if derivatives == "torch":
        pytest.importorskip("torch")

    def cauchy(z, y, theta):
        squared = ((z * theta).sum(-1) - y) ** 2
        return (1 + squared).log() if hasattr(squared, "log") else np.log1p(squared)

    rows = rows_of("student", seed=3)
    fits = MEstimator(cauchy, 2, derivatives=derivatives).fit(rows)
    assert fits.exists.all()
    np.testing.assert_allclose(fits.gradient, 0, atol=1e-5)
    assert (np.linalg.eigvalsh(fits.hessian) > 0).all()


def test_a_loss_without_a_minimum_is_diverging_and_still_reports_a_point():
    rows = GroupedRows.from_columns([0, 0, 1, 1], np.ones((4, 1)), [1.0, 1.0, 0.0, 1.0])

    def logistic(z, y, theta):
        eta = (z * theta).sum(-1)
        return np.logaddexp(0, eta) - y * eta

    fits = MEstimator(logistic, 1, derivatives="numeric").fit(rows)
    assert list(fits.outcome) == ["diverging", "converged"]
    assert np.isfinite(fits.theta).all()


def test_misuse_is_named():
    rows = rows_of("poisson", 2)
    with pytest.raises(InvalidReport, match="one number per row"):
        MEstimator(lambda z, y, theta: (z * theta).sum(), 2, derivatives="numeric").fit(rows)
    with pytest.raises(InvalidOption, match="derivatives"):
        MEstimator(poisson_loss, 2, derivatives="symbolic")
    with pytest.raises(InvalidOption, match="start"):
        MEstimator(poisson_loss, 2, start=np.zeros(3))
