"""What every solver returns: the prior, how good it is, and what happened on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from vaneb.display import Shown
from vaneb.likelihood import base
from vaneb.likelihood.base import Array, Likelihood


class Step(NamedTuple):
    """One line of a fit's trace."""

    log_likelihood: float
    """Average over clients."""
    atoms: int
    gap: float
    """Largest D seen at this step; nan where the solver did not look."""


@dataclass(frozen=True)
class Certificate(Shown):
    """How far a prior can be from the best one.

    For every prior H, l_K(H) - l_K(G) <= max_theta D(G, theta), l_K the average log-likelihood.  What is
    stated here is the largest D that was *found*, so the bound holds as far as the search has not missed a
    higher one; and where ``within`` is not ``None``, for priors H inside that box only.  In one dimension,
    and for not too many clients in two, it is *proved* (``vaneb.npmle.proof``).

    Parameters
    ----------
    gap : largest D found.
    location : (d,), where.
    kind : "ascent" if the maximum was searched for by climbing from many points (an estimate), "proved" if
        besides a bound over the whole space was computed.
    tolerance : what was asked for.
    starts : points that were climbed from.
    within : corners (d,), (d,) of the box that was searched, or ``None`` for all of space.  A covariance
        function, or a likelihood that rises for ever, may make D large where no client is informative; atoms
        are kept out of there, and the certificate does not speak of it.
    proved : a number that D exceeds nowhere, or ``None``.
    """

    gap: float
    location: Array
    kind: str
    tolerance: float
    starts: int
    within: tuple[Array, Array] | None = None
    proved: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the gap is at most the tolerance."""
        return self.gap <= self.tolerance

    @property
    def bound(self) -> float:
        """Bound on the average log-likelihood still to be had: ``proved``, or else the gap."""
        return max(self.gap if self.proved is None else self.proved, 0.0)

    def with_proof(self, bound: float, value: float, place: Array) -> Certificate:
        """Together with a bound of D, infinite if there is none, and its value at one more place."""
        found = replace(self, gap=value, location=place) if value > self.gap else self
        return replace(found, kind="proved", proved=bound) if np.isfinite(bound) else found

    def __str__(self) -> str:
        said = f"largest found from {self.starts} starts"
        if self.proved is not None:
            said += f"; proved to be below {self.proved:.2g} everywhere"
        elif self.within is not None:
            said += " in the region of the estimates"
        return f"max D = {self.gap:.2g} ({said}), tolerance {self.tolerance:g}"


@dataclass(frozen=True)
class Fit:
    """Atoms and weights with their certificate and trace."""

    atoms: Array
    weights: Array
    certificate: Certificate
    trace: tuple[Step, ...]
    log_likelihood: float


def log_mixture(likelihood: Likelihood, atoms: Array, weights: Array) -> Array:
    """log f_k = log sum_j w_j p_k(a_j), (K,)."""
    return base.log_mixture(likelihood, atoms, base.log_of(weights))
