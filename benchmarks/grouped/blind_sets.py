"""Grouped data that no rule was set on: simulated, half of the rows to fit and half to predict.

Each function draws one data set with columns client, test, y and covariates; ``SETS`` has formula and family.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.special import expit

Rng = np.random.Generator
NONE = 1e-9


def _frame(sizes: np.ndarray, test_rows: int) -> pd.DataFrame:
    k = np.arange(len(sizes))
    client = np.concatenate([np.repeat(k, sizes), np.repeat(k, test_rows)])
    test = np.concatenate([np.zeros(sizes.sum(), int), np.ones(test_rows * len(k), int)])
    return pd.DataFrame({"client": client, "test": test})


def _effects(rng: Rng, k: int, mean: list[float], sd: list[float], correlation: float = 0.3) -> np.ndarray:
    d = len(mean)
    root = np.linalg.cholesky(np.full((d, d), correlation) + np.eye(d) * (1 - correlation + 1e-12))
    return np.asarray(mean) + (rng.standard_normal((k, d)) @ root.T) * np.asarray(sd)


def _index(frame: pd.DataFrame, theta: np.ndarray, *columns: object) -> np.ndarray:
    design = np.column_stack([np.ones(len(frame)), *columns])
    return np.sum(theta[frame.client] * design, axis=1)


def _noisy(frame: pd.DataFrame, index: np.ndarray, rng: Rng, sd: float | np.ndarray = 1.0) -> pd.DataFrame:
    return frame.assign(y=(index + sd * rng.standard_normal(len(frame))).round(5))


def _binary(frame: pd.DataFrame, index: np.ndarray, rng: Rng) -> pd.DataFrame:
    return frame.assign(y=(rng.random(len(frame)) < expit(index)).astype(int))


def _with(frame: pd.DataFrame, rng: Rng, *names: str) -> pd.DataFrame:
    return frame.assign(**{name: rng.standard_normal(len(frame)).round(4) for name in names})


def slopes(rng: Rng) -> pd.DataFrame:
    """300 groups of 2-20 rows, two correlated covariates, all coefficients differ."""
    frame = _with(_frame(rng.integers(2, 21, 300), 6), rng, "a", "b")
    frame["b"] += 0.5 * frame.a
    theta = _effects(rng, 300, [1, 0.5, -0.5], [1, 0.5, 0.3])
    return _noisy(frame, _index(frame, theta, frame.a, frame.b), rng, 1.5)


def crossed(rng: Rng) -> pd.DataFrame:
    """200 groups of 4-15 rows, a factor of three levels and its interaction with a number."""
    frame = _with(_frame(rng.integers(4, 16, 200), 6), rng, "x")
    frame["f"] = rng.choice(list("pqr"), len(frame))
    q, r = (frame.f == "q") * 1.0, (frame.f == "r") * 1.0
    theta = _effects(rng, 200, [0, 1, 0.5, -0.5, 0.2, 0], [1, 0.4, 0.5, 0.5, 0.01, 0.01])
    return _noisy(frame, _index(frame, theta, frame.x, q, r, frame.x * q, frame.x * r), rng)


def many(rng: Rng) -> pd.DataFrame:
    """400 groups of 3-25 rows, six covariates, of which two have coefficients that differ."""
    names = [f"x{j}" for j in range(6)]
    frame = _with(_frame(rng.integers(3, 26, 400), 5), rng, *names)
    theta = _effects(rng, 400, [0, 1, -1, 0.5, 0, 0.3, -0.2], [1, 0.5, 0.3, NONE, NONE, NONE, NONE])
    return _noisy(frame, _index(frame, theta, frame[names]), rng, 1.5)


def many_few(rng: Rng) -> pd.DataFrame:
    """40 groups of 10-40 rows, eight covariates with coefficients that all differ."""
    names = [f"x{j}" for j in range(8)]
    frame = _with(_frame(rng.integers(10, 41, 40), 20), rng, *names)
    theta = _effects(rng, 40, [0] + [0.5] * 8, [1] + [0.3] * 8, 0.1)
    return _noisy(frame, _index(frame, theta, frame[names]), rng, 1.5)


def pairs(rng: Rng) -> pd.DataFrame:
    """3,000 groups of 1-2 rows."""
    frame = _with(_frame(rng.integers(1, 3, 3000), 1), rng, "x")
    return _noisy(frame, _index(frame, _effects(rng, 3000, [1, 1], [0.8, 0.4]), frame.x), rng)


def twenty(rng: Rng) -> pd.DataFrame:
    """20 groups of 5-30 rows, a covariate far from zero."""
    frame = _frame(rng.integers(5, 31, 20), 50)
    frame["x"] = rng.uniform(0, 10, len(frame)).round(3)
    return _noisy(frame, _index(frame, _effects(rng, 20, [5, 1], [2, 0.3], -0.2), frame.x), rng, 3.0)


def unbalanced(rng: Rng) -> pd.DataFrame:
    """150 groups of 1-200 rows."""
    sizes = np.exp(rng.uniform(0, np.log(200), 150)).astype(int)
    frame = _with(_frame(sizes, 20), rng, "x")
    return _noisy(frame, _index(frame, _effects(rng, 150, [0, 0.5], [0.7, 0.3]), frame.x), rng, 2.0)


def equal(rng: Rng) -> pd.DataFrame:
    """300 groups of 2-10 rows that do not differ."""
    frame = _with(_frame(rng.integers(2, 11, 300), 5), rng, "x")
    return _noisy(frame, _index(frame, _effects(rng, 300, [1, 0.5], [0, 0]), frame.x), rng)


def heavy_effects(rng: Rng) -> pd.DataFrame:
    """500 groups of 2-10 rows, effects from Student's t with 3 degrees of freedom."""
    frame = _with(_frame(rng.integers(2, 11, 500), 5), rng, "x")
    theta = np.array([0, 1]) + rng.standard_t(3, (500, 2)) * [0.7, 0.3]
    return _noisy(frame, _index(frame, theta, frame.x), rng)


