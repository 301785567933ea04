"""FedPer (Arivazhagan et al. 2019, Algorithms 1 and 2): a shared body, a head that stays at the client."""

from __future__ import annotations

import numpy as np

from vaneb.fl.algorithm import Algorithm, ClientData, Params
from vaneb.fl.algorithms.common import average_into_params, send_params, start_from
from vaneb.fl.network import Network, load_params, read_params
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import Tree


def fedper(network: Network, *, epochs: int, batch_size: int, learning_rate: float) -> Algorithm:
    """Body and head are trained together; only the body is sent and averaged."""

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        load_params(network, client_state.get("head", {}))
        sgd_epochs(network, data, rng, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        output = {"body": read_params(network, network.body_names), "n": len(data)}
        return output, {"head": read_params(network, network.head_names)}

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=average_into_params("body"),
        personalize=own_head,
        evaluated="the server's body with the client's own head",
    )


def own_head(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
    """The shared body with the client's head; the initial head for a client that never took part."""
    return {**message["params"], **client_state.get("head", {})}
