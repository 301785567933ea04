"""Clients in strips for the compiled loops of ``function_kernels``.

A strip is as many clients as fit into the first-level cache with all that the loops keep about them.  Atoms
are taken a few at a time, so that a strip's precisions at them are still in the second-level cache when the
loop that needs them comes after the covariance function that wrote them.

Pairs whose precision is not of full rank get their log-likelihoods one by one, their scores from the caller.

Where the covariance function takes far longer than everything else (sums over a client's rows), strips are
wide, and derivatives are asked for those pairs of client and atom alone that matter.  Sums use the precisions
that the densities were computed from, if there was room for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.covariance.base import FullCovariance
from vaneb.likelihood.seam import Array
from vaneb.semidefinite import RANK_TOLERANCE

STRIP, WIDE_STRIP = 128, 1024
#: Doubles that the precisions of a strip at some atoms, or the gradients of these, may take; of a wide one.
MOST_NUMBERS, MOST_IF_WIDE = 32_768, 1 << 23
#: Strips that one thread works on before it reports.
STRIPS_AT_ONCE = 64

Rows = NDArray[np.intp] | slice
#: What a strip's clients weigh: of their rows and their log-likelihoods (m, S) the logarithms (S,).
Weigh = Callable[[Rows, Array], Array]


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


class Pairs(NamedTuple):
    """Pairs of a strip's clients and atoms, with the logarithms of their r_kj."""

    rows: Rows
    client: NDArray[np.intp]
    """Places in ``rows``."""
    atom: NDArray[np.intp]
    log_share: Array


