"""Sums in the place of rows: given what differs between clients, the same noise, population and estimates."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from vaneb.estimators import VANEB
from vaneb.grouped import fit_groups
from vaneb.grouped.from_sums import ClientSums, find_structure_of_sums, fit_population_of_sums
from vaneb.grouped.gaussian_posterior import probabilities
from vaneb.grouped.mixture import first_halves
from vaneb.grouped.population import find_structure
from vaneb.grouped.terms import constant_within
from vaneb.likelihood.loss_sums import Columns, LossSums
from vaneb.local.data import GroupedRows
from vaneb.local.families import binomial, gaussian
from vaneb.local.fit import fit_clients
from vaneb.posterior import posterior


def simulated(slopes: float, clients: int = 60, n: int = 10, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(clients), n)
    x, z = 3 + rng.standard_normal(len(k)), rng.standard_normal(clients)[k]
    level, slope = 2 * rng.standard_normal(clients), slopes * rng.standard_normal(clients)
    y = 1000 + level[k] + (1 + slope[k]) * x - z + rng.standard_normal(len(k))
    return pd.DataFrame({"k": k, "x": x, "z": z, "y": y})


def sums_of(rows: GroupedRows) -> ClientSums:
    points = fit_clients(rows, gaussian()).theta
    first = first_halves(rows, 0)
    parts = [LossSums.of(rows.some_rows(mask), gaussian(), points) for mask in (first, ~first)]
    columns = Columns.of(rows.design)
    return ClientSums(parts[0].plus(parts[1]), (parts[0], parts[1]), columns, constant_within(rows))


@pytest.mark.parametrize(
    ("right", "varying"),
    [("(1 | k)", [True, False, False]), ("(1 + x | k)", [True, True, False])],
)
def test_given_what_differs_sums_say_what_rows_say(right: str, varying: list[bool]) -> None:
    fit = fit_groups(simulated(0.5), formula=f"y ~ x + z + {right}")
    sums = sums_of(fit.rows)
    structure = find_structure_of_sums(sums, gaussian(), known=False, varying=np.array(varying), asked=True)
    assert structure.family.dispersion == pytest.approx(fit.local.family.dispersion, rel=1e-9)
    fixed = structure.fixed_effects(fit.names)
    assert fixed is not None
    assert_allclose(fixed.estimate, fit.fixed.estimate, rtol=1e-9)
    assert_allclose(fixed.covariance, fit.fixed.covariance, rtol=1e-6)
    model = VANEB()
    fit_population_of_sums(sums, structure, fit.names, model)
    assert_allclose(model.prior_.mean, fit.prior.mean, rtol=1e-6)
    assert_allclose(model.prior_.covariance, fit.prior.covariance, rtol=1e-6, atol=1e-9)
    after = posterior(sums.whole.likelihood(structure.family), model.prior_)
    assert_allclose(after.mean, fit.posterior.mean, rtol=1e-6)
    assert_allclose(after.sd, fit.posterior.sd, rtol=1e-6)


@pytest.mark.parametrize("slopes", [0.0, 0.15, 0.4])
@pytest.mark.parametrize("clients", [10, 40])
def test_sums_and_rows_think_the_same_of_what_differs(slopes: float, clients: int) -> None:
    for seed in range(3):
        frame = simulated(slopes, clients=clients, seed=seed)
        rows = fit_groups(frame, client="k", formula="y ~ x").rows
        everything = np.ones(2, dtype=bool)
        of_rows = find_structure(rows, SimpleNamespace(family=gaussian()), everything, asked=False)
        of_sums = find_structure_of_sums(sums_of(rows), gaussian(), known=False)
        assert_array_equal(of_sums.varying, of_rows.varying)
        assert_allclose(probabilities(of_sums.found), probabilities(of_rows.found), atol=1e-6)


def test_sums_see_whether_slopes_differ_without_halves() -> None:
    chosen = {slopes: 0 for slopes in (0.0, 0.7)}
    for slopes in chosen:
        for seed in range(10):
            frame = simulated(slopes, seed=seed)
            design = np.column_stack([np.ones(len(frame)), frame.x, frame.z])
            rows = GroupedRows.from_columns(frame.k.to_numpy(), design, frame.y.to_numpy())
            sums, nobody = sums_of(rows), np.zeros(0, dtype=np.intp)
            whole_only = replace(sums, halves=(sums.halves[0].take(nobody), sums.halves[1].take(nobody)))
            varying = find_structure_of_sums(whole_only, gaussian(), known=False).varying
            # The intercept differs; z is the same in all rows of a client: its coefficient is everybody's.
            assert_array_equal(varying[[0, 2]], [True, False])
            chosen[slopes] += int(varying[1])
    assert chosen[0.7] == 10
    assert chosen[0.0] <= 2


def test_noise_that_is_known_is_not_estimated() -> None:
    rows = fit_groups(simulated(0.7), client="k", formula="y ~ x").rows
    sums, free = sums_of(rows), find_structure_of_sums(sums_of(rows), gaussian(), known=False)
    told = find_structure_of_sums(sums, free.family, known=True)
    assert told.family.dispersion == free.family.dispersion
    assert told.fitted is not None
    assert free.fitted is not None
    assert_allclose(told.fitted.model.spread, free.fitted.model.spread, rtol=1e-3)
    assert_allclose(told.fitted.points, free.fitted.points, rtol=1e-5)


def test_one_binary_row_of_each_client_says_nothing_of_differences() -> None:
    rng = np.random.default_rng(0)
    design = np.column_stack([np.ones(80), rng.standard_normal(80)])
    rows = GroupedRows.from_columns(np.arange(80), design, rng.integers(0, 2, 80))
    whole = LossSums.of(rows, binomial(), np.zeros((80, 2)))
    sums = ClientSums(whole, (whole, whole), Columns.of(design), np.array([True, True]))
    structure = find_structure_of_sums(sums, binomial(), known=False)
    assert not structure.varying.any()
    assert any("one row of each client" in note for note in structure.notes)
