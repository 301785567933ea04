"""Sets of clients with a bound on the errors among them, and ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.base import Array

Flagged = NDArray[np.bool_]
#: Nobody is named whose own probability is below this, however sure the others are.
LEAST = 0.8


class Selection(NamedTuple):
    """Clients that are said to be among the highest, or lowest."""

    chosen: Flagged
    """(K,)"""
    probability: Array
    """That the client is among them, (K,)."""
    places: int
    """How many clients the highest, or lowest, are."""
    wrong: float
    """Expected share of ``chosen`` that is not among them; 0 where nobody is chosen."""


class Flags(NamedTuple):
    """Clients that are said to differ."""

    direction: NDArray[np.int8]
    """1: above, -1: below, 0: not said, (K,)."""
    above: Array
    """Probability of being above, (K,)."""
    below: Array
    """Probability of being below, (K,)."""
    wrong: float
    """Expected share of those with a direction that do not lie there."""


class Ranks(NamedTuple):
    """Rank 1 is the highest."""

    expected: Array
    """(K,)"""
    lower: NDArray[np.int64]
    """(K,)"""
    upper: NDArray[np.int64]
    """(K,)"""
    holds: Array
    """Probability that the rank lies from ``lower`` to ``upper``, (K,); at least the level asked for."""


def most_sure(probability: Array, wrong: float, most: int | None = None) -> tuple[Flagged, float]:
    """The largest set of clients whose expected share of errors is at most ``wrong``.

    The expected share of errors in a set is the average of 1 - p_k over it, so the set is made of the n
    clients with the largest p_k, none below LEAST: a dozen sure ones must not vouch for one that is not.
    Returns who is in it, and that average.
    """
    order = np.argsort(-probability, kind="stable")
    errors = np.cumsum(1 - probability[order]) / np.arange(1, len(order) + 1)
    # Averages of ascending numbers ascend.
    count = int(np.searchsorted(errors, wrong + 1e-12, side="right"))
    count = min(count, int((probability >= LEAST).sum()))
    count = count if most is None else min(count, most)
    chosen = np.zeros(len(probability), dtype=bool)
    chosen[order[:count]] = True
    return chosen, float(errors[count - 1]) if count else 0.0


def ranks_of(values: Array, order: NDArray[np.intp]) -> NDArray[np.int32]:
    """Ranks (S, K) of the clients in each draw (S, K), whose ascending ``order`` is given; 1 is the highest.

    Clients that are equal share the average of their ranks, rounded down.
    """
    size, clients = values.shape
    order = order[:, ::-1]
    ranks = np.empty((size, clients), dtype=np.int32)
    places = np.broadcast_to(np.arange(1, clients + 1, dtype=np.int32), (size, clients))
    np.put_along_axis(ranks, order, places, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    tied = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))
    if len(tied):
        from scipy.stats import rankdata

        ranks[tied] = np.floor(rankdata(-values[tied], axis=1)).astype(np.int32)
    return ranks


def rank_intervals(ranks: NDArray[np.int32], level: float) -> Ranks:
    """Intervals with equal tails, widened to whole ranks."""
    ordered = np.sort(np.ascontiguousarray(ranks.T), axis=1)
    size = ordered.shape[1]
    tail = (1 - level) / 2 * size
    lower = ordered[:, min(int(np.floor(tail)), size - 1)].astype(np.int64)
    upper = ordered[:, max(int(np.ceil(size - tail)) - 1, 0)].astype(np.int64)
    holds = ((ordered >= lower[:, None]) & (ordered <= upper[:, None])).mean(axis=1)
    return Ranks(ordered.mean(axis=1), lower, upper, holds)


def among_highest(ranks: NDArray[np.int32], places: int) -> Array:
    """Probability of a rank up to ``places``, (K,)."""
    return (ranks <= places).mean(axis=0)


def directions(difference: Array, margin: float, wrong: float) -> Flags:
    """Who lies above ``margin`` or below ``-margin``, by draws of the differences (S, K)."""
    above, below = (difference > margin).mean(axis=0), (difference < -margin).mean(axis=0)
    chosen, share = most_sure(np.maximum(above, below), wrong)
    direction = np.where(chosen, np.where(above >= below, 1, -1), 0).astype(np.int8)
    return Flags(direction, above, below, share)
