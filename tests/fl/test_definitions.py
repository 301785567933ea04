"""What defines each algorithm: limiting cases, and rounds computed by hand."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch
from torch import nn
from torch.nn import functional

from fl.federations import LOCAL, OPTIONS, one_round, tiny_client, tiny_network
from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import ClientData
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.network import (
    features,
    head_matrix,
    head_params,
    load_params,
    logits,
    network_from,
    read_params,
)
from vaneb.fl.personalise_heads import shrink_heads
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import leaves
from vaneb.fl.workers import one_torch_thread

CLIENTS = [tiny_client(k, 8) for k in range(4)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As the engine does it: two threads for tensors this small only wait for each other."""
    with one_torch_thread():
        yield


def start(name: str, network, **changes):
    algorithm = build_algorithm(name, network, {**OPTIONS[name], **changes})
    return algorithm, algorithm.init(read_params(network), np.random.default_rng(3))


def rounds(algorithm, state, number: int):
    states: dict = {}
    for t in range(number):
        state, states, outputs, info = one_round(algorithm, state, CLIENTS, states, t)
    return state, states, outputs, info


# ---------------------------------------------------------------- by hand


def softmax_gradient(weight, bias, x, y):
    scores = x @ weight.T + bias
    shares = np.exp(scores - scores.max(1, keepdims=True))
    residual = shares / shares.sum(1, keepdims=True) - np.eye(len(bias))[y]
    return residual.T @ x / len(x), residual.mean(0)


def linear_network():
    torch.manual_seed(1)
    return network_from(nn.Sequential(nn.Identity(), nn.Linear(2, 2)), "1")


X = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
HAND = [
    ClientData(0, torch.tensor(X[:2], dtype=torch.float32), torch.tensor([0, 1]), 2),
    ClientData(1, torch.tensor(X, dtype=torch.float32), torch.tensor([1, 1, 0]), 2),
]


def test_a_round_of_fedavg_by_hand():
    """One full-batch step each, averaged with weights 2 and 3."""
    network = linear_network()
    algorithm = build_algorithm("fedavg", network, {"epochs": 1, "batch_size": 3, "learning_rate": 0.5})
    state = algorithm.init(read_params(network), np.random.default_rng(0))
    w, b = (state.params[key].double().numpy() for key in ("1.weight", "1.bias"))
    expected_w, expected_b = np.zeros_like(w), np.zeros_like(b)
    for data, share in zip(HAND, (0.4, 0.6), strict=True):
        gw, gb = softmax_gradient(w, b, data.images.double().numpy(), data.labels.numpy())
        expected_w += share * (w - 0.5 * gw)
        expected_b += share * (b - 0.5 * gb)
    after, _, _, _ = one_round(algorithm, state, HAND, {})
    np.testing.assert_allclose(after.params["1.weight"], expected_w, atol=1e-6)
    np.testing.assert_allclose(after.params["1.bias"], expected_b, atol=1e-6)


def test_a_round_of_per_fedavg_by_hand():
    """With one batch, w - beta grad f(w - alpha grad f(w)) at each client."""
    network = linear_network()
    options = {"epochs": 1, "batch_size": 3, "learning_rate": 0.5, "inner_rate": 0.2}
    algorithm = build_algorithm("per_fedavg", network, options)
    state = algorithm.init(read_params(network), np.random.default_rng(0))
    w, b = (state.params[key].double().numpy() for key in ("1.weight", "1.bias"))
    expected = np.zeros_like(w)
    for data, share in zip(HAND, (0.4, 0.6), strict=True):
        x, y = data.images.double().numpy(), data.labels.numpy()
        gw, gb = softmax_gradient(w, b, x, y)
        outer, _ = softmax_gradient(w - 0.2 * gw, b - 0.2 * gb, x, y)
        expected += share * (w - 0.5 * outer)
    after, _, _, _ = one_round(algorithm, state, HAND, {})
    np.testing.assert_allclose(after.params["1.weight"], expected, atol=1e-6)


def test_scaffold_controls_by_hand():
    """After one step from zero controls: c_k is the client's gradient, c their average."""
    network = linear_network()
    options = {"epochs": 1, "batch_size": 3, "learning_rate": 0.5, "n_clients": 2}
    algorithm = build_algorithm("scaffold", network, options)
    state = algorithm.init(read_params(network), np.random.default_rng(0))
    w, b = (state.params[key].double().numpy() for key in ("1.weight", "1.bias"))
    grads = [softmax_gradient(w, b, d.images.double().numpy(), d.labels.numpy())[0] for d in HAND]
    state, states, _, _ = one_round(algorithm, state, HAND, {})
    for k in (0, 1):
        np.testing.assert_allclose(states[k]["control"]["1.weight"], grads[k], atol=1e-6)
    np.testing.assert_allclose(state.memory["control"]["1.weight"], sum(grads) / 2, atol=1e-6)
    # Second round: both clients move along g_k - c_k + c.
    w2, b2 = (state.params[key].double().numpy() for key in ("1.weight", "1.bias"))
    expected = np.zeros_like(w)
    for k, data in enumerate(HAND):
        g, _ = softmax_gradient(w2, b2, data.images.double().numpy(), data.labels.numpy())
        expected += (w2 - 0.5 * (g - grads[k] + sum(grads) / 2)) / 2
    state, _, _, _ = one_round(algorithm, state, HAND, states, 1)
    np.testing.assert_allclose(state.params["1.weight"], expected, atol=1e-6)


