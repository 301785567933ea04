"""Parts that most algorithms share, so that their files hold only what is their own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vaneb.fl.algorithm import ClientData, Outputs, Params, ServerState, ServerUpdate
from vaneb.fl.training import weighted_average
from vaneb.fl.trees import Tree


def start_from(params: Params, rng: np.random.Generator) -> ServerState:
    """The server starts with the parameters it is given and nothing else."""
    return ServerState(params)


def send_params(state: ServerState, client: int) -> Tree:
    """Every client receives the shared network."""
    return {"params": state.params}


def average_into_params(key: str) -> ServerUpdate:
    """theta <- sum_k n_k theta_k / sum_k n_k over what the clients returned under ``key``.

    Parameters that clients do not return stay as they are.
    """

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        average = weighted_average(
            [out[key] for out in outputs.values()], [out["n"] for out in outputs.values()]
        )
        return replace(state, params={**state.params, **average}, round=state.round + 1), {}

    return server_update


def count_round(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
    """The server learns nothing."""
    return replace(state, round=state.round + 1), {}


def keep_received(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
    """Every client uses the shared network as it is."""
    return message["params"]
