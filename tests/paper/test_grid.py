"""The grid of spacing delta: it covers what it must, and the bound holds."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import vaneb
from vaneb import paper
from vaneb.errors import InvalidOption
from vaneb.paper.grid import grid


def line(k: int = 15) -> vaneb.Reports:
    rng = np.random.default_rng(3)
    x = np.where(rng.random(k) < 0.5, 0.0, 1.5) + rng.normal(0, 0.7, k)
    return vaneb.Reports(x, standard_errors=np.full(k, 0.7))


def test_bound_is_the_propositions():
    reports, delta = line(), 0.01
    found = grid(reports.likelihood(), delta)
    s, d = 0.49, 1
    both = np.concatenate([found.corners.ravel(), reports.estimate.ravel()])
    diameter = both.max() - both.min()
    assert_allclose(found.largest, np.sqrt(3 / (4 * d)) * s / diameter)
    assert_allclose(found.bound, d / s * (0.5 + 2 * diameter**2 / s) * delta**2)


@pytest.mark.parametrize("delta", [0.02, 0.05])
def test_the_solve_on_the_grid_is_within_its_bound_of_the_npmle(delta):
    reports = line()
    on_grid = paper.NPEB(delta=delta, steps=0, tol=1e-8).fit(reports).personalize(reports)
    best = vaneb.VANEB(population="discrete", tol=1e-8).fit(reports).log_likelihood_
    assert 0 <= best - on_grid.log_marginal.mean() + 1e-7 <= on_grid.bound


def test_too_wide_a_spacing_has_no_bound():
    reports = line()
    wide = grid(reports.likelihood(), 0.5)
    assert wide.bound == np.inf
    assert wide.largest < 0.5
    assert paper.Algorithm1(delta=0.5).fit(reports).personalize(reports).bound == np.inf


@pytest.mark.parametrize("full", [False, True])
def test_every_atom_of_the_npmle_lies_in_a_cube(full):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((20, 2))
    root = rng.standard_normal((20, 2, 2)) * 0.3
    covariance = root @ root.transpose(0, 2, 1) + 0.3 * np.eye(2)
    if not full:
        covariance = np.diagonal(covariance, axis1=1, axis2=2)
    reports = vaneb.Reports(x, covariance=covariance)
    corners, delta = grid(reports.likelihood(), 0.25).corners, 0.25
    for atom in vaneb.VANEB(population="discrete", tol=1e-6).fit(reports).prior_.atoms:
        # all four corners of the cube that holds the atom
        low = corners.min(axis=0)
        cube = np.floor((atom - low) / delta + 1e-9)
        for step in ([0, 0], [0, 1], [1, 0], [1, 1]):
            assert np.abs(corners - (low + delta * (cube + step))).sum(axis=1).min() < 1e-9


def test_what_cannot_be_covered_is_refused():
    with pytest.raises(InvalidOption, match="cubes: give a larger one"):
        grid(line().likelihood(), 1e-7)
    singular = vaneb.Reports([[0.0, 1.0], [1.0, 0.0]], precision=[np.diag([1.0, 0.0]), np.eye(2)])
    with pytest.raises(InvalidOption, match="precision is singular"):
        grid(singular.likelihood(), 0.1)
