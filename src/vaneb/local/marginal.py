"""The marginal likelihood of clients under a Gaussian population, by Laplace's approximation.

For numbers that all clients share, such as the scatter of counts: local fits are too free to tell it.  In
coordinates phi, theta = B phi, such as those of centred and scaled covariates, the population is
N(mu, diag(s)).  With t_k the likeliest phi of client k and H_k minus the Hessian of its log-likelihood,

    log m = sum_k l_k(t_k) - 1/2 sum_j (t_kj - mu_j)^2 / s_j - 1/2 sum_j log s_j - 1/2 log|H_k + diag(1/s)|.

s comes from EM, as the mean of second moments about mu.  mu takes Newton's steps, with P = diag(1/s) and
W_k = P - P (H_k + P)^{-1} P the precision of what client k says of it:

    mu += (sum_k W_k)^{-1} sum_k P (t_k - mu).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family
from vaneb.local.solver import Penalised, minimise

Array = NDArray[np.float64]

#: EM ends when the log-likelihood rises by less than this, or after so many steps.
SETTLED, STEPS = 0.01, 100
#: Smallest standard deviation of a coordinate of the population: differences of this size do not matter.
SMALLEST = 1e-3
START = 0.3


@dataclass(frozen=True, eq=False)
class Population:
    """A Gaussian population with its clients, in coordinates phi."""

    mean: Array
    """mu, (d,)"""
    variances: Array
    """s, (d,)"""
    modes: Array
    """t_k, (K, d)"""
    covariance: Array
    """(H_k + diag(1/s))^{-1}, (K, d, d)"""
    information: Array
    """Of mu, (d, d)."""
    varying: NDArray[np.bool_]
    """Coordinates in which clients differ, (d,)."""
    log_likelihood: float


def laplace(
    rows: GroupedRows,
    family: Family,
    basis: Array,
    start: Population | None = None,
    *,
    varying: NDArray[np.bool_] | None = None,
) -> Population:
    """The population with the largest marginal likelihood, from ``start`` on if there is one.

    ``basis`` is B (d, d); ``varying`` (d,) says in which coordinates clients differ, all unless told.  The
    family must have dispersion 1 and an index of one entry.
    """
    rows = replace(rows, design=np.ascontiguousarray(rows.design @ basis))
    objective, d = family.objective(rows), rows.design.shape[1]
    constant = float(family.log_constant(rows.response, rows.weight).sum())
    differ = np.ones(d, dtype=bool) if varying is None else varying
    if start is None:
        mean = minimise(family.pooled_objective(rows)).theta[0]
        variances, modes = np.full(d, START**2), np.tile(mean, (rows.n_clients, 1))
    else:
        mean, variances, modes = start.mean, start.variances, start.modes
    variances = np.where(differ, variances, SMALLEST**2)
    before = -np.inf
    for _ in range(STEPS):
        precision = np.diag(1 / variances)
        found = minimise(Penalised(objective, mean, precision), start=modes)
        modes = found.theta
        covariance: Array = np.linalg.inv(found.hessian).astype(np.float64)
        log_determinant = np.linalg.slogdet(found.hessian)[1].sum() + len(modes) * np.log(variances).sum()
        log_likelihood = constant - float(found.loss.sum()) - 0.5 * log_determinant
        known = (precision - precision @ covariance @ precision).sum(axis=0)
        if log_likelihood < before + SETTLED:
            break
        before = log_likelihood
        spread = np.diagonal(covariance, axis1=1, axis2=2) + (modes - mean) ** 2
        mean = mean + np.linalg.solve(known, precision @ (modes - mean).sum(axis=0))
        variances = np.where(differ, np.maximum(spread.mean(axis=0), SMALLEST**2), SMALLEST**2)
    return Population(mean, variances, modes, covariance, known, differ, log_likelihood)


def chosen(rows: GroupedRows, family: Family, basis: Array, sets: list[NDArray[np.bool_]]) -> Population:
    """Clients that differ in one of ``sets`` of coordinates: the smallest -2 log m + 2 (number of variances).

    Of sets that are as good as each other, the first.
    """
    found = [laplace(rows, family, basis, varying=varying) for varying in sets]
    return min(found, key=lambda one: 2 * int(one.varying.sum()) - 2 * one.log_likelihood)
