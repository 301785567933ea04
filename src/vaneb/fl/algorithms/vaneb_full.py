"""VANEB-Full: the empirical Bayes step on all parameters of the network, every round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, Rng, ServerState, average_of
from vaneb.fl.algorithms.common import local_training
from vaneb.fl.head_covariance import parameter_variances
from vaneb.fl.network import Network, load_params, reestimate_statistics
from vaneb.fl.personalise_heads import Rule, empirical_bayes, seeded_start, send_own_head
from vaneb.fl.trees import Tree


def vaneb_full(
    network: Network, *, rule: Rule, damping: float, iterations: int, atoms: int = 10, **sgd: Any
) -> Algorithm:
    """Clients train from the shared network; each gets its posterior mean; their average is shared next.

    The server keeps one posterior mean per client that ever took part, and in its step about five times what
    the round's reports hold: memory grows with clients times parameters, never with their square.  A client
    with n rows takes time of the order of n^2 times parameters.  Parameters are those of ``vaneb_ft``.
    """
    shrink = empirical_bayes(rule=rule, iterations=iterations, atoms=atoms)
    train, names = local_training(network, **sgd), network.trainable_names

    def flat(values: Params) -> Tensor:
        return torch.cat([values[name].reshape(-1) for name in names])

    def unflat(vector: Tensor) -> Params:
        parts = vector.split([network.tensors[name].numel() for name in names])
        return {name: part.view_as(network.tensors[name]) for name, part in zip(names, parts, strict=True)}

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        params = train(message["params"], data, rng)
        variances = parameter_variances(network, data, damping)
        buffers = {name: value for name, value in params.items() if name not in names}
        # What the empirical Bayes step takes for a head is everything here.
        output = {"head": flat(params), "variance": flat(variances), "buffers": buffers, "n": len(data)}
        return output, client_state

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        shrunk, info = shrink(state, outputs)
        networks = {
            k: {"network": unflat(shrunk[str(k)]) | out["buffers"], "n": out["n"]}
            for k, out in outputs.items()
        }
        memory = {**state.memory, "heads": {**state.memory.get("heads", {}), **shrunk}}
        params = state.params | average_of(networks, "network")
        return replace(state, params=params, round=state.round + 1, memory=memory), info

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        if "head" not in message:
            return message["params"]
        params = message["params"] | unflat(message["head"])
        load_params(network, params)
        # Normalisation belongs to the weights that it is used with.
        return params | reestimate_statistics(network, data.images)

    evaluated = f"the client's posterior mean network ({rule} covariance)"
    return Algorithm(client_update, evaluated, seeded_start, send_own_head, server_update, personalize)
