"""What a client does in most algorithms, so that their files hold only what is their own.

``sgd`` in their constructors stands for ``epochs``, ``batch_size``, ``learning_rate``, ``optimiser`` and
``momentum``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import ClientData, Params, Personalize, Rng
from vaneb.fl.head_training import TunedHeads, fine_tune_heads
from vaneb.fl.network import Network, head_matrix, load_params, read_params, with_head
from vaneb.fl.training import is_plain, sgd_epochs
from vaneb.fl.trees import Tree

Train = Callable[..., Params]
"""Called with parameters, data, a generator and whatever changes ``sgd_epochs``."""
TuneHeads = Callable[[Params, Sequence[ClientData], Sequence[Rng]], TunedHeads]


def local_training(
    network: Network,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    optimiser: str = "sgd",
    momentum: float = 0.0,
) -> Train:
    """A function that trains given parameters on a client's images and returns what they became."""
    is_plain(optimiser, momentum)  # refuses what cannot be
    usual: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    usual |= {"optimiser": optimiser, "momentum": momentum}

    def train(params: Params, data: ClientData, rng: Rng, **changes: Any) -> Params:
        load_params(network, params)
        sgd_epochs(network, data, rng, **(usual | changes))
        return read_params(network)

    return train


def head_tuning(network: Network, **options: Any) -> TuneHeads:
    """``fine_tune_heads`` with these options."""
    local_training(network, **{name: value for name, value in options.items() if name != "adjusted"})
    return partial(fine_tune_heads, network, **options)


def set_aside(data: ClientData, share: float) -> tuple[ClientData, ClientData]:
    """A client's images without a share of them, and that share: one or more, never all, the same always."""
    order = torch.from_numpy(np.random.default_rng(data.client).permutation(len(data)))
    count = min(len(data) - 1, max(1, round(share * len(data))))
    parts = (order[count:], order[:count])
    kept, aside = (replace(data, images=data.images[rows], labels=data.labels[rows]) for rows in parts)
    return kept, aside


def chosen(params: Params, names: Iterable[str]) -> Params:
    """Some of the parameters."""
    return {name: params[name] for name in names}


def keep_own_rows(data: ClientData, pooled: Tensor, own: Tensor, prior_count: float) -> Tensor:
    """t_c own + (1 - t_c) pooled, row by row, t_c = n_kc / (n_kc + prior_count); 0 for classes never seen."""
    counts = torch.bincount(data.labels, minlength=data.n_classes).to(torch.float32)
    share = torch.where(counts > 0, counts / (counts + prior_count), 0.0)[:, None]
    return (1 - share) * pooled + share * own


def own_head(network: Network, prior_count: float | None) -> Personalize:
    """The head that the server sent, with the client's share of its own rows; else the one it has."""
    if prior_count is not None and not prior_count >= 0:
        raise InvalidOption(f"prior_count = {prior_count}: must be a number of images, zero or more.")

    def personalize(message: Tree, client_state: Tree, data: ClientData, rng: Rng) -> Params:
        params = with_head(network, message["params"], message.get("head"))
        if prior_count is None or "head" not in client_state:
            return params
        head = keep_own_rows(data, head_matrix(network, params), client_state["head"], prior_count)
        return with_head(network, params, head)

    return personalize
