"""Halves of each client's rows: what one half says of a population is checked on the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vaneb.local.data import GroupedRows


def first_halves(rows: GroupedRows, seed: int) -> NDArray[np.bool_]:
    """Whether a row is in the first half of its client's rows, (N,).

    Rows come in the order of their values.  Every second one would make halves more alike than rows that are
    independent, and a population too wide would then seem to predict best.  Chance is a client's own, drawn
    from its rows: it makes the same halves where no other client's rows are.
    """
    place = np.arange(len(rows.response)) - np.repeat(rows.starts[:-1], rows.n_rows)
    columns = np.column_stack([rows.design, rows.response, rows.offset])
    values = np.frombuffer(columns.tobytes(), np.uint64).reshape(len(place), -1)
    number = np.arange(values.shape[1]).astype(np.uint64)
    marks = _scrambled(np.add(values, number, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    own = np.add.reduceat(_scrambled(marks), rows.starts[:-1])[rows.client_of_row]
    chance = _scrambled(own + _scrambled(place.astype(np.uint64) + np.uint64(seed << 32)))
    first = np.zeros(len(place), dtype=bool)
    first[np.lexsort((chance, rows.client_of_row))] = place % 2 == 0
    return first


def _scrambled(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The mixing step of splitmix64: numbers that look random, the same for the same numbers."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
