"""Heads fine-tuned at every client and plainly averaged: VANEB methods without the empirical Bayes step.

With one round this is the twin of VANEB-FT (or VANEB-LA), with several the average is trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vaneb.fl.algorithm import Algorithm, ClientData, Rng, average_into_params, of_cohorts
from vaneb.fl.algorithms.common import head_tuning, own_head
from vaneb.fl.network import Network, head_params
from vaneb.fl.trees import Tree


def mean_heads(
    network: Network, *, adjusted: bool = False, prior_count: float | None = None, **sgd: Any
) -> Algorithm:
    """Phi <- sum_k n_k Phi_k / sum_k n_k, Phi_k fine-tuned from Phi; the body stays as it is.

    Parameters
    ----------
    adjusted : fine-tune on logits plus the client's log-proportions.
    prior_count : m; row c of a client's head keeps the share n_kc / (n_kc + m) of its own; None keeps none.
    """
    tune = head_tuning(network, adjusted=adjusted, **sgd)

    def cohort_update(
        message: Tree, clients: Sequence[ClientData], client_states: Sequence[Tree], rngs: Sequence[Rng]
    ) -> list[tuple[Tree, Tree]]:
        heads = tune(message["params"], clients, rngs).heads
        pairs = list(zip(clients, heads, strict=True))
        sent = [{"head": head_params(network, head), "n": len(data)} for data, head in pairs]
        kept = [{} if prior_count is None else {"head": head} for head in heads]
        return list(zip(sent, kept, strict=True))

    return of_cohorts(
        cohort_update,
        evaluated="the FedAvg body with the mean of all heads"
        + ("" if prior_count is None else f" and the client's own share of it ({prior_count:g} images)"),
        server_update=average_into_params("head"),
        personalize=own_head(network, prior_count),
        adds_label_prior=adjusted,
    )
