"""One Gaussian population of binary rows and counts: known populations, invariances, hopeless data."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import expit
from vaneb.grouped.generalised_mixed_model import gaussian_population
from vaneb.grouped.grid_choice import certificate, choose_on_grid, grid_over
from vaneb.grouped.marginal import Marginal

from vaneb.local.data import GroupedRows
from vaneb.local.families import binomial, multinomial, poisson


def binary(
    clients: int, rows: int, sd: tuple[float, float], *, seed: int = 0, apart: float = 0.0
) -> GroupedRows:
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(clients), rows)
    theta = np.array([-0.5, 0.8]) + rng.standard_normal((clients, 2)) * sd
    theta[:, 0] += np.where(rng.random(clients) < 0.4, apart, -apart)
    design = np.column_stack([np.ones(len(k)), rng.standard_normal(len(k))])
    y = rng.random(len(k)) < expit((design * theta[k]).sum(axis=1))
    return GroupedRows.from_columns(k, design, y.astype(float))


def test_known_population() -> None:
    found = gaussian_population(Marginal(binary(600, 8, (1.0, 0.6)), binomial()), np.zeros(2))
    assert_allclose(found.mean, [-0.5, 0.8], atol=0.15)
    assert_allclose(np.sqrt(np.diagonal(found.spread)), [1.0, 0.6], atol=0.2)


def test_no_narrower_wider_or_shifted_population_is_more_likely() -> None:
    marginal = Marginal(binary(150, 8, (1.0, 0.8)), binomial())
    mean, root = gaussian_population(marginal, np.zeros(2)).refitted(marginal)

    def height(shift: np.ndarray, scale: np.ndarray) -> float:
        value = marginal.value(mean + shift, scale[:, None] * root).log_density
        return float(value.sum())

    best = height(np.zeros(2), np.ones(2))
    for direction in np.eye(2):
        for sign in (-1, 1):
            assert height(0.1 * sign * direction, np.ones(2)) < best
            assert height(np.zeros(2), 1 + 0.1 * sign * direction) < best


def test_a_slope_that_is_the_same_everywhere_hardly_differs() -> None:
    found = gaussian_population(Marginal(binary(600, 10, (1.0, 0.0)), binomial()), np.zeros(2))
    assert found.spread[1, 1] < 0.05
    assert found.spread[0, 0] == pytest.approx(1.0, abs=0.4)


def test_units_and_zero_of_a_covariate_do_not_matter() -> None:
    rows = binary(80, 6, (1.0, 0.5))
    change = np.array([[1.0, 170.0], [0.0, 25.0]])
    moved = GroupedRows(rows.design @ change, rows.response, rows.offset, rows.starts, rows.ids, rows.names)
    first = gaussian_population(Marginal(rows, binomial()), np.zeros(2))
    second = gaussian_population(Marginal(moved, binomial()), np.zeros(2))
    assert_allclose(change @ second.mean, first.mean, atol=5e-3)
    assert_allclose(change @ second.spread @ change.T, first.spread, atol=2e-2)


def test_clients_whose_responses_are_all_alike() -> None:
    k = np.repeat(np.arange(40), 4)
    rows = GroupedRows.from_columns(k, np.ones((160, 1)), (k % 2).astype(float))
    found = gaussian_population(Marginal(rows, binomial()), np.zeros(1))
    assert 3 < np.sqrt(found.spread[0, 0]) < 20
    assert found.mean[0] == pytest.approx(0.0, abs=0.3)


@pytest.mark.parametrize("clients", [2, 3, 5])
def test_very_few_clients(clients: int) -> None:
    found = gaussian_population(Marginal(binary(clients, 9, (1.0, 0.5)), binomial()), np.zeros(2))
    assert np.isfinite(found.mean).all()
    assert np.isfinite(found.spread).all()


def test_counts_and_classes() -> None:
    rng = np.random.default_rng(3)
    k = np.repeat(np.arange(200), 5)
    theta = rng.normal(0.5, 0.7, 200)
    counts = GroupedRows.from_columns(k, np.ones((1000, 1)), rng.poisson(np.exp(theta[k])).astype(float))
    found = gaussian_population(Marginal(counts, poisson()), np.zeros(1))
    assert np.sqrt(found.spread[0, 0]) == pytest.approx(0.7, abs=0.12)
    design = np.column_stack([np.ones(1000), rng.standard_normal(1000)])
    classes = GroupedRows.from_columns(k, design, rng.integers(0, 3, 1000).astype(float))
    found = gaussian_population(Marginal(classes, multinomial(3, 2)), np.zeros(4))
    assert_allclose(found.mean, 0, atol=0.4)
    assert np.trace(found.spread) < 0.3


@pytest.mark.parametrize("apart", [0.0, 2.5])
def test_two_clusters_are_seen_where_there_are_two(apart: float) -> None:
    marginal = Marginal(binary(300, 8, (0.4, 0.3), apart=apart, seed=5), binomial())
    population = gaussian_population(marginal, np.zeros(2))
    grid = grid_over(population)
    choice = choose_on_grid(marginal, population, grid, rng=np.random.default_rng(0))
    assert choice.single == (apart == 0)
    assert certificate(marginal, population, grid, 1e-4).gap > 0


def test_smoothing_keeps_the_mean_of_a_component() -> None:
    population = gaussian_population(Marginal(binary(60, 8, (1.0, 0.5)), binomial()), np.zeros(2))
    grid = grid_over(population)
    smoothing = grid.smoothing(0.2)
    assert_allclose(smoothing.sum(axis=0), 1)
    central = np.flatnonzero(np.sum(grid.standard**2, axis=1) < 1)
    assert_allclose((smoothing.T @ grid.standard)[central], grid.standard[central], atol=0.15)
    assert_allclose(grid.smoothing(0.0), np.eye(len(grid.points)))
