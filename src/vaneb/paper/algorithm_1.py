"""Algorithm 1, line by line.

    a_j, j = 1..m   <-  theta_hat_k, k = 1..K                  every estimate is an atom
    w               <-  the weights it starts from             ``starting_weights``
    S times:
      r_kj          proportional to  w_j p_k(a_j)              E-step, normalised over atoms
      a_j           <-  [sum_k r_kj P_k(a_j)]^{-1} sum_k r_kj P_k(a_j) theta_hat_k       M-step
      P_k(a_j)      =   n_k Sigma_k(a_j)^{-1} at the new a_j   atom-covariance coupling
      w_j           <-  (1/K) sum_k r_kj
    theta_k         =   sum_j r_kj a_j                         posterior mean under the fitted prior

The paper prints the loop over atoms outside the loop over steps.  Responsibilities normalise over atoms, so
all atoms move together and the steps are the outer loop.  Nothing is smoothed, no estimate is moved or left
out, and no client may be off: what an estimate that has run off does to the others is part of the method.

With covariances that do not depend on theta the same lines are EM, and the result is NPEB.

Letters: K clients, m atoms, d parameters; p_k(a) the density of theta_hat_k if the parameter is a.
"""

from __future__ import annotations

import numpy as np

from vaneb.blocks import map_blocks
from vaneb.errors import InvalidOption
from vaneb.estimators import fixed_covariance
from vaneb.likelihood.base import Array, Likelihood
from vaneb.npmle.pseudo_em import pseudo_em
from vaneb.npmle.weights import likelihood_matrix, npmle_weights

#: Where the weights start.  "fixed-covariance" is what the paper says its implementation does, "coupled" the
#: line that Algorithm 1 prints, "uniform" neither, for comparison.
STARTS = ("fixed-covariance", "coupled", "uniform")


def starting_weights(likelihood: Likelihood, atoms: Array, start: str, tol: float) -> Array:
    """w, (m,), over given atoms.

    fixed-covariance   argmax sum_k log sum_j w_j p_k(a_j),  covariances fixed at Sigma_k(theta_hat_k)
    coupled            the same with Sigma_k(a_j)
    uniform            1 / m

    The first two are conic programmes; ``tol`` bounds what their solution lacks in average log-likelihood.
    """
    if start == "uniform":
        return np.full(len(atoms), 1 / len(atoms))
    if start not in STARTS:
        raise InvalidOption(f"start must be one of {', '.join(STARTS)}, not {start!r}")
    seen = fixed_covariance(likelihood) if start == "fixed-covariance" else likelihood
    matrix, _ = likelihood_matrix(seen, atoms)
    return npmle_weights(matrix, tol=tol).weights


def e_step(likelihood: Likelihood, atoms: Array, weights: Array) -> tuple[Array, Array]:
    """r_kj = w_j p_k(a_j) / f_k, (K, m), and log f_k = log sum_j w_j p_k(a_j), (K,)."""
    log_weights = np.log(weights)

    def block(rows: slice) -> tuple[Array, Array]:
        terms = likelihood.take(rows).log_likelihood(atoms) + log_weights
        top = terms.max(axis=1, keepdims=True)
        terms = np.exp(terms - top)
        total = terms.sum(axis=1, keepdims=True)
        return terms / total, (np.log(total) + top)[:, 0]

    parts = list(map_blocks(block, likelihood.n_clients))
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def algorithm_1(likelihood: Likelihood, atoms: Array, weights: Array, steps: int) -> tuple[Array, Array]:
    """Atoms and weights after ``steps`` steps; an atom whose weight is zero can never come back, and goes."""
    there = weights > 0
    atoms, weights, _ = pseudo_em(likelihood, atoms[there], weights[there], steps)
    return atoms[weights > 0], weights[weights > 0]
