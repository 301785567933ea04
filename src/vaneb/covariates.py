"""Covariates of the clients themselves: theta_k = B z_k + u_k, and u_k comes from the population.

A client's likelihood is a function of theta_k = u_k + B z_k, hence of (u_k, B).  All clients share B: so the
sampler of populations learns it as it learns all that clients have in common (``varying``), and what is not
known of B is counted in everywhere.  Covariates are centred and scaled, and B is told in their own units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.likelihood.base import Array, Likelihood
from vaneb.likelihood.recoded import Recoded
from vaneb.posterior import Correction, Pieces, Posterior, Summary
from vaneb.prior import Covariates, Prior


class Effects(NamedTuple):
    """B: by how much a parameter's centre moves with one unit of a covariate."""

    covariates: tuple[str, ...]
    mean: Array
    """Posterior mean, shape (d, q)."""
    sd: Array
    """Posterior standard deviation, shape (d, q)."""


def augmented(likelihood: Likelihood, known: Covariates, covariates: Any) -> Any:
    """The clients as functions of (u, B), B by columns: what the sampler of populations needs.

    theta_k = T_k (u, B), T_k = (I, z_k1 I, z_k2 I, ...), shape (d, D); z is centred and scaled.
    """
    n, d = likelihood.n_clients, likelihood.dimension
    names, values = _columns(covariates, n)
    if len(names) != len(known.names) or (hasattr(covariates, "columns") and names != known.names):
        raise InvalidReport(
            f"covariates: got {', '.join(names)}; the fit had {', '.join(known.names)}. Give the same, in "
            "this order."
        )
    extended = np.hstack([np.ones((n, 1)), (values - known.centre) / known.scale])
    maps = np.einsum("kq,ij->kiqj", extended, np.eye(d))
    return Recoded(likelihood, maps.reshape(n, d, -1))


def varying(d: int, known: Covariates) -> NDArray[np.bool_]:
    """Coordinates of (u, B) in which clients differ."""
    return np.arange(d * (1 + len(known.names))) < d


def parameter_names(own: tuple[str, ...], known: Covariates) -> tuple[str, ...]:
    """Of (u, B)."""
    return (*own, *(f"{name}:{z}" for z in known.names for name in own))


def effects_of(prior: Prior) -> Effects | None:
    """B in the covariates' own units; ``None`` where there are no covariates."""
    if prior.covariates is None:
        return None
    known, d = prior.covariates, prior.parameters
    draws = (
        prior.atoms[prior.starts[:-1], d:].reshape(-1, len(known.names), d).transpose(0, 2, 1) / known.scale
    )
    return Effects(known.names, draws.mean(axis=0), draws.std(axis=0))


def posterior_with(
    likelihood: Likelihood, prior: Prior, covariates: Any, *, ids=(), names=(), status=()
) -> Posterior:
    """Posterior of theta_k under a population that knows covariates."""
    assert prior.covariates is not None
    if likelihood.dimension != prior.parameters:
        raise InvalidReport(
            f"the clients have {likelihood.dimension} parameters, the prior has {prior.parameters}: "
            "it was fitted on another model"
        )
    own = tuple(names) or prior.names[: likelihood.dimension]
    return CovariatePosterior(
        likelihood, prior, tuple(ids), own, tuple(status), augmented(likelihood, prior.covariates, covariates)
    )


def learn_covariates(covariates: Any, n_clients: int) -> Covariates:
    """Centre and scale of (K, q) covariates."""
    names, values = _columns(covariates, n_clients)
    centre, scale = values.mean(axis=0), values.std(axis=0)
    for name, sd, size in zip(names, scale, np.abs(values).max(axis=0), strict=True):
        if not sd > 1e-12 * size:
            raise InvalidReport(
                f"covariate {name}: is the same for all clients, and says nothing of them. Leave it out."
            )
    if np.linalg.matrix_rank((values - centre) / scale, tol=1e-8 * np.sqrt(n_clients)) < len(names):
        raise InvalidReport(
            f"covariates {', '.join(names)}: one of them follows from the others, or clients are fewer than "
            "covariates. Leave one out."
        )
    return Covariates(names, centre, scale)


