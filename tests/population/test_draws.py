"""Loops that stand for linear algebra, against numpy; and that kernels are compiled once."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from vaneb import VANEB, Reports
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.population import conditioning, draws, mixtures, sweep
from vaneb.population.options import Options
from vaneb.population.sampler import sample_populations

UNITS = np.array([1e-3, 1.0, 50.0, 2e4])


@pytest.fixture
def matrix() -> np.ndarray:
    """Positive definite, in units that differ widely."""
    root = np.random.default_rng(3).standard_normal((4, 6)) * UNITS[:, None]
    return root @ root.T


def test_roots_and_inverses(matrix: np.ndarray) -> None:
    root, back, inverse = np.empty((4, 4)), np.empty((4, 4)), np.empty((4, 4))
    draws.root_of(matrix, 0.0, root)
    assert_allclose(root, np.linalg.cholesky(matrix), rtol=1e-10)
    draws.lower_inverse(root, back)
    assert_allclose(back @ root, np.eye(4), atol=1e-9)
    draws.inverse(matrix, inverse)
    assert_allclose(inverse @ matrix, np.eye(4), atol=1e-5)
    assert_allclose(
        inverse * np.outer(UNITS, UNITS), np.linalg.inv(matrix / np.outer(UNITS, UNITS)), rtol=1e-9
    )
    general = np.random.default_rng(4).standard_normal((4, 4))
    draws.inverse_square(general, inverse)
    assert_allclose(inverse, np.linalg.inv(general @ general.T), rtol=1e-9)


def test_a_root_made_lower_is_a_root_of_the_same() -> None:
    root = np.random.default_rng(5).standard_normal((4, 4)) * UNITS[:, None]
    lower = root.copy()
    draws.make_lower(lower)
    assert (np.triu(lower, 1) == 0).all()
    assert (np.diagonal(lower) > 0).all()
    assert_allclose(lower @ lower.T, root @ root.T, rtol=1e-10)


def test_gaussian_draws_have_their_mean_and_covariance(matrix: np.ndarray) -> None:
    right, out = np.array([1.0, -2.0, 0.5, 3.0]) * UNITS, np.empty(4)
    draws.gaussian(np.zeros(4), matrix, right, out)
    covariance = np.linalg.inv(matrix / np.outer(UNITS, UNITS)) / np.outer(UNITS, UNITS)
    mean = out.copy()
    assert_allclose(mean, covariance @ right, rtol=1e-8)
    columns = []
    for normal in np.eye(4):
        draws.gaussian(normal, matrix, right, out)
        columns.append(out - mean)
    scaled = np.array(columns).T * UNITS[:, None]
    assert_allclose(scaled @ scaled.T, covariance * np.outer(UNITS, UNITS), rtol=1e-7)


def test_inverse_wishart_roots() -> None:
    rng, scale, out = np.random.default_rng(6), np.array([[2.0, 0.6], [0.6, 1.0]]), np.empty((2, 2))
    total, z = np.zeros((2, 2)), np.zeros((2, 2))
    for _ in range(20_000):
        draws.bartlett(rng, 9.0, z)
        draws.wishart_root(z, scale, out)
        total += out @ out.T
    assert_allclose(total / 20_000, scale / (9 - 2 - 1), rtol=0.03)


def test_every_kernel_is_compiled_once() -> None:
    """Another layout of an array, or a constant for a number, would compile a kernel once more."""
    kernels = (
        sweep.draw_clients, sweep._add, sweep.turned, conditioning.posteriors, mixtures._draw_components,
        mixtures._draw_moves, draws.gaussian, draws.make_lower,
    )  # fmt: skip
    before = {kernel.__name__: len(kernel.signatures) for kernel in kernels}  # of other tests
    rng, quick = np.random.default_rng(7), Options(draws=5, burn=5, sweeps=10, fewest_sweeps=0)
    for d in (1, 3):
        estimates, root = rng.standard_normal((70, d)), rng.standard_normal((70, d, d))
        full = root @ np.swapaxes(root, 1, 2) + np.eye(d)
        for noise in ({"standard_errors": np.ones((70, d))}, {"covariance": full}):
            model = VANEB(options=quick).fit(Reports(estimates, **noise))
            model.personalize(Reports(estimates, **noise)).interval(0.9)
    some = np.array([True, False, True])
    sample_populations(ConstantGaussian(estimates, full), options=quick, varying=some)
    compiled = {kernel.__name__: len(kernel.signatures) - before[kernel.__name__] for kernel in kernels}
    assert max(compiled.values()) <= 1, compiled
