"""Several groups at once, nested or crossed, with Gaussian effects of each.

    y = X beta + sum_j Z_j b_j + e,    b_j ~ N(0, sigma^2 I x L_j L_j'),    e ~ N(0, sigma^2 I)

By restricted likelihood.  Rows of other families are least squares once each is seen through a Gaussian
factor of its index (``choice``): sigma^2 = 1 is known then, and Q stands for (N - p) log Q below.
With b_j = L_j s_j all effects have the variance of the noise, and beta and s solve one system of equations.
The group with the most effects is eliminated, group by group; what is left is dense.  C_k = I + L'A_k L are
the blocks of the first, S the matrix of the rest (X and the other groups), and

    deviance = sum_k log|C_k| + log|S| + (N - p) log Q.

The clients' report is what gives them, under the Gaussian population with a known centre, the posterior they
have here: other groups are integrated out.  So a population of any shape can be learned from the reports.
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
from scipy.sparse.linalg import spsolve

from vaneb.errors import InvalidReport
from vaneb.grouped.choice import WIDEST
from vaneb.likelihood.base import Array

#: Effects of all groups but the largest: more make a dense matrix that is too large.
MOST = 6_000
#: Evaluations of the deviance, at most.
EVALUATIONS = 300
#: Entries of dense blocks of rows.
ENTRIES = 4_000_000
#: Smallest variance of the clients' effects, in that of the noise, with which reports are made.
SMALLEST = 1e-6


@dataclass(frozen=True, eq=False)
class Grouping:
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
    """Covariances V_k of b_k for each client given beta_S, (K, r, r); S the columns that differ."""
    index: Array
    """X beta + sum_j Z_j b_j, (N,)."""
    index_variance: Array
    """Its posterior variance, (N,); of no length for least squares."""


def fit_crossed(
    design: Array,
    response: Array,
    groupings: list[Grouping],
    varying: NDArray[np.intp],
    *,
    known: bool = False,
    last: Crossed | None = None,
) -> Crossed:
    """Fit by restricted likelihood.

    ``design`` (N, p); ``varying`` (r,) its columns that the first factor's are; ``known``: sigma^2 is 1;
    ``last``: a fit that is near.
    """
    n, p = design.shape
    order = sorted(range(len(groupings)), key=lambda j: -groupings[j].effects)
    first, rest = groupings[order[0]], [groupings[j] for j in order[1:]]
    if (dense := sum(one.effects for one in rest)) > MOST:
        raise InvalidReport(
            f"formula: the groups besides the largest have {dense:,} effects; at most {MOST:,} can be "
            "fitted. Use fewer random terms."
        )
    if n <= p:
        raise InvalidReport(f"data: {n} rows cannot tell the noise from {p} coefficients; use fewer terms")
    system = _System(design, response, first, rest, known)
    sizes = [one.columns.shape[1] for one in (first, *rest)]
    free = [np.tril_indices(r) for r in sizes]
    near = [np.eye(r) for r in sizes] if last is None else [last.roots[j] for j in order]
    start = np.concatenate([root[f] for root, f in zip(near, free, strict=True)])
    reach = 0.4 if last is None else 0.05
    ends = np.cumsum([len(f[0]) for f in free])

    def roots_of(x: Array) -> list[Array]:
        out = []
        for part, r, f in zip(np.split(x, ends[:-1]), sizes, free, strict=True):
            root = np.zeros((r, r))
            root[f] = part
            out.append(root)
        return out

    steps = {"initial_tr_radius": reach, "final_tr_radius": 1e-3 if known else 1e-4}
    found = minimize(
        lambda x: system.solve(roots_of(x)).deviance, start, method="COBYQA",
        options={"maxfev": EVALUATIONS, **steps},
    )  # fmt: skip
    roots, here = roots_of(found.x), order.index(0)
    roots[here] = la.cholesky(roots[here] @ roots[here].T + SMALLEST * np.eye(sizes[here]), lower=True)
    solved = system.solve(roots)
    inverse = la.cho_solve((solved.half, True), np.eye(len(solved.half)))
    given = inverse - inverse[:, varying] @ np.linalg.solve(
        inverse[np.ix_(varying, varying)], inverse[varying]
    )
    effects, r = system.effects(roots[0], solved), sizes[here]
    if here == 0:
        # s_k has covariance C^{-1} given the rest, and its mean moves with that.
        own = roots[0] @ solved.inner_inverse @ roots[0].T
        pull = (_diagonal(own) @ system.cross @ solved.scaling).toarray()
        shape = (-1, r, len(given))
        posterior = own + np.einsum("kim,kjm->kij", (pull @ given).reshape(shape), pull.reshape(shape))
    else:
        begin, end = system.spans[here - 1]
        blocks = given[begin:end, begin:end].reshape(-1, r, (end - begin) // r, r)
        posterior = roots[here] @ np.einsum("kikj->kij", blocks) @ roots[here].T
    back = np.argsort(order)
    return Crossed(
        solved.variance, solved.rest[:p], solved.variance * inverse[:p, :p],
        tuple(roots[int(j)] for j in back), tuple(effects[int(j)] for j in back),
        solved.variance * posterior, system.index(effects[0], solved),
        system.index_variance(roots[0], solved) if known else np.empty(0),
    )  # fmt: skip


def _diagonal(blocks: Array) -> Any:
    """Sparse matrix with these blocks (K, r, r) on the diagonal."""
    k = len(blocks)
    return sp.bsr_matrix((blocks, np.arange(k), np.arange(k + 1))).tocsr()


@dataclass(frozen=True, eq=False)
class _Solved:
    deviance: float
    variance: float
    rest: Array
    """beta and the b of all groupings but the first."""
    scaling: Any
    """Turns columns of b into columns of s."""
    half: Array
    """Lower triangular root of S."""
    inner_inverse: Array
    """C_k^{-1}, (K, r, r)."""


class _System:
    """The equations, with all sums over rows made once."""

    def __init__(
        self, design: Array, response: Array, first: Grouping, rest: list[Grouping], known: bool
    ) -> None:
        self.n, self.p = design.shape
        self.known = known
        self.first, self.others = first, rest
        z = first.matrix()
        self.r = first.columns.shape[1]
        dense = sp.hstack([sp.csr_matrix(design), *(one.matrix() for one in rest)]).tocsr()
        self.gram = np.asarray((dense.T @ dense).toarray())
        self.right = np.asarray(dense.T @ response).ravel()
        ends = np.cumsum([self.p, *(one.effects for one in rest)])
        self.spans = [(int(a), int(b)) for a, b in pairwise(ends)]  # of the other groupings among the rest
        self.rows_of, self.dense = z, dense
        self.cross = (z.T @ dense).tocsr()  # (K r, p + m)
        self.inner = np.zeros((first.levels, self.r, self.r))
        np.add.at(self.inner, first.codes, first.columns[:, :, None] * first.columns[:, None, :])
        self.score = np.asarray(z.T @ response).reshape(-1, self.r)
        self.square = float(response @ response)

    def _scaling(self, roots: list[Array]) -> Any:
        """Blocks of I and L_j that turn columns of b into columns of s."""
        blocks = [sp.identity(self.p)]
        blocks += [
            _diagonal(np.tile(L, (f.levels, 1, 1))) for f, L in zip(self.others, roots[1:], strict=True)
        ]
        return sp.block_diag(blocks).tocsr()

    def solve(self, roots: list[Array]) -> _Solved:
        root, scaling = roots[0], self._scaling(roots)
        inner = np.eye(self.r) + root.T @ self.inner @ root
        inverse: Array = np.asarray(np.linalg.inv(inner), dtype=np.float64)
        middle = root @ inverse @ root.T  # L C^{-1} L', (K, r, r)
        weighted = _diagonal(middle) @ self.cross
        left = self.gram - (self.cross.T @ weighted).toarray()
        right = self.right - weighted.T @ self.score.ravel()
        left = scaling.T @ (scaling.T @ left.T).T
        right = scaling.T @ right
        left[np.arange(self.p, len(left)), np.arange(self.p, len(left))] += 1.0
        left[np.arange(self.p), np.arange(self.p)] *= 1 + 1e-12
        half = la.cholesky(left, lower=True, overwrite_a=True, check_finite=False)
        rest = la.cho_solve((half, True), right, check_finite=False)
        explained = float(np.einsum("ki,kij,kj->", self.score, middle, self.score)) + float(right @ rest)
        value = np.linalg.slogdet(inner)[1].sum() + 2 * np.log(np.diagonal(half)).sum()
        if self.known:
            value += sum(float(np.sum(one**2)) for one in roots) / WIDEST**2 - explained
            return _Solved(value, 1.0, scaling @ rest, scaling, half, inverse)
        freedom = self.n - self.p
        variance = max(self.square - explained, 1e-12 * self.square) / freedom
        return _Solved(value + freedom * np.log(variance), variance, scaling @ rest, scaling, half, inverse)

    def effects(self, root: Array, solved: _Solved) -> list[Array]:
        """b_j of all groupings, the first one first."""
        left = (self.score.ravel() - self.cross @ solved.rest).reshape(-1, self.r)
        first = np.einsum("kij,kj->ki", root @ solved.inner_inverse @ root.T, left)
        others = zip(self.spans, self.others, strict=True)
        return [first, *(solved.rest[a:b].reshape(one.levels, -1) for (a, b), one in others)]

    def index(self, first: Array, solved: _Solved) -> Array:
        """X beta + sum_j Z_j b_j, the first effects being ``first``."""
        return np.asarray(self.rows_of @ first.ravel() + self.dense @ solved.rest)

    def index_variance(self, root: Array, solved: _Solved) -> Array:
        """Given the first group's s_k a row's index moves with the rest by q = d - Z L C^{-1} L' cross."""
        middle = root @ solved.inner_inverse @ root.T
        own = self.rows_of @ _diagonal(middle)
        out = np.asarray(own.multiply(self.rows_of).sum(axis=1)).ravel()
        rest = ((self.dense - own @ self.cross) @ solved.scaling).tocsr()
        step = max(1, ENTRIES // rest.shape[1])
        for i in range(0, self.n, step):
            moved = la.solve_triangular(solved.half, rest[i : i + step].T.toarray(), lower=True)
            out[i : i + step] += np.sum(moved**2, axis=0)
        return out


def effects_given(
    crossed: Crossed, groupings: list[Grouping], left: Array, weight: Array
) -> tuple[Array, ...]:
    """Effects of the groupings but the first, from what the first leaves of the responses and rows' weights.

    The fit has them for its own variances; a posterior of the first factor may have taken others.
    """
    others, roots = groupings[1:], [root * np.sqrt(crossed.variance) for root in crossed.roots[1:]]
    scaling = sp.block_diag(
        [_diagonal(np.tile(L, (f.levels, 1, 1))) for f, L in zip(others, roots, strict=True)]
    )
    z = (sp.hstack([one.matrix() for one in others]) @ scaling).tocsr()
    gram = (z.T @ z.multiply(weight[:, None])).tocsc() + sp.identity(z.shape[1], format="csc")
    found = scaling @ spsolve(gram, z.T @ (weight * left))
    ends = np.cumsum([one.effects for one in others])
    parts = np.split(np.atleast_1d(found), ends[:-1])
    return tuple(part.reshape(one.levels, -1) for part, one in zip(parts, others, strict=True))


def reports_of(
    crossed: Crossed, varying: NDArray[np.intp], spread: Array | None = None
) -> tuple[Array, Array]:
    """Estimates (K, d) and precisions (K, d, d): where clients differ P_k = V_k^{-1} - Gamma^{-1}.

    What clients share each of them knows a little of: K of them together as much as is known.

    With ``spread`` (r, r), a population's covariance, clients keep the means that they have under it and get
    the variances V_k + E; E is what is not known of the centre because of the other groups.  All clients
    have this error in common: it is no difference between them, but their intervals have to hold it.
    """
    d, k = len(crossed.fixed), len(crossed.posterior)
    prior = np.linalg.inv(crossed.variance * crossed.roots[0] @ crossed.roots[0].T)
    back = np.linalg.inv(crossed.posterior)
    inner = _positive(back - prior, 1e-9 / crossed.variance)
    own = np.linalg.solve(inner, np.einsum("kij,kj->ki", back, crossed.effects[0])[:, :, None])
    if spread is not None:
        alone = np.linalg.inv(np.sum(prior - prior @ crossed.posterior @ prior, axis=0))
        error = _positive(crossed.covariance[np.ix_(varying, varying)] - alone, 0.0)
        root, eye = (
            np.linalg.cholesky(spread + 1e-9 * crossed.variance * np.eye(len(spread))),
            np.eye(len(spread)),
        )
        to = np.linalg.inv(root)
        error = to @ error @ to.T
        known = root.T @ inner @ root
        variance = np.linalg.inv(eye + known)
        # The common error cannot take away more than is known: V + (E : (I - V)), the parallel sum.
        wider = variance + error @ np.linalg.solve(error + eye - variance, eye - variance)
        less = _positive(np.linalg.inv(wider) - eye, 1e-9)
        own = root @ np.linalg.solve(less, np.linalg.solve(wider, variance @ known @ to @ own))
        inner = to.T @ less @ to
    estimates, precision = np.tile(crossed.fixed, (k, 1)), np.zeros((k, d, d))
    estimates[:, varying] += own[:, :, 0]
    precision[np.ix_(np.arange(k), varying, varying)] = inner
    rest = np.setdiff1d(np.arange(d), varying)
    if len(rest):
        shared = np.linalg.pinv(crossed.covariance[np.ix_(rest, rest)], hermitian=True)
        precision[np.ix_(np.arange(k), rest, rest)] = shared / k
    return estimates, precision


def _positive(matrices: Array, least: float) -> Array:
    """The symmetric parts of matrices, with no eigenvalue below ``least``."""
    values, vectors = np.linalg.eigh((matrices + np.swapaxes(matrices, -1, -2)) / 2)
    return np.asarray((vectors * np.maximum(values, least)[..., None, :]) @ np.swapaxes(vectors, -1, -2))
