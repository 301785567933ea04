"""Which points stand apart, and which of some is nearest: compiled loops over pairs of points.

The squared distance of point i from j is v' S_j v, v = x_i - x_j, with scales S (m, d, d), or (m, 1, d) for
diagonals.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _square(points, i, j, scale):
    d, total = points.shape[1], 0.0
    for b in range(d):
        away = points[i, b] - points[j, b]
        if scale.shape[1] == 1:
            total += away * away * scale[j, 0, b]
        else:
            row = 0.0
            for a in range(d):
                row += (points[i, a] - points[j, a]) * scale[j, a, b]
            total += row * away
    return total


@njit(cache=True, nogil=True)
def keep_apart(points, scale, order, least, always, kept):
    """Fill ``kept`` with points, taken in ``order``, no closer than ``least``, squared, to one kept before.

    The first ``always`` are kept in any case.  Returns how many there are.
    """
    count = always
    kept[:always] = order[:always]
    for i in order[always:]:
        apart = True
        for place in range(count):
            if not _square(points, i, kept[place], scale) >= least:
                apart = False
                break
        if apart:
            kept[count] = i
            count += 1
    return count


@njit(cache=True, nogil=True)
def nearest(points, scale, heads, owner):
    """Fill ``owner`` (m,) with the place in ``heads`` of the one that each point is nearest to."""
    for i in range(len(points)):
        best = np.inf
        owner[i] = 0
        for place in range(len(heads)):
            length = _square(points, i, heads[place], scale)
            if length < best:
                best, owner[i] = length, place
