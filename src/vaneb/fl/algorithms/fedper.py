"""FedPer (Arivazhagan et al. 2019, Algorithms 1 and 2): a shared body, a head that stays at the client."""

from __future__ import annotations

from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng, average_into_params
from vaneb.fl.algorithms.common import chosen, head_tuning, local_training
from vaneb.fl.network import Network, with_head
from vaneb.fl.trees import Tree


def fedper(network: Network, *, head_epochs: int = 5, **sgd: Any) -> Algorithm:
    """Body and head are trained together; only the body is sent and averaged.

    Parameters
    ----------
    head_epochs : passes in which every client fits its head to the last body, also one that never took part.
    """
    train = local_training(network, **sgd)
    tune = head_tuning(network, **(sgd | {"epochs": head_epochs}))

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        params = train(message["params"] | client_state.get("head", {}), data, rng)
        body, head = (chosen(params, names) for names in (network.body_names, network.head_names))
        return {"body": body, "n": len(data)}, {"head": head}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        own = message["params"] | client_state.get("head", {})
        return with_head(network, message["params"], tune(own, [data], [rng]).heads[0])

    return Algorithm(
        client_update,
        evaluated="the server's body with the client's own head, fitted to it",
        server_update=average_into_params("body"),
        personalize=personalize,
    )
