"""Blocks of clients: cover everything, keep their order, and may be nested."""

import numpy as np
import pytest

from vaneb.blocks import blocks, map_blocks, sum_blocks, threads


@pytest.mark.parametrize(("n", "size"), [(1, 5), (5, 5), (6, 5), (1000, 7)])
def test_blocks_cover_all_clients_in_order(n, size):
    parts = blocks(n, size)
    assert np.array_equal(np.concatenate([np.arange(n)[part] for part in parts]), np.arange(n))
    assert max(part.stop - part.start for part in parts) <= size


@pytest.mark.parametrize("count", ["1", "2", "5"])
def test_a_sum_does_not_depend_on_the_number_of_threads(monkeypatch, count):
    values = np.random.default_rng(0).standard_normal(1000)
    monkeypatch.setenv("VANEB_THREADS", "1")
    (one,) = sum_blocks(lambda rows: (values[rows].sum(),), 1000, 10)
    monkeypatch.setenv("VANEB_THREADS", count)
    (several,) = sum_blocks(lambda rows: (values[rows].sum(),), 1000, 10)
    assert one == several


def test_blocks_within_blocks_end(monkeypatch):
    """More outer blocks than threads, each of which asks for blocks itself."""
    monkeypatch.setenv("VANEB_THREADS", "2")

    def outer(rows):
        return sum(map_blocks(lambda inner: inner.stop - inner.start, rows.stop - rows.start, 3))

    assert list(map_blocks(outer, 100, 10)) == [10] * 10


@pytest.mark.parametrize("asked", ["0", "-1", "many", ""])
def test_a_senseless_number_of_threads_is_not_taken(monkeypatch, asked):
    monkeypatch.setenv("VANEB_THREADS", asked)
    assert threads() >= 1
