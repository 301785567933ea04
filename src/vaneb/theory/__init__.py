"""Theoretical quantities of the method as plain functions, each with its equation.

What a certificate, a grid, a fixed point or a sample size can promise.  Most need three constants of the
covariance functions, which ``covariance_bounds`` measures over a set of points:

    s I <= Sigma_k(theta) <= S I   (``lower``, ``upper``; tau = S / s),
    Sigma_k and log Sigma_k Lipschitz with constant L   (``lipschitz``).

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
    discretisation_bound,
    gap,
    largest_spacing,
)
from vaneb.theory.risk import (
    Estimate,
    Risk,
    average_hellinger,
    prior_information,
    risk_decomposition,
    van_trees_bounds,
)

__all__ = [
    "Contraction",
    "CovarianceBounds",
    "Estimate",
    "Risk",
    "ScoreRootBound",
    "SettledPoints",
    "average_hellinger",
    "contraction",
    "covariance_bounds",
    "discretisation_bound",
    "distance_to_estimates",
    "frozen_map",
    "gap",
    "geometric_median",
    "largest_spacing",
    "likelihood_floor",
    "prior_information",
    "ridgeline_point",
    "risk_decomposition",
    "score_root_bound",
    "settled_points",
    "shares",
    "support_radius",
    "van_trees_bounds",
]