def _columns(covariates: Any, n_clients: int) -> tuple[tuple[str, ...], Array]:
    if hasattr(covariates, "columns"):
        import narwhals as nw

        table = nw.from_native(covariates, eager_only=True)
        names = tuple(map(str, table.columns))
        given: Any = {name: table[name].to_list() for name in table.columns}
        columns = list(given.values())
    else:
        array = np.asarray(covariates)
        array = array[:, None] if array.ndim == 1 else array
        if array.ndim != 2:
            raise InvalidReport(f"covariates: expected one row for each client, got shape {array.shape}.")
        names, columns = tuple(f"z{i + 1}" for i in range(array.shape[1])), list(array.T)
    if not names:
        raise InvalidReport("covariates: there are none. Leave them out.")
    out = np.empty((n_clients, len(names)))
    for i, (name, column) in enumerate(zip(names, columns, strict=True)):
        if len(column) != n_clients:
            raise InvalidReport(f"covariate {name}: {len(column)} values for {n_clients} clients.")
        try:
            out[:, i] = np.asarray(column, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidReport(
                f"covariate {name}: holds something else than numbers. Code classes as 0 and 1."
            ) from None
        if bad := np.flatnonzero(~np.isfinite(out[:, i])).tolist():
            raise InvalidReport(
                f"covariate {name}: missing or not finite for client number {bad[0] + 1}. Fill it in, "
                "or leave the client out."
            )
    return names, out


@dataclass(frozen=True, eq=False, repr=False)
class CovariatePosterior(Posterior):
    """Posterior of theta_k = u_k + B z_k: that of (u_k, B), seen through T_k."""

    augmented: Recoded | None = None

    @cached_property
    def _inner(self) -> Posterior:
        assert self.augmented is not None
        return Posterior(self.augmented, self.prior, self.ids, (), self.status)  # type: ignore[arg-type]

    @property
    def _maps(self) -> Array:
        assert self.augmented is not None
        return self.augmented.basis

    def _seen(self, summary: Summary) -> Summary:
        mean = np.einsum("kij,kj->ki", self._maps, summary.mean)
        covariance = self._maps @ summary.covariance @ np.swapaxes(self._maps, 1, 2)
        return summary._replace(mean=mean, covariance=covariance)

    @cached_property
    def _before(self) -> Summary:
        return self._seen(self._inner._before)

    @cached_property
    def _corrected(self) -> tuple[Summary, Correction]:
        inner, correction = self._inner._corrected
        before, after, d = self._before, self._seen(inner), self.likelihood.dimension
        sd, old = (
            np.sqrt(np.maximum(np.diagonal(one.covariance, axis1=1, axis2=2), 1e-60))
            for one in (after, before)
        )
        return after, Correction(before.mean, after.mean, sd / old, correction.skewness[:, :d])

    def _raw_pieces(self, rows: slice) -> Pieces:
        assert self.augmented is not None
        made, d = self._inner._raw_pieces(rows), self.likelihood.dimension
        return Pieces(made.shares, self.augmented.take(rows).theta(made.mean), made.variance[..., :d])

    @property
    def _exact(self) -> bool:
        return self.likelihood.is_gaussian

    @cached_property
    def population(self) -> Prior:
        return self.prior.of_average_client()

    def centres(self, rows: slice) -> Array:
        assert self.augmented is not None
        some = self.augmented.take(rows)
        return some.theta(np.broadcast_to(self.prior.atoms, (some.n_clients, *self.prior.atoms.shape)))

    def sample(self, size: int, rng: np.random.Generator) -> Array:
        assert self.augmented is not None
        draws = self._inner.sample(size, rng)
        return np.stack([self.augmented.theta(one) for one in draws])
