"""The paper's Algorithm 1: atoms at the estimates, NPMLE weights, then pseudo-EM.

One iteration, for all atoms together (responsibilities normalise over atoms):

    r_kj  proportional to  w_j p_k(a_j)
    a_j   <-  [sum_k r_kj P_k(a_j)]^{-1} sum_k r_kj P_k(a_j) theta_hat_k
          =   a_j + [sum_k r_kj P_k(a_j)]^{-1} sum_k r_kj P_k(a_j) (theta_hat_k - a_j)
    w_j   <-  (1/K) sum_k r_kj

with P_k(a) = n_k Sigma_k(a)^{-1} taken at the atom's present place ("atom-covariance coupling").  The
step ignores that Sigma_k moves with the atom, so its fixed points are not roots of the exact score
(``vaneb.theory.fixed_points`` says how far they can be).

A step needs only sums over clients, and a client that is told atoms and weights finds its own parts of them
(``own_sums``).  So it is one exchange, and it does not matter whether the parts arrive one by one or only as
sums (``em_step``).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from vaneb.blocks import Progress
from vaneb.likelihood.base import Array, Likelihood, as_matrices, log_of
from vaneb.npmle.fit import Fit, Step, log_mixture
from vaneb.npmle.options import DEFAULT, Options
from vaneb.npmle.search import certify
from vaneb.npmle.support import covering_subset
from vaneb.npmle.weights import npmle_weights, scaled_likelihood
from vaneb.semidefinite import solve_ridged

#: What keeps rounding from singular information, relative to its diagonal.
RIDGE = 1e-13
#: An atom with less weight than this has died out.
NO_WEIGHT = 1e-9


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


class Weighed(Protocol):
    """Clients that say how likely atoms are, here or elsewhere."""

    def log_likelihood(self, atoms: Array) -> Array: ...


def weighed_estimates(
    clients: Weighed, estimates: Array, tol: float, rng: np.random.Generator, options: Options = DEFAULT
) -> tuple[Array, Array]:
    """Estimates as atoms, (m, d), with their NPMLE weights, (m,): those whose weight is not zero.

    The others could never come back under pseudo-EM.
    """
    atoms = estimates[covering_subset(estimates, options.estimates, rng)]
    matrix, _ = scaled_likelihood(clients.log_likelihood(atoms))
    weights = npmle_weights(matrix, tol=0.1 * tol).weights
    return atoms[weights > 0], weights[weights > 0]


def algorithm_1(
    likelihood: Likelihood,
    *,
    iterations: int = 50,
    tol: float = 1e-4,
    rng: np.random.Generator | None = None,
    progress: Progress | None = None,
    options: Options = DEFAULT,
) -> Fit:
    """Algorithm 1 as the paper has it, from the estimates of all clients (a covering subset of very many)."""
    rng = np.random.default_rng(0) if rng is None else rng
    if progress is not None:
        progress("weights over the estimates", 1, 3)
    atoms, weights = weighed_estimates(likelihood, likelihood.starts(), tol, rng, options)
    if progress is not None:
        progress("pseudo-EM", 2, 3)
    atoms, weights, trace = pseudo_em(likelihood, atoms, weights, iterations)
    density = log_mixture(likelihood, atoms, weights)
    certificate = certify(likelihood, atoms, weights, rng, tol=tol, options=options)
    last = Step(float(density.mean()), len(atoms), certificate.gap)
    return Fit(atoms, weights, certificate, (*trace, last), float(density.mean()))


class StepSums(NamedTuple):
    """One client's part, or the sum over clients, of what an EM step needs."""

    log_density: float
    share: Array
    """(m,)"""
    gradient: Array
    """(m, d)"""
    information: Array
    """(m, d, d)"""


def own_sums(likelihood: Likelihood, atoms: Array, weights: Array) -> StepSums:
    """What one client (or the clients of a likelihood together) adds to an EM step."""
    log_density, found = likelihood.expectation(atoms, log_of(weights))
    share = weights * likelihood.n_clients  # those are averages of p_k(a_j) / f_k times something
    return StepSums(
        float(log_density.sum()),
        share * found.value,
        share[:, None] * found.gradient,
        share[:, None, None] * as_matrices(found.information),
    )


def em_step(sums: StepSums, atoms: Array) -> tuple[Array, Array]:
    """a_j <- a_j + (sum r I)^{-1} sum r s,  w_j <- mean r; atoms that have died out are dropped."""
    weights = np.maximum(sums.share, 0.0)
    weights = weights / weights.sum()
    keep = weights > NO_WEIGHT
    information = (sums.information + np.swapaxes(sums.information, 1, 2)) / 2
    moved = atoms + solve_ridged(information, sums.gradient, RIDGE)
    # Where rounding leaves no information there is nowhere to go.
    sound = np.linalg.eigvalsh(information)[:, 0] > 0
    moved = np.where(sound[:, None], moved, atoms)[keep]
    return moved, weights[keep] / weights[keep].sum()
