"""What paper mode takes from the rest of the library: every such import is here, and nowhere else.

The paper's method needs little: clients as a likelihood of atoms, the convex solve for weights, the
quantities of the theory, and the plumbing that all estimators share.
"""

from __future__ import annotations

from vaneb.blocks import map_blocks, one_blas_thread
from vaneb.errors import InvalidOption
from vaneb.estimators import AdaMix, Estimator, FedAvg, Local, as_likelihood, fixed_covariance
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.npmle.weights import likelihood_matrix, npmle_weights
from vaneb.reports import Reports
from vaneb.semidefinite import solve_ridged
from vaneb.theory import (
    CovarianceBounds,
    contraction,
    covariance_bounds,
    discretisation_bound,
    distance_to_estimates,
    frozen_map,
    largest_spacing,
    likelihood_floor,
    score_root_bound,
    shares,
    support_radius,
)

__all__ = [
    "AdaMix",
    "Array",
    "CovarianceBounds",
    "Estimator",
    "FedAvg",
    "InvalidOption",
    "Likelihood",
    "Local",
    "Reports",
    "as_likelihood",
    "contraction",
    "covariance_bounds",
    "discretisation_bound",
    "distance_to_estimates",
    "fixed_covariance",
    "frozen_map",
    "largest_spacing",
    "likelihood_floor",
    "likelihood_matrix",
    "map_blocks",
    "npmle_weights",
    "one_blas_thread",
    "score_root_bound",
    "shares",
    "solve_ridged",
    "support_radius",
]
