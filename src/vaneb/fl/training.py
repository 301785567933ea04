"""Steps that the algorithms share: local epochs of gradient descent, and averages over clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import ClientData, Params
from vaneb.fl.network import Network, begin_training, parts_of

#: By name; each client begins anew in every round.  "sgd" takes a momentum, the others are as torch has them.
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
Adjust = Callable[[Sequence[Tensor], Sequence[Tensor]], None]
"""Changes gradients (second argument) in place, given the parameters (first)."""


def channels_last(images: Tensor) -> Tensor:
    """The same images in the memory order in which convolutions are fastest on a CPU."""
    return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images


def batches(
    network: Network, data: ClientData, batch_size: int, rng: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass over a client's data in random order; the last batch may be smaller."""
    order = torch.from_numpy(rng.permutation(len(data)))
    # One gather for the whole pass: batches are then views.
    images, labels = channels_last(data.images[order]), data.labels[order]
    yield from zip(parts_of(network, images, batch_size), parts_of(network, labels, batch_size), strict=True)


def gradients(
    network: Network, images: Tensor, labels: Tensor, moving: Sequence[Tensor], offset: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Gradient of a batch's mean cross-entropy in the tensors ``moving``; ``offset`` joins the logits."""
    scores = network.module(images.to(network.device))
    if offset is not None:
        scores = scores + offset.to(scores.device)
    loss = functional.cross_entropy(scores, labels.to(scores.device))
    return torch.autograd.grad(loss, moving)


@torch.no_grad()
def step(moving: Sequence[Tensor], direction: Sequence[Tensor], rate: float) -> None:
    """theta <- theta - rate * direction."""
    torch._foreach_add_(list(moving), list(direction), alpha=-rate)


def is_plain(optimiser: str, momentum: float) -> bool:
    """Whether steps are those of gradient descent, which needs no state; refuses what is not known."""
    if optimiser not in OPTIMISERS:
        raise InvalidOption(f"optimiser = {optimiser!r}: use one of {', '.join(OPTIMISERS)}.")
    if not 0 <= momentum < 1 or (momentum and optimiser != "sgd"):
        raise InvalidOption(
            f"momentum = {momentum}: must be from 0 up to, not including, 1, and goes with sgd."
        )
    return optimiser == "sgd" and momentum == 0


def only_plain(method: str, optimiser: str = "sgd", momentum: float = 0.0) -> None:
    """For methods whose own rule is made for steps of gradient descent."""
    if not is_plain(optimiser, momentum):
        raise InvalidOption(
            f"{method}: its rule is made of plain gradient steps. Set optimiser = 'sgd', momentum = 0 and a "
            f"learning_rate that fits in [options.{method}]."
        )


def stepper(
    moving: Sequence[Tensor], learning_rate: float, optimiser: str = "sgd", momentum: float = 0.0
) -> Callable[[Sequence[Tensor]], None]:
    """A function that moves ``moving`` in place, given their gradients."""
    if is_plain(optimiser, momentum):
        return lambda direction: step(moving, direction, learning_rate)
    more = {"momentum": momentum} if momentum else {}
    rule = OPTIMISERS[optimiser](list(moving), lr=learning_rate, **more)

    def move(direction: Sequence[Tensor]) -> None:
        for value, gradient in zip(moving, direction, strict=True):
            value.grad = gradient
        rule.step()
        rule.zero_grad()

    return move


def sgd_epochs(
    network: Network,
    data: ClientData,
    rng: np.random.Generator,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    names: Sequence[str] | None = None,
    adjust: Adjust | None = None,
    offset: Tensor | None = None,
    optimiser: str = "sgd",
    momentum: float = 0.0,
) -> None:
    """Train the network in place on one client's data.

    Parameters
    ----------
    names : parameters that move; all by default.
    adjust : changes every gradient before it is used.
    offset : (classes,), added to the logits while training (see ``label_prior``).
    """
    moving = [network.tensors[name] for name in network.trainable_names if names is None or name in names]
    move = stepper(moving, learning_rate, optimiser, momentum)
    begin_training(network, min(len(data), batch_size))
    for _ in range(epochs):
        for images, labels in batches(network, data, batch_size, rng):
            direction = gradients(network, images, labels, moving, offset)
            if adjust is not None:
                with torch.no_grad():
                    adjust(moving, direction)
            move(direction)


def pull_to(anchor: Sequence[Tensor], strength: float) -> Adjust:
    """Adds the gradient of strength / 2 ||theta - anchor||^2."""

    def adjust(moving: Sequence[Tensor], direction: Sequence[Tensor]) -> None:
        torch._foreach_add_(list(direction), torch._foreach_sub(list(moving), list(anchor)), alpha=strength)

    return adjust


def pull_towards(network: Network, params: Params, strength: float) -> Adjust:
    """``pull_to`` given parameters, when all trainable ones move."""
    return pull_to([params[name].to(network.device) for name in network.trainable_names], strength)


def check_strength(strength: float) -> None:
    """Refuse a penalty that pushes away."""
    if not strength >= 0:
        raise InvalidOption(f"strength = {strength}: must be zero or positive.")


def check_positive(**options: float) -> None:
    """Refuse options that are not positive numbers; the message names the option."""
    for name, value in options.items():
        if not value > 0 or not np.isfinite(value):
            raise InvalidOption(f"{name} = {value}: must be a positive number.")
