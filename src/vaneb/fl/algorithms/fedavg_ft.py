"""FedAvg with fine-tuning: after FedAvg every client trains the head on its own, the body frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Params, Rng, count_round, of_cohorts
from vaneb.fl.algorithms.common import head_tuning
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
