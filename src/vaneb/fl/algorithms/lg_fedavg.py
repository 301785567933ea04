"""LG-FedAvg (Liang et al. 2020, Algorithm 1): local representations below one shared head."""

from __future__ import annotations

from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng, average_into_params
from vaneb.fl.algorithms.common import chosen, local_training
from vaneb.fl.network import Network
from vaneb.fl.trees import Tree


def lg_fedavg(network: Network, **sgd: Any) -> Algorithm:
    """The LG stage: started from a FedAvg network; the body is the client's own, the head is averaged."""
    train = local_training(network, **sgd)

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        params = train(personalize(message, client_state, data, rng), data, rng)
        body, head = (chosen(params, names) for names in (network.body_names, network.head_names))
        return {"head": head, "n": len(data)}, {"body": body}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        return message["params"] | client_state.get("body", {})

    return Algorithm(
        client_update,
        evaluated="the client's own body with the server's head",
        server_update=average_into_params("head"),
        personalize=personalize,
    )
