"""A federated algorithm is a value made of pure functions.

A client trains what the server sends it, the server turns what comes back into what it sends next:

    init(params, rng)                                   -> ServerState
    broadcast(state, client)                            -> message
    client_update(message, data, client_state, rng)     -> output, client_state
    server_update(state, outputs)                       -> ServerState, info
    personalize(message, client_state, data, rng)       -> params

``personalize`` happens at the client, so it sees what the client sees: the message that the server
would send it, not the server's state.  State is what the next step needs, info is diagnostics.

"Pure" is meant towards the caller: a function may use the network it was built with as scratch space
(one model per process, reused in place), but what it returns depends on its arguments alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vaneb.fl.trees import Tree

Params = dict[str, Tensor]
"""Parameters (and floating-point buffers) of a network by name."""


@dataclass(frozen=True)
class ClientData:
    """What one client holds.

    Parameters
    ----------
    client : int
    images : tensor (n, ...)
        float32, normalised; channels-last if it has four axes.
    labels : tensor (n,) of int64
    n_classes : int
    """

    client: int
    images: Tensor
    labels: Tensor
    n_classes: int

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ServerState:
    """What the server carries from one round to the next.

    Parameters
    ----------
    params : the shared network.
    round : rounds completed.
    memory : whatever else the algorithm needs.
    """

    params: Params
    round: int = 0
    memory: Tree = field(default_factory=dict)


Outputs = Mapping[int, Tree]
"""What the clients of a round returned, by client, in ascending order."""
Rng = np.random.Generator

Init = Callable[[Params, Rng], ServerState]
Broadcast = Callable[[ServerState, int], Tree]
ClientUpdate = Callable[[Tree, ClientData, Tree, Rng], tuple[Tree, Tree]]
ServerUpdate = Callable[[ServerState, Outputs], tuple[ServerState, Tree]]
Personalize = Callable[[Tree, Tree, ClientData, Rng], Params]
Predict = Callable[[Params, ClientData, Tensor], Tensor]
CohortUpdate = Callable[[Tree, Sequence[ClientData], Sequence[Tree], Sequence[Rng]], list[tuple[Tree, Tree]]]


# ---------------------------------------------------------------- what FedAvg does, and most others too


def start_from(params: Params, rng: Rng) -> ServerState:
    """The server starts with the parameters it is given and nothing else."""
    return ServerState(params)


def send_params(state: ServerState, client: int) -> Tree:
    """Every client receives the shared network."""
    return {"params": state.params}


def keep_received(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
    """Every client uses the shared network as it is."""
    return message["params"]


def weighted_average(parts: Sequence[Params], weights: Sequence[float]) -> Params:
    """sum_k w_k theta_k / sum_k w_k, name by name, summed in the order given."""
    total = float(sum(weights))
    average = {name: torch.zeros_like(value) for name, value in parts[0].items()}
    for part, weight in zip(parts, weights, strict=True):
        for name, value in part.items():
            average[name].add_(value, alpha=weight / total)
    return average


def average_of(outputs: Outputs, key: str) -> Params:
    """sum_k n_k theta_k / sum_k n_k over what the clients returned under ``key``."""
    return weighted_average([out[key] for out in outputs.values()], [out["n"] for out in outputs.values()])


def average_into_params(key: str) -> ServerUpdate:
    """The average of what clients returned under ``key``; parameters that they do not return stay."""

    def server_update(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
        """The next state: averages by clients' rows in place of the parameters."""
        return replace(state, params=state.params | average_of(outputs, key), round=state.round + 1), {}

    return server_update


#: FedAvg's: theta <- sum_k n_k theta_k / sum_k n_k.
average_params = average_into_params("params")


def count_round(state: ServerState, outputs: Outputs) -> tuple[ServerState, Tree]:
    """The server learns nothing."""
    return replace(state, round=state.round + 1), {}


@dataclass(frozen=True)
class Algorithm:
    """Five functions, and what a table must say about them.

    What is left out is as in FedAvg.

    Parameters
    ----------
    evaluated : str
        The model that ``personalize`` returns, in words; named in every table.
    cohort_update : optional
        ``client_update`` of many clients at once, where that is faster.  It must agree with
        ``client_update`` client by client, and may be given only if ``broadcast`` sends every client the
        same message.
    adds_label_prior : bool
        Whether the client's log-proportions are added to the logits when the test labels are known to
        follow them (networks fitted with logit adjustment).
    personalize_matched : optional
        ``personalize`` for test labels that are known to be like the client's own, where the client then
        uses another network.
    predict : optional
        Scores (n, classes) that the client with this network and these training data gives to images, where
        they are not the network's logits.
    """

    client_update: ClientUpdate
    evaluated: str = "the server's network, the same for every client"
    init: Init = start_from
    broadcast: Broadcast = send_params
    server_update: ServerUpdate = average_params
    personalize: Personalize = keep_received
    cohort_update: CohortUpdate | None = None
    adds_label_prior: bool = False
    personalize_matched: Personalize | None = None
    predict: Predict | None = None


def of_cohorts(cohort_update: CohortUpdate, **parts: Any) -> Algorithm:
    """An algorithm that updates many clients at once, and one client as a cohort of one."""

    def client_update(message: Tree, data: ClientData, client_state: Tree, rng: Rng) -> tuple[Tree, Tree]:
        return cohort_update(message, [data], [client_state], [rng])[0]

    return Algorithm(client_update, cohort_update=cohort_update, **parts)
