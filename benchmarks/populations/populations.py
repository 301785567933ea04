"""Populations of clients with a known truth, the noise of their estimates, and the oracle.

Each population draws theta (K, d) and says which Gaussian mixture it was drawn from.  Heavy tails, skewed
and ring are integrals over a continuous variable: clients are drawn from the integral, and the oracle has
a grid so fine that twice as many points change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mixtures import Answer, Array, Mixture, posterior
from scipy.special import ndtri
from scipy.stats import chi2, norm

#: Standard deviation of what is meant to be a point.
POINT = 1e-4
DEGREES = 3


class Draw(NamedTuple):
    theta: Array
    estimates: Array
    standard_errors: Array
    mixture: Mixture | None
    """The population; ``None`` where it is one unknown point, and the oracle pools the clients."""


def from_mixture(mixture: Mixture, K: int, rng: np.random.Generator) -> Array:
    d = mixture.centres.shape[1]
    which = rng.choice(len(mixture.weights), K, p=mixture.weights)
    roots = np.linalg.cholesky(mixture.covariances + 1e-12 * np.eye(d))
    return mixture.centres[which] + np.einsum("kij,kj->ki", roots[which], rng.standard_normal((K, d)))


Population = tuple[Array, Mixture | None]


def round_(weights: list[float], centres: Array, sds: list[float]) -> Mixture:
    """Components with the same spread in all directions."""
    covariances = np.array(sds)[:, None, None] ** 2 * np.eye(centres.shape[1])
    return Mixture(np.array(weights), centres, covariances)


def one(covariance: Array) -> Mixture:
    return Mixture(np.ones(1), np.zeros((1, len(covariance))), covariance[None])


def clusters(K: int, d: int, rng: np.random.Generator) -> Population:
    """Three clusters, each with a spread of its own."""
    mixture = round_([0.5, 0.3, 0.2], rng.standard_normal((3, d)) * 2, [0.1, 0.5, 1.0])
    return from_mixture(mixture, K, rng), mixture


def lowrank(K: int, d: int, rng: np.random.Generator) -> Population:
    """Most of the variation in two directions, little in the rest."""
    load = rng.standard_normal((d, 2)) / np.sqrt(2)
    mixture = one(load @ load.T + 0.01 * np.eye(d))
    return from_mixture(mixture, K, rng), mixture


def sparse(K: int, d: int, rng: np.random.Generator) -> Population:
    """Four in five at one point, the others far around it."""
    mixture = round_([0.8, 0.2], np.zeros((2, d)), [POINT, 2.0])
    return from_mixture(mixture, K, rng), mixture


def normal(K: int, d: int, rng: np.random.Generator) -> Population:
    """One Gaussian with a covariance drawn at random."""
    root = rng.standard_normal((d, d)) / np.sqrt(d)
    mixture = one(root @ root.T + 0.1 * np.eye(d))
    return from_mixture(mixture, K, rng), mixture


def correlated(K: int, d: int, rng: np.random.Generator) -> Population:
    """One Gaussian, neighbouring coordinates correlated 0.9."""
    place = np.arange(d)
    mixture = one(0.9 ** np.abs(place[:, None] - place))
    return from_mixture(mixture, K, rng), mixture


def partial(K: int, d: int, rng: np.random.Generator) -> Population:
    """The first half of the coordinates differ, the others are the same for all clients."""
    sd = np.where(np.arange(d) < (d + 1) // 2, 1.0, POINT)
    mixture = one(np.diag(sd**2))
    return from_mixture(mixture, K, rng), mixture


def equal(K: int, d: int, rng: np.random.Generator) -> Population:
    """All clients are the same."""
    return np.tile(rng.standard_normal(d), (K, 1)), None


def twoscale(K: int, d: int, rng: np.random.Generator) -> Population:
    """One centre, two spreads."""
    mixture = round_([0.7, 0.3], np.zeros((2, d)), [0.2, 1.5])
    return from_mixture(mixture, K, rng), mixture


def heavy(K: int, d: int, rng: np.random.Generator, points: int = 120) -> Population:
    """Multivariate t with three degrees of freedom and unit variances."""
    scale = 1 / np.sqrt(DEGREES / (DEGREES - 2))
    theta = scale * rng.standard_normal((K, d)) / np.sqrt(rng.chisquare(DEGREES, (K, 1)) / DEGREES)
    # u = chi-squared on a grid that is even in log u; weights by the density of log u
    u = np.geomspace(chi2.ppf(1e-7, DEGREES), chi2.isf(1e-7, DEGREES), points)
    weights = chi2.pdf(u, DEGREES) * u
    sds = scale * np.sqrt(DEGREES / u)
    return theta, round_(list(weights / weights.sum()), np.zeros((points, d)), list(sds))


def skewed(K: int, d: int, rng: np.random.Generator, points: int = 120) -> Population:
    """Log-normal along the diagonal: small values close together, a long tail, spread in proportion."""
    size = np.exp(0.7 * rng.standard_normal((K, 1)))
    theta = size * (1 + 0.2 * rng.standard_normal((K, d)))
    z = np.linspace(-5, 5, points)
    weights = norm.pdf(z)
    centres = np.exp(0.7 * z)[:, None] * np.ones(d)
    return theta, round_(list(weights / weights.sum()), centres, list(0.2 * np.exp(0.7 * z)))


def ring(K: int, d: int, rng: np.random.Generator, points: int = 120) -> Population:
    """A circle in the first two coordinates, thin in all directions."""

    def circle(angle: Array) -> Array:
        return np.column_stack([2 * np.cos(angle), 2 * np.sin(angle), np.zeros((len(angle), d - 2))])

    theta = circle(2 * np.pi * rng.random(K)) + 0.15 * rng.standard_normal((K, d))
    centres = circle(2 * np.pi * np.arange(points) / points)
    return theta, round_([1 / points] * points, centres, [0.15] * points)


POPULATIONS: dict[str, Callable[[int, int, np.random.Generator], Population]] = {
    f.__name__: f
    for f in (
        clusters, lowrank, sparse, normal, heavy, equal, correlated, twoscale, skewed, ring, partial
    )
}  # fmt: skip
#: Populations that say something only with at least so many dimensions.
LEAST_DIMENSION = {"ring": 2, "correlated": 2, "partial": 2}


def uniform(K: int, d: int, rng: np.random.Generator) -> Array:
    """Every coordinate of every client has a standard error of its own, 0.2 to 1.5."""
    return rng.uniform(0.2, 1.5, (K, d))


def same(K: int, d: int, rng: np.random.Generator) -> Array:
    """All standard errors are 0.7."""
    return np.full((K, d), 0.7)


def rows(K: int, d: int, rng: np.random.Generator) -> Array:
    """Clients with 3 to 3,000 rows, log-uniform: standard errors 2.5 / sqrt(n), from 1.44 to 0.05."""
    n = np.exp(rng.uniform(np.log(3), np.log(3000), (K, 1)))
    return np.tile(2.5 / np.sqrt(n), (1, d))


NOISES: dict[str, Callable[[int, int, np.random.Generator], Array]] = {
    f.__name__: f for f in (uniform, same, rows)
}


def draw(population: str, K: int, d: int, noise: str, seed: int) -> Draw:
    rng = np.random.default_rng(seed)
    theta, mixture = POPULATIONS[population](K, d, rng)
    se = NOISES[noise](K, d, rng)
    return Draw(theta, theta + se * rng.standard_normal((K, d)), se, mixture)


def oracle(clients: Draw, level: float = 0.9) -> Answer:
    """The posterior of who knows the population; of ``equal``, who knows that all are the same."""
    x, s2 = clients.estimates, clients.standard_errors**2
    if clients.mixture is not None:
        return posterior(x, s2, clients.mixture, level)
    precision = (1 / s2).sum(0)
    mean = np.broadcast_to((x / s2).sum(0) / precision, x.shape)
    half = ndtri((1 + level) / 2) / np.sqrt(precision)
    return Answer(mean, mean - half, mean + half)
