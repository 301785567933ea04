"""Which coefficients differ between clients?

A population in which all d coefficients differ has d (d + 1) / 2 variances and covariances.  Where some
coefficients are the same everywhere, or clients are few, they cost more in prediction than they bring.  So
populations of growing size are compared: only the intercept differs; it and the coefficient that differs
most; and so on.  The choice (``choose``) has the smallest

    -2 log-likelihood + p + p (p + 1) / (K - p - 2),

p the number of free entries and K the number of clients: half the penalty of AICc.  A variance that is zero
is estimated as zero every second time, so an entry too many raises the likelihood half as much as an
ordinary parameter would, and costs half as much in prediction.

That is for least squares, where the covariance of all coefficients is what a user of a mixed model expects,
and seldom predicts worse.  For other families, and where clients are fewer than entries, it often predicts
much worse: there the candidates are averaged (``averaged``).

Coefficients are compared in coordinates phi, theta = B phi, of covariates that are centred and scaled: those
of the intercept at an average row, and of changes by a standard deviation.  So neither the units nor the zero
of a covariate has a say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.likelihood.loss_sums import Columns
from vaneb.local.objective import Array

Free = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A population that was fitted, in coordinates phi."""

    mean: Array
    """(d,)"""
    spread: Array
    """(d, d)"""
    log_likelihood: float
    """Sum over clients."""
    free: Free
    """Entries of a lower triangular root of ``spread`` that were free, (d, d)."""


class Averaged(NamedTuple):
    """Mean (d,) and covariance (d, d) averaged over candidates, and the candidate of the largest weight."""

    mean: Array
    spread: Array
    best: Candidate


#: A candidate whose criterion is larger than the best by this much has no part in an average.
NO_WEIGHT = 10.0
#: A population in which fewer coefficients differ must be better than the largest one by this much.
LEAD = 4.0

#: Fits a population with given free entries, from another one on if there is one.
Fit = Callable[[Free, Candidate | None], Candidate]


def centred_basis(columns: Columns) -> tuple[Array, int | None]:
    """B (p, p), and the position of the constant column if there is one.

    B phi are the coefficients of the design's columns if phi are those of the centred and scaled ones.
    """
    mean, spread = columns.mean, columns.scale
    constant = np.flatnonzero((spread == 0) & (mean != 0))
    one = int(constant[0]) if constant.size else -1
    scale = spread if constant.size else np.hypot(mean, spread)
    basis = np.diag(1 / np.where(scale > 1e-12 * np.abs(mean), scale, 1.0))
    if one < 0:
        return basis, None
    basis[one, one] = 1 / mean[one]
    varying = (np.arange(len(mean)) != one) & (spread > 0)
    basis[one, varying] = -mean[varying] * np.diagonal(basis)[varying] / mean[one]
    return basis, one


def choose(fit: Fit, terms: list[NDArray[np.intp]], always: int | None, n_clients: int) -> Candidate:
    """The candidate with the smallest criterion; a small lead over the largest one does not count.

    Parameters
    ----------
    fit : fits one candidate
    terms : coordinates that belong together (those of one column for all classes); most often one each
    always : position in ``terms`` of the one that differs in all candidates: the intercept
    n_clients : K
    """
    d = sum(len(term) for term in terms)
    if d == 1:
        return fit(np.ones((1, 1), dtype=bool), None)
    diagonal = fit(np.eye(d, dtype=bool), None)
    everything = np.tri(d, dtype=bool)
    best = fit(everything, diagonal)
    best_score = _criterion(best, n_clients) - LEAD
    variances = np.diagonal(diagonal.spread)
    size = np.array([variances[term].sum() for term in terms])
    if always is not None:
        size[always] = np.inf
    order = np.argsort(-size, kind="stable")
    before, scores = diagonal, list[float]()
    for count in range(1 if always is not None else 0, len(terms)):
        inside = np.zeros(d, dtype=bool)
        inside[[i for j in order[:count] for i in terms[j]]] = True
        free = everything & inside[:, None] & inside[None, :]
        if not np.isfinite(_penalty(free, n_clients)):
            break
        before = fit(free, before)
        scores.append(_criterion(before, n_clients))
        if scores[-1] < best_score:
            best, best_score = before, scores[-1]
        if len(scores) > 2 and min(scores[:-2]) < min(scores[-2:]):
            break
    return best


def enough_clients(d: int, n_clients: int) -> bool:
    """Can the covariance of all d coefficients be one of the candidates?"""
    return bool(np.isfinite(_penalty(np.tri(d, dtype=bool), n_clients)))


def averaged(fit: Fit, terms: list[NDArray[np.intp]], always: int | None, n_clients: int) -> Averaged:
    """Candidates averaged with Akaike weights, exp(-AICc / 2) normalised.

    The mean and the covariance are those of the candidates, averaged: a choice would jump where two
    candidates are about as good.  The coefficients that differ may be correlated or independent.  Larger
    candidates are left out when two sizes in a row have no weight.  Parameters are those of ``choose``.
    """
    d = sum(len(term) for term in terms)
    everything = np.tri(d, dtype=bool)
    diagonal = fit(np.eye(d, dtype=bool), None)
    variances = np.diagonal(diagonal.spread)
    size = np.array([variances[term].sum() for term in terms])
    if always is not None:
        size[always] = np.inf
    order = np.argsort(-size, kind="stable")
    found, scores, before = list[Candidate](), list[float](), diagonal
    for count in range(1, len(terms) + 1):
        inside = np.zeros(d, dtype=bool)
        inside[[i for j in order[:count] for i in terms[j]]] = True
        independent, correlated = np.diag(inside), everything & inside[:, None] & inside[None, :]
        if not np.isfinite(_penalty(independent, n_clients)) and found:
            break
        found.append(diagonal if inside.all() else fit(independent, diagonal))
        if inside.sum() > 1 and np.isfinite(_penalty(correlated, n_clients)):
            before = fit(correlated, before)
            found.append(before)
        scores = [-2 * one.log_likelihood + 2 * _penalty(one.free, n_clients) for one in found]
        if count > 2 and min(scores[-4:]) > min(scores) + NO_WEIGHT:
            break
    if not np.isfinite(scores).any():
        # Clients are too few for any: the smallest candidate is all there is.
        found, scores = found[:1], [0.0]
    weights = np.exp(-(np.array(scores) - min(scores)) / 2)
    weights /= weights.sum()
    mean = np.sum([w * c.mean for w, c in zip(weights, found, strict=True)], axis=0)
    spread = np.sum([w * c.spread for w, c in zip(weights, found, strict=True)], axis=0)
    return Averaged(mean, spread, found[int(np.argmax(weights))])


def _penalty(free: Free, n_clients: int) -> float:
    p = int(free.sum())
    left = n_clients - 2 - p
    return p * (1 + (p + 1) / left) if left > 0 else np.inf


def _criterion(candidate: Candidate, n_clients: int) -> float:
    return -2 * candidate.log_likelihood + _penalty(candidate.free, n_clients)
