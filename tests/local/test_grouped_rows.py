import numpy as np
import pytest

from vaneb.errors import InvalidReport
from vaneb.local.data import GroupedRows


def make() -> GroupedRows:
    return GroupedRows.from_columns(
        ["b", "a", "b", "c", "a"],
        np.arange(10.0).reshape(5, 2),
        np.arange(5.0),
        offset=10 * np.arange(5.0),
        names=("one", "two"),
    )


def test_rows_are_grouped_in_order_of_appearance():
    rows = make()
    assert rows.ids == ("b", "a", "c")
    np.testing.assert_array_equal(rows.response, [0, 2, 1, 4, 3])
    np.testing.assert_array_equal(rows.offset, [0, 20, 10, 40, 30])
    np.testing.assert_array_equal(rows.n_rows, [2, 2, 1])
    np.testing.assert_array_equal(rows.client_of_row, [0, 0, 1, 1, 2])


def test_take_by_slice_is_a_view_and_by_index_a_permutation():
    rows = make()
    part = rows.take(slice(1, 3))
    assert part.ids == ("a", "c")
    assert np.shares_memory(part.design, rows.design)
    np.testing.assert_array_equal(part.response, [1, 4, 3])
    swapped = rows.take(np.array([2, 0]))
    assert swapped.ids == ("c", "b")
    np.testing.assert_array_equal(swapped.response, [3, 0, 2])
    np.testing.assert_array_equal(swapped.starts, [0, 1, 3])
    assert rows.take(slice(2, 2)).n_clients == 0


def test_pooled_is_one_client():
    pooled = make().pooled()
    assert pooled.n_clients == 1
    assert pooled.n_rows[0] == 5


def test_errors_name_the_place():
    z = np.ones((3, 2))
    z[1, 1] = np.nan
    with pytest.raises(InvalidReport, match="client 'q', column 'two'"):
        GroupedRows.from_columns(["p", "q", "q"], z, np.zeros(3), names=("one", "two"))
    with pytest.raises(InvalidReport, match="one row for each"):
        GroupedRows.from_columns(["p", "q"], z, np.zeros(2))
    with pytest.raises(InvalidReport, match="no rows"):
        GroupedRows.from_columns([], np.zeros((0, 2)), [])
    with pytest.raises(InvalidReport, match="1 names for 2 columns"):
        GroupedRows.from_columns(["p", "q", "q"], np.ones((3, 2)), np.zeros(3), names=("one",))
    with pytest.raises(InvalidReport, match="client 'q': weight -1 is negative"):
        GroupedRows.from_columns(["p", "q"], np.ones((2, 2)), np.zeros(2), weight=[1.0, -1.0])
