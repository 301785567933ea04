"""Several groups at once, nested or crossed: least squares with Gaussian effects of each.

    y = X beta + sum_j Z_j b_j + e,    b_j ~ N(0, sigma^2 I x L_j L_j'),    e ~ N(0, sigma^2 I)

By restricted likelihood.  With b_j = L_j s_j all effects have the variance of the noise, and beta and s solve
one system of equations.
The group with the most effects is eliminated, group by group; what is left is dense.  C_k = I + L'A_k L are
the blocks of the first, S the matrix of the rest (X and the other groups), and

    deviance = sum_k log|C_k| + log|S| + (N - p) log Q.

The clients' report is what gives them, under the Gaussian population, the posterior they have here: other
groups and beta are integrated out.  So a population of any shape can be learned from the reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.linalg as la
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import minimize

from vaneb.errors import InvalidReport
from vaneb.likelihood.seam import Array

#: Effects of all groups but the largest: more make a dense matrix that is too large.
MOST = 6_000
#: Evaluations of the deviance, at most.
EVALUATIONS = 300
#: Smallest variance of the clients' effects, in that of the noise, with which reports are made.
SMALLEST = 1e-6


@dataclass(frozen=True, eq=False)
class Factor:
    """One grouping: the group of each row, and the columns whose coefficients differ between groups."""

    codes: NDArray[np.intp]
    """(N,)"""
    levels: int
    columns: Array
    """(N, r)"""

    @property
    def effects(self) -> int:
        return self.levels * self.columns.shape[1]

    def matrix(self) -> Any:
        """(N, levels r), sparse."""
        n, r = self.columns.shape
        place = (self.codes[:, None] * r + np.arange(r)).ravel()
        return sp.csr_matrix((self.columns.ravel(), place, np.arange(n + 1) * r), shape=(n, self.effects))


@dataclass(frozen=True, eq=False)
class Crossed:
    """What several groups say; the first is the clients'."""

    variance: float
    """sigma^2"""
    fixed: Array
    """beta, (p,)"""
    covariance: Array
    """Of beta, (p, p)."""
    roots: tuple[Array, ...]
    """L_j of each factor."""
    effects: tuple[Array, ...]
    """b_j, (levels, r)."""
    posterior: Array
    """Covariances of beta_S + b_k for each client, (K, r, r); S the columns that differ."""


def fit_crossed(design: Array, response: Array, factors: list[Factor], varying: NDArray[np.intp]) -> Crossed:
    """Fit by restricted likelihood.

    ``design`` (N, p); ``varying`` (r,) its columns that the first factor's are.
    """
    n, p = design.shape
    order = sorted(range(len(factors)), key=lambda j: -factors[j].effects)
    first, rest = factors[order[0]], [factors[j] for j in order[1:]]
    if (dense := sum(one.effects for one in rest)) > MOST:
        raise InvalidReport(
            f"formula: the groups besides the largest have {dense:,} effects; at most {MOST:,} can be "
            "fitted. Use fewer random terms."
        )
    if n <= p:
        raise InvalidReport(f"data: {n} rows cannot tell the noise from {p} coefficients; use fewer terms")
    system = _System(design, response, first, rest)
    sizes = [one.columns.shape[1] for one in (first, *rest)]
    free = [np.tril_indices(r) for r in sizes]
    start = np.concatenate([np.eye(r)[f] for r, f in zip(sizes, free, strict=True)])
    ends = np.cumsum([len(f[0]) for f in free])

    def roots_of(x: Array) -> list[Array]:
        out = []
        for part, r, f in zip(np.split(x, ends[:-1]), sizes, free, strict=True):
            root = np.zeros((r, r))
            root[f] = part
            out.append(root)
        return out

    found = minimize(
        lambda x: system.solve(roots_of(x)).deviance, start, method="COBYQA",
        options={"maxfev": EVALUATIONS, "initial_tr_radius": 0.4, "final_tr_radius": 1e-4},
    )  # fmt: skip
    roots = roots_of(found.x)
    solved = system.solve(roots)
    inverse = la.cho_solve((solved.half, True), np.eye(len(solved.half)))
    effects, spans = system.effects(roots, solved), system.spans(roots)
    back = np.argsort(order)
    here = int(back[0])
    r = sizes[here]
    if here == 0:
        inner = solved.inner_inverse  # (K, r, r)
        own = roots[0] @ inner @ roots[0].T
        # theta_k = beta_S + L s_k; given the rest, s_k has covariance C^{-1}, and its mean moves with it
        pull = system.cross_blocks(roots[0] @ inner @ roots[0].T, p, varying)
        moved = pull @ inverse
        shared = np.asarray(pull.multiply(moved).sum(axis=1)).reshape(-1, r) if r == 1 else None
        if r == 1:
            assert shared is not None
            extra = shared[:, :, None]
        else:
            extra = np.stack([m @ q.T for m, q in _blocks(moved, pull, r)])
        posterior = own + extra
    else:
        select = np.zeros((factors[0].levels, r, len(inverse)))
        select[:, np.arange(r), varying] = 1.0
        begin = spans[here - 1][0]
        for k in range(factors[0].levels):
            select[k, :, begin + k * r : begin + (k + 1) * r] = roots[here]
        posterior = select @ inverse @ np.swapaxes(select, 1, 2)
    return Crossed(
        solved.variance, solved.rest[:p], solved.variance * inverse[:p, :p],
        tuple(roots[int(j)] for j in back), tuple(effects[int(j)] for j in back),
        solved.variance * posterior,
    )  # fmt: skip


