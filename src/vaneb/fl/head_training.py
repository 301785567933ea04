"""Heads of many clients trained at once on features that do not change.

With the body frozen, what the head sees of an image never changes, so it is computed once; and since
a head is a linear map, one step for all clients is one batched matrix product.  Per client, with
features h_i (a one appended), head Phi = [W | b], logit offset o and one-hot labels y_i:

    r_i  = softmax(Phi h_i + o) - y_i
    Phi <- Phi - rate * mean over the batch of r_i h_i'

Letters: K clients, n rows (of the largest), F features with the one, C classes, B rows per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vaneb.fl.algorithm import ClientData, Params
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.network import Network, features, head_matrix, load_params
from vaneb.fl.training import is_plain, stepper


def softmax_residuals(matrix: Tensor, seen: Tensor, labels: Tensor, offset: Tensor | None) -> Tensor:
    """softmax(Phi h + o) - y, (..., rows, C), for ``matrix`` (..., C, F) and ``seen`` (..., rows, F)."""
    scores = seen @ matrix.transpose(-1, -2)
    if offset is not None:
        scores = scores + offset.unsqueeze(-2)
    return torch.softmax(scores, -1) - functional.one_hot(labels, scores.shape[-1])


@torch.inference_mode()
def train_heads(
    start: Tensor,
    seen: Sequence[Tensor],
    labels: Sequence[Tensor],
    rngs: Sequence[np.random.Generator],
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    offsets: Tensor | None = None,
    optimiser: str = "sgd",
    momentum: float = 0.0,
) -> Tensor:
    """Gradient descent on K heads, each on its own client's rows.

    Parameters
    ----------
    start : (C, F), the head all clients start from, or (K, C, F).
    seen : K tensors (n_k, F)
    labels : K tensors (n_k,)
    rngs : K generators, one per client: a client's order of rows does not depend on who trains with it.
    offsets : (K, C), added to the logits, or None.

    Returns
    -------
    tensor (K, C, F)
    """
    sizes = [len(rows) for rows in labels]
    plain = is_plain(optimiser, momentum)
    if not plain and len(sizes) > 1:
        # One by one: an optimiser with a memory would move a client that has no batch left.
        options = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
        starts = start.expand(len(sizes), *start.shape[-2:])
        own = [None] * len(sizes) if offsets is None else offsets[:, None]
        alone = [
            train_heads(one, [h], [y], [rng], offsets=o, optimiser=optimiser, momentum=momentum, **options)  # type: ignore[arg-type]
            for one, h, y, rng, o in zip(starts, seen, labels, rngs, own, strict=True)
        ]
        return torch.cat(alone)
    stacked, targets = torch.cat(list(seen)), torch.cat(list(labels))
    first_row = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    heads = start.expand(len(sizes), *start.shape[-2:]).clone()
    move = stepper([heads], learning_rate, optimiser, momentum)
    for _ in range(epochs):
        order, present = _epoch_order(sizes, first_row, rngs, batch_size)
        for rows, mask in zip(order.split(batch_size, 1), present.split(batch_size, 1), strict=True):
            batch = stacked[rows]
            residuals = softmax_residuals(heads, batch, targets[rows], offsets)
            # A client with fewer batches than the largest has none left: its residuals are all masked.
            residuals *= (mask / mask.sum(1, keepdim=True).clamp(min=1))[..., None]
            if plain:
                heads.baddbmm_(residuals.transpose(1, 2), batch, alpha=-learning_rate)
            else:
                move([residuals.transpose(1, 2) @ batch])
    return heads.clone()


def _epoch_order(
    sizes: Sequence[int], first_row: np.ndarray, rngs: Sequence[np.random.Generator], batch_size: int
) -> tuple[Tensor, Tensor]:
    """A random order of each client's rows, padded to the longest: row numbers (K, n) and a mask (K, n)."""
    longest = max(sizes)
    order = np.repeat(first_row[:, None], longest, axis=1)
    for k, (size, rng) in enumerate(zip(sizes, rngs, strict=True)):
        order[k, :size] = first_row[k] + rng.permutation(size)
    present = np.arange(longest) < np.asarray(sizes)[:, None]
    return torch.from_numpy(order), torch.from_numpy(present).to(torch.float32)


class TunedHeads(NamedTuple):
    """Heads of K clients, and what their covariances are made of."""

    heads: Tensor
    """(K, C, F)"""
    seen: list[Tensor]
    """K tensors (n_k, F)"""
    residuals: list[Tensor]
    """K tensors (n_k, C), those of the fitted heads."""


def fine_tune_heads(
    network: Network,
    params: Params,
    clients: Sequence[ClientData],
    rngs: Sequence[np.random.Generator],
    *,
    adjusted: bool = False,
    **options: Any,
) -> TunedHeads:
    """Fine-tune the head of ``params`` at every client, on what their body makes of its images.

    Parameters
    ----------
    adjusted : fit on logits plus the client's log-proportions (see ``label_prior``).
    options : of ``train_heads``.
    """
    load_params(network, params)
    seen = [features(network, data.images) for data in clients]
    labels = [data.labels for data in clients]
    own = [log_proportions(data.labels, data.n_classes) if adjusted else None for data in clients]
    offsets = torch.stack(own) if adjusted else None  # type: ignore[arg-type]
    heads = train_heads(head_matrix(network, params), seen, labels, rngs, offsets=offsets, **options)
    residuals = [softmax_residuals(*each) for each in zip(heads, seen, labels, own, strict=True)]
    return TunedHeads(heads, seen, residuals)
