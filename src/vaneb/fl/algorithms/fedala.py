"""FedALA (Zhang et al. 2023, Algorithm 1): clients start from a learned mixture of own and shared head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.head_training import softmax_residuals
from vaneb.fl.network import Network, features, head_matrix, load_params, with_head
from vaneb.fl.training import check_positive
from vaneb.fl.trees import Tree


def fedala(
    network: Network, *, batch_size: int, mixing_epochs: int = 5, mixing_rate: float = 1.0, **sgd: Any
) -> Algorithm:
    """Head: own + (shared - own) * W, element by element, W in [0, 1] learned on the client's images.

    The body is the shared one (the paper's p = 1).

    Parameters
    ----------
    mixing_epochs, mixing_rate : gradient descent on W, started where the client left it.
    """
    check_positive(mixing_epochs=mixing_epochs, mixing_rate=mixing_rate)
    train = local_training(network, batch_size=batch_size, **sgd)

    def mixed(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> tuple[Params, Tensor]:
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
        return with_head(network, message["params"], own + gap * share), share

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        start, share = mixed(message, client_state, data, rng)
        params = train(start, data, rng)
        return {"params": params, "n": len(data)}, {"head": head_matrix(network, params), "share": share}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        return mixed(message, client_state, data, rng)[0]

    evaluated = "the server's body with the client's mixture of its own and the shared head"
    return Algorithm(client_update, evaluated, personalize=personalize)
