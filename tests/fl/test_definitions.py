"""What defines each algorithm: limiting cases, and rounds computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch
from torch import nn
from torch.nn import functional

from fl.federations import LOCAL, one_round, rounds, start, tiny_client, tiny_network
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
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import leaves
from vaneb.fl.workers import one_torch_thread

CLIENTS = [tiny_client(k, 8) for k in range(4)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As the engine does it: two threads for tensors this small only wait for each other."""
    with one_torch_thread():
        yield


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
    fresh = [softmax_gradient(w2, b2, d.images.double().numpy(), d.labels.numpy())[0] for d in HAND]
    state, states, _, _ = one_round(algorithm, state, HAND, states, 1)
    np.testing.assert_allclose(state.params["1.weight"], expected, atol=1e-6)
    # One step again: c_k - c + (x - y) / eta is the new gradient, whatever c_k and c were.
    for k in (0, 1):
        np.testing.assert_allclose(states[k]["control"]["1.weight"], fresh[k], atol=1e-6)
    np.testing.assert_allclose(state.memory["control"]["1.weight"], sum(fresh) / 2, atol=1e-6)


def test_scaffold_with_some_of_the_clients_moves_the_control_by_their_share():
    """c <- c + (1 / N) sum over S of (c_k' - c_k), with N clients of whom S took part."""
    network = linear_network()
    options = {"epochs": 2, "batch_size": 2, "learning_rate": 0.5, "n_clients": 8}
    algorithm = build_algorithm("scaffold", network, options)
    state = algorithm.init(read_params(network), np.random.default_rng(0))
    before, states, _, _ = one_round(algorithm, state, HAND, {})
    after, new, outputs, _ = one_round(algorithm, before, HAND, states, 1)
    change = sum(new[k]["control"]["1.weight"] - states[k]["control"]["1.weight"] for k in (0, 1))
    moved = after.memory["control"]["1.weight"] - before.memory["control"]["1.weight"]
    torch.testing.assert_close(moved, change / 8)
    # The second client has three images: two batches in each of two passes.
    own, shared = states[1]["control"]["1.weight"], before.memory["control"]["1.weight"]
    way = before.params["1.weight"] - outputs[1]["params"]["1.weight"]
    torch.testing.assert_close(new[1]["control"]["1.weight"], own - shared + way / (4 * 0.5))


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
    _, states, _, _ = rounds(algorithm, state, CLIENTS, 2)
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
        after, states, _, _ = rounds(algorithm, state, CLIENTS, 3)
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
    after, states, outputs, _ = rounds(algorithm, state, CLIENTS, 1)
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
    after, _, _, _ = rounds(algorithm, state, CLIENTS, 3)
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
    after, _, outputs, _ = rounds(algorithm, state, CLIENTS, 2)
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
    after, states, outputs, _ = rounds(algorithm, state, CLIENTS, 2)
    assert set(outputs[0]["head"]) == set(network.head_names)
    assert not any("body" in path for path, _ in leaves(outputs[0]))
    for key in network.body_names:
        assert torch.equal(after.params[key], state.params[key])
        assert not torch.equal(states[0]["body"][key], states[1]["body"][key])


@pytest.mark.parametrize("name", ["fedavg_ft", "vaneb_ft", "vaneb_la"])
def test_a_frozen_body_stays_bit_identical(name):
    network = tiny_network()
    algorithm, state = start(name, network)
    after, states, _, _ = rounds(algorithm, state, CLIENTS, 1)
    for data in CLIENTS:
        message = algorithm.broadcast(after, data.client)
        params = algorithm.personalize(message, states[data.client], data, np.random.default_rng(0))
        for key in network.body_names:
            assert torch.equal(params[key], state.params[key])
        assert not torch.equal(params["head.weight"], state.params["head.weight"])


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
    after, _, _, _ = rounds(algorithm, state, CLIENTS, 1)
    assert after.memory["heads"]["0"].shape == (3, 3)


def test_a_head_must_be_a_linear_layer():
    layers = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    with pytest.raises(InvalidOption, match="not a linear layer"):
        network_from(layers, "1")
    with pytest.raises(InvalidOption, match="The linear layers of this model are 0"):
        network_from(layers, "fc")
