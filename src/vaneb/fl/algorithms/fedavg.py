"""FedAvg (McMahan et al. 2017, Algorithm 1): clients train the shared network, the server averages."""

from __future__ import annotations

import numpy as np

from vaneb.fl.algorithm import Algorithm, ClientData
from vaneb.fl.algorithms.common import average_into_params, keep_received, send_params, start_from
from vaneb.fl.network import Network, load_params, read_params
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import Tree


def fedavg(network: Network, *, epochs: int, batch_size: int, learning_rate: float) -> Algorithm:
    """E local epochs of gradient descent from the server's parameters, averaged by sample size."""

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        sgd_epochs(network, data, rng, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        return {"params": read_params(network), "n": len(data)}, client_state

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=average_into_params("params"),
        personalize=keep_received,
        evaluated="the server's network, the same for every client",
    )
