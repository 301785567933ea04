"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1, option II): control variates correct client drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, Rng, ServerState, weighted_average
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.network import Network
from vaneb.fl.training import only_plain
from vaneb.fl.trees import Tree


def scaffold(
    network: Network, *, learning_rate: float, n_clients: int, server_rate: float = 1.0, **sgd: Any
) -> Algorithm:
    """Local steps y <- y - eta (g(y) - c_k + c); then c_k <- c_k - c + (x - y) / (steps * eta).

    Parameters
    ----------
    n_clients : N, the size of the whole federation: the server's control moves by |S| / N.
    """
    only_plain("scaffold", **{name: sgd[name] for name in ("optimiser", "momentum") if name in sgd})
    names, train = network.trainable_names, local_training(network, learning_rate=learning_rate, **sgd)

    def zeros(params: Params) -> Params:
        return {name: torch.zeros_like(params[name]) for name in names}

    def init(params: Params, rng: Rng) -> ServerState:
        return ServerState(params, memory={"control": zeros(params)})

    def broadcast(state: ServerState, client: int) -> Tree:
        return {"params": state.params, "control": state.memory["control"]}

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        start, control = message["params"], message["control"]
        own = client_state.get("control") or zeros(start)
        correction = [(control[name] - own[name]).to(network.device) for name in names]
        steps = 0

        def adjust(moving: Sequence[Tensor], direction: Sequence[Tensor]) -> None:
            nonlocal steps
            torch._foreach_add_(list(direction), correction)
            steps += 1

        end = train(start, data, rng, adjust=adjust)
        new = {
            name: own[name] - control[name] + (start[name] - end[name]) / (steps * learning_rate)
            for name in names
        }
        change = {name: new[name] - own[name] for name in names}
        return {"params": end, "control_change": change, "n": len(data)}, {"control": new}

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        equal = [1.0] * len(outputs)
        average = weighted_average([out["params"] for out in outputs.values()], equal)
        change = weighted_average([out["control_change"] for out in outputs.values()], equal)
        share = len(outputs) / n_clients
        params = {name: value + server_rate * (average[name] - value) for name, value in state.params.items()}
        control = {name: state.memory["control"][name] + share * change[name] for name in names}
        return replace(state, params=params, round=state.round + 1, memory={"control": control}), {}

    return Algorithm(client_update, init=init, broadcast=broadcast, server_update=server_update)
