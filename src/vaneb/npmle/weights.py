"""Mixing weights over given atoms: the convex half of the NPMLE.

Given the likelihoods L (K, m), the weights solve

    maximise  sum_k s_k log (L w)_k   over the simplex,

s_k the share of the whole that client k stands for: 1/K, where no others are given.

The optimum has few non-zero weights (tens, among thousands of columns), so the work is kept to an
*active* set of columns.  Columns enter where the gap

    D_j = sum_k s_k L_kj / (L w)_k - 1

is largest; on the active ones Newton steps are taken, each a small non-negative quadratic programme;
columns that fall to zero leave.  ``max_j D_j`` bounds how far the average log-likelihood is from its
maximum over these columns, so the stopping rule is a certificate, not a guess.

The simplex constraint is traded for a penalty: maximising sum_k s_k log(L w)_k - sum(w) over w >= 0 has the
same solution, since scaling w shows that the weights of a maximiser sum to one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import nnls

from vaneb.blocks import BLOCK_CLIENTS, blocks, map_blocks, sum_blocks
from vaneb.likelihood.base import Array, Likelihood
from vaneb.npmle.options import DEFAULT, Options

#: Below every density that matters, above zero.
TINY = 1e-300


class Weights(NamedTuple):
    """Weights over columns and how good they are."""

    weights: Array
    """(m,), non-negative, sum one."""
    gap: float
    """max_j D_j over the given columns; bounds the loss in average log-likelihood."""
    passes: int
    """Passes over the whole matrix."""


def scaled_likelihood(log_likelihood: Array) -> tuple[Array, Array]:
    """exp(l_kj - max_j l_kj), written over its argument, and the row maxima: rows in safe range.

    Scaling a row moves the objective by a constant and leaves D as it is.
    """
    top = log_likelihood.max(axis=1)
    log_likelihood -= top[:, None]
    np.exp(log_likelihood, out=log_likelihood)
    return log_likelihood, top


def likelihood_matrix(
    likelihood: Likelihood, atoms: Array, options: Options = DEFAULT
) -> tuple[Array, Array]:
    """``scaled_likelihood`` of clients and atoms, (K, m), made block by block.

    A large one is kept in single precision, seven digits an entry; sums over clients are taken in double.
    """
    n_clients, m = likelihood.n_clients, len(atoms)
    large = n_clients * m > options.double_entries
    matrix = np.empty((n_clients, m), dtype=np.float32 if large else np.float64)
    top = np.empty(n_clients)

    for rows in blocks(n_clients, 4 * BLOCK_CLIENTS):
        matrix[rows], top[rows] = scaled_likelihood(likelihood.take(rows).log_likelihood(atoms))
    return matrix, top  # type: ignore[return-value]


def npmle_weights(
    likelihood: Array,
    *,
    tol: float = 1e-8,
    start: Array | None = None,
    share: Array | None = None,
    max_passes: int = 200,
) -> Weights:
    """Optimal weights over the columns of ``likelihood``.

    Parameters
    ----------
    likelihood : (K, m)
        Non-negative, every row with a positive entry; see ``scaled_likelihood``.
    tol : float
        Stop when max_j D_j is below.
    start : (m,), optional
        Weights to start from.
    share : (K,), optional
        What share of the whole each client stands for; sums to one.
    """
    share = np.full(len(likelihood), 1 / len(likelihood)) if share is None else share
    if start is not None and start.sum() > 0:
        active = np.flatnonzero(start > 0)
        weights = start[active] / start.sum()
    else:
        active, weights = _first_columns(likelihood, share)
    gap = np.inf
    passes = 0
    while passes < max_passes:
        passes += 1
        # While the active set is still wrong there is no point in solving for it to the last digit.
        inner_tol = max(0.3 * tol, min(1e-2, 0.03 * gap))
        weights, density = restricted_weights(likelihood, active, weights, share, tol=inner_tol)
        gaps = gaps_of_columns(likelihood, density, share)
        gap = float(gaps.max())
        if gap <= tol:
            break
        keep = weights > 0
        active, weights = active[keep], weights[keep]
        # More at once mean fewer passes over L, but larger quadratic programmes.
        entering = _largest(gaps, max(60, len(active) // 4), tol)
        entering = entering[~np.isin(entering, active)]
        if len(entering) == 0:
            if inner_tol <= 0.3 * tol:  # only rounding is left
                break
            continue
        epsilon = _entering_share(density, likelihood[:, entering].mean(axis=1), share)
        active = np.concatenate([active, entering])
        weights = np.concatenate([weights * (1 - epsilon), np.full(len(entering), epsilon / len(entering))])
    out = np.zeros(likelihood.shape[1])
    out[active] = weights
    return Weights(out, gap, passes)


def product(likelihood: Array, vector: Array) -> Array:
    """L v, (K,), in double precision whatever L is kept in."""
    return np.concatenate(list(map_blocks(lambda rows: likelihood[rows] @ vector, len(likelihood))))


def mixture(likelihood: Array, weights: Array) -> Array:
    """f = L w, (K,), at least ``TINY``."""
    return np.maximum(product(likelihood, weights), TINY)


def gaps_of_columns(likelihood: Array, density: Array, share: Array) -> Array:
    """D_j = sum_k s_k L_kj / f_k - 1, (m,)."""
    ratio = share / density
    (total,) = sum_blocks(lambda rows: (ratio[rows] @ likelihood[rows],), len(likelihood))
    return total - 1


def _first_columns(likelihood: Array, share: Array) -> tuple[NDArray[np.intp], Array]:
    """Columns that carry most weight after one EM step from equal weights, and every client's best."""
    m = likelihood.shape[1]
    weights = (gaps_of_columns(likelihood, mixture(likelihood, np.full(m, 1 / m)), share) + 1) / m
    active = np.sort(np.argsort(-weights, kind="stable")[:120])
    covered = likelihood[:, active].max(axis=1) > 0
    if not covered.all():
        active = np.union1d(active, likelihood[~covered].argmax(axis=1))
    weights = weights[active] + TINY
    return active, weights / weights.sum()


