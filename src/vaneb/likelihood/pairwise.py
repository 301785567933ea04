"""Likelihoods that are computed for one pair of client and atom after the other.

Log-likelihoods are computed for all pairs of a block of clients and the atoms; derivatives, which cost more,
only for the pairs that carry weight.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import BLOCK_CLIENTS, map_blocks
from vaneb.likelihood.base import Array, AtomSums, Likelihood

#: Pairs whose share r_kj is below exp(SKIP) / K add nothing to a double-precision sum of order one.
SKIP = -28.0
Indices = NDArray[np.intp]


class Pairwise(Likelihood):
    """Sums over clients from the log-likelihoods and scores of pairs."""

    #: Enough to hide the cost of a call, few enough to stay in the cache.
    pairs_at_once: ClassVar[int] = BLOCK_CLIENTS
    n_clients: Any
    take: Callable[..., Self]

    @abstractmethod
    def _logs(self, atoms: Array) -> tuple[Array, Any]:
        """l_k(a_j), (K, m), and what ``_scores`` can use of how they were found."""

    @abstractmethod
    def _scores(
        self, found: Any, atoms: Array, client: Indices, atom: Indices, frozen: bool
    ) -> tuple[Array, Array]:
        """Scores (N, d) and informations (N, d, d) of pairs of ``client`` (N,) and ``atom`` (N,)."""

    def _blocks(self, function: Callable[[slice], Any], atoms: Array) -> list[Any]:
        return list(map_blocks(function, self.n_clients, max(1, self.pairs_at_once // max(1, len(atoms)))))

    def log_likelihood(self, atoms: Array) -> Array:
        atoms = np.ascontiguousarray(atoms, dtype=np.float64)
        return np.concatenate(self._blocks(lambda rows: self.take(rows)._logs(atoms)[0], atoms))

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> AtomSums:
        return self._ascent(atoms, lambda rows, _: log_weights[rows], frozen, curvature)

    def expectation(self, atoms: Array, log_prior: Array) -> tuple[Array, AtomSums]:
        """In one pass, where others take two: here a log-likelihood is what costs."""
        density = np.empty(self.n_clients)

        def weigh(rows: slice, logs: Array) -> Array:
            terms = logs + log_prior
            top = terms.max(axis=1, keepdims=True)
            density[rows] = np.log(np.exp(terms - top).sum(axis=1)) + top[:, 0]
            return -np.log(self.n_clients) - density[rows]

        return density, self._ascent(atoms, weigh, True, False)

    def _ascent(
        self, atoms: Array, weigh: Callable[[slice, Array], Array], frozen: bool, curvature: bool
    ) -> AtomSums:
        """``weigh``: the logarithms (B,) of what a block's clients weigh, of their log-likelihoods (B, m)."""
        from vaneb.likelihood.pair_kernels import add_pairs

        atoms = np.ascontiguousarray(atoms, dtype=np.float64)
        (m, d), floor = atoms.shape, SKIP - np.log(self.n_clients)

        def block(rows: slice) -> AtomSums:
            own = self.take(rows)
            logs, found = own._logs(atoms)
            logs += weigh(rows, logs)[:, None]
            near = np.flatnonzero(logs > floor)
            client, atom = np.divmod(near, m)
            outer = np.zeros((m, d, d)) if curvature else None
            sums = AtomSums(np.zeros(m), np.zeros((m, d)), outer, np.zeros((m, d, d)))
            if len(near) > 0:
                scores = own._scores(found, atoms, client, atom, frozen)
                add_pairs(atom, np.exp(logs.flat[near]), *scores, *sums)
            return sums

        total, *parts = self._blocks(block, atoms)
        for part in parts:
            total = total.plus(part)
        return total
