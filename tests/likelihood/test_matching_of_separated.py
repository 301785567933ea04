"""Gaussian factors of clients whose rows are all of one class: they say little, and no more than that."""

from __future__ import annotations

import numpy as np
import pytest

from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.matching import LEAST, matched
from vaneb.local.data import GroupedRows
from vaneb.local.families import binomial


def separated() -> GroupedRows:
    """Two clients, every row of the first a success, of the second most."""
    x = np.linspace(-1, 1, 12)
    design = np.column_stack([np.ones(24), np.tile(x, 2)])
    response = np.concatenate([np.ones(12), np.arange(12) % 4 > 0]).astype(float)
    return GroupedRows.from_columns(np.repeat(["a", "b"], 12), design, response, names=("Intercept", "x"))


@pytest.mark.parametrize("width", [1.0, 30.0, 1e4])
def test_a_factor_is_finite_whatever_the_population(width):
    found = matched(exact_likelihood(separated(), binomial()), np.zeros((2, 2)), width**2 * np.eye(2))
    for part in found:
        assert np.isfinite(part).all()
    assert np.linalg.eigvalsh(found.precision).min() > 0.99 * LEAST / width**2


def test_with_its_factor_a_client_has_the_posterior_mean_that_it_has():
    """Also where the precision was raised to the least."""
    centre, spread = np.zeros((2, 2)), np.diag([4.0, 1.0])
    found = matched(exact_likelihood(separated(), binomial()), centre, spread)
    inverse = np.linalg.inv(spread)
    for precision, weighted, middle in zip(found.precision, found.weighted, found.middle, strict=True):
        np.testing.assert_allclose(np.linalg.solve(precision + inverse, weighted), middle, rtol=1e-8)
