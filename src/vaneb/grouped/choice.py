"""Candidates for what differs between clients: nothing, the intercept, or all; independently or correlated.

Each candidate is a Gaussian population, fitted by ``mixed_model``, and what it needs of the rows: sums for
least squares, and for other families sums as well, once every row is seen through a Gaussian factor of its
index e,

    exp(-loss(e)) ~ exp(c + n e - t e^2 / 2).

The factor is chosen so that it does to what all other rows say of e what the row itself does: the same mean
and variance (expectation propagation).  With the constants c the candidates' likelihoods can be compared, and
``gaussian_posterior`` averages over them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.grouped import mixed_kernels as kernels
from vaneb.grouped.mixed_model import MOST, Centred, MixedModel, Moments, fit_moments, posterior_means
from vaneb.likelihood.base import Array
from vaneb.local.client_sums import outer_sums
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family

Index = NDArray[np.intp]

#: Rounds in which clients that are not Gaussian are seen through a Gaussian, and when they have settled.
ROUNDS, SETTLED = 15, 1e-3
#: How far a client may move in one round, in a coordinate: the index is logarithmic, and e^50 is no count.
FARTHEST = 1.0
#: Weak prior of the standard deviations on the scale of the index, for data in which responses are all alike.
WIDEST = 5.0
#: Slopes of which each is a candidate by itself, at most.
FEW = 4
#: Points of the quadrature along a row's index, and the share of a change that is made in one round.
NODES, STEP = 15, 0.8


class Fitted(NamedTuple):
    """A Gaussian population in coordinates phi, and the clients as it sees them."""

    model: MixedModel
    moments: Moments
    points: Array
    """Posterior means, (K, d)."""
    centre: Array
    """What ``moments`` are about, (d,)."""
    correlated: bool = True
    constant: float = 0.0
    """Of the log-likelihood: what is not in the moments."""
    sites: tuple[Array, Array] | None = None
    """t and n of the rows' factors, (N,) each."""
    freedom: float = 0.0
    """Effective number of coefficients: what the rows' indices know of their own responses."""


def enough_clients(r: int, n_clients: int) -> bool:
    """Can clients tell the r (r + 1) / 2 variances and covariances of r coefficients?"""
    return n_clients > r * (r + 1) // 2 + 2


def fit_least_squares(centred: Centred, varying: Index, correlated: bool = True) -> Fitted:
    """Rows of least squares."""
    moments = centred.moments
    correlated = correlated and enough_clients(len(varying), len(moments.cross))
    model = centred.model(varying, correlated=correlated)
    points = centred.pooled + posterior_means(moments, model.varying, model.root, model.mean - centred.pooled)
    return Fitted(model, moments, points, centred.pooled, correlated)


def fit_others(
    rows: GroupedRows,
    family: Family,
    basis: Array,
    varying: Index,
    start: Array,
    correlated: bool = True,
    last: Fitted | None = None,
) -> Fitted:
    """Rows of any family.

    ``start`` (d,): where all clients are seen from at first; ``last``: the candidate before, whose factors
    are near those of this one.
    """
    correlated = correlated and enough_clients(len(varying), rows.n_clients)
    if family.n_index > 1:
        return _by_expansion(rows, family, basis, varying, start, correlated)
    design = np.ascontiguousarray(rows.design @ basis)
    index, sites, fitted = design @ start, None, last
    if last is not None and last.sites is not None:
        index, sites = np.einsum("np,np->n", design, last.points[rows.client_of_row]), last.sites
    root = inverse = None

    def look(t: Array, n: Array) -> tuple[Array, Array]:
        nonlocal fitted, root, inverse
        gram = outer_sums(design * np.sqrt(t)[:, None], rows.starts)
        cross = np.add.reduceat(design * n[:, None], rows.starts[:-1], axis=0)
        moments = Moments(gram, cross, penalty=WIDEST**-2)
        model = fit_moments(
            moments, varying, correlated=correlated, start=root, tolerance=1e-3, inverse=inverse
        )
        root, inverse = _off_zero(model.root), model.curvature
        points = posterior_means(moments, varying, model.root, model.mean)
        fitted = Fitted(model, moments, points, np.zeros(len(start)), correlated)
        found = np.einsum("np,np->n", design, points[rows.client_of_row])
        return found, kernels.index_variances(design, rows.starts, gram, varying, model.root, model.inverse)

    factors = row_factors(rows, family, index, look, sites)
    assert fitted is not None
    return fitted._replace(constant=factors.constant, sites=factors.sites, freedom=factors.freedom)


def _off_zero(root: Array) -> Array:
    """The gradient vanishes where a column of L does."""
    return np.where(np.abs(root) > 1e-3, root, 1e-3 * np.eye(len(root)))


class RowFactors(NamedTuple):
    """The Gaussian factors of rows."""

    sites: tuple[Array, Array]
    """t and n, (N,) each."""
    constant: float
    """Sum of the c."""
    at: Array
    """Where the rows' indices are, offset left out, (N,)."""
    variance: Array
    """Their posterior variances, (N,)."""

    @property
    def freedom(self) -> float:
        """What the rows' indices know of their own responses, in coefficients."""
        return float(self.sites[0] @ self.variance)


