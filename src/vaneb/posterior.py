"""From a prior back to the clients: each one's own posterior.

Under G = sum_j w_j N(a_j, Gamma) client k came from component j with probability

    r_kj = w_j p_k(a_j; Gamma) / f_k,      f_k = sum_j w_j p_k(a_j; Gamma),

and within it has mean m_kj and covariance V_kj (m_kj = a_j and V_kj = 0 for a discrete prior).  The
personalised estimate is the posterior mean sum_j r_kj m_kj.  For a discrete prior and Gaussian reports
this equals the generalised Tweedie formula theta_hat_k + q_k / f_k (``tweedie``).

Arrays over (client, atom) are made block by block and only when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from vaneb.blocks import blocks, map_blocks
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.prior import Prior
from vaneb.semidefinite import rank_of

if TYPE_CHECKING:
    import pyarrow as pa

#: Clients in one block of (client, atom, parameter, parameter) work.
ROWS = 2048
#: Responsibilities, clients times atoms, up to which they are kept for the next question.
KEPT = 10_000_000
#: A client further from every atom than this tail probability (over all clients) allows is flagged.
SURPRISE = 1e-3
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posterior of K clients under a prior.

    Parameters
    ----------
    likelihood : the clients, smoothed with the prior's spread.
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

    def _weighed(self, rows: slice) -> tuple[Array, Array]:
        """log f_k and r_kj of a block of clients; what is not large is computed once."""
        kept = self.__dict__.setdefault("_kept", {})
        if rows.start in kept:
            return kept[rows.start]
        made = _responsibilities(self.likelihood.take(rows), self.prior)
        if len(self) * len(self.prior.weights) <= KEPT:
            kept[rows.start] = made
        return made

    @cached_property
    def _sums(self) -> tuple[Array, Array]:
        """log f_k (K,) and posterior mean (K, d)."""

        def block(rows: slice) -> tuple[Array, Array]:
            part = self.likelihood.take(rows)
            log_marginal, shares = self._weighed(rows)
            means = part.components(self.prior.atoms).mean
            if means.shape[0] == 1:
                return log_marginal, shares @ means[0]
            return log_marginal, np.einsum("km,kmi->ki", shares, means)

        parts = list(map_blocks(block, len(self), ROWS))
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    @property
    def log_marginal(self) -> Array:
        """log f_k, the log density of each client's report (or rows) under the prior, (K,)."""
        return self._sums[0]

    @property
    def mean(self) -> Array:
        """Personalised estimates, (K, d)."""
        return self._sums[1]

    @cached_property
    def responsibilities(self) -> Array:
        """r_kj, (K, m)."""
        return np.concatenate(list(map_blocks(lambda rows: self._weighed(rows)[1], len(self), ROWS)))

    @cached_property
    def covariance(self) -> Array:
        """Posterior covariance, (K, d, d): sum_j r_kj (V_kj + m_kj m_kj') - mean mean'."""

        def block(rows: slice) -> Array:
            part, shares = self.likelihood.take(rows), self._weighed(rows)[1]
            within = part.components(self.prior.atoms)
            centred = np.sqrt(shares)[:, :, None] * (within.mean - self.mean[rows][:, None, :])
            between = np.swapaxes(centred, 1, 2) @ centred
            if within.covariance.shape[1] == 1:
                return between + within.covariance[:, 0]
            return between + np.einsum("km,kmil->kil", shares, within.covariance)

        return np.concatenate(list(map_blocks(block, len(self), ROWS)))

    @cached_property
    def sd(self) -> Array:
        """Posterior standard deviations, (K, d)."""

        def block(rows: slice) -> Array:
            part, shares = self.likelihood.take(rows), self._weighed(rows)[1]
            within = part.components(self.prior.atoms)
            own = np.diagonal(within.covariance, axis1=2, axis2=3)
            variances = np.empty_like(self.mean[rows])
            for i in range(self.prior.dimension):  # no array of clients x atoms x parameters
                away = within.mean[..., i] - self.mean[rows, i, None]
                variances[:, i] = np.einsum("km,km->k", shares, away * away + own[..., i])
            return variances

        return np.sqrt(np.maximum(np.concatenate(list(map_blocks(block, len(self), ROWS))), 0.0))

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Credible interval of each parameter of each client: lower (K, d), upper (K, d)."""
        if not 0 < level < 1:
            raise InvalidOption(f"level must lie between 0 and 1, not {level}: 0.9 is a 90% interval")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def quantile(self, probability: float) -> Array:
        """Quantile of each parameter of each client, (K, d); see ``vaneb.quantiles`` for discrete priors.

        Counts in what the fit does not know of the places of the atoms (``Prior.atom_variances``), which the
        posterior under a known prior, and so ``sd`` and ``covariance``, does not.
        """
        if not 0 < probability < 1:
            raise InvalidOption(f"a quantile's probability must lie between 0 and 1, not {probability}")
        if self.prior.spread is None:
            from scipy.special import ndtri

            return self.mean + ndtri(probability) * np.sqrt(self.sd**2 + self._unknown_places)
        from vaneb.quantiles import quantiles_of_block

        def block(rows: slice) -> Array:
            part, shares = self.likelihood.take(rows), self._weighed(rows)[1]
            within = part.components(self.prior.atoms)
            variances = np.diagonal(within.covariance, axis1=2, axis2=3)
            variances = variances + self._of_places(variances)
            return quantiles_of_block(shares, within.mean, variances, np.array([probability]))[0]

        return np.concatenate(list(map_blocks(block, len(self), ROWS)))

    def _of_places(self, variances: Array) -> Array | float:
        """What unknown places of atoms add to ``variances`` V_kj within components, (K or 1, m, d).

        A client follows its atom as far as its own data do not hold it back, by V / Gamma in each coordinate;
        all the way if the prior is discrete.
        """
        places = self.prior.atom_variances
        if places is None:
            return 0.0
        if self.prior.spread is None:
            return places[None]
        spread = np.diagonal(self.prior.spread)
        follows = np.where(spread > 0, variances / np.where(spread > 0, spread, 1.0), 1.0)
        return follows**2 * places

    @cached_property
    def _unknown_places(self) -> Array:
        """Variance that unknown places of atoms add to each client's parameters, (K, d)."""
        if self.prior.atom_variances is None:
            return np.zeros_like(self.mean)

        def block(rows: slice) -> Array:
            part, shares = self.likelihood.take(rows), self._weighed(rows)[1]
            within = part.components(self.prior.atoms).covariance
            added = np.asarray(self._of_places(np.diagonal(within, axis1=2, axis2=3)))
            return shares @ added[0] if len(added) == 1 else np.einsum("km,kmi->ki", shares, added)

        return np.concatenate(list(map_blocks(block, len(self), ROWS)))

    @cached_property
    def shrinkage(self) -> Array:
        """Share of each client's error that the others have taken away, in [0, 1], (K,).

        1 - tr(P_k V_k) / rank(P_k): P_k the precision of the client's own estimate, V_k its posterior
        covariance with what is unknown of the atoms' places.  0: the client kept its own estimate and error,
        1: it took over the population's.  A client with an atom to itself kept its own.
        """
        precision = self.likelihood.local_precision()
        if precision.ndim == 2:
            kept = (precision * (self.sd**2 + self._unknown_places)).sum(axis=1)
        else:
            kept = np.einsum("kij,kji->k", precision, self.covariance)
            kept += (np.diagonal(precision, axis1=1, axis2=2) * self._unknown_places).sum(axis=1)
        return np.clip(1 - kept / np.maximum(rank_of(precision), 1), 0.0, 1.0)

    @cached_property
    def flag(self) -> tuple[str, ...]:
        """What to know of a client before its estimate is used, (K,); "" for most.

        "unexplained": no atom shared with other clients is near it, so the prior says nothing about it.  What
        the client's own report said of itself ("separated", "penalised") comes first.
        """
        strange = unexplained(self.likelihood, self.prior)
        status = self.status or ("ok",) * len(self)
        return tuple(
            ";".join([s for s in (said, UNEXPLAINED if odd else "") if s and s != "ok"])
            for said, odd in zip(status, strange, strict=True)
        )

    def false_sign_rate(self) -> Array:
        """Posterior probability that a parameter does not have the sign of its estimate, (K, d)."""
        from scipy.special import ndtr

        def block(rows: slice) -> Array:
            part, shares = self.likelihood.take(rows), self._weighed(rows)[1]
            within = part.components(self.prior.atoms)
            sd = np.sqrt(np.diagonal(within.covariance, axis1=2, axis2=3))
            with np.errstate(divide="ignore", invalid="ignore"):
                z = within.mean / sd
            # A point at zero has neither sign.
            below = np.where(sd > 0, ndtr(-z), (within.mean <= 0).astype(float))
            above = np.where(sd > 0, ndtr(z), (within.mean >= 0).astype(float))
            wrong = np.where(self.mean[rows][:, None, :] >= 0, below, above)
            return np.einsum("km,kmi->ki", shares, np.broadcast_to(wrong, (len(shares), *wrong.shape[1:])))

        return np.concatenate(list(map_blocks(block, len(self), ROWS)))

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        """Draws from each client's posterior, (size, K, d)."""
        draws = np.empty((size, len(self), self.prior.dimension))
        for rows in blocks(len(self), ROWS):
            part, shares = self.likelihood.take(rows), self._weighed(rows)[1]
            within = part.components(self.prior.atoms)
            k, m, d = *shares.shape, self.prior.dimension
            means = np.broadcast_to(within.mean, (k, m, d))
            values, vectors = np.linalg.eigh(within.covariance)
            roots = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
            roots = np.broadcast_to(roots, (k, m, d, d))
            edges = shares.cumsum(axis=1)
            everyone = np.arange(k)
            for draw in range(size):
                pick = (rng.random((k, 1)) * edges[:, -1:] > edges).sum(axis=1)
                noise = np.einsum("kil,kl->ki", roots[everyone, pick], rng.standard_normal((k, d)))
                draws[draw, rows] = means[everyone, pick] + noise
        return draws

    def __repr__(self) -> str:
        return (
            f"Posterior({len(self)} clients, {self.prior.dimension} parameters, "
            f"average shrinkage {self.shrinkage.mean():.2f})"
        )

    def table(self, level: float = 0.9) -> pa.Table:
        """One row for each client, as the command line writes it; ``.to_pandas()``, ``polars.from_arrow``."""
        from vaneb.tables import results_table

        return results_table(self, level)

    def _repr_html_(self) -> str:
        from vaneb.report.notebook import posterior_html

        return posterior_html(self)


