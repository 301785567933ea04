"""Climbing the gap: local maxima of D(G, .) from many starting points at once.

D(G, theta) + 1 = sum_k exp(log u_k + l_k(theta)) with u_k = 1 / (K f_k) is a mixture of the clients'
likelihoods.  Near an optimal prior D is almost flat along the curves on which the clients lie and steep
across them, so steps are Newton's in the directions in which the mixture is curved, and long but limited ones
in those in which it is not; a step that fails to climb is cut, and followed by the step
information^{-1} gradient (the EM step of a mode search, which climbs for Gaussian reports whatever its
length).  In many dimensions, where curvatures cost more than they save, all steps are of the last kind.  The
gradient is the exact heteroskedastic score.

Of very many clients a part can stand for all, corrected by what it leaves out (``Rest``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import sum_blocks
from vaneb.likelihood.base import Array, AtomSums, Likelihood, as_matrices
from vaneb.npmle.options import DEFAULT
from vaneb.npmle.support import distinct, squared_lengths
from vaneb.semidefinite import solve_ridged, unit_diagonal


class Rest(NamedTuple):
    """What a part of the clients leaves out of D, to second order around the points that are climbed from.

    To second order, because along ridges the curvature of D is far smaller than what a part of the clients
    says of it.
    """

    value: Array
    """(m,)"""
    gradient: Array
    """(m, d)"""
    hessian: Array | None
    """(m, d, d); ``None`` where no curvatures are used."""
    origin: Array
    """(m, d)"""
    scale: Array
    """Average information at the origin, (m, d, d) or diagonals (m, d): what near by means."""

    @classmethod
    def between(cls, whole: AtomSums, part: AtomSums, origin: Array) -> Rest:
        """What ``part`` leaves out of ``whole``, both at ``origin``."""
        hessian = None
        if whole.outer is not None and part.outer is not None:
            hessian = whole.outer - part.outer - as_matrices(whole.information - part.information)
        value, gradient = whole.value - part.value, whole.gradient - part.gradient
        return cls(value, gradient, hessian, origin, average_information(whole))

    def added_to(self, sums: AtomSums, points: Array, rows: NDArray[np.intp]) -> AtomSums:
        """``sums`` of the part made those of all, but for the information, which stays semidefinite."""
        away, slope = points - self.origin[rows], self.gradient[rows]
        value = self.value[rows] + np.einsum("mi,mi->m", slope, away)
        outer = sums.outer
        if self.hessian is not None and outer is not None:
            bent = np.einsum("mij,mj->mi", self.hessian[rows], away)
            value, slope = value + 0.5 * np.einsum("mi,mi->m", bent, away), slope + bent
            outer = outer + self.hessian[rows]
        return AtomSums(sums.value + value, sums.gradient + slope, outer, sums.information)

    def kept_near(self, points: Array, rows: NDArray[np.intp]) -> Array:
        """``points``, drawn towards the origin where they are more than a local standard error from it."""
        away = points - self.origin[rows]
        # Along a direction that nobody knows anything of, rounding may leave a square below zero.
        length = np.sqrt(np.maximum(squared_lengths(away, self.scale[rows]), 0.0))
        return self.origin[rows] + away * (1 / np.maximum(length, 1.0))[:, None]


class Maxima(NamedTuple):
    """Where the climbs ended."""

    points: Array
    """(m, d)"""
    gap: Array
    """D at the points, (m,)"""
    scale: Array
    """Average information of clients that matter there, (m, d, d) or diagonals (m, d): a unit of length."""
    starts: int
    """Points that were climbed from."""
    within: tuple[Array, Array] | None = None
    """Corners of the box that they could not leave."""

    def updated(self, rows: NDArray[np.intp], other: Maxima) -> Maxima:
        """With some of them in the place that ``other`` has found for them, where that is higher."""
        points, gap, scale = self.points.copy(), self.gap.copy(), self.scale.copy()
        higher = other.gap > gap[rows]
        rows = rows[higher]
        points[rows], gap[rows], scale[rows] = other.points[higher], other.gap[higher], other.scale[higher]
        return self._replace(points=points, gap=gap, scale=scale)


def uses_curvature(points: Array) -> bool:
    """Whether climbs from points (m, d) use curvatures, which in many dimensions cost more than they save."""
    return points.shape[1] <= 40


def client_log_weights(log_density: Array) -> Array:
    """log u_k = -log K - log f_k."""
    return -np.log(len(log_density)) - log_density


def gap_and_one(likelihood: Likelihood, points: Array, log_weights: Array) -> Array:
    """D + 1 at ``points`` (m, d): (m,), without its derivatives."""

    def block(rows: slice) -> tuple[Array]:
        terms = likelihood.take(rows).log_likelihood(points)
        terms += log_weights[rows, None]
        return (np.exp(terms, out=terms).sum(axis=0),)

    return sum_blocks(block, likelihood.n_clients)[0]


def climb(
    likelihood: Likelihood,
    starts: Array,
    log_weights: Array,
    *,
    steps: int = 40,
    gain: float = 1e-6,
    box: tuple[Array, Array] | None = None,
    keep: int | None = None,
    rest: Rest | None = None,
    same: float = DEFAULT.same,
) -> Maxima:
    """Climb from ``starts`` (m, d) until the next step promises to raise D by less than ``gain``.

    ``box``: corners (d,), (d,) of the box that points may not leave.  ``keep``: the first so many climbs, or
    all, have a result of their own; others end where they come within 2 ``same`` local standard errors of
    another one.  ``rest``: of the clients that are not in ``likelihood``.
    """
    points = np.array(starts, dtype=float)
    curvature = uses_curvature(points)

    def sums_at(where: Array, rows: NDArray[np.intp]) -> AtomSums:
        own = likelihood.ascent(where, log_weights, curvature=curvature)
        return own if rest is None else rest.added_to(own, where, rows)

    sums = sums_at(points, np.arange(len(points)))
    done = np.zeros(len(points), dtype=bool)
    length = np.ones(len(points))
    scale = average_information(sums)
    gap = sums.value - 1
    cautious = np.zeros(len(points), dtype=bool)
    alone = np.ones(len(points), dtype=bool)
    for taken in range(steps):
        if keep is not None and taken >= 4 and taken.bit_count() == 1:
            alone = _alone(points, average_information(sums), gap, alone, keep, 2 * same)
            done |= ~alone
        live = np.flatnonzero(~done)
        move = _direction(_rows(sums, live), cautious[live])
        # A Newton step promises half of this.
        going_on = np.einsum("mi,mi->m", sums.gradient[live], move) > gain
        done[live[~going_on]] = True
        live, move = live[going_on], move[going_on]
        if len(live) == 0:
            break
        trial = points[live] + length[live, None] * move
        if rest is not None:
            trial = rest.kept_near(trial, live)
        if box is not None:
            trial = np.clip(trial, *box)
        done[live[(trial == points[live]).all(axis=1)]] = True
        ahead = sums_at(trial, live)
        climbed = ahead.value >= sums.value[live] * (1 - 1e-12)
        better, worse = live[climbed], live[~climbed]
        points[better] = trial[climbed]
        for before, after in zip(sums, ahead, strict=True):
            if before is not None and after is not None:
                before[better] = after[climbed]
        gap[better] = ahead.value[climbed] - 1
        length[better] = np.minimum(2 * length[better], 1.0)
        length[worse] *= 0.25
        done[worse[length[worse] < 1e-4]] = True
        cautious[better] = False
        cautious[worse] = True
    explained = (sums.value > 0).reshape(-1, *[1] * (scale.ndim - 1))
    scale = np.where(explained, average_information(sums), scale)
    return Maxima(points[alone], gap[alone], scale[alone], len(points), box)


def _alone(
    points: Array, scale: Array, gap: Array, among: NDArray[np.bool_], keep: int, radius: float
) -> NDArray[np.bool_]:
    """Which of the climbs ``among`` go on: the first ``keep``, and the highest of those standing together."""
    rest = np.flatnonzero(among[keep:]) + keep
    order = np.concatenate([np.arange(keep), rest[np.argsort(-gap[rest], kind="stable")]])
    alone = np.zeros(len(points), dtype=bool)
    alone[distinct(points, scale, order, radius, always=keep)] = True
    return alone


def _rows(sums: AtomSums, rows: NDArray[np.intp]) -> AtomSums:
    outer = None if sums.outer is None else sums.outer[rows]
    return AtomSums(sums.value[rows], sums.gradient[rows], outer, sums.information[rows])


def average_information(sums: AtomSums) -> Array:
    """Of the clients that matter at each point, (m, d, d) or diagonals (m, d)."""
    shape = (-1, *[1] * (sums.information.ndim - 1))
    return np.asarray(sums.information / np.maximum(sums.value, 1e-300).reshape(shape))


def _direction(sums: AtomSums, cautious: NDArray[np.bool_]) -> Array:
    """Newton's steps (m, d) with every curvature made positive; EM steps without any, or if ``cautious``."""
    if sums.outer is None:
        return solve_ridged(sums.information, sums.gradient, 1e-10)
    unit, scale = unit_diagonal(as_matrices(sums.information))
    values, vectors = np.linalg.eigh(unit)
    # In units in which the information is the identity: curvatures <= 1, far below zero far from all maxima.
    # Where nobody knows anything, nothing moves; and rounding may leave a value below zero.
    whitening = (
        np.swapaxes(vectors / np.sqrt(np.maximum(values, 1e-10))[:, None, :], 1, 2) / scale[:, None, :]
    )
    gradient = whitening @ sums.gradient[:, :, None]
    spread = whitening @ sums.outer @ np.swapaxes(whitening, 1, 2)
    curvature, axes = np.linalg.eigh(np.eye(unit.shape[1]) - spread)
    step = np.swapaxes(axes, 1, 2) @ gradient
    # Hardly any curvature counts as a little.
    step = axes @ (step / np.clip(np.abs(curvature), 0.005, 1.0)[:, :, None])
    # No longer than three standard errors of the average client that matters here, or than the EM step.
    unit_length = np.sqrt(np.maximum(sums.value, 1e-300))
    longest = np.maximum(3 * unit_length, np.linalg.norm(gradient[:, :, 0], axis=1))
    length = np.linalg.norm(step[:, :, 0], axis=1)
    step *= (longest / np.maximum(length, longest))[:, None, None]
    step = np.where(cautious[:, None, None], gradient, step)
    return np.asarray((np.swapaxes(whitening, 1, 2) @ step)[:, :, 0], dtype=np.float64)