class Workspace:
    """Precisions (a, d, d, S), gradients (a, d, d, d, S) of a strip at a few atoms, written over and over."""

    def __init__(self, width: int, dimension: int) -> None:
        d = dimension
        most = MOST_NUMBERS if width <= STRIP else MOST_IF_WIDE
        self.precision = np.empty((max(1, most // max(1, d**2 * width)), d, d, width))
        self.gradient = np.empty((max(1, most // max(1, d**3 * width)), d, d, d, width))

    def of_width(self, width: int) -> Workspace:
        """This one, if it is; all strips but the last are of the same width."""
        _, d, _, own = self.precision.shape
        return self if own == width else Workspace(width, d)


def strips(
    estimates: Array, n: Array, covariance: FullCovariance, order: NDArray[np.intp] | None
) -> list[Strip]:
    """K clients cut into strips, in the ``order`` given or as they stand."""
    out = []
    width = STRIP if covariance.cheap else WIDE_STRIP
    for start in range(0, len(n), width):
        rows: Rows = slice(start, start + width) if order is None else order[start : start + width]
        own = np.ascontiguousarray(estimates[rows].T)
        out.append(Strip(rows, own, np.ascontiguousarray(n[rows]), covariance.take(rows)))
    return out


def _densities(strip: Strip, atoms: Array, space: Workspace, out: Array) -> NDArray[np.bool_] | None:
    """Write l_k(a_j) into ``out`` (m, S); which precisions are not of full rank, ``None`` if all are."""
    from vaneb.likelihood.function_kernels import density

    singular: NDArray[np.bool_] | None = None
    step = len(space.precision)
    for start in range(0, len(atoms), step):
        some, logs = atoms[start : start + step], out[start : start + step]
        precision = space.precision[: len(some)]
        strip.covariance.write_clients_last(some, precision, None)
        if density(strip.estimates, strip.n, some, precision, logs):
            missing = np.isnan(logs)
            logs[missing] = _singular_densities(strip, some, precision, *np.nonzero(missing))
            singular = np.zeros(out.shape, dtype=bool) if singular is None else singular
            singular[start : start + step] = missing
    return singular


def _singular_densities(
    strip: Strip,
    atoms: Array,
    precision: Array,
    atom: NDArray[np.intp],
    client: NDArray[np.intp],
) -> Array:
    """l_k(a_j) of single pairs; ``precision`` (m, d, d, S) at the ``atoms``."""
    from vaneb.likelihood.kernels import log_density_pairs

    out = np.empty(len(atom))
    own = precision[atom, :, :, client] * strip.n[client, None, None]
    log_density_pairs(strip.estimates[:, client].T - atoms[atom], own, RANK_TOLERANCE, out)
    return out


def log_likelihood(parts: list[Strip], atoms: Array, out: Array) -> None:
    """Fill ``out`` (K, m)."""

    def block(some: slice) -> None:
        own = Workspace(0, atoms.shape[1])
        for strip in parts[some]:
            width = len(strip.n)
            own = own.of_width(width)
            values = np.empty((len(atoms), width))
            _densities(strip, atoms, own, values)
            out[strip.rows] = values.T

    list(map_blocks(block, len(parts), STRIPS_AT_ONCE))


def ascent(
    parts: list[Strip],
    atoms: Array,
    weigh: Weigh,
    floor: float,
    *,
    frozen: bool,
    curvature: bool,
) -> tuple[Sums, list[Pairs]]:
    """Sums over clients at each atom, without the pairs that are left to the caller.

    A strip whose shares are all below exp(``floor``) at an atom adds nothing there.
    """
    m, d = atoms.shape

    def block(some: slice) -> tuple[Sums, list[Pairs]]:
        left = []
        own = Workspace(0, d)
        total = Sums(
            np.zeros(m), np.zeros((m, d)), np.zeros((m if curvature else 0, d, d)), np.zeros((m, d, d))
        )
        for strip in parts[some]:
            width = len(strip.n)
            own = own.of_width(width)
            log_share = np.empty((m, width))
            singular = _densities(strip, atoms, own, log_share)
            log_share += weigh(strip.rows, log_share)
            if singular is not None and not frozen:
                atom, client = np.nonzero(singular & (log_share > floor))
                left.append(Pairs(strip.rows, client, atom, log_share[atom, client]))
                log_share[singular] = -np.inf
            where = np.flatnonzero(log_share.max(axis=1) > floor)
            if strip.covariance.cheap:
                _add(strip, atoms, where, log_share, own, total, frozen)
            elif frozen and m <= len(own.precision):
                _add_held(strip, atoms, where, log_share, own, total)
            else:
                _add_pairs(strip, atoms, log_share, floor, own, total, frozen)
        return total, left

    results = list(map_blocks(block, len(parts), STRIPS_AT_ONCE))
    total = results[0][0]
    for part, _ in results[1:]:
        total = Sums(*(a + b for a, b in zip(total, part, strict=True)))
    return total, [pairs for _, left in results for pairs in left]


def _add(
    strip: Strip,
    atoms: Array,
    where: NDArray[np.intp],
    log_share: Array,
    space: Workspace,
    total: Sums,
    frozen: bool,
) -> None:
    from vaneb.likelihood.function_kernels import add_frozen, add_strip

    step = len(space.precision) if frozen else len(space.gradient)
    for start in range(0, len(where), step):
        some = where[start : start + step]
        precision = space.precision[: len(some)]
        gradient = None if frozen else space.gradient[: len(some)]
        strip.covariance.write_clients_last(atoms[some], precision, gradient)
        own = strip.estimates, strip.n, atoms[some], some, precision
        if gradient is None:
            add_frozen(*own, log_share[some], *total)
        else:
            add_strip(*own, gradient, log_share[some], *total)


def _add_held(
    strip: Strip,
    atoms: Array,
    where: NDArray[np.intp],
    log_share: Array,
    space: Workspace,
    total: Sums,
) -> None:
    """As ``_add`` without derivatives, from the precisions at all atoms that ``space`` still holds."""
    from vaneb.likelihood.function_kernels import add_frozen

    # What stands in a row is read where it is.
    everywhere = len(where) == len(atoms)
    precision = space.precision[: len(atoms)] if everywhere else space.precision[where]
    add_frozen(strip.estimates, strip.n, atoms[where], where, precision, log_share[where], *total)


def _add_pairs(
    strip: Strip,
    atoms: Array,
    log_share: Array,
    floor: float,
    space: Workspace,
    total: Sums,
    frozen: bool,
) -> None:
    """For each atom its own choice of clients: those whose share is above exp(``floor``)."""
    step = len(space.precision if frozen else space.gradient)
    held = space.precision if len(atoms) <= len(space.precision) else None
    for start in range(0, len(atoms), step):
        atom, client = np.nonzero(log_share[start : start + step] > floor)
        _add_chosen(strip, atoms, atom + start, client, log_share, held, total, frozen)


def _add_chosen(
    strip: Strip,
    atoms: Array,
    atom: NDArray[np.intp],
    client: NDArray[np.intp],
    log_share: Array,
    held: Array | None,
    total: Sums,
    frozen: bool,
) -> None:
    """Pairs of ``atom`` and ``client``, sorted by atom; ``held``: precisions at all atoms, where known."""
    from vaneb.likelihood.function_kernels import add_frozen, add_strip

    # A client's rows are prepared once for all of its atoms; sums are made atom by atom.
    by_client = np.argsort(client, kind="stable")
    chosen = strip.covariance.take(client[by_client])
    points = atoms[atom[by_client], None]
    back = np.argsort(by_client)
    own_precision = chosen.precision(points)[back, 0] if held is None else held[atom, :, :, client]
    precision = np.moveaxis(own_precision, 0, -1)
    gradient = None if frozen else np.moveaxis(chosen.precision_gradient(points)[back, 0], 0, -1)
    ends = np.searchsorted(atom, np.arange(len(atoms) + 1))
    for j in np.unique(atom):
        some = slice(ends[j], ends[j + 1])
        own = (
            np.ascontiguousarray(strip.estimates[:, client[some]]),
            strip.n[client[some]],
            atoms[j : j + 1],
            np.array([j]),
            np.ascontiguousarray(precision[None, ..., some]),
        )
        shares = log_share[j : j + 1, client[some]]
        if gradient is None:
            add_frozen(*own, shares, *total)
        else:
            add_strip(*own, np.ascontiguousarray(gradient[None, ..., some]), shares, *total)
