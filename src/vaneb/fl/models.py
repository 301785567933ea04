"""Networks for the three data sets.  Any ``nn.Module`` with a named linear head works the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vaneb.errors import InvalidOption
from vaneb.fl.naming import look_up
from vaneb.fl.network import Network, network_from


class PooledConvolution(nn.Conv2d):
    """relu(max_pool2d(conv2d(x), 2))."""

    def forward(self, images: Tensor) -> Tensor:
        # The maximum and the ReLU commute, and the ReLU then runs on a quarter of the numbers.
        return functional.relu(functional.max_pool2d(super().forward(images), 2))


class ConvNet(nn.Module):
    """Convolutions, each halving the side of the images, and fully connected layers; the last is the head.

    Parameters
    ----------
    colours, side : of the images.
    kernel : side of the convolutions; those of 3 keep the images' border, others do not.
    channels, hidden : of the convolutions and of the fully connected layers but the head; one or several.
    """

    def __init__(
        self,
        colours: int,
        side: int,
        kernel: int,
        *,
        channels: int | Sequence[int],
        hidden: int | Sequence[int],
        n_classes: int = 10,
    ) -> None:
        super().__init__()
        widths, padding, before = _several(channels), int(kernel == 3), colours
        for i, width in enumerate(widths, start=1):
            self.add_module(f"conv{i}", PooledConvolution(before, width, kernel, padding=padding))
            before, side = width, (side + 2 * padding - kernel + 1) // 2
        before *= side * side
        for i, width in enumerate((*_several(hidden), n_classes), start=1):
            self.add_module(f"fc{i}", nn.Linear(before, width))
            before = width
        self.depth = len(widths)

    def forward(self, images: Tensor) -> Tensor:
        *layers, head = self.children()
        x = images
        for layer in layers[: self.depth]:
            x = layer(x)
        x = x.flatten(1)
        for layer in layers[self.depth :]:
            x = functional.relu(layer(x))
        return head(x)


def _several(widths: int | Sequence[int]) -> Sequence[int]:
    return [widths] if isinstance(widths, int) else widths


@dataclass(frozen=True)
class Model:
    """A constructor of modules and the name of their head."""

    constructor: Callable[..., nn.Module]
    head: str


MODELS: dict[str, Model] = {
    "mnist": Model(partial(ConvNet, 1, 28, 5, channels=(32, 64), hidden=512), "fc2"),
    "cifar10": Model(partial(ConvNet, 3, 32, 3, channels=(32, 64, 64), hidden=(256, 128)), "fc3"),
    "digits": Model(partial(ConvNet, 1, 8, 3, channels=16, hidden=32), "fc2"),
}


def build_network(
    name: str, head: str | None, options: dict[str, Any], seed: int = 0, device: str = "cpu"
) -> Network:
    """The network called ``name`` with initial parameters drawn by ``seed``.

    Parameters
    ----------
    name : an entry of ``MODELS`` or ``"module:constructor"`` of one's own.
    head : dotted name of the head; may be None for an entry of ``MODELS``.
    device : "auto", or a name of torch's.
    """
    found = look_up(name, MODELS, "model")
    model = found if isinstance(found, Model) else Model(found, head or "")
    if not (head or model.head):
        raise InvalidOption(f"model {name!r}: name its head, the last linear layer, as head = '...'.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = model.constructor(**options)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidOption(f"model {name!r}: {error}. Check its options.") from None
    return network_from(module, head or model.head, device)
