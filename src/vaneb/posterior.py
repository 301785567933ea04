"""From a population back to the clients: each one's own posterior.

Under one population G = sum_j w_j N(a_j, S_j) client k came from component j with probability

    r_kj = w_j p_kj / f_k,      p_kj = integral of p_k(theta) N(theta; a_j, S_j),      f_k = sum_j w_j p_kj,

and within it has mean m_kj and covariance V_kj (a_j and 0 for an atom).  The personalised estimate is the
posterior mean sum_j r_kj m_kj.  Where the population is itself uncertain, the posterior is the average over
the populations drawn: standard deviations, intervals and all else come from that one average.

Gaussian clients are exact.  Others are first seen through the Gaussian that touches their likelihood
(``expansion``); points of the posterior under that Gaussian are then weighed by the ratio of the two, which
corrects mean, covariance and intervals (``_corrected``).

Arrays over (client, component) are made block by block and only when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vaneb.blocks import map_blocks
from vaneb.display import Shown
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.likelihood.base import Array, Likelihood, log_of
from vaneb.likelihood.expansion import view_of
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.population import conditioning as kernels
from vaneb.population.conditioning import components_of, moments_of
from vaneb.population.lanes import Lanes, lanes_of
from vaneb.prior import Prior
from vaneb.quantiles import quantiles_of_block
from vaneb.semidefinite import rank_of

if TYPE_CHECKING:
    import pyarrow as pa

    from vaneb.decisions import Decisions

#: Entries (client, component, parameter) in one block of work.
ENTRIES = 1_000_000
#: Points of the posterior that correct for a likelihood that is not Gaussian.
POINTS = 512
UNEXPLAINED = "unexplained"


class Summary(NamedTuple):
    """What is known of each client's posterior."""

    log_marginal: Array
    """(K,)"""
    mean: Array
    """(K, d)"""
    covariance: Array
    """(K, d, d)"""
    own: Array
    """Probability of components that no other client shares, (K,)."""


class Correction(NamedTuple):
    """From the posterior of the Gaussian views to that of the clients, coordinate by coordinate, (K, d)
    each."""

    before: Array
    after: Array
    """Means."""
    stretch: Array
    """Ratio of the standard deviations."""
    skewness: Array
    """Added to the skewness."""


class Pieces(NamedTuple):
    """Posterior of a block of clients as mixtures."""

    shares: Array
    """(K, m)"""
    mean: Array
    """(K or 1, m, d)"""
    variance: Array
    """(K or 1, m, d)"""


