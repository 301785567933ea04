"""AdaMix on summary statistics: a spherical Gaussian mixture on the server, MAP shrinkage at the clients.

One outer step, with r_kl the mixture's responsibilities at the current estimates, tau_l^2 and mu_l its
component variances and means, and d_k the precisions of client k's own estimate x_k:

    theta_k <- theta_k + eta [(d_k x_k + sum_l r_kl mu_l / tau_l^2) / (d_k + sum_l r_kl / tau_l^2) - theta_k]

then the mixture is fitted again to the new estimates.  Following Ozkara, Girgis, Data and Diggavi (2023), in
the summary-statistics form of the VANEB paper's appendix.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vaneb.likelihood.base import Array


class SphericalMixture(NamedTuple):
    """sum_l p_l N(mu_l, tau_l^2 I)."""

    means: Array
    variances: Array
    weights: Array

    def responsibilities(self, points: Array) -> Array:
        """r_kl, (K, L)."""
        squared = ((points[:, None, :] - self.means) ** 2).sum(axis=2)
        d = points.shape[1]
        terms = np.log(self.weights) - 0.5 * (squared / self.variances + d * np.log(self.variances))
        share = np.exp(terms - terms.max(axis=1, keepdims=True))
        return share / share.sum(axis=1, keepdims=True)


def fit_spherical_mixture(
    points: Array,
    components: int,
    rng: np.random.Generator,
    *,
    start: SphericalMixture | None = None,
    steps: int = 100,
    floor: float = 1e-6,
) -> SphericalMixture:
    """EM for a spherical mixture; ``floor`` times the points' variance is the smallest tau_l^2."""
    n, d = points.shape
    components = min(components, n)
    total = float(points.var(axis=0).sum() / d) or 1.0
    mixture = start or SphericalMixture(
        _spread_out(points, components, rng), np.full(components, total), np.full(components, 1 / components)
    )
    for _ in range(steps):
        share = mixture.responsibilities(points)
        mass = share.sum(axis=0) + 1e-12
        means = share.T @ points / mass[:, None]
        squared = ((points[:, None, :] - means) ** 2).sum(axis=2)
        variances = np.maximum((share * squared).sum(axis=0) / (d * mass), floor * total)
        moved = float(np.abs(means - mixture.means).max())
        mixture = SphericalMixture(means, variances, mass / mass.sum())
        if moved < 1e-6 * np.sqrt(total):
            break
    return mixture


def _spread_out(points: Array, count: int, rng: np.random.Generator) -> Array:
    """k-means++ seeding: each next centre drawn with probability proportional to the squared distance."""
    centres = [points[rng.integers(len(points))]]
    distance = ((points - centres[0]) ** 2).sum(axis=1)
    for _ in range(count - 1):
        total = distance.sum()
        pick = rng.choice(len(points), p=distance / total) if total > 0 else rng.integers(len(points))
        centres.append(points[pick])
        distance = np.minimum(distance, ((points - centres[-1]) ** 2).sum(axis=1))
    return np.array(centres)


def adamix(
    estimates: Array,
    precision: Array,
    *,
    components: int,
    iterations: int,
    rate: float,
    rng: np.random.Generator,
) -> tuple[Array, SphericalMixture]:
    """Personalised estimates (K, d) from estimates (K, d) and diagonal precisions (K, d)."""
    current = estimates.copy()
    mixture = fit_spherical_mixture(current, components, rng)
    for _ in range(iterations):
        share = mixture.responsibilities(current) / mixture.variances
        pull, towards = share.sum(axis=1)[:, None], share @ mixture.means
        current = current + rate * ((precision * estimates + towards) / (precision + pull) - current)
        mixture = fit_spherical_mixture(current, components, rng, start=mixture, steps=20)
    return current, mixture