def heavy_noise(rng: Rng) -> pd.DataFrame:
    """500 groups of 2-10 rows, noise from Student's t with 3 degrees of freedom."""
    frame = _with(_frame(rng.integers(2, 11, 500), 5), rng, "x")
    index = _index(frame, _effects(rng, 500, [0, 1], [0.7, 0.3]), frame.x)
    return frame.assign(y=(index + rng.standard_t(3, len(frame))).round(5))


def uneven_noise(rng: Rng) -> pd.DataFrame:
    """400 groups of 3-15 rows, each with a noise level of its own."""
    frame = _with(_frame(rng.integers(3, 16, 400), 5), rng, "x")
    sd = np.exp(0.6 * rng.standard_normal(400))[frame.client]
    return _noisy(frame, _index(frame, _effects(rng, 400, [0, 1], [0.7, 0.3]), frame.x), rng, sd)


def context(rng: Rng) -> pd.DataFrame:
    """150 groups of 2-20 rows, with a number and a factor that are the same within a group."""
    frame = _with(_frame(rng.integers(2, 21, 150), 10), rng, "x")
    frame["w"] = rng.standard_normal(150).round(3)[frame.client]
    frame["s"] = np.where(rng.random(150) < 0.4, "cath", "pub")[frame.client]
    theta = _effects(rng, 150, [0, 1, 0.5, 0.8], [0.7, 0.3, NONE, NONE])
    return _noisy(frame, _index(frame, theta, frame.x, frame.w, frame.s == "pub"), rng, 1.5)


def holes(rng: Rng) -> pd.DataFrame:
    """As ``slopes``, with missing values and groups that only have test rows."""
    frame = slopes(rng)
    frame.loc[rng.random(len(frame)) < 0.1, "a"] = np.nan
    frame.loc[rng.random(len(frame)) < 0.05, "y"] = np.nan
    new = rng.random(300) < 0.15
    return frame[~(new[frame.client] & (frame.test == 0))]


def common(rng: Rng) -> pd.DataFrame:
    """500 groups of 1-6 rows, four covariates with the same coefficients everywhere."""
    names = [f"x{j}" for j in range(4)]
    frame = _with(_frame(rng.integers(1, 7, 500), 4), rng, *names)
    theta = _effects(rng, 500, [0, 1, -1, 0.5, 0], [1, 0, 0, 0, 0])
    return _noisy(frame, _index(frame, theta, frame[names]), rng)


def rare(rng: Rng) -> pd.DataFrame:
    """800 groups of 5-40 rows, 3% events."""
    frame = _with(_frame(rng.integers(5, 41, 800), 10), rng, "x")
    return _binary(frame, _index(frame, _effects(rng, 800, [-4, 0.6], [1, 0.3]), frame.x), rng)


def separated(rng: Rng) -> pd.DataFrame:
    """2,000 groups of 1-4 binary rows, nearly all without an estimate of their own."""
    frame = _with(_frame(rng.integers(1, 5, 2000), 2), rng, "x")
    return _binary(frame, _index(frame, _effects(rng, 2000, [0.5, 1], [3, 0.7]), frame.x), rng)


