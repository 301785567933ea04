"""pFedMe (T. Dinh et al. 2020, Algorithm 1): personal networks as proximal points of the shared one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from vaneb.fl.algorithm import (
    Algorithm,
    ClientData,
    Outputs,
    Params,
    Rng,
    ServerState,
    average_params,
)
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.network import Network, begin_training, load_params, read_params
from vaneb.fl.training import batches, check_positive, gradients, only_plain, pull_to, pull_towards, step
from vaneb.fl.trees import Tree


def pfedme(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    strength: float = 1.0,
    inner_steps: int = 5,
    outer_rate: float = 0.1,
    mixing: float = 1.0,
    **optimiser: Any,
) -> Algorithm:
    """Per batch theta ~ argmin f(theta) + lambda / 2 ||theta - w||^2, then w <- w - eta lambda (w - theta).

    Parameters
    ----------
    strength : lambda.
    inner_steps : K, gradient steps towards theta, at ``learning_rate``.
    outer_rate : eta.
    mixing : beta; the server moves to (1 - beta) w + beta times the clients' average.
    """
    only_plain("pfedme", **optimiser)
    check_positive(strength=strength, inner_steps=inner_steps, outer_rate=outer_rate, mixing=mixing)
    near = local_training(
        network, epochs=epochs * inner_steps, batch_size=batch_size, learning_rate=learning_rate
    )

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        begin_training(network, min(len(data), batch_size))
        theta = [network.tensors[name] for name in network.trainable_names]
        w = [message["params"][name].to(network.device, copy=True) for name in network.trainable_names]
        pull = pull_to(w, strength)
        for _ in range(epochs):
            for images, labels in batches(network, data, batch_size, rng):
                for _ in range(inner_steps):
                    direction = gradients(network, images, labels, theta)
                    with torch.no_grad():
                        pull(theta, direction)
                    step(theta, direction, learning_rate)
                with torch.no_grad():
                    step(w, torch._foreach_sub(w, theta), outer_rate * strength)
        moved = {name: value.cpu() for name, value in zip(network.trainable_names, w, strict=True)}
        shared = read_params(network) | moved
        return {"params": shared, "n": len(data)}, client_state

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        after, info = average_params(state, outputs)
        params = {name: torch.lerp(value, after.params[name], mixing) for name, value in state.params.items()}
        return replace(after, params=params), info

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        shared = message["params"]
        return near(shared, data, rng, adjust=pull_towards(network, shared, strength))

    evaluated = "the client's proximal point of the server's network"
    return Algorithm(client_update, evaluated, server_update=server_update, personalize=personalize)
