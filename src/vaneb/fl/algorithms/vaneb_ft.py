"""VANEB-FT: after FedAvg every client fine-tunes the head; one empirical Bayes step denoises all heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

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
    prior_count: float | None = None,
) -> Algorithm:
    """One round with all clients, started from a FedAvg network; the body stays as it is.

    Parameters
    ----------
    rule : "direct" or "coordinate": how Sigma_k(.) is had from what client k reports.
    damping : lambda in Sigma_k.
    iterations : pseudo-EM steps S.
    adjusted : fine-tune on logits plus the client's log-proportions (see ``vaneb_la``).
    prior_count : m, a number of images; None, as in the paper, leaves every client its posterior mean.
        Otherwise the atoms have a Gaussian spread: row c of a head is known to its client from the n_kc
        images of class c, so with a noise of sigma^2 / n_kc and a spread of sigma^2 / m its posterior mean
        keeps the share t_c = n_kc / (n_kc + m) of the client's own row and 1 - t_c of the mean over atoms.
    """
    if prior_count is not None and not prior_count >= 0:
        raise InvalidOption(f"prior_count = {prior_count}: must be a number of images, zero or more.")
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
                client_states[k] if prior_count is None else {"head": heads[k]},
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
        if prior_count is not None and "head" in client_state:
            own = own_row_shares(data, prior_count)[:, None]
            head = (1 - own) * head + own * client_state["head"]
        return {**message["params"], **head_params(network, head)}

    return Algorithm(
        init=seeded_start,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        personalize=personalize,
        evaluated=f"the FedAvg body with the client's posterior mean head ({rule} covariance"
        + (")" if prior_count is None else f", spread of {prior_count:g} images)"),
        cohort_update=cohort_update,
        adds_label_prior=adjusted,
    )


def own_row_shares(data: ClientData, prior_count: float) -> Tensor:
    """t_c = n_kc / (n_kc + m) for every class c, shape (classes,); 0 for classes that were never seen."""
    counts = torch.bincount(data.labels, minlength=data.n_classes).to(torch.float32)
    return torch.where(counts > 0, counts / (counts + prior_count), 0.0)
