"""Climbing the gap: local maxima of D(G, .) from many starting points at once.

D(G, theta) + 1 = sum_k exp(log u_k + l_k(theta)) with u_k = 1 / (K f_k) is a mixture of the clients'
likelihoods.  From each start we take Newton steps where the mixture is concave and, where it is not, the
step information^{-1} gradient (the EM step of a mode search, which climbs for Gaussian reports whatever
its length), halved as long as it fails to climb.  The gradient is the exact heteroskedastic score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.seam import Array, Ascent, Likelihood
from vaneb.npmle.support import distinct
from vaneb.semidefinite import unit_diagonal

#: Added to the unit diagonal of the information: where nobody knows anything, nothing moves.
RIDGE = 1e-10


#: Climbs this close, in local standard errors, after so many steps go on as one, where a step costs more than
#: comparing them.
TOGETHER, COMPARED_AFTER, MANY_CLIENTS = 0.05, (4, 8, 16, 32), 1_000
#: A curvature below this share of the information counts as flat; other steps grow up to LONGEST-fold.
FLAT, LONGEST = 0.005, 64.0


class Maxima(NamedTuple):
    """Where the climbs ended."""

    points: Array
    """(m, d)"""
    gap: Array
    """D at the points, (m,)"""
    scale: Array
    """Average information of the clients that matter at the point, (m, d, d): a local unit of length."""
    starts: int
    """Points that were climbed from."""
    within: tuple[Array, Array] | None = None
    """Corners of the box that they could not leave."""


def client_log_weights(log_density: Array) -> Array:
    """log u_k = -log K - log f_k."""
    return -np.log(len(log_density)) - log_density


def climb(
    likelihood: Likelihood,
    starts: Array,
    log_weights: Array,
    *,
    steps: int = 40,
    gain: float = 1e-6,
    box: tuple[Array, Array] | None = None,
    keep: int | None = None,
) -> Maxima:
    """Climb from ``starts`` (m, d) until the next step promises to raise D by less than ``gain``.

    ``box``: corners (d,), (d,) of the box that points may not leave.  ``keep``: the first so many climbs, or
    all, have a result of their own; others end where they meet another one.
    """
    points = np.array(starts, dtype=float)
    sums = likelihood.ascent(points, log_weights)
    done = np.zeros(len(points), dtype=bool)
    length = np.ones(len(points))
    scale = _normalised(sums)
    gap = sums.value - 1
    cautious = np.zeros(len(points), dtype=bool)
    move, newton = _direction(sums, cautious)
    alone = np.ones(len(points), dtype=bool)
    for taken in range(steps):
        if keep is not None and taken in COMPARED_AFTER and likelihood.n_clients >= MANY_CLIENTS:
            alone = _alone(points, _normalised(sums), gap, alone, keep)
            done |= ~alone
        # A Newton step promises half of this and then the top; the other kind promises this and then more.
        promise = np.einsum("mi,mi->m", sums.gradient, move)
        done |= promise <= np.where(newton, gain, 0.01 * gain)
        live = np.flatnonzero(~done)
        if len(live) == 0:
            break
        trial = points[live] + length[live, None] * move[live]
        if box is not None:
            trial = np.clip(trial, *box)
            done[live[(trial == points[live]).all(axis=1)]] = True
        ahead = likelihood.ascent(trial, log_weights)
        climbed = ahead.value >= sums.value[live] * (1 - 1e-12)
        better, worse = live[climbed], live[~climbed]
        points[better] = trial[climbed]
        sums = _merged(sums, ahead, better, climbed)
        gap[better] = ahead.value[climbed] - 1
        # On a long ridge steps that keep climbing grow; a step that fails is cut, and the next is cautious.
        length[better] = np.minimum(2 * length[better], LONGEST)
        length[worse] *= 0.25
        done[worse[length[worse] < 1e-4]] = True
        cautious[better] = False
        cautious[worse] = True
        move, newton = _direction(sums, cautious)
        length[newton] = np.minimum(length[newton], 1.0)
    scale = np.where(sums.value[:, None, None] > 0, _normalised(sums), scale)
    return Maxima(points[alone], gap[alone], scale[alone], len(points), box)


def _alone(points: Array, scale: Array, gap: Array, among: NDArray[np.bool_], keep: int) -> NDArray[np.bool_]:
    """Which of the climbs ``among`` go on: the first ``keep``, and the highest of those standing together."""
    rest = np.flatnonzero(among[keep:]) + keep
    order = np.concatenate([np.arange(keep), rest[np.argsort(-gap[rest], kind="stable")]])
    alone = np.zeros(len(points), dtype=bool)
    alone[distinct(points, scale, order, TOGETHER, always=keep)] = True
    return alone


def _merged(old: Ascent, new: Ascent, where: NDArray[np.intp], chosen: NDArray[np.bool_]) -> Ascent:
    """``old`` with the rows ``where`` taken from the ``chosen`` rows of ``new``."""
    parts = []
    for before, after in zip(old, new, strict=True):
        assert after is not None  # climbing asks for curvature
        merged = np.array(before)
        merged[where] = after[chosen]
        parts.append(merged)
    return Ascent(*parts)


def _as_matrices(information: Array) -> Array:
    if information.ndim == 3:
        return information
    return information[:, :, None] * np.eye(information.shape[1])


def _normalised(sums: Ascent) -> Array:
    return _as_matrices(sums.information) / np.maximum(sums.value, 1e-300)[:, None, None]


def _direction(sums: Ascent, cautious: NDArray[np.bool_]) -> tuple[Array, NDArray[np.bool_]]:
    """Newton's step where the Hessian is negative definite, else information^{-1} gradient; and where."""
    assert sums.outer is not None
    unit, scale = unit_diagonal(_as_matrices(sums.information))
    unit = unit + RIDGE * np.eye(unit.shape[1])
    curvature = unit - sums.outer / scale[:, :, None] / scale[:, None, :]
    # Far from a maximum Newton's step may be far too long: a Hessian that is nearly flat is not trusted.
    convex = np.linalg.eigvalsh(curvature)[:, 0] > FLAT * np.linalg.eigvalsh(unit)[:, 0]
    newton = convex & ~cautious
    matrix = np.where(newton[:, None, None], curvature, unit)
    step = np.linalg.solve(matrix, (sums.gradient / scale)[:, :, None])[:, :, 0]
    return np.asarray(step / scale, dtype=np.float64), newton
