"""FedAvg whose clients add their log-proportions to the logits, with a strength fitted on images left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, Rng, ServerState
from vaneb.fl.algorithms.common import set_aside
from vaneb.fl.algorithms.fedavg import fedavg
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network, head_matrix, load_params, logits, with_head
from vaneb.fl.trees import Tree

#: Strengths that are tried, and what earlier rounds count for beside the present one.
STRENGTHS = torch.linspace(0, 2, 21)
MEMORY = 0.8


def fedavg_prior(network: Network, *, left_out: float = 0.1, **sgd: Any) -> Algorithm:
    """FedAvg on part of every client's images; the rest say how much log p_k to add: sum_k log p(y | s).

    Parameters
    ----------
    left_out : share of a client's images that it does not train on, at least one where it has two.
    """
    if not 0 < left_out < 1:
        raise InvalidOption(f"left_out = {left_out}: must be a share between 0 and 1.")
    if network.head.bias is None:
        raise InvalidOption("fedavg_prior: the head has no bias to add proportions to. Give it one.")
    base = fedavg(network, **sgd)

    def init(params: Params, rng: Rng) -> ServerState:
        return ServerState(params, memory={"fit": torch.zeros(len(STRENGTHS))})

    def broadcast(state: ServerState, client: int) -> Tree:
        return {"params": state.params, "strength": float(STRENGTHS[state.memory["fit"].argmax()])}

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        # The same images in every round, or training would see them.
        kept, aside = set_aside(data, left_out)
        load_params(network, message["params"])
        scores = logits(network, aside.images) if len(aside) else torch.zeros(0, data.n_classes)
        offset = log_proportions(kept.labels, data.n_classes)
        fit = [
            -functional.cross_entropy(scores + s * offset, aside.labels, reduction="sum") for s in STRENGTHS
        ]
        output, client_state = base.client_update(message, kept, client_state, rng)
        return {**output, "fit": torch.stack(fit), "n": len(data)}, client_state

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        fit = MEMORY * state.memory["fit"] + sum(out["fit"] for out in outputs.values())
        state, info = base.server_update(state, outputs)
        return replace(state, memory={"fit": fit}), {**info, "strength": float(STRENGTHS[fit.argmax()])}

    def personalize_matched(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        head = head_matrix(network, message["params"])
        head[:, -1] += message["strength"] * log_proportions(data.labels, data.n_classes)
        return with_head(network, message["params"], head)

    evaluated = "the server's network; with the client's log-proportions for labels like its own"
    return Algorithm(
        client_update, evaluated, init, broadcast, server_update, personalize_matched=personalize_matched
    )
