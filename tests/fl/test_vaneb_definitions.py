"""What defines the VANEB methods: limiting cases of the empirical Bayes step, and when it is taken."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch

from fl.federations import OPTIONS, one_round, rounds, start, tiny_client, tiny_network
from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import ClientData
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.network import (
    head_params,
    load_params,
    logits,
)
from vaneb.fl.personalise_heads import shrink_heads
from vaneb.fl.workers import one_torch_thread

CLIENTS = [tiny_client(k, 8) for k in range(4)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As the engine does it: two threads for tensors this small only wait for each other."""
    with one_torch_thread():
        yield


def precision_weighted(outputs):
    heads = np.stack([out["head"].double().numpy().ravel() for out in outputs.values()])
    precision = np.stack([out["n"] / out["variance"].numpy().ravel() for out in outputs.values()])
    return (precision * heads).sum(0) / precision.sum(0)


@pytest.mark.parametrize("name", ["vaneb_ft", "vaneb_la"])
def test_one_atom_is_precision_weighted_averaging(name):
    network = tiny_network()
    algorithm, state = start(name, network, atoms=1)
    after, _, outputs, _ = rounds(algorithm, state, CLIENTS, 1)
    expected = precision_weighted(outputs)
    for k in range(4):
        np.testing.assert_allclose(after.memory["heads"][str(k)].ravel(), expected, rtol=1e-5)


def test_one_atom_of_all_weights_is_precision_weighted_averaging():
    network = tiny_network()
    algorithm, state = start("vaneb_full", network, atoms=1)
    after, _, outputs, _ = rounds(algorithm, state, CLIENTS, 1)
    flat = np.concatenate([after.params[key].ravel() for key in network.trainable_names])
    np.testing.assert_allclose(flat, precision_weighted(outputs), rtol=1e-5, atol=1e-7)


def test_as_many_sharp_atoms_as_clients_are_the_local_heads():
    """With an atom at every report and reports that are far apart, shrinkage does nothing."""
    rng = np.random.default_rng(0)
    heads = 10.0 * rng.standard_normal((6, 5))
    found = shrink_heads(
        heads, np.full((6, 5), 0.1), np.full(6, 50.0), "direct", atoms=10, iterations=5, rng=rng
    )
    np.testing.assert_allclose(found.means, heads, atol=1e-8)
    np.testing.assert_allclose(found.weights, 1 / 6)


def test_two_groups_of_clients_are_found():
    """Heads around two centres: the posterior mean of a client is near the centre of its group."""
    rng = np.random.default_rng(1)
    centres = np.array([[0.0] * 8, [3.0] * 8])
    group = np.arange(40) % 2
    heads = centres[group] + 0.3 * rng.standard_normal((40, 8))
    for rule in ("direct", "coordinate"):
        found = shrink_heads(
            heads, np.full((40, 8), 9.0), np.full(40, 100.0), rule, atoms=4, iterations=50, rng=rng
        )
        error, error_before = ((x - centres[group]) ** 2 for x in (found.means, heads))
        assert error.mean() < error_before.mean() / 2
        np.testing.assert_allclose(found.responsibilities.sum(1), 1)


@pytest.mark.parametrize("rule", ["direct", "coordinate"])
def test_the_empirical_bayes_step_takes_memory_of_the_order_of_the_reports(rule):
    """d may be the number of weights of a network: a d x d matrix for an atom is out of the question."""
    rng = np.random.default_rng(2)
    for d in (20, 3000):  # what is compiled or imported is, in the first
        heads, variances = rng.standard_normal((10, d)), rng.uniform(0.5, 2.0, (10, d))
        tracemalloc.start()
        try:
            shrink_heads(heads, variances, np.full(10, 30.0), rule, iterations=2, rng=rng)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 30 * heads.nbytes < d * d * 8 / 5


def test_a_smooth_prior_leaves_clients_the_rows_they_know():
    """m = 0 keeps the own row of every class seen, m = inf the posterior mean; between, n_kc / (n_kc + m)."""
    found = {}
    for count in (None, 0.0, 4.0, float("inf")):
        algorithm, state = start("vaneb_la", tiny_network(), prior_count=count)
        after, states, _, _ = rounds(algorithm, state, CLIENTS, 1)
        message = algorithm.broadcast(after, 1)
        found[count] = algorithm.personalize(message, states[1], CLIENTS[1], np.random.default_rng(0))
        assert bool(states[1]) == (count is not None)
    tuned, state = start("fedavg_ft", tiny_network(), adjusted=True)
    _, states, _, _ = rounds(tuned, state, CLIENTS, 1)
    own = tuned.personalize(tuned.broadcast(state, 1), states[1], CLIENTS[1], np.random.default_rng(0))
    torch.testing.assert_close(found[float("inf")]["head.weight"], found[None]["head.weight"])
    for c, seen in enumerate(torch.bincount(CLIENTS[1].labels, minlength=CLIENTS[1].n_classes).tolist()):
        for name in ("head.weight", "head.bias"):
            prior_row, own_row = found[None][name][c], own[name][c]
            torch.testing.assert_close(found[0.0][name][c], own_row if seen else prior_row)
            share = seen / (seen + 4.0)
            torch.testing.assert_close(found[4.0][name][c], (1 - share) * prior_row + share * own_row)
    with pytest.raises(InvalidOption, match="prior_count"):
        start("vaneb_la", tiny_network(), prior_count=-1.0)