def row_factors(
    rows: GroupedRows,
    family: Family,
    index: Array,
    look: Callable[[Array, Array], tuple[Array, Array]],
    sites: tuple[Array, Array] | None = None,
) -> RowFactors:
    """The factors under a model that says of every index, given t and n, what its mean and variance are.

    ``index`` (N,): where rows are seen from at first, unless ``sites`` are factors to start from.
    """
    scale = rows.weight / family.dispersion
    if sites is None:
        _, first, second = family.derivatives(index + rows.offset, rows.response)
        t = scale * second[:, 0, 0]
        n = t * index - scale * first[:, 0]
    else:
        t, n = sites
    for i in range(ROUNDS):
        found, variance = look(t, n)
        before = index
        index = index + np.clip(found - index, -FARTHEST, FARTHEST)
        floor = np.maximum(variance, 1e-12)
        constant, mean, spread = _tilted(rows, family, index, floor, t, n)
        if i and np.abs(index - before).max() < SETTLED * max(1.0, np.abs(index).max()):
            break
        change = np.maximum(t + STEP * (1 / spread - 1 / floor), 1e-10) - t
        n = n + STEP * (mean / spread - index / floor)
        t = t + change
    return RowFactors((t, n), float(constant.sum()), index, floor)


def evidence(rows: GroupedRows, family: Family, factors: RowFactors) -> float:
    """log of the likelihood of rows, but for what does not depend on the family's numbers.

    Where its derivative in these is zero, so is that of the whole likelihood.
    """
    constant, _, _ = _tilted(rows, family, factors.at, factors.variance, *factors.sites)
    return float(constant.sum() + family.log_constant(rows.response, rows.weight).sum())


def _tilted(
    rows: GroupedRows, family: Family, index: Array, variance: Array, t: Array, n: Array
) -> tuple[Array, Array, Array]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return kernels.tilted(
        family.losses.values, family.parameter, rows.response, rows.offset, rows.weight / family.dispersion,
        index, variance, t, n, nodes, np.log(weights / weights.sum()),
    )  # fmt: skip


def _by_expansion(
    rows: GroupedRows, family: Family, basis: Array, varying: Index, start: Array, correlated: bool
) -> Fitted:
    """Indices of several entries: each client seen through the Gaussian that touches its likelihood where the
    last round put the client."""
    objective, everyone = family.objective(rows), np.arange(rows.n_clients)
    points, root = np.tile(start, (rows.n_clients, 1)), None
    for i in range(ROUNDS):
        loss, gradient, hessian = objective.terms(points @ basis.T, everyone)
        gram = np.ascontiguousarray(basis.T @ hessian @ basis / family.dispersion)
        slope = gradient @ basis / family.dispersion
        cross = np.einsum("kij,kj->ki", gram, points) - slope
        constant = -loss.sum() / family.dispersion - 0.5 * np.sum((cross - slope) * points)
        moments = Moments(gram, cross, penalty=WIDEST**-2)
        model = fit_moments(moments, varying, correlated=correlated, start=root, tolerance=1e-3)
        root = _off_zero(model.root)
        found = posterior_means(moments, varying, model.root, model.mean)
        step = np.clip(found - points, -FARTHEST, FARTHEST)
        if i and np.abs(step).max() < SETTLED * max(1.0, np.abs(points).max()):
            break
        points = points + step
    return Fitted(model, moments, points, np.zeros(len(start)), correlated, float(constant))


class Candidate(NamedTuple):
    """Coordinates that differ between clients, and whether they are correlated."""

    varying: Index
    correlated: bool


def candidates(
    varying: NDArray[np.bool_],
    intercept: int | None,
    n_index: int,
    of_client: NDArray[np.bool_],
    n_clients: int,
) -> list[Candidate]:
    """Nothing, the intercept, one slope beside it, all that may differ; for every class the same.

    Columns ``of_client`` are constant within clients: if they may differ they do so with the intercept.
    """
    p = len(varying)
    of_intercept = np.zeros(p, dtype=bool)
    if intercept is not None and varying[intercept]:
        of_intercept = (np.arange(p) == intercept) | (of_client & varying)
    sets = [np.zeros(p, dtype=bool), of_intercept]
    slopes = np.flatnonzero(varying & ~of_intercept)
    if of_intercept.any() and 1 < len(slopes) <= FEW:
        sets += [of_intercept | (np.arange(p) == one) for one in slopes]
    if varying.sum() <= MOST:
        sets.append(varying)
    found = []
    for one in np.unique(sets, axis=0):
        at = np.flatnonzero(np.tile(one, n_index))
        found.append(Candidate(at, False))
        if len(at) > 1 and enough_clients(len(at), n_clients):
            found.append(Candidate(at, True))
    return sorted(found, key=lambda one: len(one.varying))
