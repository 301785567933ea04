"""Points that stand for others: merged atoms, distinct maxima, covering subsets."""

from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from vaneb.npmle.support import covering_subset, distinct, merged


def test_merged_atoms_keep_the_mean_and_all_digits() -> None:
    scale = np.ones((4, 1, 1))
    atoms = np.array([[1e9], [1e9], [5.0], [5.01]])
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    together, total, heads = merged(atoms, weights, scale, 0.1)
    assert_allclose(total, [0.4 + 0.3, 0.2 + 0.1])
    assert together[1, 0] == 1e9
    assert_allclose(together[0], (0.3 * 5 + 0.4 * 5.01) / 0.7, rtol=1e-12)
    assert_array_equal(heads, [3, 1])


def test_distinct_points_are_apart() -> None:
    points = np.array([[0.0], [0.05], [1.0], [1.2]])
    scale = np.ones((4, 1, 1))
    assert_array_equal(distinct(points, scale, np.array([3, 2, 1, 0]), 0.1), [3, 2, 1])
    assert_array_equal(distinct(points, scale, np.array([1, 0, 3, 2]), 0.3, always=2), [1, 0, 3])


def test_a_covering_subset_reaches_the_thin_regions() -> None:
    rng = np.random.default_rng(19)
    points = np.concatenate([rng.normal(size=(500, 2)), [[50.0, 0.0]], [[0.0, -80.0]]])
    chosen = covering_subset(points, 40, rng)
    assert len(chosen) <= 40
    assert {500, 501} <= set(chosen.tolist())
    assert_array_equal(covering_subset(points[:30], 40, rng), np.arange(30))
