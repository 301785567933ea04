"""Checks on the numbers of a covariance function, made by the constructors.

Every check raises ``InvalidReport`` with the name of the offending key, so a family is validated the
same way whether it was built in Python or read from a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb.covariance.base import symmetric
from vaneb.errors import InvalidReport

Array = NDArray[np.float64]

#: A count (clients, classes, dimension) above this is a broken message, not a study.
LARGEST_COUNT = 100_000_000

#: Numbers beyond this are refused: their products with each other and with clipped exponentials, in
#: informations and in their derivatives, would not stay finite.
LARGEST_NUMBER = 1e50
#: Precisions that are only ever multiplied by n_k and by squared differences may be larger.
LARGEST_PRECISION = 1e200
#: Asymmetry and negative eigenvalues, after scaling to a unit diagonal, that are taken for rounding.
ROUNDING = 1e-6
#: A covariance with a smaller eigenvalue, after the same scaling, is called singular.
SMALLEST_EIGENVALUE = 1e-10


def finite_array(value: Any, key: str, shape: Sequence[int | None], largest: float = LARGEST_NUMBER) -> Array:
    """``value`` as a float array of the given shape (``None``: any positive length), all finite."""
    try:
        raw = np.asarray(value)
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidReport(f"{key}: not a rectangular array of numbers") from error
    if raw.dtype.kind not in "iuf":
        raise InvalidReport(f"{key}: expected numbers only, got {_kind(raw)}")
    expected = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
    fits = raw.ndim == len(shape) and all(
        have > 0 if want is None else have == want for have, want in zip(raw.shape, shape, strict=True)
    )
    if not fits:
        raise InvalidReport(f"{key}: expected an array of shape {expected}, got {raw.shape}")
    array: Array = np.asarray(raw, dtype=np.float64)
    absurd = ~(np.abs(array) <= largest)
    if absurd.any():
        place = tuple(int(i) for i in np.argwhere(absurd)[0])
        raise InvalidReport(
            f"{key}: {array[place]:g} at position {place}, but numbers must be finite and at most "
            f"{largest:g} in size; leave such a client out"
        )
    return array


def _kind(raw: NDArray[Any]) -> str:
    return {"b": "booleans", "U": "text", "S": "bytes", "c": "complex numbers"}.get(
        raw.dtype.kind, "mixed values"
    )


def per_coordinate(value: Any, key: str, dimension: int) -> Array:
    """A number for all coordinates, or one for each, as an array (d,)."""
    several = isinstance(value, list | tuple) or np.ndim(value) > 0
    array = value if several else np.full(dimension, value)
    return finite_array(array, key, (dimension,))


def positive(array: Array, key: str, *, or_zero: bool = False) -> Array:
    """``array``, if all entries are positive (or zero, where that is allowed)."""
    bad = array < 0 if or_zero else array <= 0
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        wanted = "zero or positive" if or_zero else "positive"
        raise InvalidReport(f"{key}: must be {wanted}, got {array[place]:g} at position {place}")
    return array


def semidefinite(matrices: Array, key: str, *, definite: bool = False) -> Array:
    """Symmetrised ``matrices`` (K, d, d), if symmetric and positive semidefinite up to rounding.

    Judged after scaling to a unit diagonal, so that the verdict does not depend on the units of theta.
    A Cholesky factorisation of the matrix plus a rounding-sized ridge settles nearly all cases;
    eigenvalues are computed only to say which matrix is at fault.
    """
    diagonal = np.diagonal(matrices, axis1=1, axis2=2)
    positive(diagonal, key, or_zero=not definite)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    with np.errstate(over="ignore"):
        unit = matrices / scale[:, :, None] / scale[:, None, :]
    too_large = (np.abs(unit) > 1 + ROUNDING).any(axis=(1, 2))
    if too_large.any():
        raise InvalidReport(
            f"{key}: matrix of client {int(np.argmax(too_large))} is indefinite: "
            "an entry is larger than its two diagonal entries allow"
        )
    skew = np.abs(unit - np.swapaxes(unit, 1, 2)).max(axis=(1, 2))
    if (skew > ROUNDING).any():
        raise InvalidReport(f"{key}: matrix of client {int(np.argmax(skew))} is not symmetric")
    unit = symmetric(unit)
    shift = -SMALLEST_EIGENVALUE if definite else 2 * ROUNDING
    try:
        np.linalg.cholesky(unit + shift * np.eye(matrices.shape[1]))
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(unit)[:, 0]
        worst = int(np.argmin(smallest))
        wanted = "positive definite" if definite else "positive semidefinite"
        raise InvalidReport(
            f"{key}: matrix of client {worst} is not {wanted} "
            f"(smallest eigenvalue {smallest[worst]:.3g} after scaling to a unit diagonal)"
        ) from None
    return symmetric(matrices)


def inverse(matrices: Array) -> Array:
    """Inverses of positive definite matrices (K, d, d), in units that make their diagonals one."""
    scale = np.sqrt(np.diagonal(matrices, axis1=1, axis2=2))
    outer = scale[:, :, None] * scale[:, None, :]
    return symmetric(np.linalg.inv(matrices / outer) / outer)


def square_matrices(value: Any, key: str, largest: float = LARGEST_NUMBER) -> Array:
    """``value`` as finite matrices of shape (K, d, d)."""
    array = finite_array(value, key, (None, None, None), largest)
    if array.shape[1] != array.shape[2]:
        raise InvalidReport(f"{key}: expected square matrices, got shape {array.shape}")
    return array


def count(value: Any, key: str) -> int:
    """``value``, if it is a whole number from 1 to ``LARGEST_COUNT``."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not 1 <= value <= LARGEST_COUNT:
        raise InvalidReport(f"{key}: expected a whole number from 1 to {LARGEST_COUNT}, got {value!r:.40}")
    return int(value)
