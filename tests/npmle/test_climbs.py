"""The search for maxima of D: climbs, climbs on some of the clients, and where a certificate starts from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from npmle_problems import correlated_problem, diagonal_problem, gaps_at
from vaneb.covariance import ConstantDiagonal
from vaneb.likelihood.gaussian import gaussian_likelihood
from vaneb.npmle.ascent import Rest, client_log_weights, climb, gap_and_one
from vaneb.npmle.certified import certified
from vaneb.npmle.fit import log_mixture
from vaneb.npmle.search import Part, certify
from vaneb.npmle.support import distinct
from vaneb.npmle.weights import likelihood_matrix, npmle_weights


def test_the_clients_that_matter_give_the_same_gap_on_average() -> None:
    likelihood = diagonal_problem(4_000, 2, seed=19)
    apart = np.argmax(np.abs(likelihood.estimates).sum(axis=1))
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-4, 4, 9)]), axis=-1).reshape(-1, 2)
    density = log_mixture(likelihood, grid, np.full(81, 1 / 81))
    log_weights = client_log_weights(density)
    everyone = Part.everyone(likelihood)
    points = np.concatenate([likelihood.estimates[[apart]], np.zeros((1, 2)), np.ones((1, 2))])
    rng = np.random.default_rng(0)
    found = []
    for _ in range(40):
        part, rows = everyone.important(density, 400, rng)
        assert 395 < part.likelihood.n_clients < 405
        assert apart in rows
        assert_allclose(part.share.sum(), 1.0)
        found.append(gap_and_one(part.likelihood, points, part.log_weights(density[rows])))
    whole = likelihood.ascent(points, log_weights).value
    assert_allclose(gap_and_one(likelihood, points, log_weights), whole, rtol=1e-12)
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - whole) <= 4 * error + 0.02 * whole).all()
    # all that is high in the tails is there: no more than a percent of it is left to chance
    assert error[0] <= 0.01 * whole[0]
    # a draw along neighbours is better than one at random: 400 of 4,000 would leave a tenth to chance
    assert np.std(found, axis=0)[1] <= 0.07 * whole[1]


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_a_climb_on_some_clients_is_that_on_all_where_it_starts_and_close_to_it_near_by(kind: str) -> None:
    diagonal = kind == "diagonal"
    likelihood = diagonal_problem(3_000, 2, seed=20) if diagonal else correlated_problem(3_000, 0.7, seed=20)
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-4, 4, 7)]), axis=-1).reshape(-1, 2)
    density = log_mixture(likelihood, grid, np.full(49, 1 / 49))
    log_weights = client_log_weights(density)
    starts = likelihood.estimates[:20]
    some, chosen = Part.everyone(likelihood).important(density, 600, np.random.default_rng(0))
    part, part_weights = some.likelihood, some.log_weights(density[chosen])
    whole = likelihood.ascent(starts, log_weights)
    rest = Rest.between(whole, part.ascent(starts, part_weights), starts)
    rows = np.arange(20)
    there = rest.added_to(part.ascent(starts, part_weights), starts, rows)
    assert_allclose(there.value, whole.value, rtol=1e-10)
    assert_allclose(there.gradient, whole.gradient, rtol=1e-10, atol=1e-12)
    hessians = []
    for sums in (there, whole):
        own = sums.information if sums.information.ndim == 3 else sums.information[:, :, None] * np.eye(2)
        hessians.append(sums.outer - own)
    assert_allclose(*hessians, rtol=1e-10, atol=1e-12)
    away, wrong = 0.05 * np.random.default_rng(1).normal(size=starts.shape), []
    for near in (starts + away, starts + away / 2):
        truth = gap_and_one(likelihood, near, log_weights)
        alone = gap_and_one(part, near, part_weights)
        corrected = rest.added_to(part.ascent(near, part_weights), near, rows).value
        wrong.append(np.abs(corrected - truth).max())
        assert wrong[-1] < 0.03 * np.abs(alone - truth).max()
    assert wrong[1] < wrong[0] / 5  # of third order
    far = rest.kept_near(starts + 100.0, rows)
    scale = rest.scale[:, :, None] * np.eye(2) if rest.scale.ndim == 2 else rest.scale
    length = np.einsum("mi,mij,mj->m", far - starts, scale, far - starts)
    assert_allclose(length, 1.0, rtol=1e-9)
    assert_array_equal(rest.kept_near(starts, rows), starts)
    # an indefinite scale, as rounding makes of a singular one, keeps what it says nothing of
    unknown = rest._replace(scale=-1e-18 * np.abs(rest.scale))
    assert_array_equal(unknown.kept_near(starts + 1.0, rows), starts + ((starts + 1.0) - starts))


def test_climbs_end_at_local_maxima() -> None:
    likelihood = correlated_problem(30, 0.8, seed=3)
    fit = certified(likelihood, tol=1e-2)
    log_weights = client_log_weights(log_mixture(likelihood, fit.atoms, fit.weights))
    ends = climb(likelihood, likelihood.estimates, log_weights, steps=200, gain=1e-12)
    assert_allclose(gaps_at(likelihood, fit, ends.points), ends.gap, atol=1e-9)
    assert (ends.gap >= gaps_at(likelihood, fit, likelihood.estimates) - 1e-12).all()
    for shift in 1e-3 * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]):
        assert (gaps_at(likelihood, fit, ends.points + shift) <= ends.gap + 1e-8).all()


def test_many_dimensions_are_climbed_without_curvatures() -> None:
    """Three groups in sixty dimensions: diagonals stay diagonals, climbs end where the score is zero."""
    rng = np.random.default_rng(20)
    centres = 3 * rng.normal(size=(3, 60))
    errors = rng.uniform(0.5, 1.5, size=(45, 60))
    estimates = centres[rng.integers(0, 3, 45)] + errors * rng.normal(size=(45, 60))
    likelihood = gaussian_likelihood(estimates, np.ones(45), ConstantDiagonal(errors**-2.0))
    log_weights = client_log_weights(log_mixture(likelihood, centres, np.full(3, 1 / 3)))
    ends = climb(likelihood, centres, log_weights, steps=200, gain=1e-12)
    assert ends.scale.shape == (3, 60)
    sums = likelihood.ascent(ends.points, log_weights, curvature=False)
    assert_allclose(ends.gap, sums.value - 1, rtol=1e-9)
    assert (np.abs(sums.gradient) <= 1e-5 * sums.value[:, None]).all()
    assert (sums.value > likelihood.ascent(centres, log_weights).value).all()
    assert_array_equal(distinct(ends.points, ends.scale, np.arange(3), 1.0), np.arange(3))


def test_climbs_stay_in_their_box() -> None:
    likelihood = diagonal_problem(30, 2, seed=18)
    log_weights = client_log_weights(likelihood.peak())
    box = np.array([-0.5, -0.5]), np.array([0.5, 0.5])
    ends = climb(likelihood, np.zeros((1, 2)) + 0.4, log_weights, box=box)
    assert (np.abs(ends.points) <= 0.5).all()


def test_among_many_atoms_a_certificate_rests_on_a_climb_from_every_estimate() -> None:
    """Clients so precise that D has hundreds of maxima: all are climbed from, a choice might miss some."""
    # more clients than any choice of starts has, and no more spread than hundreds of atoms take
    likelihood = diagonal_problem(2_100, 2, seed=21, spread=4.0)
    matrix, _ = likelihood_matrix(likelihood, likelihood.estimates[::3])
    weights = npmle_weights(matrix, tol=1e-3).weights
    atoms, weights = likelihood.estimates[::3][weights > 0], weights[weights > 0]
    assert len(atoms) > 2_100 / 20
    found = certify(likelihood, atoms, weights, np.random.default_rng(0))
    assert found.starts >= 2_100 + len(atoms)
    log_weights = client_log_weights(log_mixture(likelihood, atoms, weights))
    every = climb(likelihood, likelihood.estimates, log_weights, steps=40, gain=1e-7)
    assert found.gap >= every.gap.max() - 1e-4
