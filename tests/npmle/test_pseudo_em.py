"""Algorithm 1: its steps, its fixed points, and what it reaches next to the certified solver."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from vaneb.covariance import ConstantDiagonal, ConstantFull, QuadraticVariance
from vaneb.likelihood.gaussian import gaussian_likelihood
from vaneb.npmle.ascent import client_log_weights, climb
from vaneb.npmle.certified import certified
from vaneb.npmle.fit import log_mixture
from vaneb.npmle.pseudo_em import algorithm_1, pseudo_em
from vaneb.semidefinite import solve_ridged

K = 60
RNG = np.random.default_rng(0)
ESTIMATES = RNG.choice([1.0, 3.0], size=(K, 1)) + 0.5 * RNG.normal(size=(K, 2)) + 2.0
N = RNG.integers(5, 20, size=K).astype(float)
_ROOTS = RNG.normal(size=(K, 2, 2))
LIKELIHOODS = {
    "diagonal": gaussian_likelihood(ESTIMATES, N, ConstantDiagonal(RNG.uniform(0.2, 1.0, size=(K, 2)))),
    "full": gaussian_likelihood(
        ESTIMATES, N, ConstantFull(0.2 * (_ROOTS @ np.swapaxes(_ROOTS, 1, 2)) + 0.1 * np.eye(2))
    ),
    "poisson": gaussian_likelihood(ESTIMATES, N, QuadraticVariance.poisson(2, K)),
}
ATOMS, WEIGHTS = ESTIMATES[:7], np.full(7, 1 / 7)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_one_step_is_the_papers_formula(name: str) -> None:
    """r_kj from the mixture; a_j a mean weighted with r_kj and precisions at the atom; w_j the mean r_kj."""
    likelihood = LIKELIHOODS[name]
    atoms, weights, _ = pseudo_em(likelihood, ATOMS, WEIGHTS, 1)
    shares = np.exp(likelihood.log_likelihood(ATOMS)) * WEIGHTS
    shares /= shares.sum(axis=1, keepdims=True)
    assert_allclose(weights, shares.mean(axis=0), rtol=1e-9)
    for j, atom in enumerate(ATOMS):
        if name == "poisson":
            precision = (N[:, None] / atom)[:, :, None] * np.eye(2)
        else:
            precision = likelihood.base_precision
            precision = precision if precision.ndim == 3 else precision[:, :, None] * np.eye(2)
        total = np.einsum("k,kab->ab", shares[:, j], precision)
        right = np.einsum("k,kab,kb->a", shares[:, j], precision, ESTIMATES)
        assert_allclose(atoms[j], np.linalg.solve(total, right), rtol=1e-8)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_one_atom_is_the_precision_weighted_mean_after_one_step(name: str) -> None:
    likelihood = LIKELIHOODS[name]
    start = np.array([[2.0, 2.5]])
    atoms, weights, _ = pseudo_em(likelihood, start, np.ones(1), 1)
    if name == "full":
        precision = likelihood.base_precision
        expected = np.linalg.solve(precision.sum(axis=0), np.einsum("kab,kb->a", precision, ESTIMATES))
    else:
        # With one variance function for all, n_k are the weights, wherever the atom is.
        precision = likelihood.base_precision if name == "diagonal" else np.tile(N[:, None], (1, 2))
        expected = (precision * ESTIMATES).sum(axis=0) / precision.sum(axis=0)
    assert_allclose(atoms[0], expected, rtol=1e-9)
    assert_allclose(weights, [1.0])


@pytest.mark.parametrize("name", ["diagonal", "full"])
def test_with_constant_covariances_it_is_em_and_never_goes_down(name: str) -> None:
    _, _, trace = pseudo_em(LIKELIHOODS[name], ATOMS, WEIGHTS, 60)
    values = np.array([step.log_likelihood for step in trace])
    assert (np.diff(values) >= -1e-12).all()
    assert values[-1] > values[0] + 0.1


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_residuals_shrink_to_a_fixed_point(name: str) -> None:
    likelihood = LIKELIHOODS[name]
    sizes = []
    for iterations in (0, 5, 50, 2000):
        atoms, weights, _ = pseudo_em(likelihood, ATOMS, WEIGHTS, iterations)
        moved, _, _ = pseudo_em(likelihood, atoms, weights, 1)
        sizes.append(np.linalg.norm(moved - atoms, axis=1).max())
    assert sizes[0] > sizes[1] > sizes[2] > sizes[3]
    assert sizes[3] < 1e-2 * sizes[0]


def test_distance_to_the_exact_scores_root_is_what_an_optimiser_finds() -> None:
    """One group, one atom.  Where the variance is the mean the two differ, where it is constant not."""
    group = 3.0 + 0.3 * np.random.default_rng(1).normal(size=(K, 2))
    for covariance, differs in (
        (QuadraticVariance.poisson(2, K), True),
        (ConstantDiagonal(np.full((K, 2), 0.1)), False),
    ):
        likelihood = gaussian_likelihood(group, N, covariance)
        atoms, weights, _ = pseudo_em(likelihood, group.mean(axis=0)[None], np.ones(1), 200)
        log_weights = client_log_weights(log_mixture(likelihood, atoms, weights))

        def loss(point: np.ndarray, likelihood=likelihood, log_weights=log_weights) -> float:
            return -float(likelihood.ascent(point[None], log_weights).value[0])

        found = minimize(loss, atoms[0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})
        told = np.linalg.norm(climb(likelihood, atoms, log_weights).points - atoms)
        assert_allclose(told, np.linalg.norm(found.x - atoms[0]), atol=1e-3)
        assert (told > 5e-3) == differs


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_algorithm_1_is_no_better_than_its_certificate_and_the_certified_fit_allow(name: str) -> None:
    likelihood = LIKELIHOODS[name]
    paper, best = algorithm_1(likelihood, iterations=50), certified(likelihood)
    assert paper.log_likelihood <= best.log_likelihood + best.certificate.bound
    assert best.log_likelihood <= paper.log_likelihood + paper.certificate.bound
    assert len(paper.trace) == 51
    assert paper.trace[-1].gap == paper.certificate.gap
    assert np.isnan(paper.trace[0].gap)
    assert_allclose(paper.weights.sum(), 1.0)


def test_without_iterations_it_is_the_npmle_on_the_estimates() -> None:
    likelihood = LIKELIHOODS["diagonal"]
    start = algorithm_1(likelihood, iterations=0)
    assert {tuple(atom) for atom in start.atoms} <= {tuple(x) for x in ESTIMATES}
    after = algorithm_1(likelihood, iterations=30)
    assert after.log_likelihood >= start.log_likelihood


def test_a_direction_without_information_does_not_move() -> None:
    information = np.array([[[2.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]], [[1e-8, 0.0], [0.0, 1e8]]])
    gradient = np.array([[4.0, 0.0], [0.0, 0.0], [1e-8, 1e8]])
    expected = [[2.0, 0.0], [0.0, 0.0], [1.0, 1.0]]
    assert_allclose(solve_ridged(information, gradient, 1e-13), expected, atol=1e-9)
    diagonal = np.diagonal(information, axis1=1, axis2=2)
    assert_allclose(solve_ridged(diagonal, gradient, 1e-13), expected, atol=1e-9)