def _entering_share(density: Array, entering: Array, share: Array) -> float:
    """The epsilon that maximises sum_k s_k log((1 - epsilon) f_k + epsilon e_k), to a few percent.

    Newton's quadratic model can only double a weight in one step; a column that explains clients which no
    other one does must not start from zero.
    """
    ratio = entering / np.maximum(density, TINY) - 1
    low, high = 0.0, 0.5
    for _ in range(40):
        middle = (low * high) ** 0.5 if low > 0 else high * 1e-3
        if share @ (ratio / (1 + middle * ratio)) > 0:
            low = middle
        else:
            high = middle
        if (low > 0 and high < 1.05 * low) or high < 1e-14:
            break
    return max(low, 1e-14)


def _largest(gaps: Array, count: int, tol: float) -> NDArray[np.intp]:
    """Indices of the largest gaps that matter."""
    candidates = np.flatnonzero(gaps > 0.5 * tol)
    if len(candidates) > count:
        candidates = candidates[np.argpartition(-gaps[candidates], count)[:count]]
    return candidates


@dataclass(frozen=True, eq=False)
class Columns:
    """Some of the columns of L: a copy; of a large L, in single precision, itself and which ones they are."""

    matrix: Array
    which: NDArray[np.intp] | None

    @classmethod
    def of(cls, likelihood: Array, which: NDArray[np.intp]) -> Columns:
        if np.array_equal(which, np.arange(likelihood.shape[1])):
            return cls(likelihood, None)
        return cls(likelihood, which) if likelihood.dtype == np.float32 else cls(likelihood[:, which], None)

    @property
    def count(self) -> int:
        return self.matrix.shape[1] if self.which is None else len(self.which)

    def rows(self, rows: slice | NDArray[np.intp]) -> Array:
        return self.matrix[rows] if self.which is None else self.matrix[rows][:, self.which]

    def times(self, vector: Array) -> Array:
        """L v, (K,), in double precision."""
        if self.which is None:
            return product(self.matrix, vector)
        whole = np.zeros(self.matrix.shape[1])
        whole[self.which] = vector
        return product(self.matrix, whole)

    def only(self, chosen: NDArray[np.bool_]) -> Columns:
        if self.which is not None:
            return Columns(self.matrix, self.which[chosen])
        if self.matrix.dtype == np.float32:
            return Columns(self.matrix, np.flatnonzero(chosen))
        return Columns(self.matrix[:, chosen], None)


