"""What a Gaussian population needs of all clients together: a sum in which every client is an equal part.

One EM step needs the clients' posterior means and covariances under N(mu, Sigma) only as

    sum_k m_k,    sum_k m_k m_k' + V_k,

so there is no atom that could come to serve a single client.  Numbers are about the middle of the public box,
in units of its widths.  A likelihood that is not Gaussian is seen through the one that touches it.
"""

from __future__ import annotations

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.flower.settings import Settings
from vaneb.likelihood.base import Array, Likelihood, as_matrices
from vaneb.likelihood.expansion import modes_under

#: Smallest variance of a population, in squared widths of the box: beyond what rounded sums can tell.
SMALLEST = 1e-8


def box_of(settings: Settings) -> tuple[Array, Array]:
    """Corners (d,), (d,) of the public box."""
    try:
        lower, upper = (
            np.array([float(number) for number in text.split(",")])
            for text in (settings.lower, settings.upper)
        )
    except ValueError:
        raise InvalidOption(
            "lower, upper: needed for mode secure: the corners of a box that holds the clients' parameters, "
            "one number for each parameter, separated by commas."
        ) from None
    if lower.shape != upper.shape or not (lower < upper).all():
        raise InvalidOption("lower, upper: as many numbers in each, the first below the second.")
    return lower, upper


def cover(lower: Array, upper: Array, atoms: int, seed: int) -> Array:
    """``atoms`` points (m, d) spread evenly over the box (a scrambled Halton sequence)."""
    from scipy.stats import qmc

    if atoms < 1:
        raise InvalidOption(f"atoms: {atoms}, but at least one is needed.")
    points = qmc.Halton(len(lower), rng=np.random.default_rng(seed)).random(atoms)
    return lower + points * (upper - lower)


def first_population(settings: Settings) -> tuple[Array, Array]:
    """As wide as the box: mean (1, d) and covariance (d, d)."""
    lower, upper = box_of(settings)
    return (lower + upper)[None] / 2, np.diag((upper - lower) ** 2 / 4)


def own_total(mean: Array, covariance: Array, likelihood: Likelihood, settings: Settings) -> Array:
    """One client's part, numbers in [-1, 1] as far as the client is near the box."""
    lower, upper = box_of(settings)
    seen = likelihood.expanded(modes_under(likelihood, mean[0], covariance))
    inverse = np.linalg.inv(covariance)
    precision = as_matrices(seen.local_precision())[0]
    spread = np.linalg.inv(precision + inverse)
    middle = spread @ (precision @ seen.local_estimates()[0] + inverse @ mean[0])
    place, width = (middle - (lower + upper) / 2) / (upper - lower), upper - lower
    second = np.outer(place, place) + spread / np.outer(width, width)
    return np.clip(np.concatenate([place, second[np.triu_indices(len(place))]]), -1.0, 1.0)


def next_population(total: Array, clients: int, settings: Settings) -> tuple[Array, Array]:
    """The population after one EM step, from the sum of the clients' parts."""
    lower, upper = box_of(settings)
    d, width = len(lower), upper - lower
    place, upper_half = np.split(np.asarray(total, dtype=np.float64) / clients, [d])
    second = np.zeros((d, d))
    second[np.triu_indices(d)] = upper_half
    second = second + np.triu(second, 1).T
    values, vectors = np.linalg.eigh(second - np.outer(place, place))
    covariance = (vectors * np.maximum(values, SMALLEST)) @ vectors.T * np.outer(width, width)
    return ((lower + upper) / 2 + width * place)[None], covariance


def settled(before: tuple[Array, Array], after: tuple[Array, Array], settings: Settings) -> bool:
    """Whether a step has moved mean and covariance by next to nothing, in widths of the box."""
    width = np.subtract(*box_of(settings)[::-1])
    moved = np.abs(after[0] - before[0]) / width, np.abs(after[1] - before[1]) / np.outer(width, width)
    return max(float(part.max()) for part in moved) < settings.tol