def binary_slopes(rng: Rng) -> pd.DataFrame:
    """300 groups of 5-50 rows, three covariates."""
    names = ["x0", "x1", "x2"]
    frame = _with(_frame(rng.integers(5, 51, 300), 10), rng, *names)
    theta = _effects(rng, 300, [0, 0.5, -0.5, 0.2], [0.8, 0.5, 0.3, NONE])
    return _binary(frame, _index(frame, theta, frame[names]), rng)


def binary_equal(rng: Rng) -> pd.DataFrame:
    """300 groups of 2-10 rows that do not differ."""
    frame = _with(_frame(rng.integers(2, 11, 300), 5), rng, "x")
    return _binary(frame, _index(frame, _effects(rng, 300, [-0.5, 0.5], [0, 0]), frame.x), rng)


def binary_twenty(rng: Rng) -> pd.DataFrame:
    """20 groups of 5-30 rows."""
    frame = _with(_frame(rng.integers(5, 31, 20), 60), rng, "x")
    return _binary(frame, _index(frame, _effects(rng, 20, [-0.5, 0.5], [1, 0.4]), frame.x), rng)


def binary_pairs(rng: Rng) -> pd.DataFrame:
    """3,000 groups of 1-2 rows."""
    frame = _with(_frame(rng.integers(1, 3, 3000), 1), rng, "x")
    return _binary(frame, _index(frame, _effects(rng, 3000, [0, 1], [1.2, 0.5]), frame.x), rng)


def binary_factor(rng: Rng) -> pd.DataFrame:
    """300 groups of 2-15 rows, a factor of four levels of which most groups lack one."""
    frame = _frame(rng.integers(2, 16, 300), 6)
    present = rng.random((300, 4)) < 0.7
    present[:, 0] = True
    draw = rng.random((len(frame), 4)) * present[frame.client]
    frame["f"] = np.array(list("ABCD"))[draw.argmax(axis=1)]
    frame = _with(frame, rng, "x")
    theta = _effects(rng, 300, [0, 0.5, 0.5, -0.5, 1], [0.8, 0.3, 0.4, 0.4, 0.4])
    return _binary(frame, _index(frame, theta, frame.x, *(frame.f == level for level in "BCD")), rng)


def binary_context(rng: Rng) -> pd.DataFrame:
    """200 groups of 2-20 rows, with a covariate that is the same within a group."""
    frame = _with(_frame(rng.integers(2, 21, 200), 10), rng, "x")
    frame["w"] = rng.standard_normal(200).round(3)[frame.client]
    theta = _effects(rng, 200, [-0.3, 0.7, 0.5], [0.8, 0.3, NONE])
    return _binary(frame, _index(frame, theta, frame.x, frame.w), rng)


def counts(rng: Rng) -> pd.DataFrame:
    """400 groups of 1-10 counts."""
    frame = _with(_frame(rng.integers(1, 11, 400), 4), rng, "x")
    theta = _effects(rng, 400, [0.3, 0.4], [0.7, 0.3])
    return frame.assign(y=rng.poisson(np.exp(_index(frame, theta, frame.x))))


#: Name: how to draw it, right-hand side, family.
SETS: dict[str, tuple[Callable[[Rng], pd.DataFrame], str, str]] = {
    "slopes": (slopes, "a + b", "gaussian"),
    "crossed": (crossed, "x * f", "gaussian"),
    "many": (many, "x0 + x1 + x2 + x3 + x4 + x5", "gaussian"),
    "many-few": (many_few, "x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7", "gaussian"),
    "pairs": (pairs, "x", "gaussian"),
    "twenty": (twenty, "x", "gaussian"),
    "unbalanced": (unbalanced, "x", "gaussian"),
    "equal": (equal, "x", "gaussian"),
    "heavy-effects": (heavy_effects, "x", "gaussian"),
    "heavy-noise": (heavy_noise, "x", "gaussian"),
    "uneven-noise": (uneven_noise, "x", "gaussian"),
    "context": (context, "x + w + s", "gaussian"),
    "holes": (holes, "a + b", "gaussian"),
    "common": (common, "x0 + x1 + x2 + x3", "gaussian"),
    "binary-rare": (rare, "x", "binomial"),
    "binary-separated": (separated, "x", "binomial"),
    "binary-slopes": (binary_slopes, "x0 + x1 + x2", "binomial"),
    "binary-equal": (binary_equal, "x", "binomial"),
    "binary-twenty": (binary_twenty, "x", "binomial"),
    "binary-pairs": (binary_pairs, "x", "binomial"),
    "binary-factor": (binary_factor, "x + f", "binomial"),
    "binary-context": (binary_context, "x + w", "binomial"),
    "counts": (counts, "x", "poisson"),
}
