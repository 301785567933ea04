"""Clients in strips for the compiled loops of ``function_kernels``.

A strip is as many clients as fit into the first-level cache with all that the loops keep about them.  Atoms
are taken a few at a time, so that a strip's precisions at them are still in the second-level cache when the
loop that needs them comes after the covariance function that wrote them.

A strip in which some precision is not of full rank is left to the caller.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.covariance.base import FullCovariance
from vaneb.likelihood.seam import Array
from vaneb.semidefinite import RANK_TOLERANCE

STRIP = 128
#: Doubles that the precisions of a strip at some atoms, or the gradients of these, may take.
MOST_NUMBERS = 32_768
#: Strips that one thread works on before it reports.
STRIPS_AT_ONCE = 64

Rows = NDArray[np.intp] | slice


class Strip(NamedTuple):
    rows: Rows
    estimates: Array
    """(d, S)"""
    n: Array
    """(S,)"""
    covariance: FullCovariance


class Sums(NamedTuple):
    """Sums over clients as in ``seam.Ascent``, symmetric matrices as lower triangles."""

    value: Array
    gradient: Array
    outer: Array
    information: Array


class Workspace:
    """Precisions (a, d, d, S), gradients (a, d, d, d, S) of a strip at a few atoms, written over and over."""

    def __init__(self, width: int, dimension: int) -> None:
        d = dimension
        self.precision = np.empty((max(1, MOST_NUMBERS // (d**2 * width)), d, d, width))
        self.gradient = np.empty((max(1, MOST_NUMBERS // (d**3 * width)), d, d, d, width))


def strips(
    estimates: Array, n: Array, covariance: FullCovariance, order: NDArray[np.intp] | None
) -> list[Strip]:
    """K clients cut into strips, in the ``order`` given or as they stand."""
    out = []
    for start in range(0, len(n), STRIP):
        rows: Rows = slice(start, start + STRIP) if order is None else order[start : start + STRIP]
        own = np.ascontiguousarray(estimates[rows].T)
        out.append(Strip(rows, own, np.ascontiguousarray(n[rows]), covariance.take(rows)))
    return out


def _densities(
    strip: Strip, atoms: Array, spread: Array, constant: Array, space: Workspace, out: Array
) -> bool:
    """Write constant_k + l_k(a_j) into ``out`` (m, S); whether all precisions were of full rank."""
    from vaneb.likelihood.function_kernels import density

    step = len(space.precision)
    for start in range(0, len(atoms), step):
        some = atoms[start : start + step]
        precision = space.precision[: len(some)]
        strip.covariance.write_clients_last(some, precision, None)
        logs = out[start : start + step]
        if density(strip.estimates, strip.n, constant, some, precision, spread, RANK_TOLERANCE, logs):
            return False
    return True


def log_likelihood(parts: list[Strip], atoms: Array, spread: Array, out: Array) -> list[Rows]:
    """Fill ``out`` (K, m); returns the rows that are left to the caller."""

    def block(some: slice) -> list[Rows]:
        left = []
        space = Workspace(STRIP, atoms.shape[1])
        for strip in parts[some]:
            width = len(strip.n)
            own = space if width == STRIP else Workspace(width, atoms.shape[1])
            values = np.empty((len(atoms), width))
            if _densities(strip, atoms, spread, np.zeros(width), own, values):
                out[strip.rows] = values.T
            else:
                left.append(strip.rows)
        return left

    return [rows for left in map_blocks(block, len(parts), STRIPS_AT_ONCE) for rows in left]


def ascent(
    parts: list[Strip],
    atoms: Array,
    spread: Array,
    log_weights: Array,
    floor: float,
    *,
    frozen: bool,
    curvature: bool,
) -> tuple[Sums, list[Rows]]:
    """Sums over clients at each atom, without the rows that are left to the caller.

    A strip whose shares are all below exp(``floor``) at an atom adds nothing there.
    """
    m, d = atoms.shape

    def block(some: slice) -> tuple[Sums, list[Rows]]:
        left = []
        space = Workspace(STRIP, d)
        total = Sums(
            np.zeros(m), np.zeros((m, d)), np.zeros((m if curvature else 0, d, d)), np.zeros((m, d, d))
        )
        for strip in parts[some]:
            width = len(strip.n)
            own = space if width == STRIP else Workspace(width, d)
            log_share = np.empty((m, width))
            if _densities(strip, atoms, spread, log_weights[strip.rows], own, log_share):
                where = np.flatnonzero(log_share.max(axis=1) > floor)
                _add(strip, atoms, where, spread, log_share, own, total, frozen)
            else:
                left.append(strip.rows)
        return total, left

    results = list(map_blocks(block, len(parts), STRIPS_AT_ONCE))
    total = results[0][0]
    for part, _ in results[1:]:
        total = Sums(*(a + b for a, b in zip(total, part, strict=True)))
    return total, [rows for _, left in results for rows in left]


def _add(
    strip: Strip,
    atoms: Array,
    where: NDArray[np.intp],
    spread: Array,
    log_share: Array,
    space: Workspace,
    total: Sums,
    frozen: bool,
) -> None:
    from vaneb.likelihood.function_kernels import add_strip

    step = len(space.precision) if frozen else len(space.gradient)
    for start in range(0, len(where), step):
        some = where[start : start + step]
        precision, gradient = space.precision[: len(some)], space.gradient[: 0 if frozen else len(some)]
        strip.covariance.write_clients_last(atoms[some], precision, None if frozen else gradient)
        add_strip(
            strip.estimates, strip.n, atoms[some], some, precision, gradient, spread, log_share[some], *total
        )
