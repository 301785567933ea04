"""Cox's partial likelihood beside R's coxph (survival 3.5-3, Efron's ties), and what it cannot tell."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from vaneb.errors import InvalidOption
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local import families
from vaneb.local.data import GroupedRows
from vaneb.local.family import family_class
from vaneb.local.fit import fit_clients, fit_pooled
from vaneb.local.marginal import chosen, laplace
from vaneb.local.report import report

COX = families.cox()
ROW = np.arange(60)
STOP, EVENT = (ROW * 7) % 23 + 2.0 + (ROW * ROW) % 5, ((ROW * 5) % 3 > 0).astype(float)
Z = np.column_stack([((ROW * 13) % 17 - 8) / 5, ((ROW * 11) % 7) / 3])
START = np.where(ROW % 2 == 0, np.minimum(STOP - 1, (ROW * ROW) % 9), -1.0)
WEIGHT = 1 + (ROW * 3) % 4 / 2
SITE = ROW % 4


def rows(site, entry, weight=None):
    response = np.column_stack([np.full(60, -1.0) if entry is None else entry, STOP, EVENT])
    return GroupedRows.from_columns(site, Z, response, weight=weight)


@pytest.mark.parametrize(
    ("entry", "weight", "coefficients", "errors", "log_likelihood"),
    [
        (None, None, (-0.08579174923, -0.18918229056), (0.16682816469, 0.24668813429), -128.179973395),
        (None, WEIGHT, (-0.14351453547, -0.04460117558), (0.12285663296, 0.18509437481), -262.130520828),
        (START, WEIGHT, (-0.14593957635, -0.05463676822), (0.12290504755, 0.18468808314), -260.291351446),
    ],
)
def test_coefficients_errors_and_likelihood_are_those_of_coxph(
    entry, weight, coefficients, errors, log_likelihood
):
    fits = fit_clients(rows(np.zeros(60), entry, weight), COX)
    assert_allclose(fits.theta[0], coefficients, atol=1e-9)
    assert_allclose(np.sqrt(np.diag(np.linalg.inv(fits.hessian[0]))), errors, atol=1e-9)
    assert -fits.loss[0] == pytest.approx(log_likelihood, abs=1e-8)


def test_sites_and_strata_are_those_of_coxph():
    data = rows(SITE, START)
    pooled, fits = fit_pooled(data, COX), fit_clients(data, COX)
    assert_allclose(pooled.theta[0], (-0.08815701560, -0.17465438888), atol=1e-9)
    assert_allclose(
        np.sqrt(np.diag(np.linalg.inv(pooled.hessian[0]))), (0.17530829572, 0.25665629344), atol=1e-9
    )
    assert -pooled.loss[0] == pytest.approx(-74.611119463, abs=1e-8)
    assert_allclose(
        fits.theta,
        [
            (-0.26226134535, -0.78170126961),
            (-0.48292208007, 0.47864947869),
            (-0.33115691230, 0.31133288788),
            (0.35957883449, -0.39953271021),
        ],
        atol=1e-9,
    )
    made = report(data, COX, fits)
    precision = made.n[:, None, None] * made.covariance.precision(made.estimate[:, None])[:, 0]
    assert_allclose(np.sqrt(np.diag(np.linalg.inv(precision[0]))), (0.48956020699, 0.54533885888), atol=1e-9)


def test_concordance_is_rs():
    def discordance(fits, entry, group):
        data = rows(SITE, entry)
        order = np.argsort(SITE, kind="stable")
        risk = np.exp(Z[order] @ fits.theta[0])
        return COX.score(data.response, risk, None, SITE[order].astype(object) if group else None)

    strata = fit_pooled(rows(SITE, START), COX)
    assert 1 - discordance(strata, START, True) == pytest.approx(0.570342205323, abs=1e-10)
    single = fit_clients(rows(np.zeros(60), None), COX)
    assert 1 - discordance(single, None, False) == pytest.approx(0.557363710334, abs=1e-10)
    nothing = np.array([[-1.0, 1.0, 0.0], [-1.0, 2.0, 0.0]])
    assert np.isnan(COX.score(nothing, np.ones(2)))


def test_levels_of_covariates_and_of_offsets_do_not_matter():
    data = rows(SITE, START)
    fits = fit_clients(data, COX)
    moved = replace(data, design=data.design + 1e4, offset=data.offset + 300.0)
    assert_allclose(fit_clients(moved, COX).theta, fits.theta, atol=1e-6)
    far = COX.objective(data).values(np.full((4, 2), 400.0), np.arange(4))
    assert np.isfinite(far).all()


def test_clients_without_an_estimate_say_why():
    # No events; the event always to the largest covariate; a covariate that is the same for all.
    time = np.tile([1.0, 2.0, 3.0, 4.0], 4)
    event = np.r_[np.zeros(4), [1, 1, 1, 0], [1, 0, 1, 0], [1, 1, 1, 1]].astype(float)
    z = np.r_[[0.0, 1.0, 2.0, 5.0], [4.0, 3.0, 2.0, 1.0], np.ones(4), [1.0, 3.0, 2.0, 1.0]][:, None]
    data = GroupedRows.from_columns(
        np.repeat(np.arange(4), 4), z, np.column_stack([np.full(16, -1.0), time, event])
    )
    fits = fit_clients(data, COX)
    assert fits.outcome.tolist() == ["rank-deficient", "separated", "rank-deficient", "converged"]
    assert np.isfinite(fits.theta).all()
    view = exact_likelihood(data, COX, fits).expanded(None)
    assert (view.base_precision[[0, 2]] == 0).all()
    with pytest.raises(InvalidOption, match="form='constant'"):
        report(data, COX, fits, form="empirical")


def sites(seed, spread, n_clients=40, shared=False):
    rng = np.random.default_rng(seed)
    client = np.repeat(np.arange(n_clients), 40)
    z = rng.normal(size=(len(client), 2))
    if shared:
        z[:, 0] = 1.0
    theta = np.array([0.0 if shared else 0.5, -0.5]) + spread * rng.normal(size=(n_clients, 2))
    eta = np.sum(z * theta[client], axis=1)
    time, censored = rng.exponential(np.exp(-eta)), rng.exponential(3.0, len(client))
    response = np.column_stack([np.full(len(time), -1.0), np.minimum(time, censored), time <= censored])
    return GroupedRows.from_columns(client, z, response), theta


@pytest.mark.parametrize("spread", [0.0, 0.6])
def test_likelihood_knows_whether_sites_differ(spread):
    data, theta = sites(1, spread)
    found = chosen(data, COX, np.eye(2), [np.zeros(2, dtype=bool), np.ones(2, dtype=bool)])
    assert found.varying.tolist() == [spread > 0] * 2
    assert_allclose(found.mean, theta.mean(axis=0), atol=0.12)
    if spread:
        assert_allclose(np.sqrt(found.variances), spread, atol=0.2)


def test_one_baseline_for_all_is_found_with_the_levels_of_sites():
    data, theta = sites(2, 0.5, shared=True)
    family, _ = family_class("cox-shared").for_rows(data).estimated(data, None, np.eye(2))
    found = laplace(data, family, np.eye(2))
    assert np.corrcoef(found.modes[:, 0], theta[:, 0])[0, 1] > 0.85
    assert found.mean[1] == pytest.approx(theta[:, 1].mean(), abs=0.12)
    # The true cumulative hazard is t, up to the average level.
    early = family.times < 1.5
    ratio = family.cumulative[early] / family.times[early]
    assert ratio[-1] == pytest.approx(np.exp(theta[:, 0].mean() - found.mean[0]), rel=0.15)


def test_breslows_baseline_is_the_sum_over_events():
    data = rows(np.zeros(60), START, WEIGHT)
    risk = np.exp(Z[:, 0] / 3)
    family = family_class("cox-shared")()._with_risks(data, risk)
    expected = [
        np.sum(WEIGHT[(t == STOP) & (EVENT == 1)]) / np.sum((WEIGHT * risk)[(t > START) & (t <= STOP)])
        for t in family.times
    ]
    assert_allclose(np.diff(family.cumulative, prepend=0), expected, rtol=1e-10)
    exposure = family.exposure(data.response)
    assert_allclose(np.sum(WEIGHT * risk * exposure), np.sum(WEIGHT * EVENT))