# ---------------------------------------------------------------- limiting cases


def test_scaffold_with_zero_controls_is_fedavg():
    network = tiny_network()
    scaffold, state = start("scaffold", network)
    fedavg, same = start("fedavg", network)
    after, _, _, _ = one_round(scaffold, state, CLIENTS, {})
    expected, _, _, _ = one_round(fedavg, same, CLIENTS, {})
    for key, value in expected.params.items():
        torch.testing.assert_close(after.params[key], value)


def test_ditto_with_strength_zero_is_local():
    network = tiny_network()
    algorithm, state = start("ditto", network, strength=0.0)
    _, states, _, _ = rounds(algorithm, state, 2)
    for data in CLIENTS:
        load_params(network, state.params)
        for t in range(2):
            own = np.random.default_rng([7, t, data.client]).spawn(2)[1]
            sgd_epochs(network, data, own, **LOCAL)
        for key, value in read_params(network).items():
            assert torch.equal(states[data.client]["personal"][key], value)


def test_ditto_shares_what_fedavg_shares_and_strength_pulls():
    """The penalty does not touch the shared network, and brings personal ones nearer to it."""
    distance, shared = {}, {}
    for strength in (0.0, 1.0, 5.0):
        network = tiny_network()
        algorithm, state = start("ditto", network, strength=strength)
        after, states, _, _ = rounds(algorithm, state, 3)
        distance[strength] = sum(
            float((states[k]["personal"][key] - value).square().sum())
            for k in states
            for key, value in after.params.items()
        )
        shared = shared or after.params
        assert all(torch.equal(shared[key], value) for key, value in after.params.items())
    assert distance[0.0] > distance[1.0] > distance[5.0]
    with pytest.raises(InvalidOption, match="strength"):
        start("ditto", tiny_network(), strength=-1.0)


def test_per_fedavg_adapts_with_the_inner_rate():
    network = tiny_network()
    algorithm, state = start("per_fedavg", network, inner_rate=1e-12)
    params = algorithm.personalize(algorithm.broadcast(state, 0), {}, CLIENTS[0], np.random.default_rng(0))
    for key, value in state.params.items():
        torch.testing.assert_close(params[key], value)


def test_local_only_is_local():
    network = tiny_network()
    algorithm, state = start("local_only", network)
    after, states, outputs, _ = rounds(algorithm, state, 1)
    load_params(network, state.params)
    sgd_epochs(network, CLIENTS[2], np.random.default_rng([7, 0, 2]), **LOCAL)
    for key, value in read_params(network).items():
        assert torch.equal(states[2]["params"][key], value)
        assert torch.equal(after.params[key], state.params[key])
    assert all(not isinstance(leaf, torch.Tensor) for _, leaf in leaves(outputs[0]))


def test_fedrep_without_head_epochs_moves_the_body_only():
    network = tiny_network()
    fedrep, state = start("fedrep", network, head_epochs=0)
    fedbabu, same = start("fedbabu", network)
    after, states, _, _ = one_round(fedrep, state, CLIENTS, {})
    expected, _, _, _ = one_round(fedbabu, same, CLIENTS, {})
    for key in network.body_names:
        torch.testing.assert_close(after.params[key], expected.params[key])
    for key in network.head_names:
        torch.testing.assert_close(states[0]["head"][key], state.params[key])


def test_fedrep_fits_the_head_first():
    """The body's gradient is taken under the new head: the first step agrees with one made by hand."""
    network = tiny_network()
    algorithm, state = start("fedrep", network, epochs=1, batch_size=8, head_epochs=3)
    _, states, outputs, _ = one_round(algorithm, state, CLIENTS, {})
    load_params(network, {**state.params, **states[1]["head"]})
    loss = functional.cross_entropy(network.module(CLIENTS[1].images), CLIENTS[1].labels)
    (gradient,) = torch.autograd.grad(loss, [network.tensors["body.weight"]])
    expected = state.params["body.weight"] - 0.1 * gradient
    torch.testing.assert_close(outputs[1]["body"]["body.weight"], expected)


