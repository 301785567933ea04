"""FedAvg, after which every client trains on alone: the head (the body frozen) or the whole network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng, count_round, of_cohorts
from vaneb.fl.algorithms.common import head_tuning, local_training
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network, with_head
from vaneb.fl.trees import Tree


def fedavg_ft(network: Network, *, adjusted: bool = False, **sgd: Any) -> Algorithm:
    """One round in which every client fine-tunes its head and keeps it; starts from a FedAvg network.

    Parameters
    ----------
    adjusted : fine-tune on logits plus the client's log-proportions.
    """
    tune = head_tuning(network, adjusted=adjusted, **sgd)

    def cohort_update(
        message: Tree, clients: Sequence[ClientData], client_states: Sequence[Tree], rngs: Sequence[Rng]
    ) -> list[tuple[Tree, Tree]]:
        heads = tune(message["params"], clients, rngs).heads
        return [({"n": len(data)}, {"head": head}) for data, head in zip(clients, heads, strict=True)]

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        return with_head(network, message["params"], client_state.get("head"))

    return of_cohorts(
        cohort_update,
        evaluated="the FedAvg body with the client's fine-tuned head",
        server_update=count_round,
        personalize=personalize,
        adds_label_prior=adjusted,
    )


def fedavg_ft_all(network: Network, *, adjusted: bool = False, **sgd: Any) -> Algorithm:
    """One round in which nothing is learned together; starts from a FedAvg network.

    Parameters
    ----------
    adjusted : train on logits plus the client's log-proportions.
    """
    train = local_training(network, **sgd)

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        return {"n": len(data)}, client_state

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        offset = log_proportions(data.labels, data.n_classes) if adjusted else None
        return train(message["params"], data, rng, offset=offset)

    return Algorithm(
        client_update,
        evaluated="the FedAvg network, trained on by the client",
        server_update=count_round,
        personalize=personalize,
        adds_label_prior=adjusted,
    )
