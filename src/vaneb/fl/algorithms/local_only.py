"""Local training only: what a client reaches alone with the compute that federation would have used."""

from __future__ import annotations

from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng, count_round
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.network import Network
from vaneb.fl.trees import Tree


def local_only(network: Network, **sgd: Any) -> Algorithm:
    """One round in which every client trains alone from the common start; nothing is sent back.

    Parameters
    ----------
    epochs : rounds x participation x local epochs of the federated methods: the passes that a client
        makes over its data there, on average.
    """
    train = local_training(network, **sgd)

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        return {"n": len(data)}, {"params": train(message["params"], data, rng)}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        return client_state.get("params", message["params"])

    return Algorithm(
        client_update,
        evaluated="the client's own network, trained alone",
        server_update=count_round,
        personalize=personalize,
    )
