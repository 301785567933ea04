"""Which coefficients differ between clients: known answers, and what must not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit

from vaneb.errors import InvalidOption
from vaneb.grouped.choice import fit_least_squares
from vaneb.grouped.gaussian_posterior import ODDS, likeliest, probabilities, sample_gaussians, weigh_candidate
from vaneb.grouped.mixed_model import centred_basis, centred_rows
from vaneb.grouped.models import fit_local
from vaneb.grouped.population import Structure, find_structure
from vaneb.grouped.response import ResponseCoding
from vaneb.likelihood.exact import exact_likelihood
from vaneb.likelihood.recoded import Recoded
from vaneb.local.data import GroupedRows
from vaneb.population.sampler import sample_populations


def simulated(sd: list[float], *, seed: int = 0, clients: int = 150, rows: int = 8):
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), rows)
    design = np.column_stack([np.ones(len(client)), rng.standard_normal((len(client), len(sd) - 1))])
    theta = 0.5 + rng.standard_normal((clients, len(sd))) * sd
    index = (design * theta[client]).sum(axis=1)
    return GroupedRows.from_columns(client, design, index + rng.standard_normal(len(client)))


def test_basis_turns_coefficients_of_centred_columns_into_those_of_the_columns() -> None:
    rng = np.random.default_rng(1)
    design = np.column_stack([rng.normal(50, 3, 40), np.ones(40), rng.normal(-2, 0.1, 40)])
    basis, intercept = centred_basis(design)
    assert intercept == 1
    centred = (design - design.mean(axis=0)) / np.where(design.std(axis=0) > 0, design.std(axis=0), 1)
    centred[:, 1] = 1
    assert_allclose(design @ basis, centred, atol=1e-9)


def test_no_constant_column_no_centring() -> None:
    design = np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 1.0]])
    basis, intercept = centred_basis(design)
    assert intercept is None
    assert_allclose(np.mean((design @ basis) ** 2, axis=0), 1)


def structure(rows: GroupedRows, family: str = "gaussian") -> Structure:
    local = fit_local(rows, ResponseCoding("y", family))
    return find_structure(rows, local, np.ones(rows.design.shape[1], dtype=bool), asked=False)


def test_what_differs_is_found_out() -> None:
    assert_array_equal(structure(simulated([1.0, 0, 0, 0, 0])).varying, [True, False, False, False, False])
    assert structure(simulated([1.0, 1.0, 1.0])).varying.all()


def test_where_all_clients_are_alike_that_is_likeliest() -> None:
    """In most sets nothing is found to differ, and where something is the spread is small.

    A client's own coefficient has a standard error of 0.35 here.
    """
    found = [structure(simulated([0.0, 0.0], seed=seed, clients=200)) for seed in range(200, 220)]
    alike = [one for one in found if not one.varying.any()]
    assert len(alike) >= 14
    assert all(
        any("rows do not show that any coefficient differs" in note for note in one.notes) for one in alike
    )
    for one in found:
        assert one.fitted is not None
        model = one.fitted.model
        assert np.sqrt(model.variance) * np.abs(model.root).max(initial=0.0) < 0.2


def test_probabilities_are_those_of_the_candidates_likelihoods() -> None:
    """One coefficient, noise known: the marginal likelihood by quadrature over the spread."""
    rng = np.random.default_rng(4)
    client = np.repeat(np.arange(30), 4)
    response = 0.3 * rng.standard_normal(30)[client] + rng.standard_normal(120)
    rows = GroupedRows.from_columns(client, np.ones((120, 1)), response)
    found = structure(rows)
    nothing, intercept = found.found
    means = rows.response.reshape(30, 4).mean(axis=1)
    inside = np.sum((rows.response.reshape(30, 4) - means[:, None]) ** 2)

    def likelihood(ratio: float) -> float:
        """With mu and sigma^2 integrated, of sd = ``ratio`` sigma."""
        spread = 1 + 4 * ratio**2
        q = inside + 4 * np.sum((means - means.mean()) ** 2) / spread
        return float(np.exp(-0.5 * (29 * np.log(spread) + 119 * np.log(q / 120))))

    assert intercept.target is not None
    scale = np.exp(intercept.target.log_reach[0])
    grid = (np.arange(4000) + 0.5) / 2000
    prior = 2 * grid / scale**2 / (1 + (grid / scale) ** 2) ** 2
    ratio = np.mean(prior * np.vectorize(likelihood)(grid)) * 2 / likelihood(0.0)
    assert np.exp(intercept.log_evidence - nothing.log_evidence) == pytest.approx(ratio, rel=0.15)
    odds = ratio * ODDS[1]
    assert probabilities(found.found)[1] == pytest.approx(odds / (1 + odds), abs=0.05)
    assert likeliest(found.found) is (intercept if ratio > 1 else nothing)


@pytest.mark.parametrize("correlated", [False, True])
def test_prior_of_two_coefficients_integrates_to_one(correlated: bool) -> None:
    """Over logarithms of standard deviations, and what is below the diagonal of the root."""
    rows = simulated([1.0, 0.5], clients=30)
    fitted = fit_least_squares(centred_rows(rows, np.array([True, True])), np.arange(2), correlated)
    one = weigh_candidate(fitted)
    assert one is not None
    assert one.target is not None
    logs = np.linspace(-9.0, 9.0, 73)
    below = np.sinh(np.linspace(-7.0, 7.0, 141)) if correlated else np.zeros(1)
    width = np.cosh(np.linspace(-7.0, 7.0, 141)) * 0.1 if correlated else np.ones(1)
    first, second, tilt = np.meshgrid(logs, logs, np.arange(len(below)), indexing="ij")
    points = np.column_stack([first.ravel(), second.ravel(), below[tilt.ravel()]])[:, : 2 + correlated]
    mass = np.exp(one.target.log_prior(points)) * width[tilt.ravel()] * 0.25**2
    assert mass.sum() == pytest.approx(1.0, abs=2e-3)


def test_fewer_clients_than_entries() -> None:
    found = structure(simulated([1.0] * 7, clients=20, rows=12))
    assert found.fitted is not None
    assert np.isfinite(found.fitted.model.spread).all()


@pytest.mark.parametrize("sd", [[1.0, 0.0], [0.8, 0.8]])
def test_units_and_zero_of_a_covariate_do_not_matter(sd: list[float]) -> None:
    rows = simulated(sd, seed=3)
    change = np.array([[1.0, 170.0], [0.0, 25.0]])
    moved = replace(rows, design=rows.design @ change)
    first, second = structure(rows), structure(moved)
    assert_array_equal(first.varying, second.varying)
    means = [one.basis @ one.fitted.model.mean for one in (first, second) if one.fitted is not None]
    assert_allclose(change @ means[1], means[0], rtol=1e-3, atol=1e-4)


def test_one_row_of_many_trials_or_a_count_says_how_clients_differ() -> None:
    rng = np.random.default_rng(2)
    trials = np.full(80, 50.0)
    share = rng.binomial(50, expit(rng.standard_normal(80))) / 50
    rows = GroupedRows.from_columns(np.arange(80), np.ones((80, 1)), share, weight=trials)
    assert structure(rows, "binomial").varying.all()
    counts = rng.poisson(20 * np.exp(0.4 * rng.standard_normal(80))).astype(float)
    assert structure(replace(rows, response=counts, weight=np.ones(80)), "poisson").varying.all()
    alike = replace(rows, response=rng.poisson(20, 80).astype(float), weight=np.ones(80))
    assert not structure(alike, "poisson").varying.any()
    single = replace(rows, response=np.round(share), weight=np.ones(80))
    assert not structure(single, "binomial").varying.any()


def test_many_coefficients_are_refused_or_shared_before_any_work() -> None:
    rows = simulated([1.0] * 40, clients=50, rows=4)
    found = structure(rows)
    assert found.varying.sum() <= 1
    assert any("more than 30" in note for note in found.notes)
    local = fit_local(rows, ResponseCoding("y", "gaussian"))
    with pytest.raises(InvalidOption, match="40 coefficients would differ between groups; at most 30"):
        find_structure(rows, local, np.ones(40, dtype=bool), asked=True)


@pytest.mark.parametrize("varying", [[0], [0, 1]])
def test_gaussian_populations_are_drawn_from_their_posterior(varying: list[int]) -> None:
    """Against Gibbs sampling, an algorithm that has nothing in common with it."""
    rows = simulated([1.0, 0.5], clients=40, rows=5)
    mask = np.isin([0, 1], varying)
    local = fit_local(rows, ResponseCoding("y", "gaussian"))
    found = find_structure(rows, local, mask, asked=True)
    assert found.fitted is not None
    direct = sample_gaussians(found.found, seed=0)
    assert direct is not None
    clients = Recoded(exact_likelihood(rows, found.family), found.basis)
    gibbs, _ = sample_populations(clients, single=True, seed=0, varying=mask)
    sd = np.sqrt(np.diagonal(direct[0].covariances, axis1=1, axis2=2))[:, varying]
    other = np.sqrt(np.diagonal(gibbs.covariances, axis1=1, axis2=2))[:, varying]
    assert_allclose(sd.mean(axis=0), other.mean(axis=0), rtol=0.06)
    assert_allclose(sd.std(axis=0), other.std(axis=0), rtol=0.3)
    assert_allclose(direct[0].atoms.mean(axis=0), gibbs.atoms.mean(axis=0), atol=0.06)
    assert_allclose(direct[0].atoms.std(axis=0), gibbs.atoms.std(axis=0), rtol=0.2)
