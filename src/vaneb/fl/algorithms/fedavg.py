"""FedAvg (McMahan et al. 2017, Algorithm 1): clients train the shared network, the server averages."""

from __future__ import annotations

from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Rng
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.network import Network
from vaneb.fl.trees import Tree


def fedavg(network: Network, **sgd: Any) -> Algorithm:
    """E local epochs of gradient descent from the server's parameters, averaged by sample size."""
    train = local_training(network, **sgd)

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        return {"params": train(message["params"], data, rng), "n": len(data)}, client_state

    return Algorithm(client_update)
