"""The prior of the simulation study: five closed or open curves in R^3, mixed with given weights.

A point of the prior is

    theta = centre_c + size_c * gamma_c(u),    u = 2 (t + pi / 2),    t uniform on [-pi/2, pi/2),

with the curve c drawn with probability ``weights[c]``.  The unit-scale curves gamma_c are

    trefoil    (sin u + 2 sin 2u, cos u - 2 cos 2u, -sin 3u) / 3
    helix      (cos 2u, sin 2u, u / pi - 1)                        two turns, radius 1, height 2
    ellipse    (cos u, sin u / (2 sqrt 2), sin u / (2 sqrt 2))     semi-axes 1 and 1/2, tilted by 45 degrees
    gerono     (cos u, sin u cos u, 0)                             a figure of eight
    viviani    ((1 + cos u) / 2, sin u / 2, sin(u / 2))            on the sphere of radius 1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption

Array = NDArray[np.float64]


def trefoil(u: Array) -> Array:
    """Trefoil knot, shape (..., 3)."""
    x, y, z = np.sin(u) + 2 * np.sin(2 * u), np.cos(u) - 2 * np.cos(2 * u), -np.sin(3 * u)
    return np.stack([x, y, z], axis=-1) / 3


def helix(u: Array) -> Array:
    """Two turns of a helix of radius 1 and height 2, shape (..., 3)."""
    return np.stack([np.cos(2 * u), np.sin(2 * u), u / np.pi - 1], axis=-1)


def tilted_ellipse(u: Array) -> Array:
    """Ellipse with semi-axes 1 and 1/2, its plane turned by 45 degrees about the long axis."""
    short = np.sin(u) / np.sqrt(8)
    return np.stack([np.cos(u), short, short], axis=-1)


def gerono(u: Array) -> Array:
    """Lemniscate of Gerono in the plane of the first two coordinates, shape (..., 3)."""
    return np.stack([np.cos(u), np.sin(u) * np.cos(u), np.zeros_like(u)], axis=-1)


def viviani(u: Array) -> Array:
    """Upper half of Viviani's curve on the unit sphere, shape (..., 3)."""
    return np.stack([(1 + np.cos(u)) / 2, np.sin(u) / 2, np.sin(u / 2)], axis=-1)


CURVES: dict[str, Callable[[Array], Array]] = {
    "trefoil": trefoil,
    "helix": helix,
    "ellipse": tilted_ellipse,
    "gerono": gerono,
    "viviani": viviani,
}


@dataclass(frozen=True)
class FiveCurves:
    """The five-curve prior; one entry of each field for each of ``CURVES``, in that order."""

    weights: tuple[float, ...] = (0.35, 0.35, 0.1, 0.1, 0.1)
    centres: tuple[tuple[float, float, float], ...] = (
        (-2.0, 0.0, 0.0),
        (2.0, 0.0, 0.0),
        (0.0, 2.5, 0.0),
        (0.0, -2.5, 1.0),
        (0.0, 0.0, -2.5),
    )
    sizes: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        for name in ("weights", "centres", "sizes"):
            if len(getattr(self, name)) != len(CURVES):
                raise InvalidOption(f"{name}: give {len(CURVES)} values, one for each of {', '.join(CURVES)}")
        if min(self.weights) < 0 or abs(sum(self.weights) - 1) > 1e-9:
            raise InvalidOption(f"weights must be non-negative and sum to 1; they are {self.weights}")
        if min(self.sizes) <= 0:
            raise InvalidOption(f"sizes must be positive; they are {self.sizes}")

    def curve(self, index: int, t: Array) -> Array:
        """Points of one curve at ``t`` in [-pi/2, pi/2): shape (..., 3)."""
        gamma = tuple(CURVES.values())[index]
        return np.asarray(self.centres[index]) + self.sizes[index] * gamma(2 * (t + np.pi / 2))

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """``size`` independent draws, shape (size, 3)."""
        which = rng.choice(len(CURVES), size=size, p=self.weights)
        t = rng.uniform(-np.pi / 2, np.pi / 2, size=size)
        theta = np.empty((size, 3))
        for index in range(len(CURVES)):
            theta[which == index] = self.curve(index, t[which == index])
        return theta

    def atoms(self, per_curve: int) -> tuple[Array, Array]:
        """Midpoint rule for the prior: atoms (5 per_curve, 3) and their weights (5 per_curve,)."""
        if per_curve < 1:
            raise InvalidOption(f"per_curve must be at least 1; it is {per_curve}")
        t = np.pi * ((np.arange(per_curve) + 0.5) / per_curve - 0.5)
        atoms = np.concatenate([self.curve(index, t) for index in range(len(CURVES))])
        return atoms, np.repeat(np.asarray(self.weights) / per_curve, per_curve)
