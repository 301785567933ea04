"""Grades: ordered groups of clients, with a bound on pairs in the wrong order.

With pi_ij the probability that client i is higher than client j, a pair that grades tell apart is in the
wrong order with probability pi_ji.  Clients are ordered by their expected rank and cut into groups such that

    sum over pairs told apart of (1 - t) pi_ij - t pi_ji        (i in the higher grade)

is largest; t is the certainty at which a pair is worth telling apart.  Kline, Rose and Walters (2024)
maximise the same sum over all gradings by integer programming, with t = 1 / (1 + lambda); along one order it
is a matter of dynamic programming.  The smaller t, the more pairs are told apart, and the more wrongly:
t is lowered as far as the bound allows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from vaneb.likelihood.base import Array

#: Cuts are sought between this many blocks of neighbours; up to as many clients, between any two.
BLOCKS = 200
#: Halvings of the interval of t.
HALVINGS = 40


class Grades(NamedTuple):
    """Ordered groups."""

    grade: NDArray[np.int64]
    """1 is the highest, (K,)."""
    misordered: float
    """Expected share of pairs in different grades that are in the wrong order; 0 where there is one grade."""
    told_apart: float
    """Share of all pairs that are in different grades."""


@njit(cache=True, nogil=True)
def _wins(values, order, block, blocks):
    """Pairs (i in a, j in b) with i above j, summed over draws, (blocks, blocks).

    values (S, K); order (S, K), ascending in each draw; block (K,).
    """
    total = np.zeros((blocks, blocks))
    for s in range(len(order)):
        below = np.zeros(blocks)
        first = 0
        while first < order.shape[1]:
            last = first + 1
            while last < order.shape[1] and values[s, order[s, last]] == values[s, order[s, first]]:
                last += 1  # clients that are equal
            for p in range(first, last):
                row = total[block[order[s, p]]]
                for b in range(blocks):
                    row[b] += below[b]
            for p in range(first, last):
                below[block[order[s, p]]] += 1.0
            first = last
    return total


@njit(cache=True, nogil=True)
def _best_cuts(right, wrong, t):
    """First block of the group that each block belongs to, for the best groups at ``t``.

    right, wrong (B, B): sums within blocks a to b, of pairs in the right and in the wrong order.
    """
    blocks = len(right)
    lost, start = np.empty(blocks), np.empty(blocks, dtype=np.int64)
    for b in range(blocks):
        lost[b] = np.inf
        for a in range(b + 1):
            # what the pairs within this group would be worth, had they been told apart
            here = (0.0 if a == 0 else lost[a - 1]) + (1 - t) * right[a, b] - t * wrong[a, b]
            if here < lost[b]:
                lost[b], start[b] = here, a
    group, b = np.empty(blocks, dtype=np.int64), blocks - 1
    while b >= 0:
        group[start[b] : b + 1] = start[b]
        b = start[b] - 1
    return group


def grade(values: Array, order: NDArray[np.intp], expected_rank: Array, misordered: float) -> Grades:
    """Grades by draws (S, K), with at most ``misordered`` of the pairs told apart in the wrong order.

    order (S, K) : of the clients in each draw, ascending
    """
    size, clients = values.shape
    line = np.argsort(expected_rank, kind="stable")
    blocks = min(clients, BLOCKS)
    block = np.empty(clients, dtype=np.int64)
    block[line] = np.arange(clients) * blocks // clients
    wins = _wins(values, order, block, blocks) / size
    right, wrong = _within(wins), _within(wins.T)

    def made(t: float) -> Grades:
        group = _best_cuts(right, wrong, t)
        apart = group[:, None] < group[None, :]
        sizes = np.bincount(block, minlength=blocks)
        pairs = float((sizes[:, None] * sizes)[apart].sum())
        number = np.unique(group, return_inverse=True)[1][block] + 1
        share = float(wins.T[apart].sum()) / pairs if pairs else 0.0
        return Grades(number, share, pairs / max(clients * (clients - 1) / 2, 1))

    low, high = 0.5, 1.0
    best = made(low)
    if best.misordered <= misordered:
        return best
    best = Grades(np.ones(clients, dtype=np.int64), 0.0, 0.0)
    for _ in range(HALVINGS):
        t = (low + high) / 2
        found = made(t)
        if found.misordered <= misordered:
            best, high = max(best, found, key=lambda each: each.told_apart), t
        else:
            low = t
    return best


def _within(pairs: Array) -> Array:
    """Sums of ``pairs[u, v]`` over a <= u < v <= b, for all a <= b."""
    above = np.triu(pairs, 1)
    # sum over u >= a, then over v <= b
    return np.cumsum(np.cumsum(above[::-1], axis=0)[::-1], axis=1)
