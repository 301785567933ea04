"""The proved certificate: it bounds D on a dense grid, sees what a search missed, and says when it cannot."""

from __future__ import annotations

import numpy as np
import pytest

import vaneb.npmle.certified as module
from vaneb import VANEB, Reports
from vaneb.likelihood.base import Array, Likelihood
from vaneb.likelihood.cells import cell_bounds
from vaneb.npmle.ascent import Maxima, client_log_weights
from vaneb.npmle.certified import certified
from vaneb.npmle.fit import log_mixture
from vaneb.npmle.options import Options
from vaneb.npmle.proof import prove
from vaneb.npmle.search import Part


def problem(clients: int, dimension: int, seed: int, spread: float = 2.0) -> Likelihood:
    rng = np.random.default_rng(seed)
    errors = rng.uniform(0.3, 1.5, (clients, dimension))
    estimates = spread * rng.normal(size=(clients, dimension)) + errors * rng.normal(
        size=(clients, dimension)
    )
    return Reports(estimates, standard_errors=errors).likelihood()


def gaps(likelihood: Likelihood, log_weights: Array, points: Array) -> Array:
    return np.exp(likelihood.log_likelihood(points) + log_weights[:, None]).sum(axis=0) - 1


@pytest.mark.parametrize(("clients", "dimension"), [(40, 1), (400, 1), (40, 2), (150, 2)])
def test_the_bound_holds_on_a_dense_grid(clients: int, dimension: int) -> None:
    likelihood = problem(clients, dimension, seed=clients)
    fit = certified(likelihood, proof=True)
    assert fit.certificate.kind == "proved"
    assert fit.certificate.proved is not None
    assert fit.certificate.gap <= fit.certificate.proved <= fit.certificate.tolerance
    log_weights = client_log_weights(log_mixture(likelihood, fit.atoms, fit.weights))
    low, high = likelihood.local_estimates().min(axis=0) - 3, likelihood.local_estimates().max(axis=0) + 3
    sides = [np.linspace(a, b, 4001 if dimension == 1 else 201) for a, b in zip(low, high, strict=True)]
    grid = np.stack([side.ravel() for side in np.meshgrid(*sides)], axis=1)
    assert gaps(likelihood, log_weights, grid).max() <= fit.certificate.bound + 1e-12


def test_the_bound_of_a_cell_holds_in_the_cell() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        clients, d = int(rng.integers(1, 6)), int(rng.integers(1, 4))
        estimates, precision = 3 * rng.normal(size=(clients, d)), rng.uniform(0.1, 20, (clients, d))
        logs = rng.normal(size=clients)
        centre, half = 3 * rng.normal(size=(1, d)), rng.uniform(0.01, 2, (1, d))
        height, bound = np.empty(1), np.empty(1)
        cell_bounds(estimates, precision, logs, centre, half, height, bound)
        points = centre + half * rng.uniform(-1, 1, (500, d))
        squares = (precision[:, None] * (points - estimates[:, None]) ** 2).sum(axis=2)
        assert (np.exp(logs[:, None] - squares / 2).sum(axis=0) <= bound[0] * (1 + 1e-12)).all()
        square = (precision * (centre - estimates) ** 2).sum(axis=1)
        assert height[0] == pytest.approx(np.exp(logs - square / 2).sum(), rel=1e-12)


def test_a_prior_that_is_not_the_best_is_not_proved_to_be() -> None:
    likelihood = problem(100, 1, seed=3)
    log_weights = client_log_weights(log_mixture(likelihood, np.zeros((1, 1)), np.ones(1)))
    found = prove(likelihood, log_weights, 1e-4)
    assert found is not None
    assert found.bound == np.inf
    assert found.value > 1e-4
    assert gaps(likelihood, log_weights, found.best[None])[0] == pytest.approx(found.value)


def test_what_the_search_missed_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that looks at the atoms only would stop at a prior without the far group."""
    estimates = np.append(np.zeros(30), np.full(10, 40.0))[:, None]
    likelihood = Reports(estimates, standard_errors=np.ones((40, 1))).likelihood()
    real = module.search

    def blind(part: Part, atoms: Array, *arguments: object, **options: object) -> Maxima:
        found = real(part, atoms, *arguments, **options)  # type: ignore[arg-type]
        if atoms.max() > 20:
            return found
        return Maxima(atoms, np.zeros(len(atoms)), found.scale[: len(atoms)], found.starts)

    start = (np.zeros((1, 1)), np.ones(1))
    monkeypatch.setattr(module, "search", blind)
    assert len(certified(likelihood, start=start).atoms) == 1
    mended = certified(likelihood, start=start, proof=True)
    np.testing.assert_allclose(np.sort(mended.atoms[:, 0]), [0, 40], atol=0.3)


def test_no_proof_is_claimed_where_none_is_known() -> None:
    assert prove(problem(20, 3, seed=1), np.zeros(20), 1e-4) is None
    full = Reports(np.zeros((5, 2)), covariance=np.array([[1.0, 0.5], [0.5, 1.0]])).likelihood()
    assert prove(full, np.zeros(5), 1e-4) is None
    assert (
        VANEB("discrete").fit(Reports(np.eye(3), standard_errors=np.ones((3, 3)))).certificate_.kind
        == "ascent"
    )


def test_too_many_cells_are_not_tried() -> None:
    likelihood = problem(200, 1, seed=5)
    fit = certified(likelihood, proof=True, options=Options(proof_pairs=1e4))
    assert fit.certificate.kind == "ascent"
    assert "proved" not in str(fit.certificate)


def test_equal_estimates_have_a_box_without_volume() -> None:
    fit = certified(Reports(np.full((7, 1), 2.0), standard_errors=np.ones((7, 1))).likelihood(), proof=True)
    assert fit.certificate.kind == "proved"
