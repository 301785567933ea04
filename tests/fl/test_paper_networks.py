"""The paper's algorithms for networks against their lines in plain numpy, a client and an atom at a time."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch
from torch.nn import functional

from fl.federations import one_round, tiny_client, tiny_network
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.network import head_matrix, load_params, read_params
from vaneb.fl.workers import one_torch_thread

CLIENTS = [tiny_client(k, n) for k, n in enumerate((6, 9, 14, 7, 11))]
#: Whole batches: the order of rows does not matter, and an epoch is one step.
TRAINING = {"epochs": 3, "batch_size": 100, "learning_rate": 0.3}
STEP = {"damping": 0.2, "iterations": 4, "atoms": 3}
RULES = pytest.mark.parametrize("rule", ["direct", "coordinate"])


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with one_torch_thread():
        yield


# ---------------------------------------------------------------- the procedure that all three share


def procedure(reported, variance, n, atoms, steps):
    """Posterior means; ``variance(k, a)`` is the diagonal of Sigma_k(a)."""
    clients, atoms = range(len(reported)), [atom.copy() for atom in atoms]
    places, pi = range(len(atoms)), [1 / len(atoms)] * len(atoms)

    def responsibilities():
        logs = np.empty((len(reported), len(atoms)))
        for k in clients:
            for j in places:
                v = variance(k, atoms[j]) / n[k]
                distance = (reported[k] - atoms[j]) ** 2 / v
                logs[k, j] = np.log(pi[j]) - 0.5 * (distance + np.log(2 * np.pi * v)).sum()
        shares = np.exp(logs - logs.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    for _ in range(steps):
        r = responsibilities()
        for j in places:
            pi[j] = r[:, j].mean()
            top = bottom = 0.0
            for k in clients:
                precision = n[k] / variance(k, atoms[j])
                top, bottom = top + r[k, j] * precision * reported[k], bottom + r[k, j] * precision
            atoms[j] = top / bottom
    return responsibilities() @ np.array(atoms)


def variance_function(rule, reported, variances):
    """Sigma_k itself; or, coordinate by coordinate, a quadratic through the logarithms of all of them."""
    if rule == "direct":
        return lambda k, a: variances[k]
    centre, scale = reported.mean(axis=0), reported.std(axis=0)
    coefficients = []
    for i in range(reported.shape[1]):
        x = (reported[:, i] - centre[i]) / scale[i]
        rows = np.concatenate([np.stack([x**0, x, x**2], axis=1), np.sqrt(0.01 * len(x)) * np.eye(3)[1:]])
        right = np.concatenate([np.log(variances[:, i]), [0, 0]])
        coefficients.append(np.linalg.lstsq(rows, right)[0])
    c = np.array(coefficients)

    def variance(k, a):
        x = (a - centre) / scale
        fitted = np.exp(c[:, 0] + c[:, 1] * x + c[:, 2] * x**2)
        return np.clip(fitted, variances.min(axis=0), variances.max(axis=0))

    return variance


def denoised(rule, reported, variances, n, state):
    """The procedure from atoms at reported values, drawn as the server draws them."""
    rng = np.random.default_rng([state.memory["seed"], state.round])
    start = reported[np.sort(rng.choice(len(reported), min(STEP["atoms"], len(reported)), replace=False))]
    variance = variance_function(rule, reported, variances)
    return procedure(reported, variance, n, start, STEP["iterations"])


def diagonal_of_inverse(gradients):
    """diag[(1/n sum_i g_i g_i' + lambda I)^{-1}] from g (n, d)."""
    d = gradients.shape[1]
    return np.diag(np.linalg.inv(gradients.T @ gradients / len(gradients) + STEP["damping"] * np.eye(d)))


# ---------------------------------------------------------------- what clients do, by torch or by hand


def trained(network, params, data, names=None):
    """Parameters after local epochs with torch's own optimiser."""
    load_params(network, params)
    module = deepcopy(network.module)
    moving = [value for name, value in module.named_parameters() if names is None or name in names]
    rule = torch.optim.SGD(moving, lr=TRAINING["learning_rate"])
    for _ in range(TRAINING["epochs"]):
        module.zero_grad()
        functional.cross_entropy(module(data.images), data.labels).backward()
        rule.step()
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def row_gradients(network, params, data, names):
    """Gradients of every row's loss, (n, d), parameter after parameter."""
    load_params(network, params)
    moving = [network.tensors[name] for name in names]
    rows = []
    for image, label in zip(data.images, data.labels, strict=True):
        loss = functional.cross_entropy(network.module(image[None]), label[None])
        rows.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, moving)]))
    return torch.stack(rows).double().numpy()


