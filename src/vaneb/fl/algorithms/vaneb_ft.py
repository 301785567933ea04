"""VANEB-FT: after FedAvg every client fine-tunes the head; one empirical Bayes step denoises all heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, ServerState
from vaneb.fl.algorithms.vaneb_common import EmpiricalBayes, head_for, seeded_start, shrink_outputs
from vaneb.fl.head_covariance import head_variances
from vaneb.fl.head_training import fine_tune_heads
from vaneb.fl.network import Network, head_matrix, head_params, load_params
from vaneb.fl.personalise_heads import Rule
from vaneb.fl.trees import Tree


def vaneb_ft(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    rule: Rule,
    damping: float,
    iterations: int,
    atoms: int = 10,
    adjusted: bool = False,
    own_share: float = 0.0,
) -> Algorithm:
    """One round with all clients, started from a FedAvg network; the body stays as it is.

    Parameters
    ----------
    rule : "direct" or "coordinate": how Sigma_k(.) is had from what client k reports.
    damping : lambda in Sigma_k.
    iterations : pseudo-EM steps S.
    adjusted : fine-tune on logits plus the client's log-proportions (see ``vaneb_la``).
    own_share : share t of its own fine-tuned head that a client keeps, (1 - t) posterior mean + t own.  The
        paper has 0.  This is the posterior mean under atoms with a Gaussian spread of t / (1 - t) times the
        client's noise, the responsibilities left as they were.
    """
    if not 0 <= own_share <= 1:
        raise InvalidOption(f"own_share = {own_share}: must be a share from 0 to 1.")
    step = EmpiricalBayes(rule=rule, atoms=atoms, iterations=iterations)

    def broadcast(state: ServerState, client: int) -> Tree:
        return {"params": state.params, **head_for(state, client)}

    def cohort_update(
        message: Tree,
        clients: Sequence[ClientData],
        client_states: Sequence[Tree],
        rngs: Sequence[np.random.Generator],
    ) -> list[tuple[Tree, Tree]]:
        load_params(network, message["params"])
        heads, seen, residuals = fine_tune_heads(
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
            (
                {
                    "head": heads[k],
                    "variance": head_variances(residuals[k], seen[k], damping),
                    "n": len(data),
                },
                {"head": heads[k]} if own_share > 0 else client_states[k],
            )
            for k, data in enumerate(clients)
        ]

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        return cohort_update(message, [data], [client_state], [rng])[0]

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        heads, info = shrink_outputs(state, outputs, step)
        memory = {**state.memory, "heads": heads}
        return replace(state, round=state.round + 1, memory=memory), info

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        if "head" not in message:
            return message["params"]
        head = message["head"]
        if "head" in client_state:
            head = (1 - own_share) * head + own_share * client_state["head"]
        return {**message["params"], **head_params(network, head)}

    return Algorithm(
        init=seeded_start,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        personalize=personalize,
        evaluated=f"the FedAvg body with the client's posterior mean head ({rule} covariance)",
        cohort_update=cohort_update,
        adds_label_prior=adjusted,
    )
