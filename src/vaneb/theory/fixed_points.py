"""Fixed points of Algorithm 1: how fast they are reached, and how far the exact score's roots can be."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.covariance.base import Array, CovarianceFunction, DiagonalCovariance
from vaneb.likelihood.base import Likelihood
from vaneb.npmle.fit import log_mixture
from vaneb.theory.bounds import CovarianceBounds, blocks


def shares(likelihood: Likelihood, atoms: Array, weights: Array) -> Array:
    """w_kj = r_kj / sum_k r_kj with responsibilities r_kj = w_j p_k(a_j) / f_k: (K, m)."""
    logs = likelihood.log_likelihood(atoms) - log_mixture(likelihood, atoms, weights)[:, None]
    ratio = np.exp(logs - logs.max(axis=0))
    normalised: Array = ratio / ratio.sum(axis=0)
    return normalised


def ridgeline_point(weights: Array, estimates: Array, precision: Array) -> Array:
    """[sum_k w_k P_k]^{-1} sum_k w_k P_k theta_hat_k, where a mixture with fixed covariances may peak.

    Parameters
    ----------
    weights : (K,), or (m, K) for m points at once.
    estimates : (K, d)
    precision : (K, d) diagonal or (K, d, d)
        P_k = n_k S_k^{-1}.
    """
    if precision.ndim == 2:
        diagonal: Array = (weights @ (precision * estimates)) / (weights @ precision)
        return diagonal
    total = np.tensordot(weights, precision, axes=1)
    right = weights @ np.einsum("kij,kj->ki", precision, estimates)
    point: Array = np.linalg.solve(total, right[..., None])[..., 0]
    return point


def frozen_map(
    atoms: Array, share: Array, estimates: Array, n: Array, covariance: CovarianceFunction
) -> Array:
    """psi_j(a_j) = [sum_k w_kj n_k Sigma_k(a_j)^{-1}]^{-1} sum_k w_kj n_k Sigma_k(a_j)^{-1} theta_hat_k.

    The move of Algorithm 1: the ridgeline point for covariances frozen at the atom.  Shape (m, d);
    |psi_j(a_j) - a_j| is the fixed-point residual.

    Parameters
    ----------
    atoms : (m, d)
    share : (K, m), w_kj; see ``shares``.
    """
    m, d = atoms.shape
    diagonal = isinstance(covariance, DiagonalCovariance)
    total, right = np.zeros((m, d) if diagonal else (m, d, d)), np.zeros((m, d))
    for rows in blocks(covariance.n_clients, m * d * (1 if diagonal else d)):
        weight = share[rows] * n[rows, None]
        precision = covariance.take(rows).precision(atoms[None])
        if diagonal:
            total += np.einsum("km,kmi->mi", weight, precision)
            right += np.einsum("km,kmi,ki->mi", weight, precision, estimates[rows])
        else:
            total += np.einsum("km,kmij->mij", weight, precision)
            right += np.einsum("km,kmij,kj->mi", weight, precision, estimates[rows], optimize=True)
    return right / total if diagonal else np.asarray(np.linalg.solve(total, right[..., None])[..., 0])


def geometric_median(points: Array, weights: Array, *, tol: float = 1e-10, iterations: int = 500) -> Array:
    """argmin_u sum_k w_k |x_k - u| by Weiszfeld's iteration; ``points`` (K, d), ``weights`` (K,).

    At a data point the step of Vardi and Zhang is taken, which leaves it unless it is the median.
    """
    weights = weights / weights.sum()
    u = weights @ points
    scale = weights @ np.linalg.norm(points - u, axis=1)
    if scale == 0:
        return u
    for _ in range(iterations):
        distance = np.linalg.norm(points - u, axis=1)
        apart = distance > 1e-14 * scale
        pull = np.where(apart, weights / np.where(apart, distance, 1.0), 0.0)
        target = pull @ points / pull.sum()
        force = np.linalg.norm(pull @ (points - u))
        held = weights[~apart].sum()
        move = (1.0 - min(1.0, held / force) if force > 0 else 0.0) * (target - u)
        u = u + move
        if np.linalg.norm(move) <= tol * scale:
            break
    return u


class SettledPoints(NamedTuple):
    """Where atoms end when the shares of clients in them are held fixed, (m, d) each."""

    fixed: Array
    """a_j*, the fixed points of ``frozen_map``."""
    root: Array
    """a_j0*, roots of the exact score sum_k w_kj s_k(a), the nearest that scoring steps find."""
    rate: Array
    """(m,), ratio of the first two moves of ``frozen_map``: how fast it contracts, as observed."""


def settled_points(
    atoms: Array,
    share: Array,
    estimates: Array,
    n: Array,
    covariance: DiagonalCovariance,
    *,
    iterations: int = 200,
) -> SettledPoints:
    """Fixed points of Algorithm 1's move, and roots of the exact score near them, shares (K, m) held fixed.

    The exact score of a client, with v_i the variances of one row and e = theta_hat_k - a,

        s_k(a)_l = n_k e_l / v_l + 1/2 sum_i (n_k e_i^2 / v_i - 1) d log v_i / d a_l,

    is followed by scoring, its expected information n_k / v_l + 1/2 sum_i (d log v_i / d a_l)^2.
    """
    first = frozen_map(atoms, share, estimates, n, covariance)
    fixed = frozen_map(first, share, estimates, n, covariance)
    moved = np.linalg.norm(first - atoms, axis=1)
    rate = np.linalg.norm(fixed - first, axis=1) / np.where(moved > 0, moved, 1.0)
    for _ in range(iterations):
        fixed, before = frozen_map(fixed, share, estimates, n, covariance), fixed
        if np.abs(fixed - before).max() < 1e-12:
            break
    root = fixed
    for _ in range(iterations):
        step = _scoring_step(root, share, estimates, n, covariance)
        root = root + step
        if np.abs(step).max() < 1e-12:
            break
    return SettledPoints(fixed, root, rate)


def _scoring_step(
    atoms: Array, share: Array, estimates: Array, n: Array, covariance: DiagonalCovariance
) -> Array:
    m, d = atoms.shape
    score, information = np.zeros((m, d)), np.zeros((m, d, d))
    for rows in blocks(covariance.n_clients, m * d * d):
        own, weight = covariance.take(rows), share[rows]
        precision = own.precision(atoms[None])
        log_variance = -own.precision_gradient(atoms[None]) / precision[..., None]
        difference = estimates[rows, None] - atoms
        weighted = n[rows, None, None] * precision
        surplus = weighted * difference**2 - 1
        each = weighted * difference + 0.5 * np.einsum("kmi,kmil->kml", surplus, log_variance)
        score += np.einsum("km,kml->ml", weight, each)
        information += 0.5 * np.einsum("km,kmil,kmih->mlh", weight, log_variance, log_variance, optimize=True)
        information += np.einsum("km,kmi->mi", weight, weighted)[..., None] * np.eye(d)
    return np.asarray(np.linalg.solve(information, score[..., None])[..., 0])


class Contraction(NamedTuple):
    """How fast Algorithm 1 settles at each of m atoms, (m,) each."""

    effective_n: Array
    """n_j^w = sum_k w_kj n_k."""
    radius: Array
    """R_j^w = min_u sum_k (w_kj n_k / n_j^w) |theta_hat_k - u|."""
    constant: Array
    """L_j = tau (1 + tau) R_j^w L / s; below one, the fixed point is unique and reached at this rate."""


def contraction(share: Array, estimates: Array, n: Array, bounds: CovarianceBounds) -> Contraction:
    """Contraction constants of the frozen-covariance map for given shares (K, m)."""
    effective = n @ share
    alpha = share * n[:, None] / effective
    radius = np.empty(share.shape[1])
    for j, weight in enumerate(alpha.T):
        # clients without weight would only slow the iteration down
        own = weight > 1e-15
        median = geometric_median(estimates[own], weight[own])
        radius[j] = weight @ np.linalg.norm(estimates - median, axis=1)
    tau = bounds.condition
    return Contraction(effective, radius, tau * (1 + tau) * radius * bounds.lipschitz / bounds.lower)


class ScoreRootBound(NamedTuple):
    """How far a root of the exact score can be from a fixed point of Algorithm 1, (m,) each."""

    distance: Array
    """varrho_j; infinite where L_j >= 1."""
    valid: NDArray[np.bool_]
    """L_j < 1 and varrho_j sqrt(max n / s) <= 1: the distance is proved."""


def score_root_bound(
    atoms: Array,
    share: Array,
    estimates: Array,
    n: Array,
    covariance: CovarianceFunction,
    bounds: CovarianceBounds,
) -> ScoreRootBound:
    """varrho_j = (S L / (2 n_j^w)) (2 tau T_j^2 + d + 2) / (1 - L_j), at fixed points a_j.

    T_j^2 = sum_k w_kj n_k (theta_hat_k - a_j)' Sigma_k(a_j)^{-1} (theta_hat_k - a_j).
    """
    settled = contraction(share, estimates, n, bounds)
    squared = np.zeros(len(atoms))
    diagonal = isinstance(covariance, DiagonalCovariance)
    for rows in blocks(covariance.n_clients, atoms.size * (1 if diagonal else atoms.shape[1])):
        precision = covariance.take(rows).precision(atoms[None])
        difference = estimates[rows, None] - atoms
        form = "kmi,kmi,kmi->km" if diagonal else "kmi,kmij,kmj->km"
        distance = np.einsum(form, difference, precision, difference, optimize=True)
        squared += np.einsum("km,km->m", share[rows] * n[rows, None], distance)
    numerator = bounds.upper * bounds.lipschitz / (2 * settled.effective_n)
    numerator = numerator * (2 * bounds.condition * squared + atoms.shape[1] + 2)
    slack = 1.0 - settled.constant
    root = np.where(slack > 0, numerator / np.where(slack > 0, slack, 1.0), np.inf)
    return ScoreRootBound(root, (slack > 0) & (root * math.sqrt(np.max(n) / bounds.lower) <= 1))
