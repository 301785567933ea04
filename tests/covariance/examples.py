"""One covariance function of every family, for five clients, and points at which it is smooth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaneb.covariance import (
    ConstantDiagonal,
    ConstantFull,
    CovarianceFunction,
    EmpiricalGLM,
    EmpiricalScores,
    EmpiricalSoftmax,
    LogPolynomialVariance,
    MomentPoisson,
    MomentSoftmax,
    QuadraticVariance,
    SandwichCovariance,
    callable_covariance,
)

K, D = 5, 3
#: The three-class logit of the simulation study.
PROJECTIONS = np.array([np.diag([1.0, -1.0, 0.0]), np.diag([0.0, 1.0, -1.0]), np.diag([-1.0, 0.0, 1.0])])


@dataclass(frozen=True)
class Example:
    value: CovarianceFunction
    low: float = -1.0
    high: float = 1.0
    #: Relative accuracy of the gradient against central differences.
    accuracy: float = 1e-6

    def points(self, m: int = 4, n_clients: int = 1) -> np.ndarray:
        rng = np.random.default_rng(3)
        return rng.uniform(self.low, self.high, size=(n_clients, m, self.value.dimension))


def ragged_rows(seed: int = 0, smallest: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows and offsets of five clients, some with fewer rows than parameters."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(smallest, 9, size=K))])
    return rng.normal(size=(offsets[-1], D)), offsets


def moments() -> tuple[np.ndarray, np.ndarray]:
    """Means and covariances of covariates; the last coordinate of client 0 is an intercept."""
    rng = np.random.default_rng(1)
    mean, root = 0.5 * rng.normal(size=(K, D)), rng.normal(size=(K, D, D))
    root[0, 2], mean[0, 2] = 0.0, 1.0
    return mean, root @ np.swapaxes(root, 1, 2) / D


def user_variance(points: np.ndarray, client: int) -> np.ndarray:
    return 1.0 + client + np.roll(points, 1, axis=1) ** 2


def user_matrix(points: np.ndarray, client: int) -> np.ndarray:
    return (1.0 + client) * np.eye(D) + points[:, :, None] * points[:, None, :]


def user_matrix_gradient(points: np.ndarray, client: int) -> np.ndarray:
    eye = np.eye(D)
    return eye[None, :, None, :] * points[:, None, :, None] + points[:, :, None, None] * eye[None, None]


def _examples() -> dict[str, Example]:
    rng = np.random.default_rng(2)
    rows, offsets = ragged_rows()
    counts = rng.poisson(1.0, size=len(rows)).astype(float)
    mean, covariance = moments()
    information = covariance + 0.1 * np.eye(D)
    estimates = rng.normal(size=(K, D))
    full_rows, full_offsets = ragged_rows(4, smallest=6)
    responses = rng.poisson(1.0, size=len(full_rows)) + 0.5
    return {
        "constant-diagonal": Example(ConstantDiagonal(np.abs(rng.normal(size=(K, D))))),
        "constant-full": Example(ConstantFull(covariance)),
        "normal": Example(QuadraticVariance.normal(2.0, D, K)),
        "poisson": Example(QuadraticVariance.poisson(D, K), 0.5, 3.0),
        "binomial": Example(QuadraticVariance.binomial(D, K), 0.1, 0.45),
        "gamma": Example(QuadraticVariance.gamma(2.0, D, K), 0.5, 3.0),
        "negative-binomial": Example(QuadraticVariance.negative_binomial(2.0, D, K), 0.5, 3.0),
        "squared": Example(QuadraticVariance.squared(D, K), 0.5, 3.0),
        "log-polynomial": Example(
            LogPolynomialVariance(
                rng.normal(size=(D, 3)), np.ones(D), np.full(D, 2.0), [1e-9] * D, [1e9] * D, K
            )
        ),
        "moment-poisson": Example(MomentPoisson(mean, covariance)),
        "moment-logistic": Example(MomentSoftmax.logistic(mean, covariance)),
        "moment-softmax": Example(MomentSoftmax(mean, covariance, PROJECTIONS), accuracy=3e-5),
        "empirical-poisson": Example(EmpiricalGLM(rows, offsets, "poisson")),
        "empirical-logistic": Example(EmpiricalGLM(rows, offsets, "logistic")),
        "empirical-negative-binomial": Example(EmpiricalGLM(rows, offsets, "negative-binomial", 1.5)),
        "empirical-softmax": Example(EmpiricalSoftmax(rows, offsets, PROJECTIONS)),
        "poisson-scores": Example(EmpiricalScores(rows, offsets, counts, "poisson")),
        "logistic-scores": Example(EmpiricalScores(rows, offsets, np.minimum(counts, 1.0), "logistic")),
        "gaussian-scores": Example(EmpiricalScores(rows, offsets, counts, "gaussian", 2.0)),
        "sandwich": Example(
            SandwichCovariance(
                EmpiricalGLM(full_rows, full_offsets, "poisson"),
                EmpiricalScores(full_rows, full_offsets, responses, "poisson"),
            ),
            accuracy=1e-5,
        ),
        "sandwich-constant-bread": Example(
            SandwichCovariance(ConstantFull(information), MomentPoisson(estimates, information))
        ),
        "user-diagonal": Example(callable_covariance(user_variance, K, D, diagonal=True)),
        "user-full": Example(
            callable_covariance(user_matrix, K, D, diagonal=False, gradient=user_matrix_gradient)
        ),
    }


EXAMPLES = _examples()
SENDABLE = {name: example for name, example in EXAMPLES.items() if example.value.family is not None}
