"""FedBABU (Oh et al. 2022, Algorithm 1): a body learned under a head that never moves, then fine-tuned."""

from __future__ import annotations

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Params
from vaneb.fl.algorithms.common import average_into_params, send_params, start_from
from vaneb.fl.network import Network, load_params, read_params
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import Tree


def fedbabu(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    tune_epochs: int,
    tune_rate: float,
    tune_batch_size: int,
    tune: str = "all",
) -> Algorithm:
    """The initial head stays fixed while clients train the body; each client then fine-tunes.

    Parameters
    ----------
    tune : "all" (the whole network, as in the paper's tables) or "head".
    """
    if tune not in ("all", "head"):
        raise InvalidOption(f"tune = {tune!r}: use 'all' or 'head'.")

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        sgd_epochs(
            network,
            data,
            rng,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            names=network.body_names,
        )
        return {"body": read_params(network, network.body_names), "n": len(data)}, client_state

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        load_params(network, message["params"])
        sgd_epochs(
            network,
            data,
            rng,
            epochs=tune_epochs,
            batch_size=tune_batch_size,
            learning_rate=tune_rate,
            names=None if tune == "all" else network.head_names,
        )
        return read_params(network)

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=average_into_params("body"),
        personalize=personalize,
        evaluated="the server's network, fine-tuned by the client"
        + (" (head only)" if tune == "head" else ""),
    )