def restricted_weights(
    likelihood: Array,
    active: NDArray[np.intp],
    weights: Array,
    share: Array,
    *,
    tol: float,
    max_steps: int = 30,
) -> tuple[Array, Array]:
    """Newton on a few columns: maximise sum_k s_k log f_k - sum(w), f = L w, over w >= 0 on ``active``.

    Returns the weights of ``active`` and f.

    With B = L / f on these columns the model at w has gradient 1 - B's and Hessian B'diag(s)B: each step
    solves that non-negative quadratic programme and searches along the line to its solution.  Columns
    at zero after a step are left out of the next ones; the caller's gap says whether they must come back.
    """
    out = np.zeros(len(active))
    alive = np.arange(len(active))
    columns = Columns.of(likelihood, active)
    density = np.maximum(columns.times(weights), TINY)
    for _ in range(max_steps):
        hessian, mean_ratio = _newton_system(columns, density, share)
        gaps = mean_ratio - 1
        # A column at zero may have a gap far below zero: that is why it is there.
        if np.where(weights > 0, np.abs(gaps), gaps).max() <= tol:
            break
        target = nonnegative_quadratic(hessian, 2 * mean_ratio - 1, weights)
        direction = target - weights
        slope = float(gaps @ direction)
        if slope <= 1e-3 * tol * tol:
            break
        step, gain = _line_search(density, columns.times(direction), direction.sum(), slope, share)
        if gain <= 0:
            break
        weights = np.maximum(weights + step * direction, 0.0)
        if step == 1.0:
            weights[target <= 0] = 0.0
        positive = weights > 0
        if positive.sum() < 0.8 * len(positive):
            alive, weights, columns = alive[positive], weights[positive], columns.only(positive)
        density = np.maximum(columns.times(weights), TINY)
    total = weights.sum()
    out[alive] = weights / total
    return out, density / total


def _newton_system(columns: Columns, density: Array, share: Array) -> tuple[Array, Array]:
    """B'diag(s)B and B's for B = columns / density, without ever holding all of B."""
    root, m = np.sqrt(share), columns.count

    def block(rows: slice) -> tuple[Array, Array]:
        part, scale = columns.rows(rows), root[rows] / density[rows]
        # Entries up to 1e-9 of the density change a step in the ninth digit.  Where most are, as with precise
        # clients, a loop over the others is faster than a product of matrices, if that is large.
        if m > 150 and (part > 1e-9 * density[rows, None]).mean() < 0.15:
            gram, total = np.zeros((m, m)), np.zeros(m)
            _sparse_gram(part, scale, root[rows], gram, total)
            return gram + np.tril(gram, -1).T, total
        # In the precision that the matrix is kept in; sums over blocks are taken in double.
        ratio = part * scale.astype(part.dtype)[:, None]
        return (ratio.T @ ratio).astype(np.float64), root[rows] @ ratio

    hessian, total = sum_blocks(block, len(density))
    return hessian, total


