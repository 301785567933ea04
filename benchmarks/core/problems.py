"""The data of the benchmark: reference problems with known optima, and populations of any size.

The reference problems are

    square   3,200 x 3,200   d = 3, atoms at the observations of ``five(3200)``
    tall     20,000 x 800    d = 3, atoms at 800 of the 20,000 observations
    grid     20,000 x 800    d = 1, atoms on an equispaced grid

each a likelihood matrix whose rows have maximum one.  ``OPTIMUM`` is the smallest value of
-mean log(L w) over the simplex; three independent solvers agree on it to 2e-7.

Letters: K clients, m atoms, d parameters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

OPTIMUM = {"square": 2.9711690865, "tall": 2.8615639372, "grid": 1.3501886438}

CENTRES = np.array([[0, 0, 0], [3, 0, 0], [0, 3, 0], [0, 0, 3], [-2.5, -2.5, -2.5]], dtype=float)
SHARES = np.array([0.3, 0.2, 0.2, 0.15, 0.15])
WITHIN, VARIANCES = 0.3, (0.3, 1.5)
LOG_2PI = float(np.log(2 * np.pi))


def five(n_clients: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Five clusters in three dimensions: estimates, their variances, the truth, each (K, 3)."""
    rng = np.random.default_rng(seed)
    cluster = rng.choice(len(SHARES), n_clients, p=SHARES)
    theta = CENTRES[cluster] + WITHIN * rng.standard_normal((n_clients, 3))
    variances = rng.uniform(*VARIANCES, (n_clients, 3))
    estimates = theta + np.sqrt(variances) * rng.standard_normal((n_clients, 3))
    return estimates, variances, theta


def log_likelihood(estimates: Array, variances: Array, atoms: Array) -> Array:
    """log N(estimate_k; atom_j, diag(variances_k)), (K, m), by expanding the square."""
    precision = 1 / variances
    square = (
        (estimates**2 * precision).sum(1)[:, None]
        - 2 * (estimates * precision) @ atoms.T
        + precision @ (atoms**2).T
    )
    return -0.5 * (square + np.log(2 * np.pi * variances).sum(1)[:, None])


def _square() -> Array:
    estimates, variances, _ = five(3200)
    return log_likelihood(estimates, variances, estimates)


def _tall() -> Array:
    estimates, variances, _ = five(20_000, seed=1)
    chosen = np.random.default_rng(2).choice(20_000, 800, replace=False)
    return log_likelihood(estimates, variances, estimates[chosen])


def _grid() -> Array:
    rng, n = np.random.default_rng(3), 20_000
    theta = rng.choice([-2.0, 0, 0, 1.5, 4], n) + WITHIN * rng.standard_normal(n)
    deviation = np.sqrt(rng.uniform(*VARIANCES, n))
    x = theta + deviation * rng.standard_normal(n)
    z = (x[:, None] - np.linspace(x.min(), x.max(), 800)) / deviation[:, None]
    return -0.5 * z**2 - np.log(deviation)[:, None] - 0.5 * LOG_2PI


MATRICES = {"square": _square, "tall": _tall, "grid": _grid}


def matrix(name: str) -> Array:
    """Likelihood matrix (K, m) of a reference problem, every row with maximum one."""
    logs = MATRICES[name]()
    logs -= logs.max(axis=1, keepdims=True)
    return np.exp(logs, out=logs)


def gaps(likelihood: Array, weights: Array) -> Array:
    """D_j = mean_k L_kj / (L w)_k - 1 of every column, (m,)."""
    return (1 / (likelihood @ weights)) @ likelihood / len(likelihood) - 1


def population(n_clients: int, dimension: int, rng: np.random.Generator) -> Array:
    """True parameters (K, d) of five clusters like those of ``five``, in any dimension."""
    if dimension == CENTRES.shape[1]:
        centres = CENTRES
    else:
        centres = np.random.default_rng(dimension).choice([-2.5, 0.0, 3.0], (len(SHARES), dimension))
    theta = centres[rng.choice(len(SHARES), n_clients, p=SHARES)]
    theta += WITHIN * rng.standard_normal(theta.shape)
    return theta
