"""The posterior over populations: reproducible, the same for the same information, right where known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm

from vaneb import VANEB, Prior, Reports
from vaneb.covariance import QuadraticVariance
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.population.options import Options
from vaneb.population.sampler import sample_populations
from vaneb.posterior import posterior

QUICK = Options(draws=80, burn=80, sweeps=160)


def clients(kind: str = "clusters", count: int = 120, d: int = 2, seed: int = 0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((3, d)) * (2 if kind == "clusters" else 0)
    group = rng.choice(3, count, p=[0.5, 0.3, 0.2])
    theta = centres[group] + np.array([0.1, 0.5, 1.0])[group][:, None] * rng.standard_normal((count, d))
    errors = rng.uniform(0.2, 1.5, (count, d))
    return theta, theta + errors * rng.standard_normal((count, d)), errors


def fitted(x, errors, **options):
    reports = Reports(x, standard_errors=errors)
    return VANEB(**options).fit(reports).personalize(reports)


def moves(one, other, to_units=lambda values: values):
    """Moves of estimates and of interval ends, in posterior standard deviations."""
    sd = one.sd
    means = np.abs(to_units(other.mean) - one.mean) / sd
    ends = [np.abs(to_units(b) - a) / sd for a, b in zip(one.interval(0.9), other.interval(0.9), strict=True)]
    return means, np.maximum(*ends)


@pytest.mark.parametrize("kind", ["clusters", "normal"])
def test_what_should_not_matter_does_not(kind):
    _, x, errors = clients(kind)
    one = fitted(x, errors)
    shift, scale = np.array([100.0, -3.0]), np.array([1e-3, 50.0])
    others = {
        "seed": (fitted(x, errors, seed=1), lambda v: v),
        "rounding": (fitted(x * (1 + 1e-13), errors), lambda v: v),
        "units": (fitted((x + shift) * scale, errors * scale), lambda v: v / scale - shift),
    }
    for name, (other, back) in others.items():
        means, ends = moves(one, other, back)
        assert np.quantile(means, 0.95) < 0.1, name
        assert means.max() < 0.3, name
        assert np.quantile(ends, 0.95) < 0.2, name
        assert ends.max() < 0.6, name


def test_another_order_and_other_threads_give_the_same_numbers(monkeypatch):
    _, x, errors = clients(count=9000)
    options = Options(draws=10, burn=10, sweeps=20)
    one = fitted(x, errors, options=options)
    order = np.random.default_rng(3).permutation(len(x))
    assert_allclose(fitted(x[order], errors[order], options=options).mean, one.mean[order], rtol=1e-12)
    monkeypatch.setenv("VANEB_THREADS", "1")
    assert np.array_equal(fitted(x, errors, options=options).mean, one.mean)


def test_the_same_information_in_any_form_gives_the_same_answer():
    _, x, errors = clients("normal", d=3)
    one = fitted(x, errors, options=QUICK)
    variances = errors[:, :, None] ** 2 * np.eye(3)
    for given in ({"covariance": variances}, {"precision": np.linalg.inv(variances)}):
        reports = Reports(x, **given)
        other = VANEB(options=QUICK).fit(reports).personalize(reports)
        assert_allclose(other.mean, one.mean, atol=1e-8)
        assert_allclose(other.interval(0.9)[0], one.interval(0.9)[0], atol=1e-6)


def test_the_kind_of_object_does_not_depend_on_the_number_of_clients():
    _, x, errors = clients(count=150)
    priors = [VANEB(options=QUICK).fit(Reports(x[:k], standard_errors=errors[:k])).prior_ for k in (149, 150)]
    assert [p.kind for p in priors] == ["mixture", "mixture"]
    assert [p.populations for p in priors] == [80, 80]
    assert "posterior over 80 populations" in str(priors[0])


@pytest.mark.parametrize("population", ["gaussian", "mixture"])
def test_a_gaussian_population_is_integrated_over_as_a_grid_does_it(population):
    """K = 12, d = 1: means and standard deviations beside a grid over tau (flat), mu integrated out."""
    rng = np.random.default_rng(5)
    errors = rng.uniform(0.5, 1.0, 12)
    x = rng.standard_normal(12) + errors * rng.standard_normal(12)
    taus = np.linspace(0.005, 6.0, 600)
    total = taus[:, None] ** 2 + errors**2
    precision = (1 / total).sum(1)
    mu = (x / total).sum(1) / precision
    log_p = (
        -0.5 * np.log(total).sum(1) - 0.5 * np.log(precision) - 0.5 * ((x - mu[:, None]) ** 2 / total).sum(1)
    )
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    share = taus[:, None] ** 2 / total
    means = share * x + (1 - share) * mu[:, None]
    variances = share * errors**2 + (1 - share) ** 2 / precision[:, None]
    expected = weight @ means
    sd = np.sqrt(weight @ (variances + (means - expected) ** 2))
    found = fitted(x[:, None], errors[:, None], population=population)
    # A mixture allows for more than one Gaussian; with twelve clients that changes little.
    slack = 0.15 if population == "gaussian" else 0.3
    assert (np.abs(found.mean[:, 0] - expected) < slack * sd).all()
    assert_allclose(found.sd[:, 0], sd, rtol=slack)


def test_intervals_hold_with_few_clients():
    held, count = 0.0, 40
    for seed in range(count):
        theta, x, errors = clients("normal", count=20, d=1, seed=seed)
        lower, upper = fitted(x, errors, options=Options(draws=150, burn=100, sweeps=500)).interval(0.9)
        held += float(np.mean((lower <= theta) & (theta <= upper))) / count
    assert 0.85 < held < 0.96


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_clients_get_an_honest_answer(count):
    _, x, errors = clients("normal", count=count, d=2, seed=4)
    found = fitted(x, errors)
    assert (found.sd > 0.3 * errors).all()
    assert (found.sd < 1.3 * errors).all()
    lower, upper = found.interval(0.9)
    assert (upper - lower > 0.9 * found.sd).all()
    if count == 1:
        assert (np.abs(found.mean - x) < 0.1 * errors).all()
        assert (found.sd > 0.95 * errors).all()


@pytest.mark.parametrize(("count", "said"), [(1, "one client only"), (3, "3 clients only"), (20, "")])
def test_few_clients_get_a_note(count, said):
    _, x, errors = clients("normal", count=count, d=1)
    notes = VANEB(options=QUICK).fit(Reports(x, standard_errors=errors)).notes_
    assert said in " ".join(notes)
    assert bool(notes) == bool(said)


def test_all_clients_equal():
    rng = np.random.default_rng(1)
    errors = np.full((100, 1), 0.5)
    found = fitted(3 + errors * rng.standard_normal((100, 1)), errors)
    assert found.sd.max() < 0.2
    assert found.sd.min() > 0.03
    assert np.abs(found.mean - 3).max() < 0.3


def test_sd_interval_and_shrinkage_come_from_one_posterior():
    _, x, errors = clients()
    found = fitted(x, errors)
    lower, upper = found.interval(0.9)
    assert ((upper - lower) > 1.5 * found.sd).all()
    assert ((upper - lower) < 4.5 * found.sd).all()
    kept = np.mean(found.sd**2 / errors**2, axis=1)
    assert_allclose(found.shrinkage, np.clip(1 - kept, 0, 1), atol=1e-8)
    draws = found.sample(4000, np.random.default_rng(0))
    assert_allclose(draws.mean(0), found.mean, atol=0.1)
    assert_allclose(draws.std(0), found.sd, rtol=0.15)


def test_posteriors_are_those_of_brute_force():
    """Two populations of two components in one dimension, by integration over a fine grid."""
    atoms = np.array([[-1.0], [2.0], [-0.5], [2.5]])
    covariances = np.array([[[0.3]], [[0.05]], [[0.6]], [[0.0]]])
    prior = Prior(atoms, [0.3, 0.2, 0.35, 0.15], covariances, draw=[0, 0, 1, 1])
    x, precision = np.array([[0.3], [2.2], [-4.0]]), np.array([[2.0], [5.0], [0.7]])
    found = posterior(ConstantGaussian(x, precision), prior)
    grid = np.linspace(-12, 12, 240_001)
    for k in range(3):
        densities, marginals = [], []
        for r in (slice(0, 2), slice(2, 4)):
            sd = np.sqrt(covariances[r, 0, 0] + 1e-6)
            density = norm.pdf(grid[:, None], atoms[r, 0], sd) @ (2 * prior.weights[r])
            density *= norm.pdf(x[k, 0], grid, 1 / np.sqrt(precision[k, 0]))
            marginals.append(np.trapezoid(density, grid))
            densities.append(density / marginals[-1])
        average = np.mean(densities, axis=0)
        mean = np.trapezoid(grid * average, grid)
        assert_allclose(found.mean[k, 0], mean, atol=1e-4)
        assert_allclose(found.sd[k, 0] ** 2, np.trapezoid((grid - mean) ** 2 * average, grid), rtol=1e-3)
        assert_allclose(found.log_marginal[k], np.log(np.mean(marginals)), atol=1e-4)
        below = np.cumsum(average) * (grid[1] - grid[0])
        ends = [grid[np.searchsorted(below, p)] for p in (0.05, 0.95)]
        assert_allclose([end[k, 0] for end in found.interval(0.9)], ends, atol=5e-3)


def test_covariance_functions_beside_brute_force():
    """Counts, d = 1: variance theta / n.  Means to 0.02 and interval ends to 0.05 of a standard error."""
    rng = np.random.default_rng(2)
    n = rng.integers(20, 60, 80)
    theta = 3 + 0.8 * rng.standard_normal(80)
    x = rng.poisson(theta * n) / n
    reports = Reports(x[:, None], n=n, covariance=QuadraticVariance.poisson(1, 80))
    model = VANEB(population="gaussian").fit(reports)
    found, prior = model.personalize(reports), model.prior_
    error = np.sqrt(x / n)
    grid = np.linspace(0.2, 8, 8001)
    lower, upper = found.interval(0.9)
    population = norm.pdf(grid[:, None], prior.atoms[:, 0], np.sqrt(prior.covariances[:, 0, 0]))
    for k in range(0, 80, 7):
        joint = population * norm.pdf(x[k], grid, np.sqrt(grid / n[k]))[:, None]
        average = (joint / joint.sum(axis=0)).mean(axis=1)
        below = np.cumsum(average)
        assert abs(found.mean[k, 0] - average @ grid) < 0.02 * error[k]
        assert abs(lower[k, 0] - grid[np.searchsorted(below, 0.05)]) < 0.05 * error[k]
        assert abs(upper[k, 0] - grid[np.searchsorted(below, 0.95)]) < 0.05 * error[k]


def test_sampling_says_how_well_it_went():
    _, x, errors = clients()
    prior, sampling = sample_populations(ConstantGaussian(x, 1 / errors**2), options=QUICK)
    assert prior.populations == 80
    assert 0 < sampling.error < 0.3
    assert sampling.acceptance == 1.0
    assert "Monte Carlo error" in str(sampling)


def test_ten_percent_liars_do_not_spoil_the_others():
    theta, x, errors = clients("normal", count=200, d=3)
    rng = np.random.default_rng(0)
    alone = np.sqrt(np.mean((fitted(x[20:], errors[20:]).mean - theta[20:]) ** 2))
    for lies in (rng.uniform(-1e4, 1e4, (20, 3)), np.full((20, 3), 7.0)):
        told, said = np.vstack([lies, x[20:]]), np.vstack([np.full((20, 3), 1e-2), errors[20:]])
        beside = np.sqrt(np.mean((fitted(told, said).mean[20:] - theta[20:]) ** 2))
        assert beside < 1.25 * alone


@pytest.mark.parametrize(
    ("n_clients", "dimension", "kept"),
    [(20, 3, 1600), (100, 3, 1000), (20, 40, 400), (10_000, 10, 100), (1_000_000, 3, 25)],
)
def test_fewer_populations_are_kept_where_clients_know_them_well(n_clients, dimension, kept):
    assert Options().populations_kept(n_clients, dimension) == kept
    assert Options(draws=10).populations_kept(n_clients, dimension) <= 10


@pytest.mark.parametrize(
    ("kind", "least", "effort"), [("mixture", 300, 1e9), ("mixture", 120, 18e3), ("gaussian", 0, 1e9)]
)
def test_sweeps_are_no_fewer_than_asked_for_unless_effort_ends_them(kind, least, effort):
    _, x, errors = clients(count=50)
    options = Options(draws=40, burn=20, accuracy=1.0, fewest_sweeps=300, effort=effort)
    made = VANEB(kind, options=options).fit(Reports(x, standard_errors=errors))
    assert made.prior_.populations == 40
    assert least - 40 <= made.sampling_.sweeps <= least + 60
