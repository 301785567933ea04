"""VANEB-Full: the empirical Bayes step on all parameters of the network, every round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vaneb.fl.algorithm import Algorithm, ClientData, Outputs, Params, ServerState
from vaneb.fl.algorithms.vaneb_common import EmpiricalBayes, seeded_start, shrink_outputs
from vaneb.fl.head_covariance import parameter_variances
from vaneb.fl.network import Network, load_params, read_params, reestimate_statistics
from vaneb.fl.personalise_heads import Rule
from vaneb.fl.training import sgd_epochs, weighted_average
from vaneb.fl.trees import Tree


def vaneb_full(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    rule: Rule,
    damping: float,
    iterations: int,
    atoms: int = 10,
) -> Algorithm:
    """Clients train from the shared network; each gets its posterior mean; their average is shared next.

    The server keeps one posterior mean per client that ever took part, and in its step about five times what
    the round's reports hold: memory grows with clients times parameters, never with their square.  A client
    with n rows takes time of the order of n^2 times parameters.  Parameters are those of ``vaneb_ft``.
    """
    step = EmpiricalBayes(rule=rule, atoms=atoms, iterations=iterations)
    names = network.trainable_names

    def flat(values: Params) -> Tensor:
        return torch.cat([values[name].reshape(-1) for name in names])

    def unflat(vector: Tensor) -> Params:
        parts = vector.split([network.tensors[name].numel() for name in names])
        return {
            name: part.reshape(network.tensors[name].shape) for name, part in zip(names, parts, strict=True)
        }

    def broadcast(state: ServerState, client: int) -> Tree:
        personal = state.memory.get("personal", {})
        own = {"personal": personal[str(client)]} if str(client) in personal else {}
        return {"params": state.params, **own}

    def client_update(
        message: Tree, data: ClientData, client_state: Tree, rng: np.random.Generator
    ) -> tuple[Tree, Tree]:
        load_params(network, message["params"])
        sgd_epochs(network, data, rng, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate)
        params = read_params(network)
        variances = parameter_variances(network, data, damping)
        # "head" is what the empirical Bayes step is told to shrink: here everything.
        buffers = {name: value for name, value in params.items() if name not in names}
        return {
            "head": flat(params),
            "variance": flat(variances),
            "buffers": buffers,
            "n": len(data),
        }, client_state

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        shrunk, info = shrink_outputs(state, outputs, step)
        average = weighted_average(
            [{"": shrunk[str(client)], **out["buffers"]} for client, out in outputs.items()],
            [out["n"] for out in outputs.values()],
        )
        memory = {**state.memory, "personal": {**state.memory.get("personal", {}), **shrunk}}
        params = {**state.params, **unflat(average.pop("")), **average}
        return replace(state, params=params, round=state.round + 1, memory=memory), info

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: np.random.Generator) -> Params:
        if "personal" not in message:
            return message["params"]
        params = {**message["params"], **unflat(message["personal"])}
        load_params(network, params)
        # Normalisation belongs to the weights that it is used with.
        return {**params, **reestimate_statistics(network, data.images)}

    return Algorithm(
        init=seeded_start,
        broadcast=broadcast,
        client_update=client_update,
        server_update=server_update,
        personalize=personalize,
        evaluated=f"the client's posterior mean network ({rule} covariance)",
    )
