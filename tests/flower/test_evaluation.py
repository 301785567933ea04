"""Evaluation at the client finds what a fit with all clients in one place finds."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower.loopback import LoopbackGrid, content_of, federation
from vaneb import VANEB, InvalidOption
from vaneb.flower import client_data
from vaneb.flower.archive import Archive
from vaneb.flower.client_app import Path
from vaneb.flower.evaluation import RemoteClients, algorithm_1, fit_remote, run_evaluation
from vaneb.flower.exchange import Channel, Lost
from vaneb.flower.settings import Settings
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local.data import GroupedRows
from vaneb.npmle.pseudo_em import own_sums
from vaneb.posterior import posterior
from vaneb.reports import Reports

EVALUATE = Settings(
    mode="evaluate",
    formula="y ~ x",
    family="poisson",
    form="moments",
    likelihood="exact",
    solver="pseudo-em",
    population="discrete",
    iterations=8,
    nodes=6,
    wait=0.1,
    timeout=20.0,
)


def settings_for(likelihood: str, **changes) -> Settings:
    return Settings(**{**vars(EVALUATE), "likelihood": likelihood, **changes})


def central(grid: LoopbackGrid, settings: Settings):
    """The same clients' likelihood, with all of them in one place."""
    models = []
    for node in grid.nodes.values():
        _, frame = client_data.read_client(Path(node.node_config["data"]))
        models.append(client_data.local_model(frame, settings))
    if settings.likelihood == "exact":
        rows = GroupedRows.from_columns(
            np.repeat(np.arange(len(models)), [len(m.rows.response) for m in models]),
            np.concatenate([m.rows.design for m in models]),
            np.concatenate([m.rows.response for m in models]),
            names=models[0].rows.names,
        )
        return exact_likelihood(rows, models[0].family)
    single = [client_data.local_report(model, settings)[0] for model in models]
    named = [type(r)(f"c{k}", r.estimate, r.n, r.covariance, r.status) for k, r in enumerate(single)]
    return Reports.from_clients(named).likelihood()


@pytest.mark.parametrize("likelihood", ["exact", "covariance"])
def test_remote_clients_say_what_those_in_one_place_say(tmp_path, likelihood):
    settings = settings_for(likelihood)
    grid = federation(tmp_path, settings, 5)
    here = central(grid, settings)
    remote = RemoteClients(Channel(grid, 20.0), tuple(grid.nodes), ("Intercept", "x"))
    atoms = np.random.default_rng(0).normal(0, 0.5, (4, 2))
    np.testing.assert_allclose(remote.log_likelihood(atoms), here.log_likelihood(atoms), rtol=1e-9)
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    for x, y in zip(remote.sums(atoms, weights), own_sums(here, atoms, weights), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(remote.local_estimates(), here.local_estimates(), rtol=1e-9)
    np.testing.assert_allclose(remote.local_precision(), here.local_precision(), rtol=1e-9)


@pytest.mark.parametrize("likelihood", ["exact", "covariance"])
def test_the_fit_equals_the_central_one(tmp_path, likelihood):
    settings = settings_for(likelihood)
    grid = federation(tmp_path, settings, 6)
    outcome = run_evaluation(Channel(grid, 20.0), settings, Archive.open(tmp_path / "server", settings))
    assert outcome["served"] == [f"c{k}" for k in range(6)]
    # Two questions to describe the clients, one for the weights, one for each step, one for the results.
    assert outcome["exchanges"] == 8 + 4
    here = central(grid, settings)
    atoms, weights = algorithm_1(here, partial(own_sums, here), 8)
    prior = Archive(tmp_path / "server").prior()
    np.testing.assert_allclose(prior.atoms, atoms, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(prior.weights, weights, rtol=1e-8, atol=1e-12)
    expected = posterior(here, prior)
    for k in range(6):
        found = json.loads((tmp_path / f"c{k}" / "result.json").read_text())
        np.testing.assert_allclose(found["mean"], expected.mean[k], rtol=1e-6, atol=1e-9)


def test_the_fit_equals_that_of_the_estimator(tmp_path):
    """With constant covariances ``VANEB`` itself starts at the estimates too."""
    settings = settings_for("covariance", form="constant")
    grid = federation(tmp_path, settings, 6)
    here = central(grid, settings)
    model = VANEB(solver="pseudo-em", iterations=8).fit(here).prior_
    prior = fit_remote(Channel(grid, 20.0), tuple(grid.nodes), settings)
    alive = model.weights > 1e-8
    np.testing.assert_allclose(prior.atoms, model.atoms[alive], rtol=1e-8)
    np.testing.assert_allclose(prior.weights, model.weights[alive], rtol=1e-7)


def test_there_is_one_way_to_fit_over_many_exchanges():
    for mode in ("evaluate", "secure"):
        with pytest.raises(InvalidOption, match=r"solver certified: in mode .* pseudo-em only"):
            settings_for("exact", mode=mode, lower="0,0", upper="1,1", solver="certified")


def test_a_client_lost_on_the_way_is_named_and_the_fit_goes_on(tmp_path):
    settings = settings_for("exact", iterations=2, timeout=1.0)
    grid = federation(tmp_path, settings, 5)
    asked = 0

    def falls_silent(message, genuine):
        nonlocal asked
        asked += 1
        return genuine(message) if asked < 4 else None

    grid.nodes[1001].behave = falls_silent
    outcome = run_evaluation(Channel(grid, 1.0), settings, Archive.open(tmp_path / "server", settings))
    assert [t["client"] for t in outcome["troubles"]] == ["c1"]
    assert outcome["served"] == ["c0", "c2", "c3", "c4"]


def test_numbers_that_are_none_are_refused(tmp_path):
    grid = federation(tmp_path, EVALUATE, 3)

    def nan(message, genuine):
        from flwr.app import Message

        from vaneb.flower import wire

        content = content_of(genuine(message))
        return Message(wire.to_record({**content, "values": np.full(2, np.nan)}), reply_to=message)

    grid.nodes[1002].behave = nan
    remote = RemoteClients(Channel(grid, 5.0), tuple(grid.nodes), ("Intercept", "x"))
    with pytest.raises(Lost, match="node 1002: values: holds numbers that are not finite"):
        remote.log_likelihood(np.zeros((2, 2)))


def test_a_client_answers_only_in_the_modes_that_it_allows(tmp_path):
    grid = federation(tmp_path, EVALUATE, 3)
    for node, modes in ((1000, '["secure", "reports"]'), (1001, '["evaluate"]')):
        (tmp_path / f"{node}.toml").write_text(f'modes = {modes}\nlikelihoods = ["exact"]\n')
        grid.nodes[node].node_config["policy"] = str(tmp_path / f"{node}.toml")
    with pytest.raises(Lost) as found:
        RemoteClients(Channel(grid, 5.0), tuple(grid.nodes), ("Intercept", "x")).log_likelihood(
            np.zeros((1, 2))
        )
    assert found.value.reasons.keys() == {1000}
    assert "answers secure, reports only" in (tmp_path / "c0" / "errors.log").read_text()
