"""FedALA (Zhang et al. 2023, Algorithm 1): clients start from a learned mixture of own and shared head."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vaneb.fl.algorithm import Algorithm, ClientData, Params
from vaneb.fl.algorithms.common import average_into_params, send_params, start_from
from vaneb.fl.head_training import softmax_residuals
from vaneb.fl.network import Network, features, head_matrix, head_params, load_params, read_params
from vaneb.fl.training import check_positive, sgd_epochs
from vaneb.fl.trees import Tree


def fedala(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    mixing_epochs: int = 5,
    mixing_rate: float = 1.0,
) -> Algorithm:
    """Head: own + (shared - own) * W, element by element, W in [0, 1] learned on the client's images.

    The body is the shared one (the paper's p = 1).

    Parameters
    ----------
    mixing_epochs, mixing_rate : gradient descent on W, started where the client left it.
    """
    check_positive(mixing_epochs=mixing_epochs, mixing_rate=mixing_rate)

    def mixed(
        message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator
    ) -> tuple[Params, Tensor]:
        """The network that the client starts from, and W."""
        shared = head_matrix(network, message["params"])
        own, share = client_state.get("head", shared), client_state.get("share", torch.ones_like(shared))
        load_params(network, message["params"])
        seen, gap = features(network, data.images), shared - own
        for _ in range(mixing_epochs if gap.any() else 0):
            for rows in torch.from_numpy(rng.permutation(len(data))).split(batch_size):
                residuals = softmax_residuals(own + gap * share, seen[rows], data.labels[rows], None)
                gradient = residuals.T @ seen[rows] / len(rows)
                share = (share - mixing_rate * gradient * gap).clamp(0, 1)
        return {**message["params"], **head_params(network, own + gap * share)}, share

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        start, share = mixed(message, client_state, data, rng)
        load_params(network, start)
        sgd_epochs(network, data, rng, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        params = read_params(network)
        return {"params": params, "n": len(data)}, {"head": head_matrix(network, params), "share": share}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        return mixed(message, client_state, data, rng)[0]

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=average_into_params("params"),
        personalize=personalize,
        evaluated="the server's body with the client's mixture of its own and the shared head",
    )
