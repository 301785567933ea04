"""VANEB-Head: an averaged body, a head for every client, and an empirical Bayes step every b rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, ServerState
from vaneb.fl.algorithms.vaneb_common import EmpiricalBayes, head_for, seeded_start, shrink_outputs
from vaneb.fl.head_covariance import head_variances
from vaneb.fl.head_training import softmax_residuals
from vaneb.fl.network import Network, features, head_matrix, head_params, load_params, read_params
from vaneb.fl.personalise_heads import Rule
from vaneb.fl.training import sgd_epochs, weighted_average
from vaneb.fl.trees import Tree


def vaneb_head(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    rule: Rule,
    damping: float,
    iterations: int,
    atoms: int = 10,
    every: int = 5,
) -> Algorithm:
    """Clients train body and head together; the server averages bodies and keeps every client's head.

    Parameters
    ----------
    every : b; in every b-th round the heads of the round's clients are replaced by posterior means.
    rule, damping, iterations, atoms : as in ``vaneb_ft``.
    """
    if every < 1:
        raise InvalidOption(f"every = {every}: must be at least 1.")
    step = EmpiricalBayes(rule=rule, atoms=atoms, iterations=iterations)

    def is_due(state: ServerState) -> bool:
        return (state.round + 1) % every == 0

    def broadcast(state: ServerState, client: int) -> Tree:
        # Variances are wanted in the rounds that use them only.
        return {"params": state.params, "report_variance": is_due(state), **head_for(state, client)}

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, personalize(message, client_state, data, rng))
        sgd_epochs(network, data, rng, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        params = read_params(network)
        head = head_matrix(network, params)
        output = {
            "body": {name: params[name] for name in network.body_names},
            "head": head,
            "n": len(data),
        }
        if message["report_variance"]:
            seen = features(network, data.images)
            residuals = softmax_residuals(head, seen, data.labels, None)
            output["variance"] = head_variances(residuals, seen, damping)
        return output, client_state

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        body = weighted_average(
            [out["body"] for out in outputs.values()], [out["n"] for out in outputs.values()]
        )
        if is_due(state):
            heads, info = shrink_outputs(state, outputs, step)
        else:
            heads, info = {str(client): out["head"] for client, out in outputs.items()}, {}
        memory = {**state.memory, "heads": {**state.memory.get("heads", {}), **heads}}
        params = {**state.params, **body}
        return replace(state, params=params, round=state.round + 1, memory=memory), info

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        if "head" not in message:
            return message["params"]
        return {**message["params"], **head_params(network, message["head"])}

    return Algorithm(
        init=seeded_start,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        personalize=personalize,
        evaluated=f"the server's body with the client's head ({rule} covariance)",
    )
