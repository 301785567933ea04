"""Gaussian reports whose covariance is a function of the parameter.

Log-likelihoods are computed for all pairs of a block of clients and the atoms; derivatives only for
the pairs that carry weight, since the derivative of a d x d matrix in d directions is what costs.

With P = P_k(a), C its inverse, e = theta_hat_k - a, and dP_l the derivative of P in coordinate l, the exact
score of the heteroskedastic likelihood is

    s_l = [P e]_l + 1/2 tr(C dP_l) - 1/2 e' dP_l e

and its expected information P_lh + 1/2 tr(C dP_l C dP_h).  The *frozen* score keeps the first term only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import blocks
from vaneb.covariance.base import CovarianceFunction, DiagonalCovariance, FullCovariance
from vaneb.likelihood import function_strips
from vaneb.likelihood.function_strips import Rows, Strip, Weigh, strips
from vaneb.likelihood.gaussian import LOG_2PI, VaryingGaussian, mirror, neighbours_together
from vaneb.likelihood.seam import Array, Ascent, Box
from vaneb.likelihood.starts import box_of, plausible_points
from vaneb.semidefinite import RANK_TOLERANCE, generalised_inverse

#: Doubles that a block of pairs may take.
BLOCK = 1 << 21
#: Pairs whose share r_kj is below exp(SKIP) / K add nothing to a double-precision sum of order one.
SKIP = -28.0


@dataclass(frozen=True)
class FunctionGaussian(VaryingGaussian):
    """K Gaussian reports with covariance Sigma_k(theta) / n_k.

    Parameters
    ----------
    estimates : (K, d)
    n : (K,)
    covariance : Sigma_k(theta) of the K clients.
    """

    covariance: CovarianceFunction

    @property
    def _diagonal(self) -> bool:
        return isinstance(self.covariance, DiagonalCovariance)

    def _blocks(self, pairs_per_client: int) -> Iterator[slice]:
        d = self.dimension
        size = max(1, BLOCK // (pairs_per_client * (d if self._diagonal else d * d)))
        for start in range(0, self.n_clients, size):
            yield slice(start, min(start + size, self.n_clients))

    def _precision(self, points: Array) -> Array:
        """P_k at ``points`` (1 or K, m, d): (K, m, d) or (K, m, d, d)."""
        unit = self.covariance.precision(points)
        return unit * self.n.reshape(-1, *[1] * (unit.ndim - 1))

    @cached_property
    def _strips(self) -> list[Strip]:
        """Clients whose estimates are neighbours together, so that strips far from an atom are skipped."""
        return self._cut(neighbours_together(self.estimates))

    def _cut(self, order: NDArray[np.intp] | None) -> list[Strip]:
        assert isinstance(self.covariance, FullCovariance)
        return strips(self.estimates, self.n, self.covariance, order)

    @property
    def _compiled(self) -> bool:
        return isinstance(self.covariance, FullCovariance)

    def log_likelihood(self, atoms: Array) -> Array:
        atoms = np.ascontiguousarray(atoms, dtype=np.float64)
        out = np.empty((self.n_clients, len(atoms)))
        if not self._compiled:
            return self._log_likelihood_by_pairs(atoms)
        function_strips.log_likelihood(self._cut(None), atoms, out)
        return out

    def _log_likelihood_by_pairs(self, atoms: Array) -> Array:
        out = np.empty((self.n_clients, len(atoms)))
        for rows in self._blocks(len(atoms)):
            out[rows] = self.take(rows)._log_density(atoms[None])
        return out

    def _log_density(self, points: Array, precision: Array | None = None) -> Array:
        """l_k at ``points`` (1 or K, m, d): (K, m); ``precision`` there, where it is known already."""
        precision = self._precision(points) if precision is None else precision
        difference = self.estimates[:, None, :] - points
        if self._diagonal:
            logs = np.log(np.where(precision > 0, precision, 2 * np.pi)) - LOG_2PI
            return 0.5 * (logs - precision * difference**2).sum(-1)
        from vaneb.likelihood.kernels import log_density_pairs

        d = self.dimension
        out = np.empty(precision.shape[:2])
        log_density_pairs(
            np.ascontiguousarray(difference).reshape(-1, d),
            np.ascontiguousarray(precision).reshape(-1, d, d),
            RANK_TOLERANCE,
            out.reshape(-1),
        )
        return out

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> Ascent:
        atoms = np.ascontiguousarray(atoms, dtype=np.float64)
        return self._ascent(atoms, lambda rows, _: log_weights[rows], frozen, curvature)

    def expectation(self, atoms: Array, log_prior: Array) -> tuple[Array, Ascent]:
        """In one pass, where others take two: here a precision at an atom is what costs."""
        atoms = np.ascontiguousarray(atoms, dtype=np.float64)
        density = np.empty(self.n_clients)

        def weigh(rows: Rows, log_likelihood: Array) -> Array:
            density[rows] = np.logaddexp.reduce(log_likelihood + log_prior[:, None], axis=0)
            return -np.log(self.n_clients) - density[rows]

        return density, self._ascent(atoms, weigh, True, False)

    def _ascent(self, atoms: Array, weigh: Weigh, frozen: bool, curvature: bool) -> Ascent:
        everyone, floor = np.arange(self.n_clients), SKIP - np.log(self.n_clients)
        if not self._compiled:
            return self._ascent_by_pairs(atoms, everyone, weigh, floor, frozen, curvature)
        sums, left = function_strips.ascent(
            self._strips, atoms, weigh, floor, frozen=frozen, curvature=curvature
        )
        outer = mirror(sums.outer) if curvature else None
        total = Ascent(sums.value, sums.gradient, outer, mirror(sums.information))
        for pairs in left:
            clients = everyone[pairs.rows][pairs.client]
            for some in blocks(len(clients), BLOCK // self.dimension**3):
                own, atom, share = self.take(clients[some]), pairs.atom[some], np.exp(pairs.log_share[some])
                points = atoms[atom][:, None, :]
                gradient = None if frozen else own.covariance.precision_gradient(points)[:, 0]
                scores = own._score(points, own._precision(points)[:, 0], gradient)
                total = total.plus(_sums_of_pairs(atom, share, *scores, len(atoms), curvature))
        return total

    def _ascent_by_pairs(
        self,
        atoms: Array,
        clients: NDArray[np.intp],
        weigh: Weigh,
        floor: float,
        frozen: bool,
        curvature: bool,
    ) -> Ascent:
        """Sums over ``clients``, with precisions of any rank."""
        m, d = atoms.shape
        total: Ascent | None = None
        own = self.take(clients)
        for rows in own._blocks(m * d):
            block = own.take(rows)
            precision = block._precision(atoms[None])
            log_share = block._log_density(atoms[None], precision)
            log_share += weigh(clients[rows], log_share.T)[:, None]
            client, atom = np.nonzero(log_share > floor)
            share = np.exp(log_share[client, atom])
            # Of all pairs, since a user's function takes many points of a client in one call.
            gradient = None if frozen else block.covariance.precision_gradient(atoms[None])[client, atom]
            score, expected = block.take(client)._score(
                atoms[atom][:, None, :], precision[client, atom], gradient
            )
            sums = _sums_of_pairs(atom, share, score, expected, m, curvature)
            total = sums if total is None else total.plus(sums)
        assert total is not None
        return total

    def _score(self, points: Array, precision: Array, gradient: Array | None) -> tuple[Array, Array]:
        """Score and expected information of each client at its own point (K, 1, d).

        ``precision`` there, and the ``gradient`` of the unit precision; frozen without it.
        """
        score = self._diagonal_score if self._diagonal else self._full_score
        return score(points, precision, gradient)

    def _diagonal_score(self, points: Array, precision: Array, gradient: Array | None) -> tuple[Array, Array]:
        difference = self.estimates - points[:, 0]
        score = precision * difference
        if gradient is None:
            return score, precision
        gradient = gradient * self.n[:, None, None]
        # of the logarithms of the variances
        slope = -gradient / np.where(precision > 0, precision, 1.0)[:, :, None]
        score = score + 0.5 * np.einsum("ki,kil->kl", precision * difference**2 - 1, slope)
        expected = 0.5 * np.einsum("kil,kih->klh", slope, slope)
        expected += precision[:, :, None] * np.eye(self.dimension)
        return score, expected

    def _full_score(self, points: Array, precision: Array, gradient: Array | None) -> tuple[Array, Array]:
        difference = self.estimates - points[:, 0]
        weighted = np.einsum("kil,kl->ki", precision, difference)
        if gradient is None:
            return weighted, precision
        gradient = gradient * self.n[:, None, None, None]
        relative = np.einsum("kia,kacl->kicl", generalised_inverse(precision), gradient)
        score = (
            weighted
            + 0.5 * np.einsum("kiil->kl", relative)
            - 0.5 * np.einsum("ka,kacl,kc->kl", difference, gradient, difference, optimize=True)
        )
        return score, precision + 0.5 * np.einsum("kacl,kcah->klh", relative, relative)

    def peak(self) -> Array:
        return self._log_density(self.estimates[:, None, :])[:, 0]

    def at(self, points: Array) -> Array:
        return self._log_density(points[:, None, :])[:, 0]

    def starts(self) -> Array:
        """Functions made of a client's rows go with estimates that may have run off."""
        return super().starts() if self.covariance.cheap else plausible_points(self)

    def region(self, starts: Array) -> Box | None:
        return super().region(starts) if self.covariance.cheap else box_of(starts)


def _sums_of_pairs(
    atom: NDArray[np.intp], share: Array, score: Array, information: Array, m: int, curvature: bool
) -> Ascent:
    """Sums at each of m atoms over pairs that have their share r, score and information given."""
    value = np.asarray(np.bincount(atom, share, m), dtype=np.float64)
    outer = _sums_by_atom(atom, share, score[:, :, None] * score[:, None, :], m) if curvature else None
    gradient = _sums_by_atom(atom, share, score, m)
    return Ascent(value, gradient, outer, _sums_by_atom(atom, share, information, m))


def _sums_by_atom(atom: NDArray[np.intp], share: Array, values: Array, m: int) -> Array:
    """sum of share times values, (pairs, ...), over the pairs of each of m atoms: (m, ...)."""
    sums = np.empty((m, *values.shape[1:]))
    for place in np.ndindex(*values.shape[1:]):
        sums[:, *place] = np.bincount(atom, share * values[:, *place], m)
    return sums