def posterior(likelihood: Likelihood, prior: Prior, *, ids=(), names=(), status=()) -> Posterior:
    """Posterior of the clients behind ``likelihood`` under ``prior``."""
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
    return Posterior(
        likelihood.smoothed(prior.spread), prior, tuple(ids), tuple(names) or prior.names, tuple(status)
    )


def _responsibilities(likelihood: Likelihood, prior: Prior) -> tuple[Array, Array]:
    """log f_k (K,) and r_kj (K, m)."""
    terms = likelihood.log_likelihood(prior.atoms)
    terms += np.log(np.maximum(prior.weights, 1e-300))
    top = terms.max(axis=1)
    terms -= top[:, None]
    shares = np.exp(terms, out=terms)
    total = shares.sum(axis=1)
    shares /= total[:, None]
    return np.log(total) + top, shares


def unexplained(likelihood: Likelihood, prior: Prior) -> np.ndarray:
    """Clients that no atom explains but, perhaps, one of their own, (K,) bool.

    The deviance 2 (max l_k - l_k(a_j)) to the nearest atom that carries the weight of more than 1.5 clients
    of the fit is compared with the chi-squared quantile that one client in ``1 / SURPRISE`` federations of K
    would exceed.
    """
    from scipy.stats import chi2

    shared = prior.weights * (prior.clients or np.inf) > 1.5
    atoms = prior.atoms[shared] if shared.any() else prior.atoms
    limit = chi2.isf(SURPRISE / likelihood.n_clients, likelihood.dimension)
    nearest = map_blocks(
        lambda rows: likelihood.take(rows).log_likelihood(atoms).max(axis=1), likelihood.n_clients, ROWS
    )
    return 2 * (likelihood.peak() - np.concatenate(list(nearest))) > limit


def tweedie(likelihood: Likelihood, prior: Prior, rho: float = 0.0) -> Array:
    """Generalised Tweedie formula theta_hat_k + q_k / max(f_k, rho), for a discrete prior, (K, d).

    q_k = sum_j w_j p_k(a_j) (a_j - theta_hat_k) is the variance-weighted score of the marginal density,
    here in the units of theta; ``rho`` bounds the move of a client that the prior hardly explains.
    """
    if prior.spread is not None:
        raise InvalidOption("Tweedie's formula is stated for a discrete prior; this one has a spread")
    estimates = likelihood.local_estimates()
    terms = likelihood.log_likelihood(prior.atoms) + np.log(np.maximum(prior.weights, 1e-300))
    top = terms.max(axis=1)
    share = np.exp(terms - top[:, None])
    score = share @ prior.atoms - share.sum(axis=1)[:, None] * estimates
    # Both q and f carry the factor exp(top); rho is put on the same scale.
    floor = np.exp(np.minimum(np.log(rho) - top, 700.0)) if rho > 0 else np.zeros_like(top)
    return estimates + score / np.maximum(share.sum(axis=1), floor)[:, None]
