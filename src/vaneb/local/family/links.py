"""How the expected response of a row depends on its linear index, and its average over an uncertain index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

Array = NDArray[np.float64]
#: Points of the Gauss-Hermite quadrature.
NODES = 9
KNOWN = 4.0


@dataclass(frozen=True)
class Link:
    """A link of one index."""

    mean: Callable[[Array], Array]
    """Expected response at eta."""
    average: Callable[[Array, Array], Array]
    """Its mean over eta ~ N(e, v)."""


def _log_average(e: Array, v: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.exp(e + np.minimum(v, KNOWN) / 2)


def _logit_average(e: Array, v: Array) -> Array:
    x, w = np.polynomial.hermite_e.hermegauss(NODES)
    return np.asarray(expit(e[:, None] + np.sqrt(v)[:, None] * x) @ (w / w.sum()))


IDENTITY = Link(lambda eta: eta, lambda e, v: e)
#: E[exp eta] = exp(e + v / 2); beyond v = ``KNOWN`` nothing but the far tail of the Gaussian would count.
LOG = Link(np.exp, _log_average)
LOGIT = Link(expit, _logit_average)
