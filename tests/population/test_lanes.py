"""A client integrated over a component: beside scipy, and where digits are scarce."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal

from vaneb.population.lanes import LANES, in_a_row, lanes_of, scratch, weigh


def weighed(x: np.ndarray, precision: np.ndarray, centre: np.ndarray, root: np.ndarray) -> np.ndarray:
    clients, out = lanes_of(x, precision), np.empty(LANES)
    weigh(clients.x[0], clients.precision[0], centre, root.ravel(), scratch(*root.shape, LANES), out)
    return out[: len(x)]


@pytest.mark.parametrize("r", [1, 3])
@pytest.mark.parametrize("full", [False, True])
def test_it_is_the_normal_density_but_for_the_clients_constant(r: int, full: bool) -> None:
    rng, d = np.random.default_rng(0), 3
    x, centre, root = rng.standard_normal((5, d)), rng.standard_normal(d), np.tril(rng.normal(size=(d, r)))
    half = rng.normal(size=(5, d, d))
    precision = half @ np.swapaxes(half, 1, 2) if full else rng.uniform(0.2, 5.0, (5, d))
    for k, found in enumerate(weighed(x, precision, centre, root)):
        noise = np.linalg.inv(precision[k] if full else np.diag(precision[k]))
        density = multivariate_normal.logpdf(x[k], centre, noise + root @ root.T)
        assert_allclose(found, density - multivariate_normal.logpdf(x[k], x[k], noise), rtol=1e-9)


def test_a_client_far_out_that_knows_itself_well() -> None:
    """e'Pe is 1e36 here, and what is left of it 1e17: a difference of the two would be noise."""
    x, precision = np.array([[1e9]]), np.array([[1e18]])
    for spread in (1.0, 4.0, 15.0):
        found = weighed(x, precision, np.zeros(1), np.array([[spread]]))
        assert_allclose(found, -0.5 * (1e18 / spread**2), rtol=1e-9)


def test_some_of_the_blocks_are_contiguous_and_know_their_clients():
    x = np.arange(2 * (3 * LANES + 5), dtype=float).reshape(-1, 2)
    everyone = lanes_of(x, np.ones_like(x))
    for few, rows in (
        (slice(0, 4, 3), np.r_[0:LANES, 3 * LANES : len(x)]),
        (slice(0, 4, 2), np.r_[0:LANES, 2 * LANES : 3 * LANES]),
        (slice(1, 3), np.arange(LANES, 3 * LANES)),
    ):
        some = everyone.some(few)
        assert some.clients == len(rows)
        assert some.x.flags.c_contiguous
        assert some.precision.flags.c_contiguous
        assert np.array_equal(in_a_row(some.x, some.clients), x[rows])