def test_fedbabu_never_moves_the_head_before_it_is_personal():
    network = tiny_network()
    algorithm, state = start("fedbabu", network)
    after, _, _, _ = rounds(algorithm, state, 3)
    for key in network.head_names:
        assert torch.equal(after.params[key], state.params[key])
    tuned = algorithm.personalize(algorithm.broadcast(after, 0), {}, CLIENTS[0], np.random.default_rng(0))
    assert not torch.equal(tuned["head.weight"], after.params["head.weight"])
    only_head, _ = start("fedbabu", network, tune="head")
    tuned = only_head.personalize(algorithm.broadcast(after, 0), {}, CLIENTS[0], np.random.default_rng(0))
    for key in network.body_names:
        assert torch.equal(tuned[key], after.params[key])


# ---------------------------------------------------------------- what leaves a client, what is frozen


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu", "fedavg_ft"])
def test_a_personal_head_never_leaves_its_client(name):
    network = tiny_network()
    algorithm, state = start(name, network)
    after, _, outputs, _ = rounds(algorithm, state, 2)
    head_sizes = {network.tensors[key].numel() for key in network.head_names} | {12}
    for output in outputs.values():
        for path, leaf in leaves(output):
            assert "head" not in path
            if isinstance(leaf, torch.Tensor) and not path.startswith("body/"):
                assert leaf.numel() not in head_sizes
    for key in network.head_names:
        assert torch.equal(after.params[key], state.params[key])


def test_lg_fedavg_sends_the_head_only():
    network = tiny_network()
    algorithm, state = start("lg_fedavg", network)
    after, states, outputs, _ = rounds(algorithm, state, 2)
    assert set(outputs[0]["head"]) == set(network.head_names)
    assert not any("body" in path for path, _ in leaves(outputs[0]))
    for key in network.body_names:
        assert torch.equal(after.params[key], state.params[key])
        assert not torch.equal(states[0]["body"][key], states[1]["body"][key])


@pytest.mark.parametrize("name", ["fedavg_ft", "vaneb_ft", "vaneb_la"])
def test_a_frozen_body_stays_bit_identical(name):
    network = tiny_network()
    algorithm, state = start(name, network)
    after, states, _, _ = rounds(algorithm, state, 1)
    for data in CLIENTS:
        message = algorithm.broadcast(after, data.client)
        params = algorithm.personalize(message, states[data.client], data, np.random.default_rng(0))
        for key in network.body_names:
            assert torch.equal(params[key], state.params[key])
        assert not torch.equal(params["head.weight"], state.params["head.weight"])


# ---------------------------------------------------------------- VANEB


def precision_weighted(outputs):
    heads = np.stack([out["head"].double().numpy().ravel() for out in outputs.values()])
    precision = np.stack([out["n"] / out["variance"].numpy().ravel() for out in outputs.values()])
    return (precision * heads).sum(0) / precision.sum(0)


@pytest.mark.parametrize("name", ["vaneb_ft", "vaneb_la"])
def test_one_atom_is_precision_weighted_averaging(name):
    network = tiny_network()
    algorithm, state = start(name, network, atoms=1)
    after, _, outputs, _ = rounds(algorithm, state, 1)
    expected = precision_weighted(outputs)
    for k in range(4):
        np.testing.assert_allclose(after.memory["heads"][str(k)].ravel(), expected, rtol=1e-5)


def test_one_atom_of_all_weights_is_precision_weighted_averaging():
    network = tiny_network()
    algorithm, state = start("vaneb_full", network, atoms=1)
    after, _, outputs, _ = rounds(algorithm, state, 1)
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
        after, states, _, _ = rounds(algorithm, state, 1)
        message = algorithm.broadcast(after, 1)
        found[count] = algorithm.personalize(message, states[1], CLIENTS[1], np.random.default_rng(0))
        assert bool(states[1]) == (count is not None)
    tuned, state = start("fedavg_ft", tiny_network(), adjusted=True)
    _, states, _, _ = rounds(tuned, state, 1)
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


# ---------------------------------------------------------------- the network and its head


def test_the_head_matrix_is_the_head():
    network = tiny_network()
    params = read_params(network)
    matrix = head_matrix(network, params)
    assert matrix.shape == (3, 4)
    assert all(torch.equal(params[key], value) for key, value in head_params(network, matrix).items())
    torch.testing.assert_close(
        features(network, CLIENTS[0].images) @ matrix.T, logits(network, CLIENTS[0].images)
    )


def test_a_head_without_bias_works():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3, bias=False))
    network = network_from(layers, "2")
    assert head_matrix(network, read_params(network)).shape == (3, 3)
    algorithm, state = start("vaneb_ft", network)
    after, _, _, _ = rounds(algorithm, state, 1)
    assert after.memory["heads"]["0"].shape == (3, 3)


def test_a_head_must_be_a_linear_layer():
    layers = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    with pytest.raises(InvalidOption, match="not a linear layer"):
        network_from(layers, "1")
    with pytest.raises(InvalidOption, match="The linear layers of this model are 0"):
        network_from(layers, "fc")
