"""FedRep (Collins et al. 2021, Algorithm 1): the head is fitted to the received body, then the body moves."""

from __future__ import annotations

import numpy as np

from vaneb.fl.algorithm import Algorithm, ClientData
from vaneb.fl.algorithms.common import average_into_params, send_params, start_from
from vaneb.fl.algorithms.fedper import fitted_head
from vaneb.fl.head_training import fine_tune_heads
from vaneb.fl.network import Network, head_matrix, head_params, load_params, read_params
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import Tree


def fedrep(
    network: Network, *, epochs: int, batch_size: int, learning_rate: float, head_epochs: int = 5
) -> Algorithm:
    """``head_epochs`` on the head with the body fixed, then ``epochs`` on the body with the head fixed.

    At the end every client fits its head to the last body in the same way.
    """

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        start = head_matrix(network, {**message["params"], **client_state.get("head", {})})
        # The body does not move in this phase, so its features are computed once.
        heads, _, _ = fine_tune_heads(
            network,
            start,
            [data],
            [rng],
            epochs=head_epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
        )
        head = head_params(network, heads[0])
        load_params(network, head)
        sgd_epochs(
            network,
            data,
            rng,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            names=network.body_names,
        )
        return {"body": read_params(network, network.body_names), "n": len(data)}, {"head": head}

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=average_into_params("body"),
        personalize=fitted_head(network, head_epochs, batch_size, learning_rate),
        evaluated="the server's body with the client's own head, fitted to it",
    )