@dataclass(frozen=True, eq=False)
class Posterior(Shown):
    """Posterior of K clients under a population.

    Parameters
    ----------
    likelihood : the clients.
    prior : the population.
    ids, names : of clients and parameters.
    status : (K,), what the reports said of themselves ("ok" or not).
    """

    likelihood: Likelihood
    prior: Prior
    ids: tuple = ()
    names: tuple[str, ...] = ()
    status: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.likelihood.n_clients

    @property
    def population(self) -> Prior:
        """Where clients come from; where they have covariates, clients with average ones."""
        return self.prior

    def centres(self, rows: slice) -> Array:
        """Centres of the components, as a block of clients sees them, (1 or K, m, d)."""
        return self.prior.atoms[None]

    @cached_property
    def _view(self) -> ConstantGaussian:
        return view_of(self.likelihood, self.prior)

    def _lanes(self, rows: slice) -> Lanes:
        """A block of clients as the kernels take them."""
        return lanes_of(self._view.estimates[rows], self._view.base_precision[rows])

    @cached_property
    def _components(self) -> tuple[Array, Array]:
        return np.ascontiguousarray(self.prior.atoms), np.ascontiguousarray(self.prior.roots)

    @property
    def _size(self) -> int:
        """Clients in one block."""
        return max(16, ENTRIES // self.prior.atoms.size)

    @cached_property
    def _before(self) -> Summary:
        """The posterior, where clients are not Gaussian that of their views."""
        block = self._of_atoms if self.prior.covariances is None else self._of_components
        parts = list(map_blocks(block, len(self), self._size))
        return Summary(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _of_components(self, rows: slice) -> Summary:
        prior = self.prior
        made = Summary(
            *moments_of(
                self._lanes(rows),
                prior.weights * prior.populations,
                *self._components,
                prior.starts,
                prior.shared,
            )
        )
        return made._replace(log_marginal=made.log_marginal + self._view.constant[rows])

    def _of_atoms(self, rows: slice) -> Summary:
        prior = self.prior
        log_marginal, shares = _shares_of_atoms(self.likelihood.take(rows), prior)
        mean = shares @ prior.atoms
        covariance = np.empty((*mean.shape, prior.dimension))
        for i in range(prior.dimension):  # no array of clients x atoms x parameters
            away = shares * (prior.atoms[:, i] - mean[:, i, None])
            covariance[:, i, :] = away @ prior.atoms - away.sum(axis=1)[:, None] * mean
            if prior.atom_variances is not None:
                covariance[:, i, i] += shares @ prior.atom_variances[:, i]
        own = shares @ (~prior.shared).astype(np.float64)
        return Summary(log_marginal, mean, (covariance + np.swapaxes(covariance, 1, 2)) / 2, own)

    @cached_property
    def _summary(self) -> Summary:
        return self._before if self._exact else self._corrected[0]

    @property
    def _exact(self) -> bool:
        return self.prior.covariances is None or self.likelihood.is_gaussian

    @cached_property
    def _corrected(self) -> tuple[Summary, Correction]:
        """Moments by points of the views' posterior, weighed by likelihood over view.

        Differences between weighed and plain moments of the same points are added to the exact moments of the
        views' posterior, so that little noise is left where the two are alike.
        """
        before = self._before
        weight = self._point_weights
        points = self._points - before.mean[:, None, :]
        extra = weight - 1 / POINTS
        shift = np.einsum("ks,ksi->ki", extra, points)
        second = before.covariance + np.swapaxes(points * extra[:, :, None], 1, 2) @ points
        covariance = second - shift[:, :, None] * shift[:, None, :]
        centred = points - np.einsum("ks,ksi->ki", weight, points)[:, None, :]
        plain = np.swapaxes(centred * weight[:, :, None], 1, 2) @ centred
        bad = np.linalg.eigvalsh(covariance)[:, 0] <= 0.05 * np.linalg.eigvalsh(plain)[:, 0]
        covariance[bad] = plain[bad]
        sd = np.sqrt(np.maximum(np.diagonal(covariance, axis1=1, axis2=2), 1e-60))
        old = np.sqrt(np.maximum(np.diagonal(before.covariance, axis1=1, axis2=2), 1e-60))
        third = np.einsum("ks,ksi->ki", weight, centred**3) / sd**3
        away = points - points.mean(axis=1, keepdims=True)
        skewness = third - np.mean(away**3, axis=1) / old**3
        log_marginal = before.log_marginal + self._log_scale
        after = Summary(log_marginal, before.mean + shift, covariance, before.own)
        return after, Correction(before.mean, after.mean, sd / old, skewness)

    @cached_property
    def _points(self) -> Array:
        """(K, POINTS, d)"""
        uniform, normal = _spread_points(self.prior.roots.shape[2])
        theta = np.empty((len(self), POINTS, self.prior.dimension))

        def block(rows: slice) -> None:
            clients, shares = self._lanes(rows), self._raw_pieces(rows).shares
            kernels.posterior_points(
                clients.clients, clients.x, clients.precision, *self._components, shares, uniform[None],
                normal[None], theta[rows],
            )  # fmt: skip

        list(map_blocks(block, len(self), self._size))
        return theta

    @cached_property
    def _log_ratio(self) -> Array:
        """Likelihood over view at the points, (K, POINTS)."""
        columns = [
            self.likelihood.at(theta) - self._view.at(theta)
            for theta in np.ascontiguousarray(np.swapaxes(self._points, 0, 1))
        ]
        ratio = np.stack(columns, axis=1)
        return np.where(np.isfinite(ratio), ratio, -np.inf)

    @cached_property
    def _point_weights(self) -> Array:
        """(K, POINTS), sum one; none above sqrt(POINTS) times the average (Ionides 2008).

        A variance function that vanishes at an edge makes the likelihood there as high as one likes; a point
        that happens to fall on it must not speak for all.
        """
        ratio = self._log_ratio
        weight = np.exp(ratio - ratio.max(axis=1, keepdims=True))
        weight = np.minimum(weight, POINTS**0.5 * weight.mean(axis=1, keepdims=True))
        return weight / weight.sum(axis=1, keepdims=True)

    @property
    def _log_scale(self) -> Array:
        """log of the average ratio, (K,)."""
        top = self._log_ratio.max(axis=1)
        return top + np.log(np.exp(self._log_ratio - top[:, None]).mean(axis=1))

    def _raw_pieces(self, rows: slice) -> Pieces:
        prior = self.prior
        if prior.covariances is None:
            _, shares = _shares_of_atoms(self.likelihood.take(rows), prior)
            variance = np.zeros_like(prior.atoms) if prior.atom_variances is None else prior.atom_variances
            return Pieces(shares, prior.atoms[None], variance[None])
        weights = prior.weights * prior.populations
        return Pieces(*components_of(self._lanes(rows), weights, *self._components, prior.starts)[1:])

    def _pieces(self, rows: slice) -> Pieces:
        """The posterior of a block of clients as mixtures, moved and stretched where it was corrected."""
        made = self._raw_pieces(rows)
        if self._exact:
            return made
        before, after, stretch, _ = (column[rows][:, None, :] for column in self._corrected[1])
        return Pieces(made.shares, after + (made.mean - before) * stretch, made.variance * stretch**2)

    @property
    def log_marginal(self) -> Array:
        """log f_k, the log density of each client's report (or rows) under the population, (K,)."""
        return self._summary.log_marginal

    @property
    def mean(self) -> Array:
        """Personalised estimates, (K, d)."""
        return self._summary.mean

    @property
    def covariance(self) -> Array:
        """Posterior covariance, (K, d, d)."""
        return self._summary.covariance

    @cached_property
    def sd(self) -> Array:
        """Posterior standard deviations, (K, d)."""
        return np.sqrt(np.maximum(np.diagonal(self.covariance, axis1=1, axis2=2), 0.0))

    @cached_property
    def responsibilities(self) -> Array:
        """Probability of each component, (K, m); of its part in the average where populations are many."""
        return np.concatenate(
            list(map_blocks(lambda rows: self._raw_pieces(rows).shares, len(self), self._size))
        )

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Credible interval of each parameter of each client: lower (K, d), upper (K, d)."""
        if not 0 < level < 1:
            raise InvalidOption(f"level must lie between 0 and 1, not {level}: 0.9 is a 90% interval")
        lower, upper = self._quantiles((1 - level) / 2, (1 + level) / 2)
        return lower, upper

    def quantile(self, probability: float) -> Array:
        """Quantile of each parameter of each client, (K, d); see ``vaneb.quantiles`` for discrete priors."""
        if not 0 < probability < 1:
            raise InvalidOption(f"a quantile's probability must lie between 0 and 1, not {probability}")
        return self._quantiles(probability)[0]

    def _quantiles(self, *probabilities: float) -> Array:
        z = np.array([NormalDist().inv_cdf(p) for p in probabilities])[:, None, None]
        if self.prior.covariances is None:
            return self.mean + z * self.sd

        def block(rows: slice) -> Array:
            return quantiles_of_block(
                *self._pieces(rows), self.mean[rows], self.sd[rows], np.array(probabilities)
            )

        found = np.concatenate(list(map_blocks(block, len(self), self._size)), axis=1)
        if not self._exact:
            # Cornish and Fisher: what the skewness adds to a quantile
            found += (z**2 - 1) / 6 * self._corrected[1].skewness * self.sd
            found = np.sort(found, axis=0) if len(probabilities) == 2 else found
        return found

    @cached_property
    def shrinkage(self) -> Array:
        """Share of each client's error that the others have taken away, in [0, 1], (K,).

        1 - tr(P_k V_k) / rank(P_k): P_k the precision of the client's own estimate, V_k its posterior
        covariance.  0: the client is as uncertain as by itself, 1: it took over the population's estimate.
        """
        precision = self.likelihood.local_precision()
        if precision.ndim == 2:
            kept = (precision * self.sd**2).sum(axis=1)
        else:
            kept = np.einsum("kij,kji->k", precision, self.covariance)
        return np.clip(1 - kept / np.maximum(rank_of(precision), 1), 0.0, 1.0)

    @cached_property
    def flag(self) -> tuple[str, ...]:
        """What to know of a client before its estimate is used, (K,); "" for most.

        "unexplained": the client is more likely to belong to no group that others share than to one of them,
        so the population says nothing about it.  What the client's own report said of itself ("separated",
        "penalised") comes first.
        """
        strange = self._summary.own > 0.5
        status = self.status or ("ok",) * len(self)
        return tuple(
            ";".join([s for s in (said, UNEXPLAINED if odd else "") if s and s != "ok"])
            for said, odd in zip(status, strange, strict=True)
        )

    def false_sign_rate(self) -> Array:
        """Posterior probability that a parameter does not have the sign of its estimate, (K, d)."""
        from scipy.special import ndtr

        def block(rows: slice) -> Array:
            shares, mean, variance = self._pieces(rows)
            sd = np.sqrt(variance)
            with np.errstate(divide="ignore", invalid="ignore"):
                z = mean / sd
            # A point at zero has neither sign.
            below = np.where(sd > 0, ndtr(-z), (mean <= 0).astype(float))
            above = np.where(sd > 0, ndtr(z), (mean >= 0).astype(float))
            wrong = np.where(self.mean[rows][:, None, :] >= 0, below, above)
            return np.einsum("km,kmi->ki", shares, np.broadcast_to(wrong, (len(shares), *wrong.shape[1:])))

        return np.concatenate(list(map_blocks(block, len(self), self._size)))

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Draws of all clients together, (size, K, d): one population for everybody in each draw."""
        from vaneb.joint_draws import joint_draws

        return joint_draws(self, size, rng)

    def decide(
        self, of: str | Mapping[str, float] | None = None, *, draws: int | None = None, seed: int = 0
    ) -> Decisions:
        """Answers with their expected errors: who is highest, who differs, ranks, grades.

        ``of`` is a parameter, or weights of several; by default the one in which clients differ most.
        """
        from vaneb.decisions import JointPosterior

        return JointPosterior.of(self, draws, seed).decide(of)

    def __repr__(self) -> str:
        return (
            f"Posterior({len(self)} clients, {self.population.dimension} parameters, "
            f"average shrinkage {self.shrinkage.mean():.2f})"
        )

    def table(self, level: float = 0.9) -> pa.Table:
        """One row for each client, as the command line writes it; ``.to_pandas()``, ``polars.from_arrow``."""
        from vaneb.tables import results_table

        return results_table(self, level)


@cache
def _spread_points(dimension: int) -> tuple[Array, Array]:
    """Uniform numbers (POINTS,) in ascending order and normal ones (POINTS, d), spread evenly together."""
    from scipy.special import ndtri
    from scipy.stats.qmc import Sobol

    points = Sobol(dimension + 1, scramble=True, rng=np.random.default_rng(0)).random(POINTS)
    points = points[np.argsort(points[:, 0])]
    return np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(ndtri(points[:, 1:]))


def posterior(likelihood: Likelihood, prior: Prior, *, ids=(), names=(), status=()) -> Posterior:
    """Posterior of the clients behind ``likelihood`` under ``prior``."""
    if prior.covariates is not None:
        raise InvalidReport(
            f"the population was fitted with covariates of the clients, {', '.join(prior.covariates.names)}. "
            "Personalise with VANEB.from_prior(prior).personalize(reports, covariates=...)"
        )
    if likelihood.dimension != prior.dimension:
        raise InvalidReport(
            f"the clients have {likelihood.dimension} parameters, the prior has {prior.dimension}: "
            "it was fitted on another model"
        )
    if names and sorted(names) == sorted(prior.names) and tuple(names) != prior.names:
        raise InvalidReport(
            f"the clients' parameters are {', '.join(names)}, the prior's {', '.join(prior.names)}: "
            "give them in the prior's order"
        )
    return Posterior(likelihood, prior, tuple(ids), tuple(names) or prior.names, tuple(status))


def _shares_of_atoms(likelihood: Likelihood, prior: Prior) -> tuple[Array, Array]:
    """log f_k, (K,), and the probability of each atom, (K, m)."""
    shares = likelihood.log_likelihood(prior.atoms)
    shares += log_of(prior.weights)
    top = shares.max(axis=1)
    np.exp(shares - top[:, None], out=shares)
    total = shares.sum(axis=1)
    shares /= total[:, None]
    return np.log(total) + top, shares


def tweedie(likelihood: Likelihood, prior: Prior, rho: float = 0.0) -> Array:
    """Generalised Tweedie formula theta_hat_k + q_k / max(f_k, rho), for a discrete prior, (K, d).

    q_k = sum_j w_j p_k(a_j) (a_j - theta_hat_k) is the variance-weighted score of the marginal density,
    here in the units of theta; ``rho`` bounds the move of a client that the prior hardly explains.
    """
    if prior.covariances is not None:
        raise InvalidOption("Tweedie's formula is stated for a discrete prior; this one has components")
    estimates = likelihood.local_estimates()
    log_marginal, shares = _shares_of_atoms(likelihood, prior)
    bound = np.log(rho) if rho > 0 else -np.inf
    # q / max(f, rho) = q / f  min(1, f / rho)
    kept = np.exp(np.minimum(log_marginal - bound, 0.0))
    return estimates + kept[:, None] * (shares @ prior.atoms - estimates)
