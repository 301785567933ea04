"""From every client's accuracy to what a table says: mean, deciles, and the worst tenth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Spread:
    """Accuracy over clients, in percent."""

    mean: float
    deciles: tuple[float, ...]
    """Nine numbers: below the first lies a tenth of the clients."""
    worst_tenth: float
    """Mean over the tenth of the clients (at least one) with the lowest accuracy."""


def spread(accuracies: NDArray[np.float64]) -> Spread:
    """Summary of accuracies (K,), given as shares of one."""
    ordered = np.sort(100 * np.asarray(accuracies, dtype=np.float64))
    worst = max(1, len(ordered) // 10)
    deciles = np.quantile(ordered, np.arange(1, 10) / 10)
    return Spread(
        float(ordered.mean()), tuple(float(value) for value in deciles), float(ordered[:worst].mean())
    )
