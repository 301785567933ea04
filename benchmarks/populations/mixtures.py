"""Posteriors under Gaussian mixtures, and their quantiles: what the oracle and the rivals share.

    theta_k ~ sum_j w_j N(mu_j, S_j),    x_k ~ N(theta_k, diag(s2_k))

With T = S_j + diag(s2_k): share of j is proportional to w_j N(x_k; mu_j, T), the mean within j is
mu_j + S_j T^-1 (x_k - mu_j), and the covariance within j is S_j - S_j T^-1 S_j.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: Components of a client's posterior with less than this share do not count in its quantiles.
NEGLIGIBLE = 1e-9
#: Clients at a time: bounds the memory of the posterior within components.
BLOCK = 500
#: Sums may be taken in another order, which lets the compiler use vectors.
jit = numba.njit(cache=True, fastmath={"reassoc", "contract"})


class Mixture(NamedTuple):
    weights: Array
    """(J,)"""
    centres: Array
    """(J, d)"""
    covariances: Array
    """(J, d, d)"""


class Answer(NamedTuple):
    """What a method says of every client, (K, d) each."""

    mean: Array
    lower: Array
    upper: Array


@jit
def factor(spread, noise, apart, root, white):
    """Cholesky factor L of T, L^-1 (x - mu); returns log N(x; mu, T) without its constant."""
    value = 0.0
    for i in range(len(noise)):
        for j in range(i):
            total = spread[i, j]
            for m in range(j):
                total -= root[i, m] * root[j, m]
            root[i, j] = total / root[j, j]
        total = spread[i, i] + noise[i]
        left = apart[i]
        for m in range(i):
            total -= root[i, m] * root[i, m]
            left -= root[i, m] * white[m]
        root[i, i] = np.sqrt(total)
        white[i] = left / root[i, i]
        value -= 0.5 * white[i] * white[i] + np.log(root[i, i])
    return value


@jit
def half_gain(spread, root, gain):
    """L^-1 S: the posterior mean is mu + (L^-1 S)' L^-1 (x - mu), its covariance S - (L^-1 S)' (L^-1 S)."""
    d = len(spread)
    for i in range(d):
        for c in range(d):
            gain[i, c] = spread[i, c]
        for m in range(i):
            for c in range(d):
                gain[i, c] -= root[i, m] * gain[m, c]
        for c in range(d):
            gain[i, c] /= root[i, i]


@jit
def components(x, s2, centres, covariances, log_density, means, variances):
    """Log density (K, J), mean and variances (K, J, d) of every client under every component."""
    K, d = x.shape
    root, gain, white, apart = np.zeros((d, d)), np.zeros((d, d)), np.zeros(d), np.zeros(d)
    for j in range(len(centres)):
        for k in range(K):
            for c in range(d):
                apart[c] = x[k, c] - centres[j, c]
            log_density[k, j] = factor(covariances[j], s2[k], apart, root, white)
            half_gain(covariances[j], root, gain)
            for c in range(d):
                means[k, j, c] = centres[j, c]
                variances[k, j, c] = covariances[j, c, c]
            for i in range(d):
                for c in range(d):
                    means[k, j, c] += gain[i, c] * white[i]
                    variances[k, j, c] -= gain[i, c] * gain[i, c]


@jit
def log_densities(x, s2, centres, covariances):
    """Log N(x_k; mu_j, T) without its constant, (K, J)."""
    K, d = x.shape
    root, white, apart = np.zeros((d, d)), np.zeros(d), np.zeros(d)
    out = np.empty((K, len(centres)))
    for j in range(len(centres)):
        for k in range(K):
            for c in range(d):
                apart[c] = x[k, c] - centres[j, c]
            out[k, j] = factor(covariances[j], s2[k], apart, root, white)
    return out


@jit
def quantile(shares, means, sds, probability):
    """Quantile of sum_j shares_j N(means_j, sds_j^2): Newton's steps within a bracket that shrinks."""
    low, high, at = np.inf, -np.inf, 0.0
    for j in range(len(shares)):
        if shares[j] > 0:
            low, high = min(low, means[j] - 9 * sds[j]), max(high, means[j] + 9 * sds[j])
            at += shares[j] * means[j]
    width = high - low
    for _ in range(200):
        below, density = 0.0, 0.0
        for j in range(len(shares)):
            if shares[j] > 0:
                if sds[j] > 0:
                    z = (at - means[j]) / sds[j]
                    below += shares[j] * 0.5 * math.erfc(-z * 0.7071067811865476)
                    density += shares[j] * 0.3989422804014327 * np.exp(-0.5 * z * z) / sds[j]
                elif means[j] <= at:
                    below += shares[j]
        if below < probability:
            low = at
        else:
            high = at
        step = at - (below - probability) / density if density > 0 else low
        # Where Newton leaves the bracket, or the curve is a step, halving is safe.
        new = step if low < step < high else 0.5 * (low + high)
        if abs(new - at) <= 1e-9 * width or high - low <= 1e-9 * width:
            return new
        at = new
    return at


@jit
def quantiles(shares, means, sds, probabilities):
    """Quantiles (P, K, d) of mixtures with shares (K, J), means and sds (K, J, d)."""
    K, _, d = means.shape
    out = np.empty((len(probabilities), K, d))
    for k in range(K):
        # Components that count are gathered once per client.
        kept = np.flatnonzero(shares[k] > 0)
        for c in range(d):
            some, m, s = shares[k][kept], means[k, :, c][kept], sds[k, :, c][kept]
            for p in range(len(probabilities)):
                out[p, k, c] = quantile(some, m, s, probabilities[p])
    return out


def summary(shares: Array, means: Array, variances: Array, level: float) -> Answer:
    """Mean and central interval of mixtures: shares (K, J), means and variances (K, J, d)."""
    shares = np.where(shares > NEGLIGIBLE, shares, 0.0)
    shares /= shares.sum(1, keepdims=True)
    ends = quantiles(
        shares, means, np.sqrt(np.maximum(variances, 0)), np.array([(1 - level) / 2, (1 + level) / 2])
    )
    return Answer(np.einsum("kj,kjd->kd", shares, means), ends[0], ends[1])


def posterior(x: Array, s2: Array, mixture: Mixture, level: float = 0.9, *, reweigh: bool = True) -> Answer:
    """Every client's posterior; ``reweigh=False`` keeps the weights as shares (draws from a posterior)."""
    parts = []
    for first in range(0, len(x), BLOCK):
        rows = slice(first, first + BLOCK)
        shape = (len(x[rows]), len(mixture.weights))
        log_density = np.empty(shape)
        means, variances = np.empty((*shape, x.shape[1])), np.empty((*shape, x.shape[1]))
        components(x[rows], s2[rows], mixture.centres, mixture.covariances, log_density, means, variances)
        shares = np.tile(mixture.weights, (shape[0], 1))
        if reweigh:
            shares *= np.exp(log_density - log_density.max(1, keepdims=True))
            shares /= shares.sum(1, keepdims=True)
        parts.append(summary(shares, means, variances, level))
    return Answer(*(np.concatenate(pieces) for pieces in zip(*parts, strict=True)))


def log_marginal(x: Array, s2: Array, mixture: Mixture) -> Array:
    """Log density of every client's estimate, (K,), without the constant."""
    value = log_densities(x, s2, mixture.centres, mixture.covariances)
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(value + np.log(mixture.weights), axis=1)
