"""Which coefficients differ between clients: none, the intercept, or all, whichever predicts rows best.

Each candidate is a Gaussian population, fitted by ``mixed_model``.  It is judged by how well it predicts each
row from all others.  No row has to be left out for that: with e and v the posterior mean and variance of the
row's index, and l', l'' the derivatives of its loss at e,

    v_without = v / (1 - l'' v),        e_without = e + l' v_without

are what they would be without the row; exact for least squares, where it is the formula of PRESS.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.grouped import mixed_kernels as kernels
from vaneb.grouped.mixed_model import MOST, Centred, MixedModel, Moments, fit_moments
from vaneb.likelihood.seam import Array
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family

Index = NDArray[np.intp]

#: Rounds in which clients that are not Gaussian are seen through a Gaussian, and when they have settled.
ROUNDS, SETTLED = 15, 1e-3
#: How far a client may move in one round, in a coordinate: the index is logarithmic, and e^50 is no count.
FARTHEST = 1.0
#: Weak prior of the standard deviations on the scale of the index, for data in which responses are all alike.
WIDEST = 5.0
#: A row may take away at most this share of what is known of its index.
LEVERAGE = 0.999


class Fitted(NamedTuple):
    """A Gaussian population in coordinates phi, and the clients as it sees them."""

    model: MixedModel
    moments: Moments
    points: Array
    """Posterior means, (K, d)."""
    centre: Array
    """What ``moments`` are about, (d,)."""


def enough_clients(r: int, n_clients: int) -> bool:
    """Can clients tell the r (r + 1) / 2 variances and covariances of r coefficients?"""
    return n_clients > r * (r + 1) // 2 + 2


def fit_least_squares(centred: Centred, varying: Index, *, restricted: bool = True) -> Fitted:
    """Rows of least squares."""
    moments = centred.moments
    correlated = enough_clients(len(varying), len(moments.cross))
    model = centred.model(varying, correlated=correlated, restricted=restricted)
    points = centred.pooled + kernels.posterior_means(
        moments.gram, moments.cross, model.varying, model.root, model.mean - centred.pooled
    )
    return Fitted(model, moments, points, centred.pooled)


def fit_others(rows: GroupedRows, family: Family, basis: Array, varying: Index, start: Array) -> Fitted:
    """Rows of any family, each client seen through the Gaussian that touches its likelihood where the last
    round put the client.

    ``start`` (d,): where all clients are seen from at first.
    """
    objective, everyone = family.objective(rows), np.arange(rows.n_clients)
    points, root = np.tile(start, (rows.n_clients, 1)), None
    correlated = enough_clients(len(varying), rows.n_clients)
    for i in range(ROUNDS):
        _, gradient, hessian = objective.terms(points @ basis.T, everyone)
        gram = np.ascontiguousarray(basis.T @ hessian @ basis / family.dispersion)
        cross = np.einsum("kij,kj->ki", gram, points) - gradient @ basis / family.dispersion
        moments = Moments(gram, cross, penalty=WIDEST**-2)
        model = fit_moments(moments, varying, correlated=correlated, start=root)
        root = np.where(np.abs(model.root) > 1e-3, model.root, 1e-3 * np.eye(len(varying)))
        found = kernels.posterior_means(gram, moments.cross, varying, model.root, model.mean)
        step = np.clip(found - points, -FARTHEST, FARTHEST)
        points = points + step
        if i and np.abs(step).max() < SETTLED * max(1.0, np.abs(points).max()):
            break
    return Fitted(model, moments, points, np.zeros(len(start)))


def features_of(family: Family, design: Array, basis: Array) -> Array:
    """Of each row (N, C, d): its C indices are these times phi."""
    p = design.shape[1]
    columns = design @ basis[:p, :p]
    out = np.zeros((len(design), family.n_index, family.n_index * p))
    for c in range(family.n_index):
        out[:, c, c * p : (c + 1) * p] = columns
    return out


def left_out_responses(rows: GroupedRows, family: Family, features: Array, fitted: Fitted) -> Array:
    """Each row's response as all other rows predict it, (N,) or (N, classes)."""
    model = fitted.model
    variance = model.variance * kernels.index_variances(
        features, rows.starts, fitted.moments.gram, model.varying, model.root, model.inverse
    )
    index = np.einsum("ncd,nd->nc", features, fitted.points[rows.client_of_row]) + rows.offset[:, None]
    _, first, second = family.derivatives(index, rows.response)
    scale = rows.weight / family.dispersion
    first, second = first * scale[:, None], second * scale[:, None, None]
    if index.shape[1] == 1:
        share = np.minimum(second * variance, LEVERAGE)
        without = variance / (1 - share)
    else:
        share = np.einsum("nab,nbc->nac", variance, second)
        without = np.linalg.solve(np.eye(index.shape[1]) - LEVERAGE * share, variance)
    index = index + np.einsum("nab,nb->na", without, first)
    with np.errstate(over="ignore"):
        return family.average(index, without)


def candidates(
    varying: NDArray[np.bool_], intercept: int | None, n_index: int, of_client: NDArray[np.bool_]
) -> list[Index]:
    """Coordinates that differ between clients, from none to all that may; for every class the same.

    Columns ``of_client`` are constant within clients: if they may differ they do so with the intercept.
    """
    p = len(varying)
    sets = [np.zeros(p, dtype=bool)]
    if intercept is not None and varying[intercept]:
        sets.append((np.arange(p) == intercept) | (of_client & varying))
    if varying.sum() <= MOST and not any(np.array_equal(varying, one) for one in sets):
        sets.append(varying)
    return [np.flatnonzero(np.tile(one, n_index)) for one in sets]
