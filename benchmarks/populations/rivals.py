"""The methods that are compared: each takes estimates and standard errors (K, d), and gives an ``Answer``.

local           the client's own estimate
xd              extreme deconvolution: EM for a Gaussian mixture with full covariances, number of components
                by two halves of the clients (Bovy, Hogg, Roweis 2011)
gaussian        one Gaussian, coordinate by coordinate, its mean and its scale integrated out
gaussian-full   one Gaussian with a full covariance, mean and covariance integrated out by Gibbs sampling
npmle           the discrete NPMLE
npeb            the package of that name, in an interpreter of its own (``--npeb PYTHON``)
vaneb           what a user gets by default
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mixtures import Answer, Array, Mixture, factor, half_gain, jit, log_marginal, posterior, summary
from scipy.special import ndtri

import vaneb

LEVEL = 0.9
#: Numbers of components that extreme deconvolution chooses from, and its EM steps.
SIZES = (1, 2, 4, 8, 16, 32)
STEPS = 80
#: Points of the grid over the standard deviation of one Gaussian.
GRID = 150
#: Sweeps of the Gibbs sampler, those left out at the beginning, and populations that are kept.
SWEEPS, BURN, KEPT = 2200, 200, 250
#: npeb: EM steps; more clients take it too long.
NPEB_STEPS, NPEB_MOST_CLIENTS = 10, 200


class Told(NamedTuple):
    answer: Answer
    facts: dict[str, object]
    """What else is worth a column: number of components, CPU seconds of a child process, ..."""


def discrete() -> vaneb.VANEB:
    """The discrete NPMLE: the one line to change when its option is renamed."""
    return vaneb.VANEB(population="discrete")


def local(x: Array, se: Array) -> Told:
    half = ndtri((1 + LEVEL) / 2) * se
    return Told(Answer(x, x - half, x + half), {})


def of_vaneb(model: vaneb.VANEB, x: Array, se: Array) -> Told:
    reports = vaneb.Reports(x, standard_errors=se)
    after = model.fit(reports).personalize(reports)
    return Told(Answer(after.mean, *after.interval(LEVEL)), {})


@jit
def em_sums(x, s2, log_weights, centres, covariances, counts, firsts, seconds, within):
    """Sums over clients by component: shares, and of the posterior given the component its mean relative to
    the centre, the outer product of that, and (L^-1 S)' (L^-1 S), by which the covariance is below S."""
    K, d = x.shape
    J = len(centres)
    roots, whites = np.zeros((J, d, d)), np.zeros((J, d))
    shares, apart, mean, gain = np.empty(J), np.zeros(d), np.zeros(d), np.zeros((d, d))
    for k in range(K):
        for j in range(J):
            for c in range(d):
                apart[c] = x[k, c] - centres[j, c]
            shares[j] = log_weights[j] + factor(covariances[j], s2[k], apart, roots[j], whites[j])
        shares[:] = np.exp(shares - shares.max())
        shares /= shares.sum()
        for j in range(J):
            share = shares[j]
            counts[j] += share
            if share < 1e-9:
                continue
            half_gain(covariances[j], roots[j], gain)
            mean[:] = 0
            for i in range(d):
                for c in range(d):
                    mean[c] += gain[i, c] * whites[j, i]
                for a in range(d):
                    for c in range(a + 1):
                        within[j, a, c] += share * gain[i, a] * gain[i, c]
            for a in range(d):
                firsts[j, a] += share * mean[a]
                for c in range(a + 1):
                    seconds[j, a, c] += share * mean[a] * mean[c]


def mirrored(lower: Array) -> Array:
    """Symmetric matrices from their lower triangles."""
    return np.tril(lower) + np.swapaxes(np.tril(lower, -1), -1, -2)


