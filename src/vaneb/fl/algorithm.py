"""A federated algorithm is a value made of pure functions.

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
from dataclasses import dataclass, field

import numpy as np
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

Init = Callable[[Params, np.random.Generator], ServerState]
Broadcast = Callable[[ServerState, int], Tree]
ClientUpdate = Callable[[Tree, ClientData, Tree, np.random.Generator], tuple[Tree, Tree]]
ServerUpdate = Callable[[ServerState, Outputs], tuple[ServerState, Tree]]
Personalize = Callable[[Tree, Tree, ClientData, np.random.Generator], Params]
Predict = Callable[[Params, ClientData, Tensor], Tensor]
CohortUpdate = Callable[
    [Tree, Sequence[ClientData], Sequence[Tree], Sequence[np.random.Generator]], list[tuple[Tree, Tree]]
]


@dataclass(frozen=True)
class Algorithm:
    """Five functions, and what a table must say about them.

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

    init: Init
    broadcast: Broadcast
    client_update: ClientUpdate
    server_update: ServerUpdate
    personalize: Personalize
    evaluated: str
    cohort_update: CohortUpdate | None = None
    adds_label_prior: bool = False
    personalize_matched: Personalize | None = None
    predict: Predict | None = None
