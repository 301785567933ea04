"""FedProx (Li et al. 2020, Algorithm 2): FedAvg whose clients are held near the network they received."""

from __future__ import annotations

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData
from vaneb.fl.algorithms.common import average_into_params, keep_received, send_params, start_from
from vaneb.fl.network import Network, load_params, read_params
from vaneb.fl.training import pull_towards, sgd_epochs
from vaneb.fl.trees import Tree


def fedprox(
    network: Network, *, epochs: int, batch_size: int, learning_rate: float, strength: float = 0.01
) -> Algorithm:
    """Each client descends f_k(w) + mu / 2 ||w - w_received||^2.

    Parameters
    ----------
    strength : mu; with zero this is FedAvg.
    """
    if not strength >= 0:
        raise InvalidOption(f"strength = {strength}: must be zero or positive.")

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        received = [message["params"][name] for name in network.trainable_names]
        sgd_epochs(
            network,
            data,
            rng,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            adjust=pull_towards(received, strength),
        )
        return {"params": read_params(network), "n": len(data)}, client_state

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=average_into_params("params"),
        personalize=keep_received,
        evaluated="the server's network, the same for every client",
    )
