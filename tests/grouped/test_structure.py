"""Which coefficients differ between clients: known answers, and what must not matter."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from vaneb.grouped.mixed_model import mixed_model
from vaneb.grouped.structure import centred_basis
from vaneb.likelihood.loss_sums import Columns
from vaneb.local.data import GroupedRows


def simulated(sd: list[float], *, seed: int = 0, clients: int = 150, rows: int = 8):
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), rows)
    design = np.column_stack([np.ones(len(client)), rng.standard_normal((len(client), len(sd) - 1))])
    theta = 0.5 + rng.standard_normal((clients, len(sd))) * sd
    index = (design * theta[client]).sum(axis=1)
    return GroupedRows.from_columns(client, design, index + rng.standard_normal(len(client)))


def test_basis_turns_coefficients_of_centred_columns_into_those_of_the_columns() -> None:
    rng = np.random.default_rng(1)
    design = np.column_stack([rng.normal(50, 3, 40), np.ones(40), rng.normal(-2, 0.1, 40)])
    basis, intercept = centred_basis(Columns.of(design))
    assert intercept == 1
    centred = (design - design.mean(axis=0)) / np.where(design.std(axis=0) > 0, design.std(axis=0), 1)
    centred[:, 1] = 1
    assert_allclose(design @ basis, centred, atol=1e-9)


def test_no_constant_column_no_centring() -> None:
    design = np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 1.0]])
    basis, intercept = centred_basis(Columns.of(design))
    assert intercept is None
    assert_allclose(np.mean((design @ basis) ** 2, axis=0), 1)


def test_slopes_that_are_the_same_everywhere_are_found_out() -> None:
    found = mixed_model(simulated([1.0, 0, 0, 0, 0]))
    assert found.free.sum() < 15
    assert_allclose(found.mean, 0.5, atol=0.25)


def test_slopes_that_differ_are_kept() -> None:
    found = mixed_model(simulated([1.0, 1.0, 1.0]))
    assert_array_equal(found.free, np.tri(3, dtype=bool))
    assert_allclose(np.diagonal(found.spread), 1, rtol=0.4)


def test_fewer_clients_than_entries() -> None:
    found = mixed_model(simulated([1.0] * 7, clients=20, rows=12))
    assert found.free.sum() <= 20
    assert np.isfinite(found.spread).all()


@pytest.mark.parametrize("sd", [[1.0, 0.0], [0.8, 0.8]])
def test_units_and_zero_of_a_covariate_do_not_matter(sd: list[float]) -> None:
    rows = simulated(sd, seed=3)
    change = np.array([[1.0, 170.0], [0.0, 25.0]])
    moved = GroupedRows(rows.design @ change, rows.response, rows.offset, rows.starts, rows.ids, rows.names)
    first, second = mixed_model(rows), mixed_model(moved)
    assert_array_equal(first.free, second.free)
    assert_allclose(change @ second.mean, first.mean, rtol=1e-3, atol=1e-4)
    assert_allclose(change @ second.spread @ change.T, first.spread, rtol=2e-2, atol=2e-3)
