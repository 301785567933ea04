"""FedAvg with fine-tuning: after FedAvg every client trains the head on its own, the body frozen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vaneb.fl.algorithm import Algorithm, ClientData, Params
from vaneb.fl.algorithms.common import count_round, send_params, start_from
from vaneb.fl.head_training import fine_tune_heads
from vaneb.fl.network import Network, head_matrix, head_params, load_params
from vaneb.fl.trees import Tree


def fedavg_ft(
    network: Network, *, epochs: int, batch_size: int, learning_rate: float, adjusted: bool = False
) -> Algorithm:
    """One round in which every client fine-tunes its head and keeps it; starts from a FedAvg network.

    Parameters
    ----------
    adjusted : fine-tune on logits plus the client's log-proportions.
    """

    def cohort_update(
        message: Tree,
        clients: Sequence[ClientData],
        client_states: Sequence[Tree],
        rngs: Sequence[np.random.Generator],
    ) -> list[tuple[Tree, Tree]]:
        load_params(network, message["params"])
        start = head_matrix(network, message["params"])
        heads, _, _ = fine_tune_heads(
            network,
            start,
            clients,
            rngs,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            adjusted=adjusted,
        )
        return [({"n": len(data)}, {"head": head}) for data, head in zip(clients, heads, strict=True)]

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        return cohort_update(message, [data], [client_state], [rng])[0]

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        if "head" not in client_state:
            return message["params"]
        return {**message["params"], **head_params(network, client_state["head"])}

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=count_round,
        personalize=personalize,
        evaluated="the FedAvg body with the client's fine-tuned head",
        cohort_update=cohort_update,
        adds_label_prior=adjusted,
    )
