"""Sweeps leave the joint distribution of population, clients and estimates as it is (Geweke 2004).

There are two ways to draw a population from its prior.  One is from the formulas of ``mixtures``, with numpy
and scipy.  The other is a chain: it draws new clients and estimates from the population, then sweeps the
population given those.  A wrong conditional distribution, or a move that is not allowed for, makes the two
differ.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import invwishart

from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.population.clients import Coordinates, clients_of
from vaneb.population.lanes import side_by_side
from vaneb.population.mixtures import BETWEEN, CONCENTRATION, FIRMNESS, MIDDLE, REACH, TAIL, Mixture
from vaneb.population.options import Options
from vaneb.population.sampler import _Chain

CLIENTS, SWEEPS, BATCHES, DRAWS = 5, 6_000, 30, 20_000


def from_prior(rng: np.random.Generator, d: int, least: float) -> Mixture:
    """A population of one group."""
    nu = rng.choice(FIRMNESS, p=1 / FIRMNESS / np.sum(1 / FIRMNESS)) if d > 1 else FIRMNESS[0]
    b = rng.gamma(0.5, REACH**2, d)
    omega = invwishart.rvs(d + 1, BETWEEN * np.eye(d), random_state=rng).reshape(d, d)
    middle, tie = MIDDLE * rng.standard_normal(d), rng.gamma(TAIL / 2, 2 / TAIL)
    scale = rng.uniform(least, 1)
    between = np.linalg.cholesky(omega)
    centre = middle + between @ rng.standard_normal(d) / math.sqrt(tie)
    covariance = invwishart.rvs(nu + d - 1, scale * np.diag(2 * nu * b), random_state=rng).reshape(d, d)
    return Mixture(
        np.ones(1), centre[None], np.linalg.cholesky(covariance)[None], np.array([scale]), np.array([tie]),
        np.array([float(CLIENTS)]), 1, middle, between, 2 * nu * b, nu, 0.1,
    )  # fmt: skip


def of_one_group(one: Mixture) -> list[float]:
    covariance = one.roots[0] @ one.roots[0].T
    found = [math.log(covariance[0, 0]), np.linalg.slogdet(covariance)[1], one.scales[0]]
    found += [math.log(one.shape[0] / one.firmness), math.log(one.firmness)]
    if len(covariance) > 1:
        correlation = covariance[0, 1] / math.sqrt(covariance[0, 0] * covariance[1, 1])
        found += [correlation, correlation**2]
    return found


def of_groups(one: Mixture) -> list[float]:
    found = [one.occupied, one.clients.max(), math.log(one.concentration), one.scales[0]]
    return [*found, math.log(one.shape[0] / one.firmness), math.log(one.firmness)]


def groups_from_prior(rng: np.random.Generator, d: int, least: float) -> list[float]:
    """What ``of_groups`` tells, where clients take their seats one after the other."""
    concentration = max(rng.gamma(CONCENTRATION[0], 1 / CONCENTRATION[1]), 1e-3)
    sizes: list[int] = []
    for k in range(CLIENTS):
        if rng.random() * (k + concentration) < concentration:
            sizes.append(1)
        else:
            sizes[rng.choice(len(sizes), p=np.array(sizes) / k)] += 1
    group = from_prior(rng, d, least)
    return [len(sizes), max(sizes), math.log(concentration), *of_groups(group)[3:]]


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("d", [1, 2])
def test_sweeps_keep_the_prior(d: int, single: bool) -> None:
    rng, options = np.random.default_rng(d), Options()
    least, features = options.smallest_scale**2, of_one_group if single else of_groups
    expected = np.array(
        [
            of_one_group(from_prior(rng, d, least)) if single else groups_from_prior(rng, d, least)
            for _ in range(DRAWS)
        ]
    )
    errors = rng.uniform(0.3, 2.0, (CLIENTS, d))
    coordinates = Coordinates(np.arange(d), np.arange(0))
    clients = clients_of(ConstantGaussian(np.zeros((CLIENTS, d)), errors**-2), coordinates, seed=0)
    clients.lanes.precision[:] = side_by_side(errors**-2)  # in the units of the prior
    chain = _Chain(clients, coordinates, single=single, seed=0, options=options)
    population, found = from_prior(rng, d, least), []
    for _ in range(SWEEPS):
        group = rng.choice(len(population.weights), CLIENTS, p=population.weights)
        noise = rng.standard_normal((CLIENTS, d))
        theta = population.centres[group] + np.einsum("kij,kj->ki", population.roots[group], noise)
        clients.lanes.x[:] = side_by_side(theta + errors * rng.standard_normal((CLIENTS, d)))
        population = chain.step(population, slice(0, 1))
        found.append(features(population))
    means = np.array(found).reshape(BATCHES, -1, expected.shape[1]).mean(axis=1)
    error = np.sqrt(means.var(axis=0, ddof=1) / BATCHES + expected.var(axis=0) / DRAWS)
    score = (means.mean(axis=0) - expected.mean(axis=0)) / np.maximum(error, 1e-12)
    assert np.abs(score).max() < 4, score
