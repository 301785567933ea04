"""Covariate shift by clusters of clients: each cluster sees the images through its own transformation.

Grey images: rotation, translation, blur, contrast.  Colour images: colour jitter, blur, affine.  One
cluster for each.  A strength s scales every transformation: s = 0 none, s = 1 the default, s = 2 strong.
Training images are each transformed once, with a random factor between 1/2 and 3/2 on the cluster's
amount; hold-out images with the cluster's amount exactly, so that they are deterministic.

Amounts are for images of 28 or more pixels; translation and blur scale with the side for smaller ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

#: s = 1: degrees, pixels (of 28), pixels (of 28), share of contrast taken away.
ROTATION, TRANSLATION, BLUR, CONTRAST = 25.0, 3.0, 1.0, 0.4
#: Of colour images: change of brightness, contrast and saturation; scale and shear of the affine map.
BRIGHTNESS, SATURATION, SCALE, SHEAR = 0.2, 0.4, 0.12, 0.15
CHUNK = 2000

Transform = Callable[[Tensor, Tensor], Tensor]
"""Of images (N, channels, side, side) in [0, 1] and amounts (N,) to images of the same shape."""


def _warp(images: Tensor, matrices: Tensor) -> Tensor:
    """Resample images by 2 x 3 matrices (N, 2, 3) in coordinates from -1 to 1; zero outside."""
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _matrices(a: Tensor, b: Tensor, c: Tensor, d: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([torch.stack([a, b, x], 1), torch.stack([c, d, y], 1)], 1)


def rotate(images: Tensor, amount: Tensor) -> Tensor:
    """Counter-clockwise by ``ROTATION`` degrees times the amount."""
    angle = torch.deg2rad(ROTATION * amount)
    zero = torch.zeros_like(angle)
    return _warp(images, _matrices(angle.cos(), -angle.sin(), angle.sin(), angle.cos(), zero, zero))


def translate(images: Tensor, amount: Tensor) -> Tensor:
    """Right and down, by ``TRANSLATION`` / 28 of the side times the amount each."""
    one, zero = torch.ones_like(amount), torch.zeros_like(amount)
    moved = -2 * TRANSLATION / 28 * amount
    return _warp(images, _matrices(one, zero, zero, one, moved, moved))


def blur(images: Tensor, amount: Tensor) -> Tensor:
    """Gaussian blur of standard deviation ``BLUR`` / 28 of the side (at least 28) times the amount."""
    side = images.shape[-1]
    deviation = (BLUR * amount * min(side / 28, 1.0)).clamp(min=1e-3)
    distance = torch.arange(side)[:, None] - torch.arange(side)
    kernel = torch.exp(-0.5 * (distance / deviation[:, None, None]) ** 2)
    # One matrix per image, applied to rows and to columns; rows that sum to one keep the edges bright.
    kernel = (kernel / kernel.sum(2, keepdim=True))[:, None]
    return kernel @ images @ kernel.transpose(2, 3)


def fade(images: Tensor, amount: Tensor) -> Tensor:
    """Contrast: towards the image's mean by ``CONTRAST`` times the amount, at most 0.9 of the way."""
    share = (CONTRAST * amount).clamp(max=0.9)[:, None, None, None]
    return images + share * (images.mean((1, 2, 3), keepdim=True) - images)


def jitter_colours(images: Tensor, amount: Tensor) -> Tensor:
    """Brighter, and less saturated and contrasted."""
    amount = amount[:, None, None, None]
    grey = images.mean(1, keepdim=True)
    images = images + (SATURATION * amount).clamp(max=0.9) * (grey - images)
    images = fade(images, 0.5 * amount.reshape(-1))
    return (images * (1 + BRIGHTNESS * amount)).clamp(0, 1)


def distort(images: Tensor, amount: Tensor) -> Tensor:
    """Affine: rotated by half of ``ROTATION``, enlarged and sheared."""
    angle = torch.deg2rad(0.5 * ROTATION * amount)
    scale, shear, zero = 1 - SCALE * amount, SHEAR * amount, torch.zeros_like(amount)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    return _warp(images, _matrices(cos, cos * shear - sin, sin, sin * shear + cos, zero, zero))


GREY: dict[str, Transform] = {
    "rotation": rotate,
    "translation": translate,
    "blur": blur,
    "contrast": fade,
}
COLOUR: dict[str, Transform] = {"colour jitter": jitter_colours, "blur": blur, "affine": distort}


def clusters(channels: int) -> dict[str, Transform]:
    """The clusters' transformations for images of so many channels."""
    return GREY if channels == 1 else COLOUR


def transform(
    images: NDArray[np.uint8], cluster: int, strength: float, rng: np.random.Generator | None = None
) -> NDArray[np.uint8]:
    """Images (N, channels, side, side) as a cluster sees them.

    Parameters
    ----------
    rng : draws the random factor of training images; None for hold-out images, which have none.
    """
    if strength == 0:
        return images
    function = list(clusters(images.shape[1]).values())[cluster]
    factors = np.ones(len(images)) if rng is None else rng.uniform(0.5, 1.5, len(images))
    amounts = torch.from_numpy(strength * factors).to(torch.float32)
    changed = np.empty_like(images)
    for start in range(0, len(images), CHUNK):
        rows = slice(start, start + CHUNK)
        part = function(torch.from_numpy(images[rows].astype(np.float32) / 255), amounts[rows])
        changed[rows] = (part.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return changed
