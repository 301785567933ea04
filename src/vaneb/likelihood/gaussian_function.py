"""Gaussian reports whose covariance is a function of the parameter.

Log-likelihoods are computed for all pairs of a block of clients and the atoms; derivatives only for
the pairs that carry weight, since the derivative of a d x d matrix in d directions is what costs.

With P = P_k(a), C its inverse, e = theta_hat_k - a, and dP_l the derivative of P in coordinate l, the exact
score of the heteroskedastic likelihood is

    s_l = [P e]_l + 1/2 tr(C dP_l) - 1/2 e' dP_l e

and its expected information P_lh + 1/2 tr(C dP_l C dP_h).  The *frozen* score keeps the first term only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaneb.covariance.base import CovarianceFunction
from vaneb.likelihood.base import Array, Box, as_matrices
from vaneb.likelihood.gaussian import VaryingGaussian
from vaneb.likelihood.pairwise import Indices, Pairwise
from vaneb.likelihood.starts import box_of, plausible_points
from vaneb.semidefinite import generalised_inverse


@dataclass(frozen=True)
class FunctionGaussian(Pairwise, VaryingGaussian):
    """K Gaussian reports with covariance Sigma_k(theta) / n_k.

    Parameters
    ----------
    estimates : (K, d)
    n : (K,)
    covariance : Sigma_k(theta) of the K clients.
    """

    covariance: CovarianceFunction

    def _logs(self, atoms: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        return self._log_density(atoms[None])

    def _log_density(self, points: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        """l_k at ``points`` (1 or K, m, d), (K, m), and of all pairs e, unit precision and n."""
        from vaneb.likelihood.pair_kernels import log_densities

        unit, away = self.covariance.precision(points), self.estimates[:, None, :] - points
        out = np.empty(away.shape[:2])
        unit = np.ascontiguousarray(as_matrices(unit.reshape(-1, *unit.shape[2:])))
        pairs = away.reshape(-1, self.dimension), unit, np.repeat(self.n, points.shape[1])
        log_densities(*pairs, out.reshape(-1))
        return out, pairs

    def _scores(
        self, found: tuple[Array, ...], atoms: Array, client: Indices, atom: Indices, frozen: bool
    ) -> tuple[Array, Array]:
        away, unit, n = (part[client * len(atoms) + atom] for part in found)
        if frozen:
            information = unit * n[:, None, None]
            return np.einsum("kij,kj->ki", information, away), information
        if self.covariance.called_by_client:
            gradient = self.covariance.precision_gradient(atoms[None])[client, atom]
        else:
            gradient = self.covariance.take(client).precision_gradient(atoms[atom][:, None])[:, 0]
        return _exact_scores(away, unit, n, gradient)

    def peak(self) -> Array:
        return self.at(self.estimates)

    def at(self, points: Array) -> Array:
        return self._log_density(points[:, None, :])[0][:, 0]

    def starts(self) -> Array:
        return super().starts() if self.covariance.starts_at_estimates else plausible_points(self)

    def region(self, starts: Array) -> Box | None:
        return super().region(starts) if self.covariance.starts_at_estimates else box_of(starts)


def _exact_scores(away: Array, unit: Array, n: Array, gradient: Array) -> tuple[Array, Array]:
    """Exact scores (N, d) and expected informations (N, d, d); ``gradient`` is that of the unit precision."""
    from vaneb.likelihood.pair_kernels import scores

    if gradient.ndim == 3:  # of diagonals
        gradient = gradient[:, :, None, :] * np.eye(away.shape[1])[:, :, None]
    score, information = np.empty_like(away), np.empty_like(unit)
    scores(away, unit, n, np.ascontiguousarray(gradient), score, information)
    if (singular := np.isnan(score[:, 0])).any():
        scale = n[singular, None, None]
        e, p, dp = away[singular], scale * unit[singular], scale[..., None] * gradient[singular]
        relative = np.einsum("kia,kacl->kicl", generalised_inverse(p), dp)
        quadratic = np.einsum("ka,kacl,kc->kl", e, dp, e, optimize=True)
        score[singular] = np.einsum("kij,kj->ki", p, e) + 0.5 * (np.einsum("kiil->kl", relative) - quadratic)
        information[singular] = p + 0.5 * np.einsum("kacl,kcah->klh", relative, relative)
    return score, information
