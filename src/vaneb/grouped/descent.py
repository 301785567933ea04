"""Minimum of a smooth function of a few coordinates (BFGS), without the overhead of a general optimiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vaneb.likelihood.base import Array

#: Steps, at most, and halvings of one.
STEPS, HALVINGS = 200, 30
#: Length of the first step, where nothing is known of the curvature, and of any step beside that of x.
FIRST, FARTHEST = 0.5, 3.0


class Minimum(NamedTuple):
    """Where a descent ended."""

    x: Array
    value: float
    inverse: Array
    """What it has learned of the inverse of the Hessian."""


def descend(
    loss: Callable[[Array], tuple[float, Array]],
    start: Array,
    tolerance: float,
    inverse: Array | None = None,
) -> Minimum:
    """From ``start`` down to where no entry of the gradient is above ``tolerance``.

    ``loss`` gives value and gradient; ``inverse``: of the Hessian, where something is known of it.
    """
    x, eye = np.asarray(start, dtype=np.float64), np.eye(len(start))
    value, slope = loss(x)
    for _ in range(STEPS):
        if not np.abs(slope).max(initial=0.0) > tolerance:
            break
        step = -slope if inverse is None else -inverse @ slope
        if inverse is None or not step @ slope < 0:
            inverse, step = None, -slope * min(1.0, FIRST / float(np.sqrt(slope @ slope)))
        size, room = float(np.sqrt(step @ step)), FARTHEST * (1 + float(np.sqrt(x @ x)))
        fall, length = float(step @ slope), min(1.0, room / size)
        for _ in range(HALVINGS):
            ahead, there = loss(x + length * step)
            if ahead <= value + 1e-4 * length * fall:
                break
            # The minimum of the parabola through what is known, or a tenth.
            length *= max(0.1, min(0.5, -0.5 * fall * length / (ahead - value - fall * length)))
        else:
            break
        moved, turned = length * step, there - slope
        x, value, slope = x + moved, ahead, there
        curve = float(moved @ turned)
        if curve > 1e-12 * float(moved @ moved):
            if inverse is None:
                inverse = eye * curve / float(turned @ turned)
            push = eye - np.outer(moved, turned) / curve
            inverse = push @ inverse @ push.T + np.outer(moved, moved) / curve
    return Minimum(x, value, eye if inverse is None else inverse)
