"""Rows of many clients in one array: client k holds rows[offsets[k]:offsets[k + 1]]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb.covariance import _checks
from vaneb.errors import InvalidReport

Array = NDArray[np.float64]
Offsets = NDArray[np.int64]


def check_offsets(value: Any, n_rows: int, key: str = "offsets") -> Offsets:
    """Offsets (K + 1,) as integers from 0 to ``n_rows``; every client has at least one row."""
    numbers = _checks.finite_array(value, key, (None,))
    if numbers.size < 2 or numbers[0] != 0 or numbers[-1] != n_rows:
        raise InvalidReport(f"{key}: must start at 0 and end at the number of rows, {n_rows}")
    if (numbers != np.floor(numbers)).any():
        raise InvalidReport(f"{key}: must be whole numbers")
    steps = np.diff(numbers)
    if (steps < 1).any():
        raise InvalidReport(f"{key}: client {int(np.argmax(steps < 1))} has no rows; leave it out")
    return numbers.astype(np.int64)


def gather(
    columns: dict[str, Array], offsets: Offsets, clients: NDArray[np.intp]
) -> tuple[dict[str, Array], Offsets]:
    """Columns and offsets of some clients, in the order given."""
    counts = np.diff(offsets)[clients]
    new = np.concatenate([[0], np.cumsum(counts)])
    index = np.repeat(offsets[clients] - new[:-1], counts) + np.arange(new[-1])
    return {name: column[index] for name, column in columns.items()}, new


def stack(offsets: list[Offsets]) -> Offsets:
    """Offsets of clients whose rows are put one after the other."""
    counts = np.concatenate([np.diff(part) for part in offsets])
    return np.concatenate([[0], np.cumsum(counts)])


def means(values: Array, offsets: Offsets) -> Array:
    """Average of ``values`` (N, ...) over the rows of each client: (K, ...)."""
    counts = np.diff(offsets).reshape(-1, *[1] * (values.ndim - 1))
    result: Array = np.add.reduceat(values, offsets[:-1], axis=0) / counts
    return result
