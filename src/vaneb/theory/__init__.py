"""Theoretical quantities of the method as plain functions, each with its equation.

What a certificate, a grid, a fixed point or a sample size can promise.  Most need three constants of the
covariance functions, which ``covariance_bounds`` measures over a set of points:

    s I <= Sigma_k(theta) <= S I   (``lower``, ``upper``; tau = S / s),
    Sigma_k and log Sigma_k Lipschitz with constant L   (``lipschitz``).

Rates hold up to constants that the theory leaves unnamed; functions that return a rate say so.

Letters: K clients, m atoms, d parameters, n_k rows; theta_hat_k the estimates; w_kj the share of client k
in atom j, sum_k w_kj = 1.
"""

from __future__ import annotations

from vaneb.theory.bounds import (
    CovarianceBounds,
    covariance_bounds,
    distance_to_estimates,
    likelihood_floor,
    support_radius,
)
from vaneb.theory.fixed_points import (
    Contraction,
    ScoreRootBound,
    SettledPoints,
    contraction,
    frozen_map,
    geometric_median,
    ridgeline_point,
    score_root_bound,
    settled_points,
    shares,
)
from vaneb.theory.optimality import (
    GridBudget,
    discretisation_bound,
    discretisation_budget,
    gap,
    largest_spacing,
)
from vaneb.theory.risk import (
    Estimate,
    Risk,
    average_hellinger,
    denoising_rate,
    denoising_rate_of,
    hellinger_rate,
    prior_information,
    risk_decomposition,
    smallest_enlargement,
    tail_term,
    van_trees_bounds,
)

__all__ = [
    "Contraction",
    "CovarianceBounds",
    "Estimate",
    "GridBudget",
    "Risk",
    "ScoreRootBound",
    "SettledPoints",
    "average_hellinger",
    "contraction",
    "covariance_bounds",
    "denoising_rate",
    "denoising_rate_of",
    "discretisation_bound",
    "discretisation_budget",
    "distance_to_estimates",
    "frozen_map",
    "gap",
    "geometric_median",
    "hellinger_rate",
    "largest_spacing",
    "likelihood_floor",
    "prior_information",
    "ridgeline_point",
    "risk_decomposition",
    "score_root_bound",
    "settled_points",
    "shares",
    "smallest_enlargement",
    "support_radius",
    "tail_term",
    "van_trees_bounds",
]
