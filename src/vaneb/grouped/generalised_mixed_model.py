"""The mixed model of all families but least squares: one Gaussian population, by marginal likelihood.

    y_ki ~ family(z_ki' theta_k),    theta_k ~ N(mu, Gamma)

The likelihood (``marginal``) is climbed in mu and a root of Gamma, in which a singular population is an
ordinary point; with binary rows the most likely one often is singular.  Which coefficients differ between
clients is not chosen but averaged over (``structure.averaged``): with few or small clients the largest
population is often the most likely one, and predicts worst.

Where every client's responses are all alike, the likelihood rises for ever with Gamma.  A weak penalty ends
that: the root's entries, for covariates of unit variance, are taken to be around zero with standard
deviation ``FAR``, in units of the linear index.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from vaneb.grouped.marginal import Marginal, root_of
from vaneb.grouped.structure import Candidate, Free, averaged, centred_basis
from vaneb.local.objective import Array

FAR = 5.0
#: A root begins with at least this on its diagonal: at zero the likelihood has no slope.
FIRST = 0.3
OPTIONS = {"maxiter": 300, "maxcor": 30, "ftol": 1e-9, "gtol": 1e-5}


@dataclass(frozen=True, eq=False)
class GaussianPopulation:
    """N(mu, Gamma), and what it takes to fit one like it to other clients."""

    mean: Array
    """mu, shape (d,)."""
    spread: Array
    """Gamma, shape (d, d)."""
    best: Candidate
    """The candidate of the largest weight, in coordinates phi, theta = B phi."""
    basis: Array
    """B, shape (d, d)."""
    inner: Array
    """Covariance of phi, shape (d, d): Gamma = B inner B'."""

    @property
    def root(self) -> Array:
        """R, shape (d, q), with R R' = Gamma."""
        return self.basis @ root_of(self.inner)

    def refitted(self, some: Marginal) -> tuple[Array, Array]:
        """mu and R of ``best``'s kind for some of the clients."""
        found = _candidate(some, self.basis, self.best.mean, self.best.free, self.best)
        return self.basis @ found.mean, self.basis @ root_of(found.spread)


def gaussian_population(marginal: Marginal, centre: Array) -> GaussianPopulation:
    """The population of the clients behind ``marginal``; ``centre`` (d,) is a first guess of mu."""
    columns_basis, intercept = centred_basis(marginal.rows.design)
    p, d = len(columns_basis), marginal.dimension
    basis = model_basis(columns_basis, d)
    terms = [j + p * np.arange(d // p) for j in range(p)]
    start = np.asarray(np.linalg.solve(basis, centre), dtype=np.float64)
    found = averaged(
        lambda free, before: _candidate(marginal, basis, start, free, before),
        terms,
        intercept,
        marginal.rows.n_clients,
    )
    spread = basis @ found.spread @ basis.T
    return GaussianPopulation(basis @ found.mean, spread, found.best, basis, found.spread)


def model_basis(columns_basis: Array, dimension: int) -> Array:
    """B (d, d) from that of the columns of the design: the same for every class."""
    return np.kron(np.eye(dimension // len(columns_basis)), columns_basis).astype(np.float64)


def _candidate(
    marginal: Marginal, basis: Array, centre: Array, free: Free, before: Candidate | None
) -> Candidate:
    """The most likely population in coordinates phi, its root's ``free`` entries alone not zero."""
    d, n = len(centre), marginal.rows.n_clients
    used = np.flatnonzero(free.any(axis=0))

    def unpack(x: Array) -> tuple[Array, Array]:
        root = np.zeros((d, d))
        root[free] = x[d:]
        return x[:d], root

    def loss(x: Array) -> tuple[float, Array]:
        mean, root = unpack(x)
        value = marginal.value(basis @ mean, (basis @ root)[:, used])
        total = float(value.log_density.sum()) - 0.5 * float(np.sum(x[d:] ** 2)) / FAR**2
        if not np.isfinite(total):
            return 1e10, np.zeros_like(x)
        slope = np.zeros((d, d))
        slope[:, used] = basis.T @ value.root_slope
        gradient = np.concatenate([basis.T @ value.mean_slope, slope[free] - x[d:] / FAR**2])
        return -total / n, -gradient / n

    first = np.diag(np.full(d, FIRST**2))
    if before is not None:
        known = np.diagonal(before.spread)
        first = before.spread + np.diag(np.maximum(FIRST**2 - known, 1e-4))
        centre = before.mean
    x = np.concatenate([centre, np.linalg.cholesky(first)[free]])
    found = minimize(loss, x, jac=True, method="L-BFGS-B", options=OPTIONS)
    mean, root = unpack(found.x)
    return Candidate(mean, root @ root.T, -float(found.fun) * n, free)
