"""Per-FedAvg (Fallah et al. 2020, Algorithm 1, first-order): a shared start that one local step improves."""

from __future__ import annotations

from typing import Any

import torch

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.network import Network, begin_training, load_params, read_params
from vaneb.fl.training import batches, gradients, only_plain, step
from vaneb.fl.trees import Tree


def per_fedavg(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    inner_rate: float,
    adapt_epochs: int = 1,
    **optimiser: Any,
) -> Algorithm:
    """Meta-gradient steps w <- w - beta grad f(w - alpha grad f(w; D); D') on pairs of batches D, D'.

    Parameters
    ----------
    learning_rate : beta, of the outer step.
    inner_rate : alpha, of the inner step, and of the adaptation before use.
    adapt_epochs : passes over its own data with which a client adapts the shared network before use.
    """
    only_plain("per_fedavg", **optimiser)
    adapt = local_training(network, epochs=adapt_epochs, batch_size=batch_size, learning_rate=inner_rate)

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        moving = [network.tensors[name] for name in network.trainable_names]
        begin_training(network, min(len(data), batch_size))
        for _ in range(epochs):
            passes = batches(network, data, batch_size, rng)
            for inner in passes:
                # A pass with an odd number of batches uses its last one for both steps.
                outer = next(passes, inner)
                here = [value.detach().clone() for value in moving]
                step(moving, gradients(network, *inner, moving), inner_rate)
                direction = gradients(network, *outer, moving)
                with torch.no_grad():
                    for value, origin in zip(moving, here, strict=True):
                        value.copy_(origin)
                step(moving, direction, learning_rate)
        return {"params": read_params(network), "n": len(data)}, client_state

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        return adapt(message["params"], data, rng)

    evaluated = "the server's network, adapted by the client"
    return Algorithm(client_update, evaluated, personalize=personalize)
