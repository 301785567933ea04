"""FedAvg, after which every client trains the whole network on, with or without logit adjustment."""

from __future__ import annotations

from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng, count_round
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network
from vaneb.fl.trees import Tree


def fedavg_ft_all(network: Network, *, adjusted: bool = False, **sgd: Any) -> Algorithm:
    """One round in which nothing is learned together; starts from a FedAvg network.

    Parameters
    ----------
    adjusted : train on logits plus the client's log-proportions.
    """
    train = local_training(network, **sgd)

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        return {"n": len(data)}, client_state

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        offset = log_proportions(data.labels, data.n_classes) if adjusted else None
        return train(message["params"], data, rng, offset=offset)

    return Algorithm(
        client_update,
        evaluated="the FedAvg network, trained on by the client",
        server_update=count_round,
        personalize=personalize,
        adds_label_prior=adjusted,
    )