@njit(cache=True, nogil=True)
def _sparse_gram(columns, scale, root, gram, total):
    """Add B'B to ``gram`` (m, m), lower triangle, and B'r to ``total`` (m,) for B_kj = L_kj c_k.

    ``columns`` is L (K, m), ``scale`` c (K,), ``root`` r (K,).  Entries of B up to 1e-9 r_k are left out of
    B'B only.
    """
    n_rows, m = columns.shape
    where, value = np.empty(m, dtype=np.int64), np.empty(m)
    for k in range(n_rows):
        row, factor_k, smallest = columns[k], scale[k], 1e-9 * root[k]
        count = 0
        for j in range(m):
            entry = row[j] * factor_k
            total[j] += entry * root[k]
            if entry > smallest:
                where[count], value[count] = j, entry
                count += 1
        for a in range(count):
            target, factor = gram[where[a]], value[a]
            for b in range(a + 1):
                target[where[b]] += factor * value[b]


def _line_search(
    density: Array, moved: Array, mass: float, slope: float, share: Array
) -> tuple[float, float]:
    """Largest step 1, 1/2, 1/4, ... with sufficient increase of sum_k s_k log f_k - sum w."""
    step = 1.0
    relative = moved / np.maximum(density, TINY)
    for _ in range(30):
        change = step * relative
        if change.min() > -1:
            gain = float(share @ np.log1p(change) - step * mass)
            if gain >= 1e-4 * step * slope:
                return step, gain
        step *= 0.5
    return 0.0, 0.0


def nonnegative_quadratic(hessian: Array, linear: Array, start: Array) -> Array:
    """min over v >= 0 of v'Hv/2 - b'v for a small positive semidefinite H.

    Block principal pivoting: solve on the set of positive coordinates, then exchange all coordinates that
    violate their sign condition at once, as long as that leaves fewer of them.  Where it does not, only the
    last of them is exchanged until it does (Murty's rule, which cannot go round in circles).  A ridge of
    1e-12 of the mean diagonal keeps nearly equal columns solvable.
    """
    m = len(linear)
    hessian = hessian + (1e-12 * np.trace(hessian) / m) * np.eye(m)
    tolerance = 1e-12 * max(1.0, float(np.abs(linear).max()))
    positive = start > 0
    fewest, patience = m + 1, 3
    solution = np.zeros(m)
    before = _model(hessian, linear, start)
    for exchanges in range(100):
        index = np.flatnonzero(positive)
        solution[:] = 0.0
        solution[index] = _solve_on(hessian, linear, index)
        gradient = linear - hessian @ solution
        wrong = np.where(positive, solution < 0, gradient > tolerance)
        count = int(wrong.sum())
        if count == 0:
            return solution
        if count < fewest:
            fewest, patience = count, 3
        elif patience > 0:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        if exchanges >= 10:  # better than before is good enough for a Newton step
            feasible = np.maximum(solution, 0.0)
            if _model(hessian, linear, feasible) < before:
                return feasible
        positive ^= wrong
    # Lawson and Hanson's scheme for |R v - R^{-T} b|, R'R = H: slow and sure.  Rounding, in single precision
    # above all, may have left H with eigenvalues below zero: these are as uncertain as they are negative.
    values, vectors = np.linalg.eigh(hessian)
    scale = np.sqrt(np.maximum(values, max(1e-12 * values[-1], -2 * values[0])))
    return np.asarray(nnls((vectors * scale).T, (vectors / scale).T @ linear)[0])


def _model(hessian: Array, linear: Array, point: Array) -> float:
    return float(point @ (0.5 * (hessian @ point) - linear))


def _solve_on(hessian: Array, linear: Array, index: NDArray[np.intp]) -> Array:
    if len(index) == 0:
        return np.zeros(0)
    block = hessian[np.ix_(index, index)]
    solution: Array
    try:
        # Symmetric, so that its transpose is in the order of columns that LAPACK would copy it to.
        factor = cho_factor(block.T, lower=True, overwrite_a=True, check_finite=False)
        solution = cho_solve(factor, linear[index], check_finite=False)
    except np.linalg.LinAlgError:
        block = hessian[np.ix_(index, index)]
        solution = np.asarray(np.linalg.lstsq(block, linear[index], rcond=1e-12)[0], dtype=np.float64)
    return solution
