"""What a fit knows of each client, as plain numbers: enough to predict, without a single row.

A client's likelihood is kept as the Gaussian that touches it, theta_hat_k with precision P_k, and the
population as its components.  Under component j the index eta = x' theta of a row is N(x' m_kj, x' V_kj x):
eta has a mixture of normals, averaged over the populations drawn, and its quantiles are computed, not drawn.

Where a likelihood is not Gaussian, mean, standard deviation and skewness of eta are corrected, as
``vaneb.posterior`` does for each coefficient by weighed points.  Their first three moments are kept here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.likelihood.base import Array
from vaneb.population.conditioning import components_of
from vaneb.population.lanes import lanes_of
from vaneb.posterior import Posterior
from vaneb.prior import Prior
from vaneb.quantiles import quantiles_of_block

#: Entries of the components' covariances in one block of work.
ENTRIES = 4_000_000


@dataclass(frozen=True, eq=False)
class KnownClients:
    """Posteriors of K clients under a population, in numbers that can be saved."""

    ids: tuple[str, ...]
    prior: Prior
    estimates: Array
    """theta_hat, (K, d)."""
    precision: Array
    """P, (K, d, d)."""
    mean: Array
    """Posterior mean, (K, d)."""
    covariance: Array
    """Posterior covariance, (K, d, d)."""
    third: Array | None = None
    """Third central moments of the points before and after they are weighed, (2, K, T), in the order of
    ``_triples``; None where clients are Gaussian."""

    @classmethod
    def of(cls, posterior: Posterior) -> Self:
        """What ``posterior`` knows."""
        view, d = posterior._view, posterior.prior.dimension
        precision = view.base_precision
        if precision.ndim == 2:
            precision = precision[:, :, None] * np.eye(d)
        third = None
        if not posterior._exact:
            points, weight = posterior._points, posterior._point_weights
            plain = np.full_like(weight, 1 / weight.shape[1])
            third = np.stack([_third_moments(points, plain), _third_moments(points, weight)])
        return cls(
            tuple(map(str, posterior.ids)), posterior.prior, view.estimates, precision, posterior.mean,
            posterior.covariance, third,
        )  # fmt: skip

    def positions(self, clients: NDArray[np.object_]) -> NDArray[np.intp]:
        """Position of each row's client; -1, which is the last, for clients that were not in the fit."""
        import pandas as pd

        return pd.Index(self.ids, dtype=object).get_indexer(clients)

    def index_quantiles(
        self, client: NDArray[np.intp], x: Array, probabilities: Array, noise: float = 0.0
    ) -> Array:
        """Quantiles of x' theta + N(0, ``noise``) for rows of clients, (probabilities, N).

        Parameters
        ----------
        client : (N,) positions; -1: a client of which nothing is known, who comes from the population
        x : (N, d)
        probabilities : ascending
        noise : variance that is added
        """
        out = np.empty((len(probabilities), len(x)))
        order = np.argsort(client, kind="stable")
        step = max(1, ENTRIES // (len(self.prior.weights) * x.shape[1] ** 2))
        for start in range(0, len(x), step):
            rows = order[start : start + step]
            out[:, rows] = self._quantiles(client[rows], x[rows], probabilities, noise)
        return out

    def _quantiles(self, client: NDArray[np.intp], x: Array, probabilities: Array, noise: float) -> Array:
        from scipy.special import ndtri

        known = client >= 0
        mean = np.einsum("ni,ni->n", x, np.vstack([self.mean, self.prior.mean])[client])
        covariance = np.concatenate([self.covariance, self.prior.covariance[None]])[client]
        variance = np.maximum(np.einsum("ni,nij,nj->n", x, covariance, x), 0.0)
        if self.prior.covariances is None:
            # Atoms: a quantile would jump from one to the next.
            return mean + ndtri(probabilities)[:, None] * np.sqrt(variance + noise)
        shares, at, spread = self._components(client, x)
        before = np.einsum("nj,nj->n", shares, at)
        old = np.einsum("nj,nj->n", shares, spread + (at - before[:, None]) ** 2)
        skewness = np.zeros(len(x))
        if self.third is not None and known.any():
            stretch = np.where(known & (old > 0), np.sqrt(variance / np.maximum(old, 1e-300)), 1.0)
            at = mean[:, None] + (at - before[:, None]) * stretch[:, None]
            spread = spread * stretch[:, None] ** 2
            moments = _along(self.third[:, np.maximum(client, 0)], x)
            scale = np.maximum(np.stack([old, variance]), 1e-300) ** 1.5
            skewness = np.where(known & (old > 0), moments[1] / scale[1] - moments[0] / scale[0], 0.0)
        sd = np.sqrt(variance + noise)
        found = quantiles_of_block(
            shares, at[:, :, None], spread[:, :, None] + noise, mean[:, None], sd[:, None], probabilities
        )[:, :, 0]
        if self.third is None:
            return found
        # Cornish and Fisher: what the skewness adds to a quantile; noise has none of it
        z = ndtri(probabilities)[:, None]
        skewness = (
            skewness * np.divide(variance, variance + noise, out=np.zeros_like(sd), where=sd > 0) ** 1.5
        )
        return np.sort(found + (z**2 - 1) / 6 * skewness * sd, axis=0)

    def _components(self, client: NDArray[np.intp], x: Array) -> tuple[Array, Array, Array]:
        """Shares, means and variances of the index in each component, (N, m) each."""
        prior = self.prior
        who, row = np.unique(client, return_inverse=True)
        # Nothing is known of a client that was not in the fit.
        precision = np.where(who[:, None, None] < 0, 0.0, self.precision[who])
        _, shares, means, covariances = components_of(
            lanes_of(self.estimates[who], precision), prior.weights * prior.populations,
            np.ascontiguousarray(prior.atoms), np.ascontiguousarray(prior.roots), prior.starts, full=True,
        )  # fmt: skip
        squares = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        at = np.einsum("nmi,ni->nm", means[row], x)
        return shares[row], at, np.einsum("nmi,ni->nm", covariances[row], squares)

    def interval(self, level: float) -> tuple[Array, Array]:
        """Of each coefficient of each client: lower (K, d), upper (K, d)."""
        k, d = self.mean.shape
        x = np.tile(np.eye(d), (k, 1))
        probabilities = np.array([(1 - level) / 2, (1 + level) / 2])
        lower, upper = self.index_quantiles(np.repeat(np.arange(k), d), x, probabilities)
        return lower.reshape(k, d), upper.reshape(k, d)

    def to_wire(self) -> dict[str, Any]:
        """Plain numbers, fit for JSON."""
        arrays = ("estimates", "precision", "mean", "covariance")
        return {
            "ids": list(self.ids),
            "prior": self.prior.to_wire(),
            **{name: getattr(self, name).tolist() for name in arrays},
            "third": None if self.third is None else self.third.tolist(),
        }

    @classmethod
    def from_wire(cls, wire: Any) -> Self:
        """From ``to_wire``; refuses anything else with ``InvalidReport``."""
        prior = Prior.from_wire(wire["prior"])
        ids, d = wire["ids"], prior.dimension
        if not isinstance(ids, list) or not ids or not all(isinstance(name, str) for name in ids):
            raise InvalidReport("clients: their ids should be texts.")
        k = len(ids)
        shapes = {"estimates": (k, d), "precision": (k, d, d), "mean": (k, d), "covariance": (k, d, d)}
        arrays = {name: finite(wire[name], shape, name) for name, shape in shapes.items()}
        third = wire["third"]
        if third is not None:
            third = finite(third, (2, k, len(_triples(d)[0])), "third")
        return cls(tuple(ids), prior, **arrays, third=third)


def finite(values: Any, shape: tuple[int, ...], name: str) -> Array:
    """Finite numbers of this shape, or ``InvalidReport``."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != shape or not np.isfinite(array).all():
        raise InvalidReport(f"{name}: should hold finite numbers of shape {shape}.")
    return array


def _triples(d: int) -> tuple[NDArray[np.intp], Array]:
    """Positions i <= j <= l, (T, 3), and in how many orders each comes, (T,)."""
    found = list(combinations_with_replacement(range(d), 3))
    orders = [(1, 3, 6)[len(set(t)) - 1] for t in found]
    return np.array(found, dtype=np.intp), np.array(orders, dtype=np.float64)


def _third_moments(points: Array, weight: Array) -> Array:
    """Central moments E[c_i c_j c_l] of points (K, S, d) with weights (K, S): (K, T)."""
    centred = points - np.einsum("ks,ksi->ki", weight, points)[:, None, :]
    triples = _triples(points.shape[2])[0]
    return np.stack(
        [np.einsum("ks,ks,ks,ks->k", weight, *(centred[:, :, i] for i in t)) for t in triples], axis=1
    )


def _along(third: Array, x: Array) -> Array:
    """Third moments of x' theta, (2, N), from those of theta, (2, N, T)."""
    triples, orders = _triples(x.shape[1])
    return np.einsum("ant,nt->an", third, orders * x[:, triples].prod(axis=2))
