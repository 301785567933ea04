"""Local training only: what a client reaches alone with the compute that federation would have used."""

from __future__ import annotations

import numpy as np

from vaneb.fl.algorithm import Algorithm, ClientData, Params
from vaneb.fl.algorithms.common import count_round, send_params, start_from
from vaneb.fl.network import Network, load_params, read_params
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import Tree


def local_only(network: Network, *, epochs: int, batch_size: int, learning_rate: float) -> Algorithm:
    """One round in which every client trains alone from the common start; nothing is sent back.

    Parameters
    ----------
    epochs : rounds x participation x local epochs of the federated methods: the passes that a client
        makes over its data there, on average.
    """

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        sgd_epochs(network, data, rng, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        return {"n": len(data)}, {"params": read_params(network)}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        return client_state.get("params", message["params"])

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=count_round,
        personalize=personalize,
        evaluated="the client's own network, trained alone",
    )
