"""The server's empirical Bayes step: noisy estimates of many clients in, posterior means out.

This is the procedure inside the VANEB algorithms for networks: the core's pseudo-EM on

    phi_hat_k ~ N(phi_k, Sigma_k(phi_k) / n_k),      phi_k ~ sum_j pi_j delta_{a_j},

with diagonal Sigma_k, either as the client reported it at every atom (``direct``) or a smooth function
of the coordinate fitted to all reports (``coordinate``).

Letters: K clients, m atoms, d parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vaneb.covariance.base import CovarianceFunction
from vaneb.errors import InvalidOption

Array = NDArray[np.float64]
Rule = Literal["direct", "coordinate"]
RULES: tuple[str, ...] = get_args(Rule)


@dataclass(frozen=True)
class ShrunkHeads:
    """What the empirical Bayes step found."""

    means: Array
    """Posterior means, (K, d)."""
    atoms: Array
    """(m, d)."""
    weights: Array
    """(m,)."""
    responsibilities: Array
    """(K, m)."""


def shrink_heads(
    heads: Array,
    variances: Array,
    n: Array,
    rule: Rule,
    *,
    atoms: int = 10,
    iterations: int = 10,
    rng: np.random.Generator,
) -> ShrunkHeads:
    """Replace every client's estimate by its posterior mean under a prior fitted to all of them.

    Parameters
    ----------
    heads : (K, d)
    variances : (K, d)
        Diagonal of Sigma_k: of one observation, so the estimate's variance is this over n_k.
    n : (K,)
    rule : "direct" or "coordinate".
    atoms : m, at most K; they start at as many different reported heads, picked by ``rng``.
    iterations : pseudo-EM steps S.
    """
    from vaneb.likelihood.gaussian import gaussian_likelihood
    from vaneb.npmle.pseudo_em import pseudo_em
    from vaneb.posterior import posterior
    from vaneb.prior import Prior

    if atoms < 1 or iterations < 0:
        raise InvalidOption(f"atoms = {atoms}, iterations = {iterations}: need one atom, no negative number.")
    m = min(atoms, len(heads))
    start = heads[np.sort(rng.choice(len(heads), m, replace=False))]
    likelihood = gaussian_likelihood(heads, n, covariance_function(heads, variances, rule))
    fitted_atoms, weights, _ = pseudo_em(likelihood, start, np.full(m, 1 / m), iterations)
    shares = posterior(likelihood, Prior(fitted_atoms, weights)).responsibilities
    # For a discrete prior the posterior mean is a mixture of atoms; said here, because the general form
    # carries d x d matrices, and d may be the number of weights of a network.
    return ShrunkHeads(shares @ fitted_atoms, fitted_atoms, weights, shares)


def covariance_function(heads: Array, variances: Array, rule: Rule) -> CovarianceFunction:
    """Sigma_k(.) of all clients by the rule asked for."""
    from vaneb.covariance.constant import ConstantDiagonal
    from vaneb.covariance.surrogate import LogPolynomialVariance

    if rule == "direct":
        return ConstantDiagonal.from_variances(variances)
    if rule == "coordinate":
        return LogPolynomialVariance.fit(heads, variances)
    raise InvalidOption(f"rule = {rule!r}: use one of {', '.join(RULES)}.")