def _blocks(moved: Array, pull: Any, r: int) -> Any:
    rows = pull.toarray()
    for k in range(len(rows) // r):
        yield moved[k * r : (k + 1) * r], rows[k * r : (k + 1) * r]


@dataclass(frozen=True, eq=False)
class _Solved:
    deviance: float
    variance: float
    rest: Array
    """beta and the s of all factors but the first."""
    half: Array
    """Lower triangular root of S."""
    inner_inverse: Array
    """C_k^{-1}, (K, r, r)."""


class _System:
    """The equations, with all sums over rows made once."""

    def __init__(self, design: Array, response: Array, first: Factor, rest: list[Factor]) -> None:
        self.n, self.p = design.shape
        self.first, self.others = first, rest
        z = first.matrix()
        self.r = first.columns.shape[1]
        dense = sp.hstack([sp.csr_matrix(design), *(one.matrix() for one in rest)]).tocsr()
        self.gram = np.asarray((dense.T @ dense).toarray())
        self.right = np.asarray(dense.T @ response).ravel()
        self.cross = (z.T @ dense).tocsr()  # (K r, p + m)
        self.inner = np.zeros((first.levels, self.r, self.r))
        np.add.at(self.inner, first.codes, first.columns[:, :, None] * first.columns[:, None, :])
        self.score = np.asarray(z.T @ response).reshape(-1, self.r)
        self.square = float(response @ response)

    def spans(self, roots: list[Array]) -> list[tuple[int, int]]:
        """Where each of the other factors stands among the rest."""
        ends = np.cumsum([self.p, *(one.effects for one in self.others)])
        return [(int(a), int(b)) for a, b in pairwise(ends)]

    def _scaling(self, roots: list[Array]) -> Any:
        """Blocks of I and L_j that turn columns of b into columns of s."""
        blocks = [sp.identity(self.p)]
        blocks += [
            sp.kron(sp.identity(f.levels), root) for f, root in zip(self.others, roots[1:], strict=True)
        ]
        return sp.block_diag(blocks).tocsr()

    def solve(self, roots: list[Array]) -> _Solved:
        root, scaling = roots[0], self._scaling(roots)
        inner = np.eye(self.r) + root.T @ self.inner @ root
        inverse: Array = np.asarray(np.linalg.inv(inner), dtype=np.float64)
        middle = root @ inverse @ root.T  # L C^{-1} L', (K, r, r)
        if self.r == 1:
            weighted = self.cross.multiply(middle[:, :, 0]).tocsr()
        else:
            weighted = (sp.block_diag(list(middle)) @ self.cross).tocsr()
        left = self.gram - (self.cross.T @ weighted).toarray()
        right = self.right - weighted.T @ self.score.ravel()
        left = scaling.T @ (scaling.T @ left.T).T
        right = scaling.T @ right
        left[np.arange(self.p, len(left)), np.arange(self.p, len(left))] += 1.0
        left[np.arange(self.p), np.arange(self.p)] *= 1 + 1e-12
        half = la.cholesky(left, lower=True, overwrite_a=True, check_finite=False)
        rest = la.cho_solve((half, True), right, check_finite=False)
        explained = float(np.einsum("ki,kij,kj->", self.score, middle, self.score)) + float(right @ rest)
        freedom = self.n - self.p
        variance = max(self.square - explained, 1e-12 * self.square) / freedom
        value = np.linalg.slogdet(inner)[1].sum() + 2 * np.log(np.diagonal(half)).sum()
        return _Solved(value + freedom * np.log(variance), variance, rest, half, inverse)

    def effects(self, roots: list[Array], solved: _Solved) -> list[Array]:
        """b_j of all factors, the first one first."""
        root, rest = roots[0], self._scaling(roots) @ solved.rest
        left = (self.score.ravel() - self.cross @ rest).reshape(-1, self.r)
        out = [np.einsum("kij,kj->ki", root @ solved.inner_inverse @ root.T, left)]
        for (a, b), one in zip(self.spans(roots), self.others, strict=True):
            out.append(rest[a:b].reshape(one.levels, -1))
        self.scaled = self._scaling(roots)
        return out

    def cross_blocks(self, middle: Array, p: int, varying: NDArray[np.intp]) -> Any:
        """d theta_k / d rest, (K r, p + m), sparse: beta_S enters as it is, the rest through s_k."""
        k, r = len(middle), self.r
        select = sp.csr_matrix(
            (np.ones(k * r), (np.arange(k * r), np.tile(varying, k))), shape=(k * r, self.cross.shape[1])
        )
        own = sp.block_diag(list(middle)) if r > 1 else sp.diags(middle[:, 0, 0])
        return (select - own @ self.cross @ self.scaled).tocsr()


def reports_of(crossed: Crossed, varying: NDArray[np.intp]) -> tuple[Array, Array]:
    """Estimates (K, d) and precisions (K, d, d) that give clients this posterior under a Gaussian population.

    P_k = V_k^{-1} - Gamma^{-1} in the coordinates that differ.  What clients share each of them knows a
    little of: K of them together as much as is known.
    """
    d, k = len(crossed.fixed), len(crossed.posterior)
    gamma = crossed.variance * crossed.roots[0] @ crossed.roots[0].T
    gamma = gamma + SMALLEST * crossed.variance * np.eye(len(gamma))
    back, prior = np.linalg.inv(crossed.posterior), np.linalg.inv(gamma)
    values, vectors = np.linalg.eigh(back - prior)
    values = np.maximum(values, 1e-6 / crossed.variance)
    inner = (vectors * values[:, None, :]) @ np.swapaxes(vectors, 1, 2)
    pulled = np.einsum("kij,kj->ki", back, crossed.effects[0])
    estimates, precision = np.tile(crossed.fixed, (k, 1)), np.zeros((k, d, d))
    estimates[:, varying] += np.linalg.solve(inner, pulled[:, :, None])[:, :, 0]
    precision[np.ix_(np.arange(k), varying, varying)] = inner
    shared = np.setdiff1d(np.arange(d), varying)
    if len(shared):
        known = np.linalg.pinv(crossed.covariance[np.ix_(shared, shared)], hermitian=True)
        precision[np.ix_(np.arange(k), shared, shared)] = known / k
    return estimates, precision
