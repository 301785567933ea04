"""Heads fine-tuned at every client and plainly averaged: VANEB methods without the empirical Bayes step.

With one round this is the twin of VANEB-FT (or VANEB-LA), with several the average is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, ServerState
from vaneb.fl.algorithms.common import send_params, start_from
from vaneb.fl.algorithms.vaneb_ft import own_row_shares
from vaneb.fl.head_training import fine_tune_heads
from vaneb.fl.network import Network, head_matrix, head_params, load_params
from vaneb.fl.training import weighted_average
from vaneb.fl.trees import Tree


def mean_heads(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    adjusted: bool = False,
    prior_count: float | None = None,
) -> Algorithm:
    """Phi <- sum_k n_k Phi_k / sum_k n_k, Phi_k fine-tuned from Phi; the body stays as it is.

    Parameters
    ----------
    adjusted : fine-tune on logits plus the client's log-proportions.
    prior_count : m; row c of a client's head keeps the share n_kc / (n_kc + m) of its own; None keeps none.
    """

    def cohort_update(
        message: Tree,
        clients: Sequence[ClientData],
        client_states: Sequence[Tree],
        rngs: Sequence[np.random.Generator],
    ) -> list[tuple[Tree, Tree]]:
        load_params(network, message["params"])
        heads, _, _ = fine_tune_heads(
            network,
            head_matrix(network, message["params"]),
            clients,
            rngs,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            adjusted=adjusted,
        )
        return [
            ({"head": head, "n": len(data)}, {} if prior_count is None else {"head": head})
            for data, head in zip(clients, heads, strict=True)
        ]

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        return cohort_update(message, [data], [client_state], [rng])[0]

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        mean = weighted_average(
            [{"head": out["head"]} for out in outputs.values()], [out["n"] for out in outputs.values()]
        )
        params = {**state.params, **head_params(network, mean["head"])}
        return replace(state, params=params, round=state.round + 1), {}

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        if prior_count is None or "head" not in client_state:
            return message["params"]
        own = own_row_shares(data, prior_count)[:, None]
        head = (1 - own) * head_matrix(network, message["params"]) + own * client_state["head"]
        return {**message["params"], **head_params(network, head)}

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=server_update,
        personalize=personalize,
        evaluated="the FedAvg body with the mean of all heads"
        + ("" if prior_count is None else f" and the client's own share of it ({prior_count:g} images)"),
        cohort_update=cohort_update,
        adds_label_prior=adjusted,
    )
