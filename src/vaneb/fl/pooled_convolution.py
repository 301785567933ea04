"""A convolution with 2 x 2 max pooling and a ReLU as one layer, whose backward pass skips zeros.

Same function and same gradients (to rounding) as ``relu(max_pool2d(conv2d(x), 2))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from vaneb.fl.pooling_kernels import bias_gradient, image_gradient, pool_and_rectify, unpool, weight_gradient

#: Consecutive numbers in a row of a window from which on it pays to skip zeros; with fewer (the first layer,
#: with its one or three channels) torch's dense backward pass is faster.
SHORTEST_RUN = 32


class PooledConvolution(nn.Conv2d):
    """relu(max_pool2d(conv2d(x), 2)), with the parameters of a ``Conv2d`` (stride, dilation and groups 1).

    The loops of its own are used in training mode on a CPU.  In evaluation mode it is the plain composition,
    which ``torch.func`` can transform.
    """

    def __init__(self, inputs: int, outputs: int, size: int, padding: int = 0) -> None:
        super().__init__(inputs, outputs, size)
        self.border = padding

    def forward(self, images: Tensor) -> Tensor:
        # A border of zeros around the images, so that no window is cut.
        images = functional.pad(images, (self.border,) * 4) if self.border else images
        if self.training and images.device.type == "cpu":
            return _Pooled.apply(images, self.weight, self.bias)
        # The maximum and the ReLU commute, and the ReLU then runs on a quarter of the numbers.
        return functional.relu(functional.max_pool2d(super().forward(images), 2))


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        images = images.contiguous(memory_format=torch.channels_last)
        scores = functional.conv2d(images, weight, bias)
        n, channels, height, width = scores.shape
        pooled = _empty((n, channels, height // 2, width // 2), scores.dtype)
        place = _empty(pooled.shape, torch.uint8)
        pool_and_rectify(_array(scores), _array(pooled), _array(place))
        ctx.save_for_backward(images, weight, place)
        ctx.scores_shape = scores.shape
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        images, weight, place = ctx.saved_tensors
        of_images, of_weight, of_bias = ctx.needs_input_grad
        above, places = _array(gradient), _array(place)
        for_images = for_weight = for_bias = None
        if of_bias:
            for_bias = gradient.new_empty(weight.shape[0])
            bias_gradient(above, places, for_bias.numpy())
        if images.shape[1] * weight.shape[2] < SHORTEST_RUN:
            dense = _empty(ctx.scores_shape, gradient.dtype)
            unpool(above, places, _array(dense))
            wanted = (of_images, of_weight, False)
            for_images, for_weight, _ = torch.ops.aten.convolution_backward(
                dense, images, weight, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, wanted
            )
        else:
            if of_weight:
                for_weight = _empty(weight.shape, weight.dtype)
                weight_gradient(_array(images), above, places, _array(for_weight))
            if of_images:
                for_images = _empty(images.shape, images.dtype)
                image_gradient(above, places, _array(weight), _array(for_images))
        return for_images, for_weight, for_bias


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, memory_format=torch.channels_last)


def _array(tensor: Tensor) -> NDArray[Any]:
    """The same numbers as (B, height, width, channels), consecutive in memory."""
    return tensor.detach().permute(0, 2, 3, 1).contiguous().numpy()