def test_settings_of_the_empirical_bayes_step_are_checked():
    network = tiny_network()
    for option, value in (("rule", "diagonal"), ("atoms", 0), ("iterations", -1)):
        with pytest.raises(InvalidOption, match=option):
            start("vaneb_ft", network, **{option: value})
    with pytest.raises(InvalidOption, match="every"):
        start("vaneb_head", network, every=0)


def test_vaneb_head_shrinks_in_every_second_round_only():
    network = tiny_network()
    algorithm, state = start("vaneb_head", network, every=2)
    state, states, outputs, info = one_round(algorithm, state, CLIENTS, {}, 0)
    assert "variance" not in outputs[0]
    assert not info
    for k in range(4):
        assert torch.equal(state.memory["heads"][str(k)], outputs[k]["head"])
    seed = [state.memory["seed"], state.round]
    state, states, outputs, info = one_round(algorithm, state, CLIENTS, states, 1)
    expected = shrink_heads(
        np.stack([out["head"].double().numpy().ravel() for out in outputs.values()]),
        np.stack([out["variance"].numpy().ravel() for out in outputs.values()]),
        np.full(4, 8.0),
        "direct",
        atoms=3,
        iterations=5,
        rng=np.random.default_rng(seed),
    )
    for k in range(4):
        np.testing.assert_allclose(state.memory["heads"][str(k)].ravel(), expected.means[k], rtol=1e-6)
    # A client starts its next round from its own head.
    assert torch.equal(algorithm.broadcast(state, 2)["head"], state.memory["heads"]["2"])


def test_label_adjustment_changes_nothing_for_balanced_clients():
    """Equal proportions add the same number to every logit."""
    network = tiny_network()
    data = ClientData(0, CLIENTS[0].images[:6], torch.tensor([0, 1, 2, 0, 1, 2]), 3)
    reports = []
    for name in ("vaneb_ft", "vaneb_la"):
        algorithm, state = start(name, network)
        message = algorithm.broadcast(state, 0)
        reports.append(algorithm.client_update(message, data, {}, np.random.default_rng(0))[0])
    torch.testing.assert_close(reports[0]["head"], reports[1]["head"])
    torch.testing.assert_close(reports[0]["variance"], reports[1]["variance"])


def test_label_adjustment_leaves_the_proportions_out_of_the_head():
    """A client with one label mostly: its adjusted head favours that label less than the plain one."""
    network = tiny_network()
    labels = torch.tensor([0] * 7 + [1])
    data = ClientData(0, CLIENTS[0].images, labels, 3)
    favour = {}
    for name in ("vaneb_ft", "vaneb_la"):
        algorithm, state = start(name, network, epochs=30)
        output, _ = algorithm.client_update(algorithm.broadcast(state, 0), data, {}, np.random.default_rng(0))
        load_params(network, {**state.params, **head_params(network, output["head"])})
        favour[name] = torch.softmax(logits(network, data.images), 1)[:, 0].mean().item()
    assert favour["vaneb_la"] < favour["vaneb_ft"] - 0.1
    assert build_algorithm("vaneb_la", network, OPTIONS["vaneb_la"]).adds_label_prior


def test_a_client_without_a_word_in_the_rounds_gets_a_head_of_its_own(tmp_path):
    """VANEB-GLM personalises from mu and tau alone: without client states, and not to the mean."""
    from vaneb.fl.config import config_from
    from vaneb.fl.experiment import run_experiment

    config = config_from(
        {
            "methods": ["fedavg", "vaneb_glm"],
            "data": {"clients": 6, "total": 300, "test_per_client": 50},
            "training": {"rounds": 3},
            "options": {"vaneb_glm": {"participation": 0.5, "rounds": 3}},
        }
    )
    rows = run_experiment(config, tmp_path)
    mean = {(row.method, row.protocol): row.mean for row in rows if row.own}
    assert mean["VANEB-GLM", "matched"] > mean["FedAvg", "matched"] + 5
    assert not list(tmp_path.glob("stages/vaneb_glm-*/clients/*"))
