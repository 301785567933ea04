"""The likelihood of clients' rows under one Gaussian population, N(mu, R R'), by adaptive quadrature.

For least squares the integral has a closed form (``mixed_model``); for all other families it is computed to
three digits or more, where Laplace's approximation is off by several percent for a client with a few binary
rows, always to the same side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.likelihood import exact_kernels
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family
from vaneb.local.objective import Array
from vaneb.npmle.ellipsoids import even_normals

Result = TypeVar("Result")

#: Gauss-Hermite points in each direction, by the number of directions; points of less weight are left out.
PER_DIRECTION, LEAST = {1: 15, 2: 9, 3: 7}, 1e-7
#: Points where there are more directions: a product would be too many.
EVEN = 128
#: Clients are split into at most this many blocks, whatever the number of threads.
MAX_BLOCKS, MIN_BLOCK = 16, 64


class Value(NamedTuple):
    """Log density of each client (K,), and the sums of its slopes in mu (d,) and R (d, q)."""

    log_density: Array
    mean_slope: Array
    root_slope: Array


class Points(NamedTuple):
    """Posterior of each client: points (K, m, d) and their probabilities (K, m)."""

    thetas: Array
    shares: Array


@cache
def gaussian_rule(directions: int) -> tuple[Array, Array]:
    """Points (m, q) and weights (m,) that stand for N(0, I)."""
    if directions == 0:
        return np.zeros((1, 0)), np.ones(1)
    if directions in PER_DIRECTION:
        nodes, weights = np.polynomial.hermite_e.hermegauss(PER_DIRECTION[directions])
        x = np.array(list(product(nodes, repeat=directions)))
        w = np.prod(list(product(weights / weights.sum(), repeat=directions)), axis=1)
        kept = w > LEAST * w.max()
        return np.ascontiguousarray(x[kept]), w[kept] / w[kept].sum()
    half = even_normals(EVEN // 2, directions)
    x = np.concatenate([half, -half])
    # Covariance exactly one, so that all that Laplace's approximation knows is kept.
    x = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / len(x))).T
    return np.ascontiguousarray(x), np.full(len(x), 1 / len(x))


@dataclass(frozen=True, eq=False)
class Marginal:
    """Rows of K clients and their family, ready to be integrated."""

    rows: GroupedRows
    family: Family
    _modes: dict[int, Array] = field(default_factory=dict)
    """Where the clients' posteriors were largest at the last look, by the number of directions."""

    @property
    def dimension(self) -> int:
        return self.family.dimension(self.rows.design.shape[1])

    @cached_property
    def _constant(self) -> Array:
        return np.add.reduceat(self.family.log_constant(self.rows.response), self.rows.starts[:-1])

    @cached_property
    def _features(self) -> Array:
        return self.family.features(self.rows.design)

    def value(self, mean: Array, root: Array) -> Value:
        """Under N(mean, root root')."""

        def block(part: slice, m: int) -> tuple[Array, Array, Array]:
            empty = np.empty((0, m, len(mean))), np.empty((0, m))
            return self._integrate(mean, root, part, *empty)

        parts = self._over_blocks(block, root.shape[1])
        density, mean_slope, root_slope = zip(*parts, strict=True)
        return Value(
            np.concatenate(density) + self._constant, np.sum(mean_slope, axis=0), np.sum(root_slope, axis=0)
        )

    def points(self, mean: Array, root: Array) -> Points:
        """The clients' posteriors under N(mean, root root')."""

        def block(part: slice, m: int) -> Points:
            size = part.stop - part.start
            found = Points(np.empty((size, m, len(mean))), np.empty((size, m)))
            self._integrate(mean, root, part, *found)
            return found

        thetas, shares = zip(*self._over_blocks(block, root.shape[1]), strict=True)
        return Points(np.concatenate(thetas), np.concatenate(shares))

    def log_likelihood(self, atoms: Array) -> Array:
        """l_k(a_j) of points (m, d), with all constants, (K, m)."""
        out = np.empty((self.rows.n_clients, len(atoms)))
        atoms_t = np.ascontiguousarray(atoms.T)

        def block(part: slice, _: int) -> None:
            exact_kernels.log_likelihood(self._rows(part), self._constant[part], atoms_t, out[part])

        self._over_blocks(block, 0)
        return out

    def _over_blocks(self, block: Callable[[slice, int], Result], directions: int) -> list[Result]:
        n = self.rows.n_clients
        self._modes.setdefault(directions, np.zeros((n, directions)))
        m = len(gaussian_rule(directions)[1])
        return list(map_blocks(lambda part: block(part, m), n, max(MIN_BLOCK, -(-n // MAX_BLOCKS))))

    def _integrate(
        self, mean: Array, root: Array, part: slice, thetas: Array, shares: Array
    ) -> tuple[Array, Array, Array]:
        from vaneb.grouped.quadrature_kernel import integrate

        (d, q), size = root.shape, part.stop - part.start
        density, mean_slope, root_slope = np.empty(size), np.empty(d), np.empty((d, q))
        x, weights = gaussian_rule(q)
        integrate(
            self._rows(part), np.ascontiguousarray(mean), np.ascontiguousarray(root), x, weights,
            self._modes[q][part], density, mean_slope, root_slope, thetas, shares,
        )  # fmt: skip
        return density, mean_slope, root_slope

    def _rows(self, part: slice) -> exact_kernels.Rows:
        rows, family = self.rows, self.family
        return exact_kernels.Rows(
            family.code, family.parameter, family.dispersion, rows.design, rows.response, rows.offset,
            rows.starts[part.start : part.stop + 1], family.n_index, self._features,
        )  # fmt: skip

    def take(self, clients: NDArray[np.intp]) -> Marginal:
        """Some of the clients."""
        modes = {q: found[clients] for q, found in self._modes.items()}
        return Marginal(self.rows.take(clients), self.family, modes)


def root_of(spread: Array, basis: Array | None = None) -> Array:
    """R (d, q) of full column rank with R R' = ``spread``.

    Found in coordinates phi, theta = B phi, if ``basis`` B is given: the coefficients of covariates that are
    far from zero are nearly collinear.
    """
    if basis is not None:
        return np.ascontiguousarray(basis @ root_of(np.linalg.solve(basis, np.linalg.solve(basis, spread).T)))
    values, vectors = np.linalg.eigh((spread + spread.T) / 2)
    kept = values > 1e-12 * max(float(values[-1]), 1e-300)
    return np.ascontiguousarray(vectors[:, kept] * np.sqrt(values[kept]))
