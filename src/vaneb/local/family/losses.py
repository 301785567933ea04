"""Compiled losses: what a family hands to the kernels that sum over rows.

A family writes two functions of numbers, marked ``@scalar``, for index eta, response y and its parameter a:

    value(eta, y, a)        -> loss
    derivatives(eta, y, a)  -> loss, slope, curvature      (in eta)

``Losses`` makes them functions of tiles of T pairs, with the loop over pairs innermost so that it becomes
vector instructions.  Kernels take these as arguments: one kernel serves all families.  A family whose index
has several entries (softmax) writes the functions of tiles itself (``TileLosses``).

Shapes: y (T,), index (C, T), loss (T,), first (C, T), work (C + 2, T) for scratch.  Second derivatives are
packed lower triangles of C x C matrices, entry (b, c <= b) at b (b + 1) / 2 + c: second (C (C + 1) / 2, T).
Only the first ``size`` of a tile are used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
from numba import cfunc, njit, types
from numba.extending import register_jitable
from numpy.typing import NDArray

Array = NDArray[np.float64]
Compiled = Any
"""A compiled function; numba has no types that a checker could see."""

_VECTOR, _MATRIX = types.Array(types.float64, 1, "C"), types.Array(types.float64, 2, "C")
_GIVEN = (types.float64, types.int64, _VECTOR, _MATRIX)
_OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}

#: values(a, size, y, index, loss, work)
TILE_VALUES: Callable[[Any], Compiled] = cfunc(types.void(*_GIVEN, _VECTOR, _MATRIX), **_OPTIONS)
#: derivatives(a, size, y, index, loss, first, second, work)
TILE_DERIVATIVES: Callable[[Any], Compiled] = cfunc(
    types.void(*_GIVEN, _VECTOR, _MATRIX, _MATRIX, _MATRIX), **_OPTIONS
)


def scalar(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function of numbers that becomes part of the loop over a tile, which stays a vector loop."""
    made: Callable[..., Any] = register_jitable(inline="always")(function)
    return made


class Losses:
    """The loss of one row and its derivatives, compiled when first used.

    Parameters
    ----------
    value, derivatives : functions of numbers
    """

    def __init__(self, value: Callable[..., Any], derivatives: Callable[..., Any]) -> None:
        self._value, self._derivatives = value, derivatives

    @cached_property
    def values(self) -> Compiled:
        """Losses of a tile."""
        value = self._value

        def values(a, size, y, index, loss, work):  # type: ignore[no-untyped-def]
            eta = index[0]
            for i in range(size):
                loss[i] = value(eta[i], y[i], a)

        return TILE_VALUES(_named_after(value, values))

    @cached_property
    def derivatives(self) -> Compiled:
        """Losses, slopes and curvatures of a tile."""
        three = self._derivatives

        def derivatives(a, size, y, index, loss, first, second, work):  # type: ignore[no-untyped-def]
            eta, slope, curvature = index[0], first[0], second[0]
            for i in range(size):
                one = three(eta[i], y[i], a)
                loss[i] = one[0]
                slope[i] = one[1]
                curvature[i] = one[2]

        return TILE_DERIVATIVES(_named_after(three, derivatives))

    def at(self, a: float, response: Array, index: Array) -> tuple[Array, Array, Array]:
        """Losses (N,), first (N, C) and second derivatives (N, C, C) at ``index`` (N, C)."""
        size, n_index = index.shape
        loss, first = np.empty(size), np.empty((n_index, size))
        packed, work = np.empty((n_index * (n_index + 1) // 2, size)), np.empty((n_index + 2, size))
        eta, y = np.array(index.T, dtype=np.float64, order="C"), np.array(response, dtype=np.float64)
        _derivatives(self.derivatives, a, size, y, eta, loss, first, packed, work)
        second = np.empty((size, n_index, n_index))
        for at, (b, c) in enumerate(zip(*np.tril_indices(n_index), strict=True)):
            second[:, b, c] = second[:, c, b] = packed[at]
        return loss, first.T, second


class TileLosses(Losses):
    """Losses of a family that writes the functions of tiles itself."""

    @cached_property
    def values(self) -> Compiled:
        return TILE_VALUES(self._value)

    @cached_property
    def derivatives(self) -> Compiled:
        return TILE_DERIVATIVES(self._derivatives)


def _named_after(source: Callable[..., Any], made: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``made`` a name of its own for each family and each version of its code.

    The compiler keeps what it has compiled under the name of the function, and would not notice that a
    function in another file, compiled into this one, has changed.
    """
    code = source.__code__
    version = crc32(code.co_code + repr((code.co_consts, code.co_names)).encode())
    made.__qualname__ = f"{made.__name__}_{source.__module__.rpartition('.')[2]}_{version:08x}"
    return made


@njit(cache=True)
def _derivatives(derivatives, a, size, y, index, loss, first, second, work):
    derivatives(a, size, y, index, loss, first, second, work)
