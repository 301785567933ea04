"""The paper's Algorithm 1: atoms at the estimates, NPMLE weights, then pseudo-EM.

One iteration, for all atoms together (responsibilities normalise over atoms):

    r_kj  proportional to  w_j p_k(a_j)
    a_j   <-  [sum_k r_kj P_k(a_j)]^{-1} sum_k r_kj P_k(a_j) theta_hat_k
          =   a_j + [sum_k r_kj P_k(a_j)]^{-1} sum_k r_kj P_k(a_j) (theta_hat_k - a_j)
    w_j   <-  (1/K) sum_k r_kj

with P_k(a) = n_k Sigma_k(a)^{-1} taken at the atom's present place ("atom-covariance coupling").  The
step ignores that Sigma_k moves with the atom, so its fixed points are not roots of the exact score
(``vaneb.theory.fixed_points`` says how far they can be).
"""

from __future__ import annotations

import numpy as np

from vaneb.likelihood.base import Array, Likelihood, log_of
from vaneb.npmle.fit import Fit, Progress, Step, log_mixture
from vaneb.npmle.options import DEFAULT, Options
from vaneb.npmle.search import certify
from vaneb.npmle.support import covering_subset
from vaneb.npmle.weights import npmle_weights, scaled_likelihood
from vaneb.semidefinite import solve_ridged

#: What keeps rounding from singular information, relative to its diagonal.
RIDGE = 1e-13


def pseudo_em(
    likelihood: Likelihood, atoms: Array, weights: Array, iterations: int
) -> tuple[Array, Array, tuple[Step, ...]]:
    """``iterations`` steps of pseudo-EM from given atoms (m, d) and weights (m,)."""
    trace = []
    for _ in range(iterations):
        density, sums = likelihood.expectation(atoms, log_of(weights))
        trace.append(Step(float(density.mean()), len(atoms), float("nan")))
        atoms = atoms + solve_ridged(sums.information, sums.gradient, RIDGE)
        # sum_k r_kj / K = w_j sum_k p_k(a_j) / (K f_k)
        weights = weights * sums.value
        weights = weights / weights.sum()
    return atoms, weights, tuple(trace)


def algorithm_1(
    likelihood: Likelihood,
    *,
    iterations: int = 50,
    tol: float = 1e-4,
    rng: np.random.Generator | None = None,
    progress: Progress | None = None,
    options: Options = DEFAULT,
) -> Fit:
    """Algorithm 1 as the paper has it, from the estimates of all clients (a covering subset of very many).

    Atoms whose NPMLE weight is zero can never come back under pseudo-EM and are dropped at once.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    candidates = likelihood.starts()
    atoms = candidates[covering_subset(candidates, options.estimates, rng)]
    if progress is not None:
        progress("weights over the estimates", 1, 3)
    matrix, _ = scaled_likelihood(likelihood.log_likelihood(atoms))
    weights = npmle_weights(matrix, tol=0.1 * tol).weights
    keep = weights > 0
    if progress is not None:
        progress("pseudo-EM", 2, 3)
    atoms, weights, trace = pseudo_em(likelihood, atoms[keep], weights[keep], iterations)
    density = log_mixture(likelihood, atoms, weights)
    certificate = certify(likelihood, atoms, weights, rng, tol=tol, options=options)
    last = Step(float(density.mean()), len(atoms), certificate.gap)
    return Fit(atoms, weights, certificate, (*trace, last), float(density.mean()))
