"""FedPer (Arivazhagan et al. 2019, Algorithms 1 and 2): a shared body, a head that stays at the client."""

from __future__ import annotations

import numpy as np

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Personalize
from vaneb.fl.algorithms.common import average_into_params, send_params, start_from
from vaneb.fl.head_training import fine_tune_heads
from vaneb.fl.network import Network, head_matrix, head_params, load_params, read_params
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import Tree


def fedper(
    network: Network, *, epochs: int, batch_size: int, learning_rate: float, head_epochs: int = 5
) -> Algorithm:
    """Body and head are trained together; only the body is sent and averaged.

    Parameters
    ----------
    head_epochs : passes in which every client fits its head to the last body, also one that never took part.
    """

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
        personalize=fitted_head(network, head_epochs, batch_size, learning_rate),
        evaluated="the server's body with the client's own head, fitted to it",
    )


def fitted_head(network: Network, epochs: int, batch_size: int, learning_rate: float) -> Personalize:
    """The shared body, and the client's head (at first the initial one) trained on for some epochs."""

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        load_params(network, message["params"])
        heads, _, _ = fine_tune_heads(
            network,
            head_matrix(network, {**message["params"], **client_state.get("head", {})}),
            [data],
            [rng],
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
        )
        return {**message["params"], **head_params(network, heads[0])}

    return personalize
