"""Networks for the three data sets.  Any ``nn.Module`` with a named linear head works the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class MnistNet(nn.Module):
    """Two convolutions of 5 x 5 and two fully connected layers, for grey images of 28 x 28."""

    def __init__(self, channels: Sequence[int] = (32, 64), hidden: int = 512, n_classes: int = 10) -> None:
        super().__init__()
        first, second = channels
        self.conv1 = PooledConvolution(1, first, 5)
        self.conv2 = PooledConvolution(first, second, 5)
        self.fc1 = nn.Linear(second * 4 * 4, hidden)
        self.fc2 = nn.Linear(hidden, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv2(self.conv1(images))
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


class CifarNet(nn.Module):
    """Three convolution blocks of 3 x 3 and three fully connected layers, for colour images of 32 x 32."""

    def __init__(
        self,
        channels: Sequence[int] = (32, 64, 64),
        hidden: Sequence[int] = (256, 128),
        n_classes: int = 10,
    ) -> None:
        super().__init__()
        first, second, third = channels
        self.conv1 = PooledConvolution(3, first, 3, padding=1)
        self.conv2 = PooledConvolution(first, second, 3, padding=1)
        self.conv3 = PooledConvolution(second, third, 3, padding=1)
        self.fc1 = nn.Linear(third * 4 * 4, hidden[0])
        self.fc2 = nn.Linear(hidden[0], hidden[1])
        self.fc3 = nn.Linear(hidden[1], n_classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.conv3(self.conv2(self.conv1(images)))
        x = functional.relu(self.fc1(x.flatten(1)))
        return self.fc3(functional.relu(self.fc2(x)))


class DigitsNet(nn.Module):
    """One convolution of 3 x 3 and two fully connected layers, for grey images of 8 x 8."""

    def __init__(self, channels: int = 16, hidden: int = 32, n_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = PooledConvolution(1, channels, 3, padding=1)
        self.fc1 = nn.Linear(channels * 4 * 4, hidden)
        self.fc2 = nn.Linear(hidden, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc2(functional.relu(self.fc1(self.conv1(images).flatten(1))))


@dataclass(frozen=True)
class Model:
    """A constructor of modules and the name of their head."""

    constructor: Callable[..., nn.Module]
    head: str


MODELS: dict[str, Model] = {
    "mnist": Model(MnistNet, "fc2"),
    "cifar10": Model(CifarNet, "fc3"),
    "digits": Model(DigitsNet, "fc2"),
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
