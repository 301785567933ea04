"""The estimators of the study: each is what its name says, on samples small enough to check."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from vaneb.covariance import ConstantDiagonal, QuadraticVariance
from vaneb.errors import InvalidOption
from vaneb.study.estimators import ESTIMATORS, Clients, check_estimators
from vaneb.study.prior_curves import FiveCurves
from vaneb.study.scenarios import simulate

SIZE = {"quadratic": (40, 5), "logistic": (30, 5), "poisson": (30, 10)}


@pytest.fixture(scope="module")
def replicates() -> dict[str, Clients]:
    return {name: Clients(simulate(name, *size, np.random.default_rng(7))) for name, size in SIZE.items()}


@pytest.mark.parametrize("scenario", SIZE)
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_gives_an_estimate_to_every_client(replicates, scenario, name):
    clients = replicates[scenario]
    estimated = ESTIMATORS[name](clients)
    assert estimated.mean.shape == clients.sample.theta.shape
    assert np.isfinite(estimated.mean).all()
    assert (estimated.atoms is None) == (name in ("oracle", "adamix", "fedavg", "local"))
    if estimated.atoms is not None:
        assert estimated.atoms >= 1
        assert (estimated.gap is None) == (name == "vaneb")
        assert estimated.gap is None or (estimated.atoms <= 200 and estimated.gap > -1e-6)


def test_oracle_is_bayes_rule_with_the_true_prior():
    clients = Clients(simulate("quadratic", 20, 5, np.random.default_rng(1)))
    sample = clients.sample
    atoms, weights = FiveCurves().atoms(400)
    variance = np.clip(atoms**2, 0.01, 100) / sample.n[:, None, None]
    logs = -0.5 * ((sample.means[:, None] - atoms) ** 2 / variance + np.log(variance)).sum(axis=2)
    share = np.exp(logs - logs.max(axis=1, keepdims=True)) * weights
    expected = (share / share.sum(axis=1, keepdims=True)) @ atoms
    assert_allclose(ESTIMATORS["oracle"](clients).mean, expected, rtol=1e-9, atol=1e-12)


def test_oracle_of_a_scenario_with_rows_uses_their_likelihood():
    clients = Clients(simulate("poisson", 15, 5, np.random.default_rng(2)))
    rows = clients.sample.rows
    atoms, weights = FiveCurves().atoms(400)
    index = rows.design @ atoms.T
    logs = np.add.reduceat(rows.response[:, None] * index - np.exp(index), rows.starts[:-1], axis=0)
    share = np.exp(logs - logs.max(axis=1, keepdims=True)) * weights
    expected = (share / share.sum(axis=1, keepdims=True)) @ atoms
    assert_allclose(ESTIMATORS["oracle"](clients).mean, expected, rtol=1e-9, atol=1e-12)


def test_who_knows_which_variance_in_the_quadratic_scenario(replicates):
    clients = replicates["quadratic"]
    assert isinstance(clients.reports.covariance, QuadraticVariance)
    assert isinstance(clients.fixed.covariance, ConstantDiagonal)
    assert_allclose(
        clients.fixed.likelihood().local_precision(), clients.sample.n[:, None] / clients.sample.variances
    )


def test_local_and_fedavg(replicates):
    clients = replicates["quadratic"]
    sample = clients.sample
    assert_allclose(ESTIMATORS["local"](clients).mean, sample.means)
    average = (sample.n[:, None] * sample.means).sum(axis=0) / sample.n.sum()
    assert_allclose(ESTIMATORS["fedavg"](clients).mean, np.tile(average, (len(sample.n), 1)))


def test_separated_clients_are_flagged_in_their_reports(replicates):
    clients = replicates["logistic"]
    assert clients.flagged > 0
    assert (np.asarray(clients.reports.status) != "ok").sum() == clients.flagged
    assert_allclose(ESTIMATORS["local"](clients).mean, clients.fits.theta)


def test_knowing_the_variance_function_helps():
    errors = dict.fromkeys(("oracle", "vaneb", "npeb", "local"), 0.0)
    for seed in range(2):
        clients = Clients(simulate("quadratic", 150, 5, np.random.default_rng(seed)))
        for name in errors:
            errors[name] += np.mean(
                np.sum((ESTIMATORS[name](clients).mean - clients.sample.theta) ** 2, axis=1)
            )
    assert errors["oracle"] < errors["vaneb"] < errors["npeb"]
    assert errors["vaneb"] < errors["local"]


def test_names_are_checked_and_ordered():
    assert check_estimators(("local", "oracle")) == ("oracle", "local")
    with pytest.raises(InvalidOption, match="'orakel' is unknown"):
        check_estimators(("orakel",))
