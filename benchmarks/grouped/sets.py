"""Simulated grouped data with known populations: half of the rows to fit, half to predict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import expit


@dataclass(frozen=True)
class GroupedSet:
    """A data set, the formula for vaneb, and the random effects that an lme4 user would write."""

    name: str
    what: str
    make: Callable[[np.random.Generator], pd.DataFrame]
    formula: str
    random: str
    family: str


def _rows(rng: np.random.Generator, sizes: np.ndarray, test_sizes: np.ndarray) -> pd.DataFrame:
    """Client and test columns, and two covariates: standard normal, and a coin."""
    k = np.arange(len(sizes))
    client = np.concatenate([np.repeat(k, sizes), np.repeat(k, test_sizes)])
    test = np.concatenate([np.zeros(sizes.sum(), int), np.ones(test_sizes.sum(), int)])
    n = len(client)
    columns = {"x": rng.standard_normal(n).round(4), "w": rng.integers(0, 2, n), "test": test}
    return pd.DataFrame({"client": client, **columns})


def _gaussian(frame: pd.DataFrame, theta: np.ndarray, rng: np.random.Generator, sd: float) -> pd.DataFrame:
    own = theta[frame.client]
    index = own[:, 0] + (own[:, 1] * frame.x if theta.shape[1] > 1 else 0)
    return frame.assign(y=(index + sd * rng.standard_normal(len(frame))).round(5))


def _binary(frame: pd.DataFrame, theta: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    own = theta[frame.client]
    index = own[:, 0] + (own[:, 1] * frame.x if theta.shape[1] > 1 else 0)
    return frame.assign(y=(rng.random(len(frame)) < expit(index)).astype(int))


def _normal(rng: np.random.Generator, k: int, mean: list[float], cov: list[list[float]]) -> np.ndarray:
    return rng.multivariate_normal(mean, cov, size=k)


def gaussian_small_groups(rng: np.random.Generator) -> pd.DataFrame:
    frame = _rows(rng, rng.integers(1, 9, 2000), rng.integers(1, 5, 2000))
    return _gaussian(frame, _normal(rng, 2000, [1, 0.5], [[1, 0.3], [0.3, 0.4]]), rng, 1.5)


def gaussian_one_or_two(rng: np.random.Generator) -> pd.DataFrame:
    frame = _rows(rng, rng.integers(1, 3, 1500), np.full(1500, 2))
    return _gaussian(frame, _normal(rng, 1500, [0, 1], [[1, 0], [0, 0.2]]), rng, 1.0)


def gaussian_skewed(rng: np.random.Generator) -> pd.DataFrame:
    frame = _rows(rng, rng.integers(2, 9, 800), np.full(800, 3))
    theta = np.column_stack([rng.exponential(1.5, 800), rng.gamma(2, 0.3, 800)])
    return _gaussian(frame, theta, rng, 1.0)


def gaussian_bimodal(rng: np.random.Generator) -> pd.DataFrame:
    frame = _rows(rng, rng.integers(3, 9, 600), np.full(600, 3))
    low = rng.random((600, 1)) < 0.4
    theta = np.where(low, [[-2, 1]], [[2, -1]]) + 0.3 * rng.standard_normal((600, 2))
    return _gaussian(frame, theta, rng, 2.0)


def gaussian_few(rng: np.random.Generator) -> pd.DataFrame:
    frame = _rows(rng, rng.integers(3, 15, 20), np.full(20, 40))
    return _gaussian(frame, _normal(rng, 20, [0, 1], [[1, 0], [0, 0.3]]), rng, 2.0)


def binary_intercept(rng: np.random.Generator) -> pd.DataFrame:
    frame = _rows(rng, rng.integers(1, 6, 1000), np.full(1000, 3))
    return _binary(frame, _normal(rng, 1000, [-0.5], [[1.0]]), rng)


def binary_common_slope(rng: np.random.Generator) -> pd.DataFrame:
    frame = _rows(rng, rng.integers(1, 6, 1000), np.full(1000, 3))
    theta = np.column_stack([rng.normal(-0.5, 1, 1000), np.full(1000, 0.8)])
    return _binary(frame, theta, rng)


def binary_bimodal(rng: np.random.Generator) -> pd.DataFrame:
    frame = _rows(rng, rng.integers(2, 11, 1500), np.full(1500, 3))
    theta = np.where(rng.random((1500, 1)) < 0.3, [[2.0, -0.5]], [[-1.5, 1.0]])
    return _binary(frame, theta + 0.2 * rng.standard_normal((1500, 2)), rng)


def binary_few(rng: np.random.Generator) -> pd.DataFrame:
    frame = _rows(rng, rng.integers(5, 40, 20), np.full(20, 60))
    return _binary(frame, _normal(rng, 20, [-0.5, 0.7], [[0.7, 0.1], [0.1, 0.2]]), rng)


SETS = (
    GroupedSet("gaussian-small", "2,000 groups of 1-8 rows, Gaussian effects", gaussian_small_groups,
               "y ~ x", "(1 + x | client)", "gaussian"),
    GroupedSet("gaussian-1-2", "1,500 groups of 1-2 rows, Gaussian effects", gaussian_one_or_two,
               "y ~ x", "(1 + x | client)", "gaussian"),
    GroupedSet("gaussian-skewed", "800 groups of 2-8 rows, exponential and gamma effects", gaussian_skewed,
               "y ~ x", "(1 + x | client)", "gaussian"),
    GroupedSet("gaussian-bimodal", "600 groups of 3-8 rows, two clusters", gaussian_bimodal,
               "y ~ x", "(1 + x | client)", "gaussian"),
    GroupedSet("gaussian-few", "20 groups of 3-14 rows, Gaussian effects", gaussian_few,
               "y ~ x", "(1 + x | client)", "gaussian"),
    GroupedSet("binary-intercept", "1,000 groups of 1-5 rows, Gaussian intercepts", binary_intercept,
               "y ~ 1", "(1 | client)", "binomial"),
    GroupedSet("binary-slope", "1,000 groups of 1-5 rows, Gaussian intercepts, same slope",
               binary_common_slope,
               "y ~ x", "(1 | client)", "binomial"),
    GroupedSet("binary-bimodal", "1,500 groups of 2-10 rows, two clusters", binary_bimodal,
               "y ~ x", "(1 + x | client)", "binomial"),
    GroupedSet("binary-few", "20 groups of 5-39 rows, Gaussian effects", binary_few,
               "y ~ x", "(1 + x | client)", "binomial"),
)  # fmt: skip
