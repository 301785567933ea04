"""Held-out losses: how well three sets of coefficients predict rows that no fit has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

Array = NDArray[np.float64]

#: The loss of each family, by the name it is reported under.
LOSSES = {
    "gaussian": "mse",
    "huber": "mse",
    "binomial": "log-loss",
    "multinomial": "log-loss",
    "poisson": "deviance",
    "gamma": "deviance",
}
#: Probabilities are kept this far from 0 and 1, so that one sure mistake has a finite loss.
CLIP = 1e-15


@dataclass(frozen=True)
class HeldOut:
    """Average losses over test rows."""

    loss: str
    """"mse", "log-loss" or "deviance"."""
    values: Mapping[str, float]
    """"local", "pooled" and "personalised"."""
    rows: int
    new_clients: int
    """Clients with test rows only: the population's mean predicts them; under "local", the pooled fit."""

    @property
    def best(self) -> str:
        return min(self.values, key=lambda name: self.values[name])


def loss(family: str, response: Array, mean: Array) -> float:
    """Average loss of predictions.

    Parameters
    ----------
    response : (N,), as the family codes it
    mean : (N,), or (N, classes) for the multinomial family

    Examples
    --------
    >>> loss("gaussian", np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    2.0
    >>> round(loss("binomial", np.array([1.0]), np.array([0.5])), 4)
    0.6931
    """
    return float(row_losses(family, response, mean).mean())


def row_losses(family: str, response: Array, mean: Array) -> Array:
    """Loss of each row, (N,)."""
    y = response
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        if family in ("gaussian", "huber"):
            rows = (y - mean) ** 2
        elif family == "binomial":
            p = np.clip(mean, CLIP, 1 - CLIP)
            rows = -(y * np.log(p) + (1 - y) * np.log1p(-p))
        elif family == "multinomial":
            rows = -np.log(np.clip(mean[np.arange(len(y)), y.astype(int)], CLIP, 1.0))
        elif family == "poisson":
            rows = 2 * (xlogy(y, y / mean) - (y - mean))
        else:
            rows = 2 * (y / mean - 1 - np.log(y / mean))
    return rows