def head_report(network, params, data):
    """vec [W | b] and its variances, in the order of the head matrix."""
    weights = row_gradients(network, params, data, ["head.weight"]).reshape(len(data), 3, 3)
    biases = row_gradients(network, params, data, ["head.bias"])
    variances = diagonal_of_inverse(np.concatenate([weights, biases[:, :, None]], axis=2).reshape(-1, 12))
    return head_matrix(network, params).double().numpy().reshape(-1), variances


N = np.array([len(data) for data in CLIENTS], dtype=float)


# ---------------------------------------------------------------- the three algorithms


@RULES
def test_vaneb_ft(rule):
    network = tiny_network()
    algorithm = build_algorithm("vaneb_ft", network, {**TRAINING, **STEP, "rule": rule})
    state = algorithm.init(read_params(network), np.random.default_rng(3))
    heads = {"head.weight", "head.bias"}
    tuned = [trained(network, state.params, data, heads) for data in CLIENTS]
    reports = [head_report(network, params, data) for params, data in zip(tuned, CLIENTS, strict=True)]
    reported, variances = (np.stack(part) for part in zip(*reports, strict=True))
    expected = denoised(rule, reported, variances, N, state)
    after, *_ = one_round(algorithm, state, CLIENTS, {})
    found = np.stack([after.memory["heads"][str(k)].double().numpy().ravel() for k in range(len(CLIENTS))])
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.abs(found - reported).max() > 1e-2
    params = algorithm.personalize(algorithm.broadcast(after, 2), {}, CLIENTS[2], np.random.default_rng(0))
    np.testing.assert_allclose(head_matrix(network, params).double().numpy().ravel(), expected[2], atol=2e-6)
    for name in network.body_names:
        assert torch.equal(params[name], state.params[name])


@RULES
def test_vaneb_head(rule):
    """Three rounds, the step in the second; a client that does not take part keeps the head it has."""
    network = tiny_network()
    algorithm = build_algorithm("vaneb_head", network, {**TRAINING, **STEP, "rule": rule, "every": 2})
    state = algorithm.init(read_params(network), np.random.default_rng(3))
    body = {name: state.params[name] for name in network.body_names}
    heads = {k: {name: state.params[name] for name in network.head_names} for k in range(len(CLIENTS))}
    for number, chosen in enumerate(([0, 1, 2, 3], [0, 2, 3, 4], [1, 4])):
        clients = [CLIENTS[k] for k in chosen]
        local = {k: trained(network, body | heads[k], CLIENTS[k]) for k in chosen}
        n = N[chosen]
        body = {
            name: sum(w * local[k][name] for w, k in zip(n / n.sum(), chosen, strict=True)).float()
            for name in body
        }
        reports = [head_report(network, local[k], CLIENTS[k]) for k in chosen]
        reported, variances = (np.stack(part) for part in zip(*reports, strict=True))
        new = denoised(rule, reported, variances, n, state) if number == 1 else reported
        for k, head in zip(chosen, torch.from_numpy(new).float().view(-1, 3, 4), strict=True):
            heads[k] = {"head.weight": head[:, :-1], "head.bias": head[:, -1]}
        state, *_ = one_round(algorithm, state, clients, {}, number)
        for k in range(len(CLIENTS)):
            message = algorithm.broadcast(state, k)
            found = algorithm.personalize(message, {}, CLIENTS[k], np.random.default_rng(0))
            for name, value in (body | heads[k]).items():
                torch.testing.assert_close(found[name], value, atol=5e-6, rtol=0)


@RULES
def test_vaneb_full(rule):
    network = tiny_network()
    algorithm = build_algorithm("vaneb_full", network, {**TRAINING, **STEP, "rule": rule})
    state = algorithm.init(read_params(network), np.random.default_rng(3))
    names, shared = network.trainable_names, state.params
    for number in range(2):
        local = [trained(network, shared, data) for data in CLIENTS]
        reported = np.stack([torch.cat([p[name].flatten() for name in names]).double() for p in local])
        variances = np.stack(
            [
                diagonal_of_inverse(row_gradients(network, params, data, names))
                for params, data in zip(local, CLIENTS, strict=True)
            ]
        )
        expected = denoised(rule, reported, variances, N, state)
        state, *_ = one_round(algorithm, state, CLIENTS, {}, number)
        for k in range(len(CLIENTS)):
            found = algorithm.personalize(
                algorithm.broadcast(state, k), {}, CLIENTS[k], np.random.default_rng(0)
            )
            flat = torch.cat([found[name].flatten() for name in names])
            np.testing.assert_allclose(flat, expected[k], atol=5e-6)
        flat = torch.cat([state.params[name].flatten() for name in names])
        np.testing.assert_allclose(flat, N @ expected / N.sum(), atol=5e-6)
        shared = state.params
