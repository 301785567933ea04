"""FedAvg, after which every client trains the whole network on, with or without logit adjustment."""

from __future__ import annotations

import numpy as np

from vaneb.fl.algorithm import Algorithm, ClientData, Params
from vaneb.fl.algorithms.common import count_round, send_params, start_from
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network, load_params, read_params
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import Tree


def fedavg_ft_all(
    network: Network, *, epochs: int, batch_size: int, learning_rate: float, adjusted: bool = False
) -> Algorithm:
    """One round in which nothing is learned together; starts from a FedAvg network.

    Parameters
    ----------
    adjusted : train on logits plus the client's log-proportions.
    """

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        return {"n": len(data)}, client_state

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        load_params(network, message["params"])
        sgd_epochs(
            network,
            data,
            rng,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            offset=log_proportions(data.labels, data.n_classes) if adjusted else None,
        )
        return read_params(network)

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=count_round,
        personalize=personalize,
        evaluated="the FedAvg network, trained on by the client",
        adds_label_prior=adjusted,
    )
