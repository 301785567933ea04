"""Funnel plots: what chance alone would do around a common value, and observed over expected.

A client's own estimate lies within the limits unless it differs by more than chance.  For counts and rates
(``poisson``, ``binomial``) the limits are quantiles of the count itself, between whole numbers by
interpolation of the distribution function; else target +- z times the standard error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.special import ndtri

from vaneb.likelihood.base import Array

#: Probabilities within the limits, by convention.
LIMITS = (0.95, 0.998)


class Funnel(NamedTuple):
    """Estimates beside what chance would do around ``target``."""

    target: float
    own: Array
    """(K,); NaN where a client has no estimate of its own."""
    error: Array
    """Standard error under ``target``, (K,)."""
    lower: Array
    """(2, K), for the two probabilities of ``LIMITS``."""
    upper: Array
    """(2, K)"""
    outside: Array
    """Limits that the client lies outside of: 0, 1 or 2, (K,)."""
    observed: Array | None
    """Counts, (K,), where estimates are rates of something counted."""
    expected: Array | None
    """Counts expected under ``target``, (K,)."""


def funnel(own: Array, error: Array, n: Array | None, counted: str | None, target: float | None) -> Funnel:
    """Around ``target``, or around the average of all: weighed by exposure, or by precision."""
    known = np.isfinite(error) & np.isfinite(own)
    own = np.where(known, own, np.nan)
    observed: Array | None = None
    expected: Array | None = None
    if counted is not None and n is not None:
        target = float(np.average(own[known], weights=n[known])) if target is None else target
        distribution = stats.poisson(n * target) if counted == "poisson" else stats.binom(_whole(n), target)
        bounds = np.array([_count_limits(distribution, level) for level in LIMITS])
        lower, upper = bounds[:, 0] / n, bounds[:, 1] / n
        error = np.sqrt(target * (1 - target if counted == "binomial" else 1) / n)
        observed, expected = own * n, target * n
    else:
        target = float(np.average(own[known], weights=error[known] ** -2.0)) if target is None else target
        z = ndtri((1 + np.array(LIMITS)) / 2)[:, None]
        lower, upper = target - z * error, target + z * error
    with np.errstate(invalid="ignore"):
        outside = ((own < lower) | (own > upper)).sum(axis=0).astype(float)
    return Funnel(target, own, error, lower, upper, outside, observed, expected)


def _whole(n: Array) -> Array:
    return np.maximum(np.round(n), 1)


def _count_limits(distribution, level: float) -> tuple[Array, Array]:
    """Where the distribution function, made continuous, crosses the two tails (Spiegelhalter 2005).

    With r the smallest count of F(r) >= p, the limit is r - (F(r) - p) / (F(r) - F(r - 1)).
    """
    found = []
    for p in ((1 - level) / 2, (1 + level) / 2):
        r = distribution.ppf(p)
        at, before = distribution.cdf(r), distribution.cdf(r - 1)
        found.append(r - (at - p) / np.maximum(at - before, 1e-300))
    return found[0], found[1]
