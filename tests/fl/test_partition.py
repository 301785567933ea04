"""Splits that always end, use no image twice, and keep what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaneb.errors import InvalidOption
from vaneb.fl import partition


@given(
    clients=st.integers(1, 40),
    classes=st.integers(1, 6),
    alpha=st.floats(1e-4, 100),
    spare=st.integers(0, 20),
    seed=st.integers(0, 1000),
)
def test_counts_are_met_however_skewed(clients, classes, alpha, spare, seed):
    """Every client gets its size and no class more than it has, also when nothing is left over."""
    rng = np.random.default_rng(seed)
    available = rng.integers(0, 60, classes)
    available[0] += clients
    sizes = partition.even_sizes(max(clients, int(available.sum()) - spare), clients)
    if sizes.sum() > available.sum():
        return
    counts = partition.dirichlet_counts(sizes, available, alpha, rng)
    np.testing.assert_array_equal(counts.sum(1), sizes)
    assert (counts >= 0).all()
    assert (counts.sum(0) <= available).all()


def test_alpha_is_the_skew():
    sizes, available = partition.even_sizes(20_000, 100), np.full(10, 6000)
    largest = [
        (partition.dirichlet_counts(sizes, available, alpha, np.random.default_rng(0)).max(1) / 200).mean()
        for alpha in (0.01, 0.1, 0.5, 1000.0)
    ]
    assert largest[0] > 0.9 > largest[1] > largest[2] > 0.2 > largest[3]


def test_no_client_goes_first():
    """When a class runs short, early and late clients lose the same."""
    sizes, available = np.full(200, 50), np.array([500, 20_000])
    counts = partition.dirichlet_counts(sizes, available, 1.0, np.random.default_rng(0))
    assert counts[:, 0].sum() == 500
    assert abs(counts[:100, 0].sum() - 250) < 60


def test_images_are_given_once():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 300)
    counts = partition.dirichlet_counts(partition.even_sizes(280, 7), np.bincount(labels), 0.1, rng)
    rows = partition.assign_images(labels, counts, rng)
    assert len(np.unique(np.concatenate(rows))) == 280
    for k, mine in enumerate(rows):
        np.testing.assert_array_equal(np.bincount(labels[mine], minlength=5), counts[k])


def test_sizes_differ_by_at_most_one():
    np.testing.assert_array_equal(partition.even_sizes(11, 4), [3, 3, 3, 2])


def test_balanced_tests_have_every_class_equally():
    counts = partition.balanced_test_counts(3, 25, np.array([10, 9, 30]))
    np.testing.assert_array_equal(counts, np.full((3, 3), 8))


def test_matched_tests_follow_the_training_labels():
    train = np.array([[50, 50, 0], [1, 1, 98], [100, 0, 0]])
    counts = partition.matched_test_counts(train, 20, np.array([100, 100, 12]))
    np.testing.assert_array_equal(counts[0], [10, 10, 0])
    # 98% of a class with 12 held-out images: a smaller test set, still in proportion.
    np.testing.assert_array_equal(counts[1], [0, 0, 12])
    np.testing.assert_array_equal(counts[2], [20, 0, 0])


def test_test_rows_have_the_labels_asked_for():
    labels = np.repeat([0, 1, 2], 20)
    counts = np.array([[3, 0, 5], [20, 20, 20]])
    rows = partition.draw_test_rows(labels, counts, np.random.default_rng(0))
    for k in range(2):
        assert len(np.unique(rows[k])) == counts[k].sum()
        np.testing.assert_array_equal(np.bincount(labels[rows[k]], minlength=3), counts[k])


def test_impossible_splits_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidOption, match="without any"):
        partition.even_sizes(5, 10)
    with pytest.raises(InvalidOption, match="the data set has 10"):
        partition.dirichlet_counts(np.array([11]), np.array([5, 5]), 1.0, rng)
    with pytest.raises(InvalidOption, match="test_per_client"):
        partition.balanced_test_counts(3, 2, np.array([10, 9, 30]))


@given(
    clients=st.integers(1, 60), ratio=st.floats(1, 200), spare=st.integers(0, 500), seed=st.integers(0, 100)
)
def test_unequal_sizes_are_met(clients, ratio, spare, seed):
    total = int(clients * ratio) + spare
    sizes = partition.client_sizes(total, clients, ratio, np.random.default_rng(seed))
    assert sizes.sum() == total
    assert sizes.min() >= 1
    assert sizes.max() <= ratio * (sizes.min() + 1) + 1


def test_sizes_of_20_to_2000():
    sizes = np.sort(partition.client_sizes(50_000, 100, 100.0, np.random.default_rng(0)))
    assert 20 <= sizes[0] <= 25
    assert 2000 <= sizes[-1] <= 2500
    assert 180 <= np.median(sizes) <= 260
    with pytest.raises(InvalidOption, match="size_ratio = 1000"):
        partition.client_sizes(200, 100, 1000.0, np.random.default_rng(0))


def test_labels_mean_different_things_in_groups():
    meaning = partition.label_meanings(3, 10, np.random.default_rng(0))
    np.testing.assert_array_equal(meaning[0], np.arange(10))
    np.testing.assert_array_equal(np.sort(meaning, axis=1), np.tile(np.arange(10), (3, 1)))
    assert len({tuple(row) for row in meaning}) == 3