def deconvolve(x: Array, s2: Array, J: int, rng: np.random.Generator) -> Mixture:
    """J components by EM; a covariance is held off zero by d clients' worth of a small diagonal one."""
    K, d = x.shape
    spread = np.diag(np.maximum(x.var(0, ddof=1) - s2.mean(0), 0.05 * x.var(0)))
    centres = x[rng.choice(K, J, replace=False)].copy()
    covariances, weights = np.tile(0.3 * spread, (J, 1, 1)), np.full(J, 1 / J)
    for _ in range(STEPS):
        counts, firsts = np.zeros(J), np.zeros((J, d))
        seconds, within = np.zeros((J, d, d)), np.zeros((J, d, d))
        with np.errstate(divide="ignore"):
            log_weights = np.log(weights)
        em_sums(x, s2, log_weights, centres, covariances, counts, firsts, seconds, within)
        weights = counts / K
        alive = counts > 1e-6
        n = counts[alive, None, None]
        step = firsts[alive] / counts[alive, None]
        total = mirrored(seconds[alive] - within[alive]) + n * covariances[alive]
        total -= n * step[:, :, None] * step[:, None, :]
        covariances[alive] = (total + 0.01 * d * spread) / (n + d)
        centres[alive] += step
    return Mixture(weights, centres, covariances)


def xd(x: Array, se: Array) -> Told:
    rng = np.random.default_rng(1)
    (K, d), s2 = x.shape, se**2
    half = rng.permutation(K) < K // 2
    sizes = [J for J in SIZES if J == 1 or J * (d + 1) * 2 < K]
    scores = []
    for J in sizes if len(sizes) > 1 else ():
        halves = (half, ~half)
        scores.append(sum(log_marginal(x[~a], s2[~a], deconvolve(x[a], s2[a], J, rng)).sum() for a in halves))
    J = sizes[int(np.argmax(scores))] if scores else 1
    return Told(posterior(x, s2, deconvolve(x, s2, J, rng), LEVEL), {"components": J})


def gaussian(x: Array, se: Array) -> Told:
    """Every coordinate by itself: theta_k ~ N(mu, tau^2), mu and tau with flat priors.

    Given tau, mu is integrated out in closed form; tau is on a grid.
    """
    parts = [_one_coordinate(x[:, c], se[:, c] ** 2) for c in range(x.shape[1])]
    return Told(Answer(*(np.column_stack(pieces) for pieces in zip(*parts, strict=True))), {})


def _one_coordinate(x: Array, s2: Array) -> Answer:
    # Dense near zero, where most of the posterior is when clients hardly differ; the cells' widths are
    # the flat prior.
    edges = 6 * x.std() * np.linspace(0, 1, GRID + 1) ** 2
    tau2 = ((edges[1:] + edges[:-1]) / 2) ** 2
    precision = 1 / (s2[:, None] + tau2)
    total = precision.sum(0)
    mu = (precision * x[:, None]).sum(0) / total
    log_weights = np.log(np.diff(edges)) - 0.5 * np.log(total)
    log_weights += 0.5 * (np.log(precision) - precision * (x[:, None] - mu) ** 2).sum(0)
    weights = np.exp(log_weights - log_weights.max())
    kept = weights > 1e-7 * weights.max()
    weights, tau2, mu, total = weights[kept] / weights[kept].sum(), tau2[kept], mu[kept], total[kept]
    # theta_k = mu + b (x_k - mu), with mu uncertain by 1 / total
    b = tau2 * precision[:, kept]
    means = mu + b * (x[:, None] - mu)
    variances = b * s2[:, None] + (1 - b) ** 2 / total
    shares = np.tile(weights, (len(x), 1))
    said = summary(shares, means[:, :, None], variances[:, :, None], LEVEL)
    return Answer(*(piece[:, 0] for piece in said))


@jit
def draw_thetas(x, s2, mu, covariance, normals, thetas):
    """One draw of every client's parameter given the population and its estimate.

    Draw theta* ~ N(mu, S) and x* ~ N(theta*, s2); then theta* + S T^-1 (x - x*) is a draw given x.
    """
    K, d = x.shape
    root, white, apart, gain = np.zeros((d, d)), np.zeros(d), np.zeros(d), np.zeros((d, d))
    nothing = np.zeros(d)
    outer = np.zeros((d, d))
    factor(covariance, nothing, nothing, outer, white)
    for k in range(K):
        for c in range(d):
            value = mu[c]
            for i in range(c + 1):
                value += outer[c, i] * normals[0, k, i]
            thetas[k, c] = value
            apart[c] = x[k, c] - value - np.sqrt(s2[k, c]) * normals[1, k, c]
        factor(covariance, s2[k], apart, root, white)
        half_gain(covariance, root, gain)
        for i in range(d):
            for c in range(d):
                thetas[k, c] += gain[i, c] * white[i]


