"""FedProx (Li et al. 2020, Algorithm 2): FedAvg whose clients are held near the network they received."""

from __future__ import annotations

from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Rng
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.network import Network
from vaneb.fl.training import check_strength, pull_towards
from vaneb.fl.trees import Tree


def fedprox(network: Network, *, strength: float = 0.01, **sgd: Any) -> Algorithm:
    """Each client descends f_k(w) + mu / 2 ||w - w_received||^2.

    Parameters
    ----------
    strength : mu; with zero this is FedAvg.
    """
    check_strength(strength)
    train = local_training(network, **sgd)

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        received = message["params"]
        params = train(received, data, rng, adjust=pull_towards(network, received, strength))
        return {"params": params, "n": len(data)}, client_state

    return Algorithm(client_update)
