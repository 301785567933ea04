"""One step of pseudo-EM from sums over clients.

For atoms a_j and weights w_j a step needs only

    sum_k log f_k,   sum_k r_kj,   sum_k r_kj s_k(a_j),   sum_k r_kj I_k(a_j),

r_kj = w_j p_k(a_j) / f_k, and a client that is told atoms and weights finds its own parts of them.  So a step
is one exchange, and it does not matter whether the parts arrive one by one or only as sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vaneb.likelihood.base import Array, Likelihood, as_matrices, log_of
from vaneb.npmle.pseudo_em import RIDGE
from vaneb.semidefinite import solve_ridged

#: An atom with less weight than this has died out.
NO_WEIGHT = 1e-9


class Sums(NamedTuple):
    """One client's part, or the sum over clients, of what an EM step needs."""

    log_density: float
    share: Array
    """(m,)"""
    gradient: Array
    """(m, d)"""
    information: Array
    """(m, d, d)"""


def own_sums(likelihood: Likelihood, atoms: Array, weights: Array) -> Sums:
    """What one client (or the clients of a likelihood together) adds to an EM step."""
    log_density, found = likelihood.expectation(atoms, log_of(weights))
    share = weights * likelihood.n_clients  # those are averages of p_k(a_j) / f_k times something
    return Sums(
        float(log_density.sum()),
        share * found.value,
        share[:, None] * found.gradient,
        share[:, None, None] * as_matrices(found.information),
    )


def em_step(sums: Sums, atoms: Array) -> tuple[Array, Array]:
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