def gaussian_full(x: Array, se: Array) -> Told:
    """theta_k ~ N(mu, S): mu flat, S by Huang and Wand (2013): correlations uniform, sds half-t.

    S | a ~ inverse Wishart(d + 1, 4 diag(1 / a)), a_c ~ inverse gamma(1/2, 1 / A_c^2): every sd is half-t
    with two degrees of freedom and a scale A_c far above the estimates' spread, so nearly flat.
    """
    rng = np.random.default_rng(1)
    (K, d), s2 = x.shape, se**2
    wide = 5 * x.std(0)
    mu, a = x.mean(0), np.ones(d)
    covariance = np.diag(np.maximum(x.var(0) - s2.mean(0), 0.1 * x.var(0)))
    floor = 1e-10 * np.diag(x.var(0))
    thetas = np.empty((K, d))
    centres, covariances = [], []
    every = (SWEEPS - BURN) // KEPT
    for sweep in range(SWEEPS):
        draw_thetas(x, s2, mu, covariance, rng.standard_normal((2, K, d)), thetas)
        mean = thetas.mean(0)
        apart = thetas - mean
        # mu is integrated out of S, then drawn given S
        scatter = apart.T @ apart + 4 * np.diag(1 / a)
        covariance = inverse_wishart(d + K, scatter, rng) + floor
        mu = mean + np.linalg.cholesky(covariance) @ rng.standard_normal(d) / np.sqrt(K)
        precision = np.diag(np.linalg.inv(covariance))
        a = (2 * precision + 1 / wide**2) / rng.gamma((d + 2) / 2, size=d)
        if sweep >= BURN and (sweep - BURN) % every == 0:
            centres.append(mu)
            covariances.append(covariance)
    kept = Mixture(np.full(len(centres), 1 / len(centres)), np.array(centres), np.array(covariances))
    return Told(posterior(x, s2, kept, LEVEL, reweigh=False), {})


def inverse_wishart(degrees: int, scatter: Array, rng: np.random.Generator) -> Array:
    """Bartlett's decomposition: with scatter = C C' and A lower triangular, (C A^-T) (C A^-T)'."""
    d = len(scatter)
    triangle = np.tril(rng.standard_normal((d, d)), -1)
    triangle[np.diag_indices(d)] = np.sqrt(rng.chisquare(degrees - np.arange(d)))
    half = np.linalg.solve(triangle, np.linalg.cholesky(scatter).T)
    return half.T @ half


def npeb(python: str) -> Callable[[Array, Array], Told]:
    """npeb with all estimates as atoms, fitted by the script that the figures of the core use."""
    script = Path(__file__).parents[1] / "core" / "npeb_fit.py"

    def fit(x: Array, se: Array) -> Told:
        K, d = x.shape
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            np.ascontiguousarray(x).tofile(folder / "estimates.bin")
            (1 / se**2).tofile(folder / "precision.bin")
            command = [python, str(script), str(folder), *map(str, (K, d, 0, NPEB_STEPS))]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            facts = json.loads(said.rstrip().split("\n")[-1])
            atoms = np.fromfile(folder / "atoms.bin").reshape(-1, d)
            weights = np.maximum(np.fromfile(folder / "weights.bin"), 0)
        points = Mixture(weights / weights.sum(), atoms, np.zeros((len(atoms), d, d)))
        told = {"cpu": facts["cpu"], "components": int((weights > 1e-4).sum())}
        return Told(posterior(x, se**2, points, LEVEL), told)

    return fit


METHODS: dict[str, Callable[[Array, Array], Told]] = {
    "local": local,
    "xd": xd,
    "gaussian": gaussian,
    "gaussian-full": gaussian_full,
    "npmle": lambda x, se: of_vaneb(discrete(), x, se),
    "vaneb": lambda x, se: of_vaneb(vaneb.VANEB(), x, se),
}
