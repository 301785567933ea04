"""A torch module with a named head, used in place: load parameters, train, read them back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vaneb.errors import InvalidOption
from vaneb.fl.algorithm import Params
from vaneb.fl.feature_cache import FeatureCache

#: Images per forward pass when nothing is trained; larger batches were not faster.
FORWARD_BATCH = 200


@dataclass(frozen=True)
class Network:
    """A module and its head, the last linear layer.

    Parameters
    ----------
    module : nn.Module whose output is that of the head: ``module(x) = head(features(x))``.
    head : nn.Linear inside it.
    tensors : live parameters and floating-point buffers of the module, by name.
    body_names, head_names : a split of the names of ``tensors``.
    trainable_names : those that are parameters with a gradient.
    cache : features of the present body.
    """

    module: nn.Module
    head: nn.Linear
    tensors: Params
    body_names: tuple[str, ...]
    head_names: tuple[str, ...]
    trainable_names: tuple[str, ...]
    cache: FeatureCache = field(default_factory=FeatureCache, compare=False, repr=False)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where the module is.  What goes in and comes out of the functions of this package is in main memory."""

    @property
    def normalised_by_batch(self) -> list[_BatchNorm]:
        """Layers that take means and variances over a batch."""
        return [layer for layer in self.module.modules() if isinstance(layer, _BatchNorm)]


def device_called(name: str) -> torch.device:
    """A device by torch's name; "auto" is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0][:80]
        raise InvalidOption(f"device = {name!r}: cannot be used ({reason}). Use 'auto' or 'cpu'.") from None


def network_from(module: nn.Module, head: str, device: str = "cpu") -> Network:
    """Prepare ``module`` for training with the head called ``head`` (a dotted name)."""
    layers = dict(module.named_modules())
    layer = layers.get(head)
    if not isinstance(layer, nn.Linear):
        linear = [name for name, found in layers.items() if isinstance(found, nn.Linear)]
        raise InvalidOption(
            f"model head {head!r}: {'no such layer' if layer is None else 'not a linear layer'}. "
            f"The linear layers of this model are {', '.join(linear) or 'none'}."
        )
    if not layer.weight.requires_grad:
        raise InvalidOption(f"model head {head!r}: is frozen. Every client needs a head that can be trained.")
    place = device_called(device)
    module = module.to(device=place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    parameters = dict(module.named_parameters())
    buffers = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
    tensors: dict[str, Tensor] = {**parameters, **buffers}
    head_names = tuple(name for name in tensors if name.startswith(f"{head}."))
    return Network(
        module=module,
        head=layer,
        tensors=tensors,
        body_names=tuple(name for name in tensors if name not in head_names),
        head_names=head_names,
        trainable_names=tuple(name for name, value in parameters.items() if value.requires_grad),
        device=place,
    )


@torch.no_grad()
def load_params(network: Network, params: Params) -> None:
    """Copy ``params`` (all of them or some) into the module."""
    for name, value in params.items():
        network.tensors[name].copy_(value)


def read_params(network: Network, names: Iterable[str] | None = None) -> Params:
    """Copies of the module's parameters, all or those named."""
    chosen = network.tensors if names is None else names
    return {
        name: network.tensors[name].detach().clone(memory_format=torch.contiguous_format).cpu()
        for name in chosen
    }


def head_matrix(network: Network, params: Params) -> Tensor:
    """The head as one matrix [W | b], shape (classes, features + 1); without b if it has no bias."""
    prefix = network.head_names[0].rsplit(".", 1)[0]
    weight = params[f"{prefix}.weight"]
    if network.head.bias is None:
        return weight.clone()
    return torch.cat([weight, params[f"{prefix}.bias"][:, None]], dim=1)


def head_params(network: Network, matrix: Tensor) -> Params:
    """Inverse of ``head_matrix``."""
    prefix = network.head_names[0].rsplit(".", 1)[0]
    matrix = matrix.to(torch.float32)
    if network.head.bias is None:
        return {f"{prefix}.weight": matrix.clone()}
    return {f"{prefix}.weight": matrix[:, :-1].contiguous(), f"{prefix}.bias": matrix[:, -1].contiguous()}


def with_head(network: Network, params: Params, matrix: Tensor | None) -> Params:
    """``params`` with that head, or as they are if there is none."""
    return params if matrix is None else params | head_params(network, matrix)


def parts_of(network: Network, rows: Tensor, size: int) -> list[Tensor]:
    """``rows`` in parts of ``size``.

    One row has no variance: with batch normalisation, one that is left over joins the part before.
    """
    parts = list(rows.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1 and network.normalised_by_batch:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def begin_training(network: Network, rows: int) -> None:
    """Training mode, for batches of so many rows; one row is normalised as it is when nothing is trained."""
    network.module.train()
    if rows == 1:
        for layer in network.normalised_by_batch:
            layer.eval()


@torch.inference_mode()
def logits(network: Network, images: Tensor) -> Tensor:
    """Output of the module in evaluation mode, shape (n, classes)."""
    network.module.eval()
    return torch.cat([network.module(part.to(network.device)).cpu() for part in images.split(FORWARD_BATCH)])


@torch.no_grad()
def reestimate_statistics(network: Network, images: Tensor) -> Params:
    """Means and variances of batch normalisation, made anew from ``images``; the module is left with them."""
    layers = network.normalised_by_batch
    network.module.eval()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # plain averages over batches
        layer.train()
    for part in parts_of(network, images, FORWARD_BATCH) if layers and len(images) > 1 else []:
        network.module(part.to(network.device))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    return read_params(
        network, set(network.tensors) - {name for name, _ in network.module.named_parameters()}
    )


@torch.inference_mode()
def _features(network: Network, images: Tensor) -> Tensor:
    caught: list[Tensor] = []

    def catch(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        caught.append(inputs[0].cpu())

    hook = network.head.register_forward_pre_hook(catch)
    try:
        logits(network, images)
    finally:
        hook.remove()
    if not caught:
        raise InvalidOption(
            "model head: is never called. The network must call the layer, not use its weights."
        )
    return torch.cat(caught)


def features(network: Network, images: Tensor) -> Tensor:
    """What the head sees, with a one appended for the bias: shape (n, features + 1).

    So that the logits are ``features @ head_matrix.T``.  Not to be changed in place: they are kept for the
    next head on the same body.
    """

    def compute() -> Tensor:
        seen = _features(network, images).clone()
        if network.head.bias is None:
            return seen
        return torch.cat([seen, seen.new_ones(len(seen), 1)], dim=1)

    return network.cache.get((network.tensors[name] for name in network.body_names), images, compute)
