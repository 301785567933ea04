"""LG-FedAvg (Liang et al. 2020, Algorithm 1): local representations below one shared head."""

from __future__ import annotations

import numpy as np

from vaneb.fl.algorithm import Algorithm, ClientData, Params
from vaneb.fl.algorithms.common import average_into_params, send_params, start_from
from vaneb.fl.network import Network, load_params, read_params
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import Tree


def lg_fedavg(network: Network, *, epochs: int, batch_size: int, learning_rate: float) -> Algorithm:
    """The LG stage: started from a FedAvg network; the body is the client's own, the head is averaged."""

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        load_params(network, client_state.get("body", {}))
        sgd_epochs(network, data, rng, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        output = {"head": read_params(network, network.head_names), "n": len(data)}
        return output, {"body": read_params(network, network.body_names)}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        return {**message["params"], **client_state.get("body", {})}

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=average_into_params("head"),
        personalize=personalize,
        evaluated="the client's own body with the server's head",
    )
