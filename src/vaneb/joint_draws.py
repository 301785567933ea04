"""Draws of all clients together.

Clients' posteriors hang together through the population: where it is wide, all of them may lie far from its
centre.  Given one population they are independent.  So draw s takes one population for everybody, each of the
R populations equally often, and then every client by itself:

    r_s uniform,      theta_ks | r_s  ~  p_k(theta) G_{r_s}(theta)  up to a factor.

Gaussian clients are exact.  Others are drawn through the Gaussian that touches their likelihood, and each
coordinate is then moved to the corrected posterior quantile by quantile: x -> F^{-1}(F_0(x)), with F_0 and F
the distribution of the client's points before and after they are weighed (``Posterior._point_weights``).  A
linear map, the one that moves least, then gives the coordinates the correlations of the weighed points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import blocks
from vaneb.likelihood.base import Array
from vaneb.population import conditioning as kernels

Whole = NDArray[np.intp]

if TYPE_CHECKING:
    from vaneb.posterior import Posterior


def joint_draws(posterior: Posterior, size: int, rng: np.random.Generator) -> Array:
    """(size, K, d); draws of one population stand side by side."""
    prior = posterior.prior
    draws = np.empty((size, len(posterior), prior.dimension))
    # Draw s belongs to population s R // size, so that each has its share.
    population: Whole = np.arange(size, dtype=np.intp) * prior.populations // size
    if size < prior.populations:
        population = np.sort(rng.choice(prior.populations, size, replace=False))
    for rows in blocks(len(posterior), posterior._size):
        draw = _of_atoms if prior.covariances is None else _of_components
        draws[:, rows] = np.swapaxes(draw(posterior, rows, population, rng), 0, 1)
    return draws


def _of_components(posterior: Posterior, rows: slice, population: Whole, rng: np.random.Generator) -> Array:
    """(K, size, d)"""
    prior = posterior.prior
    clients, shares = posterior._lanes(rows), posterior._raw_pieces(rows).shares
    n, size = len(shares), len(population)
    theta = np.empty((n, size, prior.dimension))
    # Every population has 1/R of each client's shares, so a number in [r, r + 1) / R picks a component of r.
    # The kernel wants them in ascending order: they are, up to draws of one population.
    picks = (population + rng.random((n, size))) / prior.populations
    order = np.argsort(picks, axis=1)
    kernels.posterior_points(
        n, clients.x, clients.precision, *posterior._components, shares,
        np.take_along_axis(picks, order, axis=1), rng.standard_normal((n, size, prior.roots.shape[2])), theta,
    )  # fmt: skip
    drawn = np.empty_like(theta)
    np.put_along_axis(drawn, order[:, :, None], theta, axis=1)
    if not posterior._exact:
        for k, client in enumerate(range(rows.start, rows.start + n)):
            drawn[k] = _corrected(drawn[k], posterior._points[client], posterior._point_weights[client])
    return drawn


def _of_atoms(posterior: Posterior, rows: slice, population: Whole, rng: np.random.Generator) -> Array:
    shares, atoms, variance = posterior._raw_pieces(rows)
    edges = shares.cumsum(axis=1)
    n, size = len(shares), len(population)
    drawn = np.empty((n, size, atoms.shape[2]))
    for k in range(n):
        picks = (population + rng.random(size)) / posterior.prior.populations * edges[k, -1]
        at = np.minimum(np.searchsorted(edges[k], picks), len(edges[k]) - 1)
        drawn[k] = atoms[0, at] + np.sqrt(variance[0, at]) * rng.standard_normal((size, atoms.shape[2]))
    return drawn


def _corrected(values: Array, points: Array, weight: Array) -> Array:
    """``values`` (S, d) of the distribution of ``points``, moved to that of the points with their weights."""
    if points.shape[1] == 1:
        return _moved(values[:, 0], points[:, 0], weight)[:, None]
    both = np.concatenate([values, points])
    moved = np.stack([_moved(both[:, i], points[:, i], weight) for i in range(points.shape[1])], axis=1)
    values, placed = moved[: len(values)], moved[len(values) :]
    scale = placed.std(axis=0)
    varying = np.flatnonzero(scale > 1e-12 * np.abs(placed).max(axis=0))
    if len(varying) < 2:
        return values
    centre, scale = weight @ points[:, varying], scale[varying]
    now = np.cov(placed[:, varying] / scale, rowvar=False)
    wanted = np.cov(points[:, varying] / scale, rowvar=False, aweights=weight)
    step = (_least_move(now, wanted) @ ((values[:, varying] - centre) / scale).T).T
    values[:, varying] = centre + scale * step
    return values


def _least_move(now: Array, wanted: Array) -> Array:
    """A symmetric, A now A = wanted: A = now^{-1/2} (now^{1/2} wanted now^{1/2})^{1/2} now^{-1/2}."""
    values, vectors = np.linalg.eigh(now)
    values = np.maximum(values, 1e-9 * values[-1])
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    inner, axes = np.linalg.eigh(root @ wanted @ root)
    return inverse @ (axes * np.sqrt(np.maximum(inner, 0.0))) @ axes.T @ inverse


def _moved(values: Array, points: Array, weight: Array) -> Array:
    """F^{-1}(F_0(values)): F_0 of ``points``, F of the same with weights; beyond them as far as the last."""
    order = np.argsort(points)
    at, heavy = points[order], weight[order]
    plain = (np.arange(len(at)) + 0.5) / len(at)
    weighed = np.cumsum(heavy) - 0.5 * heavy
    # Where each of the points goes; what lies between and beyond them goes with them.
    goes = np.interp(plain, weighed, at) - at
    return values + np.interp(values, at, goes)
