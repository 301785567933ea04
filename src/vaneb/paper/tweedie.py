"""The generalised Tweedie formula, and the same kept from dividing by a density that is too small.

In the paper's units x_k = sqrt(n_k) theta_hat_k,

    theta_k = x_k / sqrt(n_k) + q_k / (sqrt(n_k) max(f_k, rho)),
    q_k     = integral of p_k(x_k; theta) (sqrt(n_k) theta - x_k) dG(theta),

and q_k / (sqrt(n_k) f_k) is the posterior mean less the estimate.  So the regularised rule is

    theta_k = theta_hat_k + (E[theta | x_k] - theta_hat_k) f_k / max(f_k, rho):

a client whom the prior hardly explains keeps nearly its own estimate.  Densities here are those of
theta_hat_k, n_k^{d/2} times those of x_k, and rho with them: it differs from client to client.
"""

from __future__ import annotations

import math

import numpy as np

from vaneb.likelihood.base import Array
from vaneb.theory import CovarianceBounds, likelihood_floor


def rho(bounds: CovarianceBounds, n: Array, dimension: int) -> Array:
    """rho_k = (2 pi S / n_k)^{-d/2} / (e^{1 + 8/s} K), equation eq:rho, for each of K clients: (K,).

    s and S bound the eigenvalues of all Sigma_k(theta); see ``vaneb.theory.covariance_bounds``.  Below the
    floor ``vaneb.theory.likelihood_floor`` of f_k under an exact NPMLE, for which the rule changes nothing.
    With a small s it is zero to all digits.
    """
    return likelihood_floor(bounds, n, dimension) * math.exp(-8 / bounds.lower)


def regularised(estimates: Array, mean: Array, log_marginal: Array, rho: Array | float) -> Array:
    """theta_hat_k + (mean_k - theta_hat_k) f_k / max(f_k, rho_k), (K, d), from log f_k (K,)."""
    with np.errstate(divide="ignore"):  # log 0: nothing is regularised
        kept = np.exp(np.minimum(log_marginal - np.log(rho), 0.0))
    return estimates + (mean - estimates) * kept[:, None]
