"""The marginal likelihood of clients under a Gaussian population, by Laplace's approximation.

For numbers that all clients share, such as the scatter of counts: local fits are too free to tell it.  In
coordinates phi, theta = B phi, such as those of centred and scaled covariates, the population is
N(mu, diag(s)).  With t_k the likeliest phi of client k and H_k minus the Hessian of its log-likelihood,

    log m = sum_k l_k(t_k) - 1/2 sum_j (t_kj - mu_j)^2 / s_j - 1/2 sum_j log s_j - 1/2 log|H_k + diag(1/s)|.

mu and s come from EM, as the means of t_k and of the second moments about mu.
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
    log_likelihood: float


def laplace(rows: GroupedRows, family: Family, basis: Array, start: Population | None = None) -> Population:
    """The population with the largest marginal likelihood, from ``start`` on if there is one.

    ``basis`` is B (d, d).  The family must have dispersion 1 and an index of one entry.
    """
    rows = replace(rows, design=np.ascontiguousarray(rows.design @ basis))
    objective = family.objective(rows)
    constant = float(family.log_constant(rows.response, rows.weight).sum())
    if start is None:
        pooled = minimise(family.pooled_objective(rows)).theta[0]
        d = len(pooled)
        none: Array = np.zeros((0, d, d), dtype=np.float64)
        start = Population(pooled, np.full(d, START**2), np.tile(pooled, (rows.n_clients, 1)), none, -np.inf)
    mean, variances, modes = start.mean, start.variances, start.modes
    before = -np.inf
    for _ in range(STEPS):
        found = minimise(Penalised(objective, mean, np.diag(1 / variances)), start=modes)
        modes = found.theta
        log_determinant = np.linalg.slogdet(found.hessian)[1].sum() + len(modes) * np.log(variances).sum()
        log_likelihood = constant - float(found.value.sum()) - 0.5 * log_determinant
        covariance = np.linalg.inv(found.hessian)
        if log_likelihood < before + SETTLED:
            break
        before = log_likelihood
        mean = modes.mean(axis=0)
        spread = np.diagonal(covariance, axis1=1, axis2=2) + (modes - mean) ** 2
        variances = np.maximum(spread.mean(axis=0), SMALLEST**2)
    return Population(mean, variances, modes, covariance, log_likelihood)
