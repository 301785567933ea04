"""Pairs of clients and atoms against formulas written by other means, also where a precision is singular."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose

from vaneb.covariance import CovarianceFunction, EmpiricalGLM, EmpiricalSoftmax, MomentPoisson
from vaneb.likelihood.gaussian_function import FunctionGaussian

D = 3


def rows_of_counts(clients: int, rng: np.random.Generator) -> CovarianceFunction:
    """Two of the clients have fewer rows than parameters."""
    counts = np.where(np.isin(np.arange(clients), (5, 200)), 1, 12)
    return EmpiricalGLM(rng.normal(size=(counts.sum(), D)), np.cumsum([0, *counts]), "poisson")


def moments_of_counts(clients: int, rng: np.random.Generator) -> CovarianceFunction:
    roots = 0.5 * rng.normal(size=(clients, D, 5))
    return MomentPoisson(rng.normal(size=(clients, D)), roots @ roots.transpose(0, 2, 1))


def classes(clients: int, rng: np.random.Generator) -> CovarianceFunction:
    """Far from the origin classes are certain, and clients without information in some directions."""
    rows = rng.normal(size=(clients * 8, D))
    return EmpiricalSoftmax(rows, np.arange(clients + 1) * 8, rng.normal(size=(3, D, D)))


def exact_log_density(difference: np.ndarray, precision: np.ndarray) -> float:
    """Of one pair, by rational arithmetic: rounding in a formula grows with the condition of the matrix."""
    p = [[Fraction(value) for value in row] for row in precision]
    e = [Fraction(value) for value in difference]
    square = sum(e[i] * p[i][j] * e[j] for i in range(D) for j in range(D))
    determinant = sum(
        p[0][i] * (p[1][(i + 1) % D] * p[2][(i + 2) % D] - p[1][(i + 2) % D] * p[2][(i + 1) % D])
        for i in range(D)
    )
    log_determinant = math.log(determinant.numerator) - math.log(determinant.denominator)
    return 0.5 * (log_determinant - float(square) - D * math.log(2 * math.pi))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("make", [rows_of_counts, moments_of_counts, classes])
def test_log_likelihoods_and_scores_of_every_pair(make, frozen: bool) -> None:
    rng = np.random.default_rng(21)
    clients = 300
    covariance = make(clients, rng)
    n, estimates = rng.integers(5, 50, clients) * 1.0, rng.normal(size=(clients, D))
    atoms = rng.normal(size=(7, D))
    if make is classes:
        atoms = np.concatenate([atoms, [[600.0, -400.0, 500.0]]])
    likelihood = FunctionGaussian(estimates, n, covariance)
    logs = likelihood.log_likelihood(atoms)
    precision = n[:, None, None, None] * covariance.precision(atoms[None])
    gradient = n[:, None, None, None, None] * covariance.precision_gradient(atoms[None])
    scale = np.sqrt(np.einsum("kmii->kmi", precision))
    unit = precision / scale[..., :, None] / scale[..., None, :]
    values, vectors = np.linalg.eigh(unit)
    known = values > 1e-12 * values[..., -1:]
    assert (known.all(axis=-1)).any()
    assert make is moments_of_counts or not known.all()
    full = known.all(axis=-1)
    e = estimates[:, None] - atoms
    square = np.einsum("kmi,kmij,kmj->km", e, precision, e)
    determinant = np.linalg.slogdet(unit)[1] + 2 * np.log(scale).sum(axis=-1)
    want = 0.5 * (determinant - square - D * np.log(2 * np.pi))
    worst = values[..., 0] / values[..., -1]
    easy = full & (worst > 1e-6)
    assert_allclose(logs[easy], want[easy], rtol=1e-9, atol=1e-9)
    for k, j in np.argwhere(full & ~easy):  # no arithmetic in doubles knows these better than this
        error = logs[k, j] - exact_log_density(e[k, j], precision[k, j])
        assert abs(error) < 1e-9 + np.finfo(float).eps / worst[k, j]

    log_weights = -logs.max(axis=1) - np.log(clients)
    share = np.exp(logs + log_weights[:, None])
    reciprocal = np.where(known, 1 / np.where(known, values, 1.0), 0.0)
    inverse = (vectors * reciprocal[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    inverse = inverse / scale[..., :, None] / scale[..., None, :]
    score, information = np.einsum("kmij,kmj->kmi", precision, e), precision
    if not frozen:
        relative = np.einsum("kmia,kmacl->kmicl", inverse, gradient)
        score = score + 0.5 * np.einsum("kmiil->kml", relative)
        score = score - 0.5 * np.einsum("kma,kmacl,kmc->kml", e, gradient, e)
        information = information + 0.5 * np.einsum("kmacl,kmcah->kmlh", relative, relative)
    sums = likelihood.ascent(atoms, log_weights, frozen=frozen)
    outer = score[..., :, None] * score[..., None, :]
    for got, terms in zip(sums, (np.ones_like(share), score, outer, information), strict=True):
        want = np.einsum("km,km...->m...", share, terms)
        assert_allclose(got, want, rtol=1e-8, atol=1e-9 * float(np.abs(want).max()))
