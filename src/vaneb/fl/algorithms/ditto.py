"""Ditto (Li et al. 2021, Algorithm 1): a personal network, held near the shared one by a penalty."""

from __future__ import annotations

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Params, ServerState
from vaneb.fl.algorithms.common import average_into_params
from vaneb.fl.network import Network, load_params, read_params
from vaneb.fl.training import pull_towards, sgd_epochs
from vaneb.fl.trees import Tree


def ditto(
    network: Network, *, epochs: int, batch_size: int, learning_rate: float, strength: float = 1.0
) -> Algorithm:
    """FedAvg for the shared w; beside it v_k <- v_k - eta (grad f_k(v_k) + lambda (v_k - w)).

    Parameters
    ----------
    strength : lambda; with zero the personal networks are trained locally only.
    """
    if not strength >= 0:
        raise InvalidOption(f"strength = {strength}: must be zero or positive.")

    def init(params: Params, rng: np.random.Generator) -> ServerState:
        # Personal networks start where the shared one started, whenever a client first takes part.
        return ServerState(params, memory={"initial": params})

    def broadcast(state: ServerState, client: int) -> Tree:
        return {"params": state.params, "initial": state.memory["initial"]}

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        options = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
        shared_rng, personal_rng = rng.spawn(2)
        anchor = [message["params"][name] for name in network.trainable_names]
        load_params(network, message["params"])
        sgd_epochs(network, data, shared_rng, **options)  # type: ignore[arg-type]
        shared = read_params(network)
        load_params(network, client_state.get("personal", message["initial"]))
        pull = pull_towards(anchor, strength)
        sgd_epochs(network, data, personal_rng, adjust=pull, **options)  # type: ignore[arg-type]
        return {"params": shared, "n": len(data)}, {"personal": read_params(network)}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        return client_state.get("personal", message["initial"])

    return Algorithm(
        init=init,
        broadcast=broadcast,
        client_update=client_update,
        server_update=average_into_params("params"),
        personalize=personalize,
        evaluated="the client's personal network",
    )
