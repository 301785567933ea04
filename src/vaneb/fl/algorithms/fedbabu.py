"""FedBABU (Oh et al. 2022, Algorithm 1): a body learned under a head that never moves, then fine-tuned."""

from __future__ import annotations

from typing import Any

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng, average_into_params
from vaneb.fl.algorithms.common import chosen, local_training
from vaneb.fl.network import Network
from vaneb.fl.trees import Tree


def fedbabu(
    network: Network,
    *,
    tuning: dict[str, Any],
    tune: str = "all",
    **sgd: Any,
) -> Algorithm:
    """The initial head stays fixed while clients train the body; each client then fine-tunes.

    Parameters
    ----------
    tuning : options of the fine-tuning, as those of training.
    tune : "all" (the whole network, as in the paper's tables) or "head".
    """
    if tune not in ("all", "head"):
        raise InvalidOption(f"tune = {tune!r}: use 'all' or 'head'.")
    train = local_training(network, **sgd)
    fine_tune = local_training(network, **tuning)

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        params = train(message["params"], data, rng, names=network.body_names)
        return {"body": chosen(params, network.body_names), "n": len(data)}, client_state

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        names = None if tune == "all" else network.head_names
        return fine_tune(message["params"], data, rng, names=names)

    return Algorithm(
        client_update,
        evaluated="the server's network, fine-tuned by the client"
        + (" (head only)" if tune == "head" else ""),
        server_update=average_into_params("body"),
        personalize=personalize,
    )
