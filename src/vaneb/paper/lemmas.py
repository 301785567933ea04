"""What the paper's lemmas promise of a fit, in numbers.

The lemmas ask for diagonal covariances with bounded eigenvalues and derivatives.  The bounds s, S and L are
measured at given points, the fitted atoms by default; over all of space they would be no better.  For full
covariances the same expressions are computed, but the proofs do not speak of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.likelihood.base import Array
from vaneb.paper.estimators import Personalised
from vaneb.reports import Reports
from vaneb.theory import (
    CovarianceBounds,
    contraction,
    covariance_bounds,
    distance_to_estimates,
    frozen_map,
    likelihood_floor,
    score_root_bound,
    shares,
    support_radius,
)


@dataclass(frozen=True, eq=False)
class Lemmas:
    """The lemmas' quantities for one fit.

    Parameters
    ----------
    bounds : s, S and L.
    support_radius : r_K; the atoms of an exact NPMLE are no further than that from some estimate.
    atom_distance : (m,), how far each atom is.
    floor : (K,), below which f_k of an exact NPMLE never falls.
    log_marginal : (K,), log f_k of this fit.
    mixing_gain : the most that (1/K) delta at some estimate + (1 - 1/K) G gains in average log-likelihood:
        at most zero for an exact NPMLE, as the denoising theorem asks.
    residual : (m,), |psi_j(a_j) - a_j|, the next move of each atom.
    contraction : (m,), L_j; where it is below one the fixed point is unique and reached at that rate.
    score_root : (m,), how far a root of the exact score is from a fixed point at most; infinite where
        L_j >= 1.
    score_root_proved : (m,), whether the conditions of that bound hold.
    """

    bounds: CovarianceBounds
    support_radius: float
    atom_distance: Array
    floor: Array
    log_marginal: Array
    mixing_gain: float
    residual: Array
    contraction: Array
    score_root: Array
    score_root_proved: NDArray[np.bool_]

    @property
    def below_floor(self) -> NDArray[np.bool_]:
        """(K,), the clients whose f_k no NPMLE would leave so low."""
        return self.log_marginal < np.log(self.floor) - 1e-9


def lemma_bounds(reports: Reports, fit: Personalised, points: Array | None = None) -> Lemmas:
    """The lemmas' quantities for a fit of ``reports``; s, S and L over ``points`` (q, d)."""
    likelihood = reports.likelihood()
    estimates, n = reports.estimate, reports.n
    bounds = covariance_bounds(reports.covariance, fit.atoms if points is None else points)
    share = shares(likelihood, fit.atoms, fit.weights)
    arguments = (fit.atoms, share, estimates, n, reports.covariance)
    root = score_root_bound(*arguments, bounds)
    k = len(estimates)

    def gains(rows: slice) -> Array:
        """sum over a block of clients of log(1 + (p_i(theta_hat_k) / f_i - 1) / K), for each k."""
        ratio = likelihood.take(rows).log_likelihood(estimates) - fit.log_marginal[rows, None]
        return np.logaddexp(np.log1p(-1 / k), ratio - np.log(k)).sum(axis=0)

    gain = np.sum(list(map_blocks(gains, k, 1024)), axis=0) / k
    return Lemmas(
        bounds,
        support_radius(bounds, n, reports.dimension),
        distance_to_estimates(fit.atoms, estimates),
        likelihood_floor(bounds, n, reports.dimension),
        fit.log_marginal,
        float(gain.max()),
        np.linalg.norm(frozen_map(*arguments) - fit.atoms, axis=1),
        contraction(share, estimates, n, bounds).constant,
        root.distance,
        root.valid,
    )
