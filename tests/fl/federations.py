"""Tiny federations for the tests: a network of a few weights, clients with a few rows."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from torch import nn

from vaneb.fl.algorithm import ClientData, ServerState
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.network import Network, network_from, read_params

FEATURES, HIDDEN, CLASSES = 4, 3, 3
LOCAL = {"epochs": 2, "batch_size": 4, "learning_rate": 0.1}
TUNING = {**LOCAL, "epochs": 10}
EMPIRICAL_BAYES = {"rule": "direct", "damping": 0.1, "iterations": 5, "atoms": 3}

#: Options with which each algorithm is built in the tests.
OPTIONS: dict[str, dict] = {
    "fedavg": LOCAL,
    "fedavg_ft": TUNING,
    "fedavg_ft_all": TUNING,
    "fedavg_prior": LOCAL,
    "mean_heads": {**TUNING, "prior_count": 5.0},
    "fedprox": LOCAL,
    "pfedme": LOCAL,
    "fedrod": LOCAL,
    "fedala": LOCAL,
    "knn_per": LOCAL,
    "fedper": LOCAL,
    "fedrep": {**LOCAL, "head_epochs": 2},
    "fedbabu": {**LOCAL, "tuning": LOCAL},
    "lg_fedavg": LOCAL,
    "per_fedavg": {**LOCAL, "inner_rate": 0.05},
    "scaffold": {**LOCAL, "n_clients": 4},
    "ditto": {**LOCAL, "strength": 0.5},
    "local_only": LOCAL,
    "vaneb_ft": {**TUNING, **EMPIRICAL_BAYES},
    "vaneb_glm": {"groups": 2, "starts": 2},
    "vaneb_head": {**LOCAL, **EMPIRICAL_BAYES, "every": 2},
    "vaneb_la": {**TUNING, **EMPIRICAL_BAYES},
    "vaneb_full": {**LOCAL, **EMPIRICAL_BAYES},
}


def tiny_network(seed: int = 0) -> Network:
    """A body of one layer and a head, 27 weights."""
    torch.manual_seed(seed)
    layers = OrderedDict(body=nn.Linear(FEATURES, HIDDEN), bend=nn.Tanh(), head=nn.Linear(HIDDEN, CLASSES))
    return network_from(nn.Sequential(layers), "head")


def tiny_client(k: int, n: int = 10, seed: int = 0) -> ClientData:
    """Rows whose labels depend on them, and on the client a little."""
    rng = np.random.default_rng([seed, k])
    rows = rng.standard_normal((n, FEATURES)).astype(np.float32)
    labels = np.argmax(rows[:, :CLASSES] + 0.3 * k * np.eye(CLASSES)[k % CLASSES], axis=1)
    return ClientData(k, torch.from_numpy(rows), torch.from_numpy(labels), CLASSES)


def one_round(algorithm, state: ServerState, clients, states, number: int = 0):
    """A round with all clients, as the engine does it, without an engine."""
    outputs, after = {}, dict(states)
    for data in clients:
        rng = np.random.default_rng([7, number, data.client])
        message = algorithm.broadcast(state, data.client)
        outputs[data.client], after[data.client] = algorithm.client_update(
            message, data, states.get(data.client, {}), rng
        )
    state, info = algorithm.server_update(state, outputs)
    return state, after, outputs, info


def start(name: str, network: Network, **changes):
    """An algorithm with the options of the tests, and its first state."""
    algorithm = build_algorithm(name, network, {**OPTIONS[name], **changes})
    return algorithm, algorithm.init(read_params(network), np.random.default_rng(3))


def rounds(algorithm, state: ServerState, clients, number: int):
    """``number`` rounds with all ``clients``."""
    states: dict = {}
    for t in range(number):
        state, states, outputs, info = one_round(algorithm, state, clients, states, t)
    return state, states, outputs, info


def equal(left, right) -> bool:
    """Whether two trees are the same, bit by bit."""
    from vaneb.fl.trees import leaves

    a, b = dict(leaves(left)), dict(leaves(right))
    return a.keys() == b.keys() and all(
        torch.equal(a[path], b[path]) if isinstance(a[path], torch.Tensor) else a[path] == b[path]
        for path in a
    )


def copy_of(tree):
    """The same tree in memory of its own."""
    return {
        key: copy_of(value)
        if isinstance(value, dict)
        else value.clone()
        if isinstance(value, torch.Tensor)
        else value
        for key, value in tree.items()
    }


class OwnModel(nn.Module):
    """A model that the package does not know: a buffer, dropout, and a head of another name."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.below = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.BatchNorm1d(width), nn.Dropout(0.2))
        self.on_top = nn.ModuleDict({"out": nn.Linear(width, 10)})

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.on_top["out"](torch.relu(self.below(images)))


def own_algorithm(network: Network, **options: float):
    """An algorithm that the package does not know: FedAvg, and a note in every client's state."""
    from dataclasses import replace

    from vaneb.fl.algorithms.fedavg import fedavg

    algorithm = fedavg(network, **options)

    def client_update(message, data, client_state, rng):
        output, _ = algorithm.client_update(message, data, client_state, rng)
        return output, {"rounds": client_state.get("rounds", 0) + 1}

    return replace(algorithm, client_update=client_update)
