"""Held-out scores: how well three sets of coefficients predict rows that no fit has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.local.family import family_class

Array = NDArray[np.float64]


@dataclass(frozen=True)
class HeldOut:
    """Average losses over test rows."""

    loss: str
    """"mse", "log-loss", "deviance" or "1 - concordance"."""
    values: Mapping[str, float]
    """"local", "pooled" and "personalised"."""
    rows: int
    new_clients: int
    """Clients with test rows only: the population's mean predicts them; under "local", the pooled fit."""

    @property
    def best(self) -> str:
        return min(self.values, key=lambda name: self.values[name])


def loss(
    family: str,
    response: Array,
    mean: Array,
    weight: Array | None = None,
    group: NDArray[np.object_] | None = None,
) -> float:
    """Average loss of predictions.

    Parameters
    ----------
    response : (N,), or (N, 3) for survival, as the family codes it
    mean : (N,), or (N, classes) for the multinomial family
    weight : (N,), of the rows
    group : (N,), the client of each row; concordance compares rows of one client only

    Examples
    --------
    >>> loss("gaussian", np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    2.0
    >>> round(loss("binomial", np.array([1.0]), np.array([0.5])), 4)
    0.6931
    """
    return family_class(family).score(response, mean, weight, group)
