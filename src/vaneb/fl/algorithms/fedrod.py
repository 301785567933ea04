"""FedRoD (Chen and Chao 2022): a shared head for all labels, a personal one on top for the own ones."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from vaneb.fl.algorithm import Algorithm, ClientData, Params
from vaneb.fl.algorithms.common import average_into_params, keep_received, send_params, start_from
from vaneb.fl.head_training import fine_tune_heads
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network, head_matrix, head_params, load_params, read_params
from vaneb.fl.training import sgd_epochs
from vaneb.fl.trees import Tree


def fedrod(network: Network, *, epochs: int, batch_size: int, learning_rate: float) -> Algorithm:
    """Body and shared head G descend the logit-adjusted loss; P_k descends the plain loss of G + P_k.

    P_k is trained after G within a round (the paper alternates batch by batch), and once more on the last
    network, by every client.
    """
    options = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}

    def personal_head(
        data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """G + P_k and P_k, trained on the network's present body."""
        shared = head_matrix(network, read_params(network, network.head_names))
        start = shared + client_state["personal"] if "personal" in client_state else shared
        both, _, _ = fine_tune_heads(network, start, [data], [rng], **options)  # type: ignore[arg-type]
        return both[0], both[0] - shared

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        sgd_epochs(network, data, rng, offset=log_proportions(data.labels, data.n_classes), **options)  # type: ignore[arg-type]
        _, personal = personal_head(data, client_state, rng)
        return {"params": read_params(network), "n": len(data)}, {"personal": personal}

    def personalize_matched(
        message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator
    ) -> Params:
        load_params(network, message["params"])
        both, _ = personal_head(data, client_state, rng)
        return {**message["params"], **head_params(network, both)}

    return Algorithm(
        init=start_from,
        broadcast=send_params,
        client_update=client_update,
        server_update=average_into_params("params"),
        personalize=keep_received,
        evaluated="the server's network; with the client's own head added for labels like its own",
        personalize_matched=personalize_matched,
    )
