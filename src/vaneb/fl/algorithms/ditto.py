"""Ditto (Li et al. 2021, Algorithm 1): a personal network, held near the shared one by a penalty."""

from __future__ import annotations

from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng, ServerState
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.network import Network
from vaneb.fl.training import check_strength, pull_towards
from vaneb.fl.trees import Tree


def ditto(network: Network, *, strength: float = 1.0, **sgd: Any) -> Algorithm:
    """FedAvg for the shared w; beside it v_k <- v_k - eta (grad f_k(v_k) + lambda (v_k - w)).

    Parameters
    ----------
    strength : lambda; with zero the personal networks are trained locally only.
    """
    check_strength(strength)
    train = local_training(network, **sgd)

    def init(params: Params, rng: Rng) -> ServerState:
        # Personal networks start where the shared one started, whenever a client first takes part.
        return ServerState(params, memory={"initial": params})

    def broadcast(state: ServerState, client: int) -> Tree:
        return {"params": state.params, "initial": state.memory["initial"]}

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        shared_rng, personal_rng = rng.spawn(2)
        pull = pull_towards(network, message["params"], strength)
        shared = train(message["params"], data, shared_rng)
        own = personalize(message, client_state, data, rng)
        return {"params": shared, "n": len(data)}, {"personal": train(own, data, personal_rng, adjust=pull)}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        return client_state.get("personal", message["initial"])

    evaluated = "the client's personal network"
    return Algorithm(client_update, evaluated, init, broadcast, personalize=personalize)
