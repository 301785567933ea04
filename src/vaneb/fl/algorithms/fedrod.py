"""FedRoD (Chen and Chao 2022): a shared head for all labels, a personal one on top for the own ones."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng
from vaneb.fl.algorithms.common import head_tuning, local_training
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network, head_matrix, with_head
from vaneb.fl.trees import Tree


def fedrod(network: Network, **sgd: Any) -> Algorithm:
    """Body and shared head G descend the logit-adjusted loss; P_k descends the plain loss of G + P_k.

    P_k is trained after G within a round (the paper alternates batch by batch), and once more on the last
    network, by every client.
    """
    train, tune = local_training(network, **sgd), head_tuning(network, **sgd)

    def both_heads(params: Params, data: ClientData, client_state: Tree, rng: Rng) -> Tensor:
        """G + P_k, trained on the body of ``params``, whose head is G."""
        start = head_matrix(network, params) + client_state.get("personal", 0)
        return tune(with_head(network, params, start), [data], [rng]).heads[0]

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        params = train(message["params"], data, rng, offset=log_proportions(data.labels, data.n_classes))
        personal = both_heads(params, data, client_state, rng) - head_matrix(network, params)
        return {"params": params, "n": len(data)}, {"personal": personal}

    def personalize_matched(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        both = both_heads(message["params"], data, client_state, rng)
        return with_head(network, message["params"], both)

    evaluated = "the server's network; with the client's own head added for labels like its own"
    return Algorithm(client_update, evaluated, personalize_matched=personalize_matched)
