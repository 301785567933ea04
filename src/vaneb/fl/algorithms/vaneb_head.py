"""VANEB-Head: an averaged body, a head for every client, and an empirical Bayes step every b rounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, Rng, ServerState, average_of
from vaneb.fl.algorithms.common import chosen, local_training
from vaneb.fl.head_covariance import head_variances
from vaneb.fl.head_training import softmax_residuals
from vaneb.fl.network import Network, features, head_matrix, with_head
from vaneb.fl.personalise_heads import Rule, empirical_bayes, seeded_start, send_own_head
from vaneb.fl.trees import Tree


def vaneb_head(
    network: Network,
    *,
    rule: Rule,
    damping: float,
    iterations: int,
    atoms: int = 10,
    every: int = 5,
    **sgd: Any,
) -> Algorithm:
    """Clients train body and head together; the server averages bodies and keeps every client's head.

    Parameters
    ----------
    every : b; in every b-th round the heads of the round's clients are replaced by posterior means.
    rule, damping, iterations, atoms : as in ``vaneb_ft``.
    """
    if every < 1:
        raise InvalidOption(f"every = {every}: must be at least 1.")
    shrink = empirical_bayes(rule=rule, iterations=iterations, atoms=atoms)
    train = local_training(network, **sgd)

    def is_due(state: ServerState) -> bool:
        return (state.round + 1) % every == 0

    def broadcast(state: ServerState, client: int) -> Tree:
        # Variances are wanted in the rounds that use them only.
        return {**send_own_head(state, client), "report_variance": is_due(state)}

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        params = train(personalize(message, client_state, data, rng), data, rng)
        head = head_matrix(network, params)
        output = {"body": chosen(params, network.body_names), "head": head, "n": len(data)}
        if message["report_variance"]:
            seen = features(network, data.images)
            residuals = softmax_residuals(head, seen, data.labels, None)
            output["variance"] = head_variances(residuals, seen, damping)
        return output, client_state

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        heads = {str(client): out["head"] for client, out in outputs.items()}
        heads, info = shrink(state, outputs) if is_due(state) else (heads, {})
        memory = {**state.memory, "heads": {**state.memory.get("heads", {}), **heads}}
        params = state.params | average_of(outputs, "body")
        return replace(state, params=params, round=state.round + 1, memory=memory), info

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        return with_head(network, message["params"], message.get("head"))

    evaluated = f"the server's body with the client's head ({rule} covariance)"
    return Algorithm(client_update, evaluated, seeded_start, broadcast, server_update, personalize)
