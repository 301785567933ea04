"""Covariance functions in compiled strips of clients against the same pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from vaneb.covariance import CovarianceFunction, EmpiricalGLM, EmpiricalSoftmax, MomentPoisson
from vaneb.likelihood import function_strips
from vaneb.likelihood.gaussian_function import FunctionGaussian

D = 3


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("kind", "atoms_at_once"), [("rows", 7), ("rows", 3), ("moments", 3)])
def test_compiled_strips_agree_with_single_pairs(
    kind: str, atoms_at_once: int, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 clients in three strips, two of which have a client of fewer rows than parameters."""
    monkeypatch.setattr(function_strips, "WIDE_STRIP", 128)
    monkeypatch.setattr(function_strips, "MOST_NUMBERS", atoms_at_once * D**2 * 128)
    rng = np.random.default_rng(21)
    clients = 300
    rows = [rng.normal(size=(1 if k in (5, 200) else 12, D)) for k in range(clients)]
    covariance: CovarianceFunction
    if kind == "rows":
        covariance = EmpiricalGLM(
            np.concatenate(rows), np.cumsum([0] + [len(r) for r in rows]).astype(np.intp), "poisson"
        )
    else:
        means = np.array([own.mean(axis=0) for own in rows])
        covariance = MomentPoisson(means, np.array([0.1 * own.T @ own for own in rows]))
    likelihood = FunctionGaussian(
        rng.normal(size=(clients, D)), rng.integers(5, 50, clients) * 1.0, covariance
    )
    atoms = rng.normal(size=(7, D))
    logs = likelihood.log_likelihood(atoms)
    # Nearly singular precisions cost digits of log-likelihoods in the millions.
    assert_allclose(logs, likelihood._log_likelihood_by_pairs(atoms), rtol=1e-9, atol=1e-10)
    log_weights = -logs.max(axis=1) - np.log(clients)
    got = likelihood.ascent(atoms, log_weights, frozen=frozen)
    everyone = np.arange(likelihood.n_clients)
    want = likelihood._ascent_by_pairs(
        atoms, everyone, lambda rows, _: log_weights[rows], -np.inf, frozen, True
    )
    for a, b in zip(got, want, strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-9 * float(np.abs(b).max()))


def test_poisson_moments_write_what_they_compute() -> None:
    rng = np.random.default_rng(22)
    scatter = rng.normal(size=(9, D, D))
    family = MomentPoisson(rng.normal(size=(9, D)), scatter @ scatter.transpose(0, 2, 1))
    points = rng.normal(size=(4, D)) * 3  # some exponents are clipped
    precision, gradient = np.empty((4, D, D, 9)), np.empty((4, D, D, D, 9))
    family.write_clients_last(points, precision, gradient)
    assert_allclose(np.moveaxis(precision, -1, 0), family.precision(points[None]), rtol=1e-12)
    assert_allclose(np.moveaxis(gradient, -1, 0), family.precision_gradient(points[None]), rtol=1e-10)


@pytest.mark.parametrize("frozen", [False, True])
def test_pairs_that_an_atom_far_out_makes_singular(frozen: bool) -> None:
    """Classes that are certain there leave clients without information in some directions, there alone."""
    rng = np.random.default_rng(23)
    clients, each = 60, 8
    rows, offsets = rng.normal(size=(clients * each, D)), np.arange(clients + 1) * each
    covariance = EmpiricalSoftmax(rows, offsets, rng.normal(size=(3, D, D)))
    likelihood = FunctionGaussian(rng.normal(size=(clients, D)), np.full(clients, 8.0), covariance)
    atoms = np.concatenate([rng.normal(size=(4, D)), [[600.0, -400.0, 500.0]]])
    rank = np.linalg.matrix_rank(covariance.precision(atoms[None]), tol=1e-12, hermitian=True)
    assert (rank[:, :4] == D).all()
    assert (rank[:, 4] < D).all()
    logs = likelihood.log_likelihood(atoms)
    assert_allclose(logs, likelihood._log_likelihood_by_pairs(atoms), rtol=1e-9, atol=1e-9)
    log_weights = -logs.max(axis=1) - np.log(clients)
    got = likelihood.ascent(atoms, log_weights, frozen=frozen)
    want = likelihood._ascent_by_pairs(
        atoms, np.arange(clients), lambda rows, _: log_weights[rows], -np.inf, frozen, True
    )
    for a, b in zip(got, want, strict=True):
        assert_allclose(a, b, rtol=1e-8, atol=1e-9 * float(np.abs(b).max()))
