"""Singular precision matrices: determinants and inverses against eigenvalues, in any units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from vaneb.semidefinite import (
    covariance_of_estimates,
    generalised_inverse,
    has_full_rank,
    log_pseudo_determinant,
    rank_of,
    solve_ridged,
    standard_errors,
    unknown_part,
)

UNITS = np.array([1e5, 1.0, 1e-5])


def matrices(rank: int, seed: int = 0, count: int = 6) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(count, 3, rank))
    return root @ np.swapaxes(root, 1, 2)


def in_units(precision: np.ndarray) -> np.ndarray:
    return precision / UNITS[:, None] / UNITS


@pytest.mark.parametrize("rank", range(4))
def test_rank_and_determinant_on_the_range(rank: int) -> None:
    precision = matrices(rank)
    logs, ranks = log_pseudo_determinant(precision)
    assert_array_equal(ranks, rank)
    assert_array_equal(rank_of(precision), rank)
    assert_array_equal(rank_of(in_units(precision)), rank)
    eigenvalues = np.linalg.eigvalsh(precision)[:, 3 - rank :]
    assert_allclose(logs, np.log(eigenvalues).sum(axis=1), rtol=1e-9, atol=1e-9)
    assert has_full_rank(precision) == (rank == 3)
    assert has_full_rank(in_units(precision)) == (rank == 3)


def test_determinants_in_widely_different_units() -> None:
    logs, _ = log_pseudo_determinant(in_units(matrices(3)))
    assert_allclose(logs, np.linalg.slogdet(matrices(3))[1], atol=1e-7)  # the units multiply to one
    direction = np.random.default_rng(1).normal(size=(4, 3))
    rank_one = direction[:, :, None] * direction[:, None, :]
    expected = np.log(((direction / UNITS) ** 2).sum(axis=1))
    assert_allclose(log_pseudo_determinant(in_units(rank_one))[0], expected, rtol=1e-9)


@given(st.integers(0, 3), st.integers(0, 1000), st.booleans())
def test_generalised_inverses(rank: int, seed: int, scaled: bool) -> None:
    precision = matrices(rank, seed)
    precision = in_units(precision) if scaled else precision
    scale = np.sqrt(np.maximum(np.diagonal(precision, axis1=1, axis2=2), 1e-30))
    outer = scale[:, :, None] * scale[:, None, :]
    inverse = generalised_inverse(precision)
    assert_allclose(precision @ inverse @ precision / outer, precision / outer, atol=1e-5)


def test_covariances_of_what_the_data_leave_open() -> None:
    precision = np.array(
        [
            [[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.0]],
            [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 4.0]],
        ]
    )
    covariance = covariance_of_estimates(precision)
    assert_allclose(covariance[0, :2, :2], np.linalg.inv(precision[0, :2, :2]))
    assert_array_equal(np.diagonal(covariance, axis1=1, axis2=2)[0, 2], np.inf)
    assert_allclose(np.diagonal(covariance[1]), [np.inf, np.inf, 0.25])
    assert_array_equal(standard_errors(np.array([[4.0, 0.0]])), [[0.5, np.inf]])
    assert_allclose(standard_errors(precision)[1], [np.inf, np.inf, 0.5])


def test_unknown_parts_are_what_the_precision_does_not_see() -> None:
    vectors = np.random.default_rng(3).normal(size=(6, 3))
    for rank in range(4):
        precision = matrices(rank)
        part = unknown_part(precision, vectors)
        assert_allclose(np.einsum("kij,kj->ki", precision, part), 0.0, atol=1e-9)
        assert_allclose(unknown_part(precision, part), part, atol=1e-9)
        if rank == 0:
            assert_allclose(part, vectors)
    assert_array_equal(unknown_part(np.array([[1.0, 0.0]]), np.array([[5.0, 7.0]])), [[0.0, 7.0]])


def test_solving_with_a_ridge() -> None:
    right = np.random.default_rng(4).normal(size=(6, 3))
    assert_allclose(
        solve_ridged(matrices(3), right, 1e-13),
        np.linalg.solve(matrices(3), right[:, :, None])[:, :, 0],
        rtol=1e-6,
    )
    half = np.array([[[2.0, 0.0], [0.0, 0.0]]])
    assert_allclose(solve_ridged(half, np.array([[4.0, 0.0]]), 1e-12), [[2.0, 0.0]])
