"""The grid solver: what its grid covers, what its certificate says, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from vaneb.covariance import ConstantDiagonal
from vaneb.errors import InvalidOption
from vaneb.likelihood.gaussian import gaussian_likelihood
from vaneb.npmle.certified import certified
from vaneb.npmle.grid import grid_npmle, ridgeline_grid
from vaneb.theory import discretisation_bound


def problem(n_clients: int, d: int, seed: int = 0, error: float = 1.0):
    rng = np.random.default_rng(seed)
    estimates = rng.choice([-2.0, 2.0], size=(n_clients, 1)) + 0.5 * rng.normal(size=(n_clients, d))
    precision = np.full((n_clients, d), error**-2.0)
    return gaussian_likelihood(estimates, np.ones(n_clients), ConstantDiagonal(precision))


@pytest.mark.parametrize("d", [1, 2])
def test_the_grid_covers_the_box_of_the_estimates_where_it_is_near_one(d: int) -> None:
    likelihood = problem(40, d)
    grid = ridgeline_grid(likelihood, 0.5)
    inside = np.random.default_rng(1).uniform(
        likelihood.estimates.min(axis=0), likelihood.estimates.max(axis=0), size=(500, d)
    )
    away = np.abs(inside[:, None, :] - likelihood.estimates).max(axis=2).min(axis=1)
    inside = inside[away < np.sqrt(2 * np.log(np.e * 40)) - 0.5]
    nearest = np.abs(inside[:, None, :] - grid).max(axis=2).min(axis=1)
    assert nearest.max() <= 0.25 + 1e-9  # half of a cube's side


def test_where_no_client_is_near_there_is_no_grid() -> None:
    estimates = np.concatenate([np.zeros((20, 1)), np.full((20, 1), 1000.0)])
    likelihood = gaussian_likelihood(estimates, np.ones(40), ConstantDiagonal(np.ones((40, 1))))
    grid = ridgeline_grid(likelihood, 0.5)
    assert len(grid) < 60
    assert ((np.abs(grid) < 5) | (np.abs(grid - 1000) < 5)).all()


@pytest.mark.parametrize("d", [1, 2])
def test_the_certificate_bounds_what_the_grid_loses(d: int) -> None:
    likelihood, rng = problem(50, d), np.random.default_rng(0)
    best = certified(likelihood, tol=1e-7)
    losses = []
    for spacing in (1.0, 0.5, 0.25):
        fit = grid_npmle(likelihood, spacing=spacing, rng=rng)
        losses.append(best.log_likelihood - fit.log_likelihood)
        assert -1e-7 <= losses[-1] <= fit.certificate.bound + 1e-7
        assert_allclose(fit.weights.sum(), 1.0)
    assert losses[2] < losses[0]
    assert losses[2] < 5e-3


def test_the_loss_is_within_the_theorys_bound() -> None:
    likelihood = problem(60, 1)
    best = certified(likelihood, tol=1e-7)
    diameter = float(np.ptp(likelihood.estimates))
    for spacing in (0.1, 0.05):
        fit = grid_npmle(likelihood, spacing=spacing, rng=np.random.default_rng(0))
        loss = best.log_likelihood - fit.log_likelihood
        assert loss <= discretisation_bound(spacing, diameter + 2 * spacing, 1.0, 1)


def test_an_imprecise_client_is_not_forgotten() -> None:
    """Two imprecise clients agree half way between them, far from every estimate in the others' errors."""
    estimates = np.array([[1000.0 + 0.1 * i] for i in range(8)] + [[-40.0], [40.0]])
    errors = np.array([[0.1]] * 8 + [[50.0]] * 2)
    likelihood = gaussian_likelihood(estimates, np.ones(10), ConstantDiagonal(errors**-2.0))
    best = certified(likelihood, tol=1e-7)
    fit = grid_npmle(likelihood, spacing=0.5, rng=np.random.default_rng(0))
    assert best.log_likelihood - fit.log_likelihood < 0.02


@pytest.mark.parametrize("spacing", [0.0, -1.0, np.nan, np.inf])
def test_senseless_spacings_are_refused(spacing: float) -> None:
    with pytest.raises(InvalidOption, match="spacing"):
        ridgeline_grid(problem(10, 1), spacing)


@pytest.mark.parametrize(("d", "spacing"), [(2, 1e-3), (6, 0.5), (1, 1e-9)])
def test_grids_of_too_many_points_are_refused(d: int, spacing: float) -> None:
    with pytest.raises(InvalidOption, match="certified"):
        ridgeline_grid(problem(200, d), spacing)


def test_an_absurd_estimate_does_not_hang_it() -> None:
    likelihood = gaussian_likelihood(
        np.array([[0.0], [1.0], [1e60]]), np.ones(3), ConstantDiagonal(np.ones((3, 1)))
    )
    with pytest.raises(InvalidOption, match="certified"):
        ridgeline_grid(likelihood)
