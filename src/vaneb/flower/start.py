"""Atoms to start from where clients' own estimates stay at home: a cover of a public box."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.flower.settings import Settings

Array = NDArray[np.float64]


def box_of(settings: Settings) -> tuple[Array, Array]:
    """Corners (d,), (d,) of the public box."""
    try:
        lower, upper = (
            np.array([float(number) for number in text.split(",")])
            for text in (settings.lower, settings.upper)
        )
    except ValueError:
        raise InvalidOption(
            "lower, upper: needed for mode secure: the corners of a box that holds the clients' parameters, "
            "one number for each parameter, separated by commas."
        ) from None
    if lower.shape != upper.shape or not (lower < upper).all():
        raise InvalidOption("lower, upper: as many numbers in each, the first below the second.")
    return lower, upper


def cover(lower: Array, upper: Array, atoms: int, seed: int) -> Array:
    """``atoms`` points (m, d) spread evenly over the box (a scrambled Halton sequence)."""
    from scipy.stats import qmc

    if atoms < 1:
        raise InvalidOption(f"atoms: {atoms}, but at least one is needed.")
    points = qmc.Halton(len(lower), rng=np.random.default_rng(seed)).random(atoms)
    return lower + points * (upper - lower)
