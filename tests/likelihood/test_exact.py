"""Exact likelihoods: densities, finite differences, subsets, hopeless clients."""

import numpy as np
import pytest
from scipy import stats

from vaneb.errors import InvalidOption
from vaneb.likelihood.exact import exact_likelihood
from vaneb.local import families
from vaneb.local.data import GroupedRows
from vaneb.study.scenarios import CLASS_PROJECTIONS, simulate

ATOMS = np.random.default_rng(99).normal(size=(5, 3)) * 0.5


def make(name, n_clients=9, size=8, seed=0):
    """Rows of ``n_clients`` clients, some of them tiny, and the family that made them."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 2 * size, n_clients)
    client = np.repeat(np.arange(n_clients), n)
    z = np.column_stack([np.ones(n.sum()), rng.normal(size=(n.sum(), 2))])
    offset = rng.normal(size=len(z)) * 0.3
    eta = np.sum(z * (rng.normal(size=(n_clients, 3)) * 0.6)[client], axis=1) + offset
    mean = np.exp(eta)
    scores = rng.gumbel(size=(len(z), 3)) + z @ rng.normal(size=(3, 3))
    made = {
        "gaussian": lambda: (families.gaussian(0.6), eta + np.sqrt(0.6) * rng.normal(size=len(eta))),
        "binomial": lambda: (families.binomial(), rng.uniform(size=len(eta)) < 1 / (1 + np.exp(-eta))),
        "poisson": lambda: (families.poisson(), rng.poisson(mean)),
        "gamma": lambda: (families.gamma(0.5), rng.gamma(2.0, mean / 2) + 1e-6),
        "negative_binomial": lambda: (
            families.negative_binomial(0.5),
            rng.negative_binomial(2, 1 / (1 + 0.5 * mean)),
        ),
        "shared_softmax": lambda: (families.shared_softmax(CLASS_PROJECTIONS), scores.argmax(1)),
        "multinomial": lambda: (families.multinomial(3, 3), scores.argmax(1)),
    }
    family, y = made[name]()
    softmax = name in ("shared_softmax", "multinomial")
    return GroupedRows.from_columns(client, z, y, offset=None if softmax else offset), family


NAMES = ("gaussian", "binomial", "poisson", "gamma", "negative_binomial", "shared_softmax", "multinomial")


def atoms_for(likelihood):
    if likelihood.dimension == 3:
        return ATOMS
    return np.random.default_rng(98).normal(size=(4, likelihood.dimension)) * 0.5


def scipy_log_density(family, rows, theta):
    eta = family.index(theta, rows.design, rows.offset)
    y, mean = rows.response, family.mean(eta)
    if family.name == "gaussian":
        return stats.norm.logpdf(y, mean, np.sqrt(0.6))
    if family.name == "binomial":
        return stats.bernoulli.logpmf(y, mean)
    if family.name == "poisson":
        return stats.poisson.logpmf(y, mean)
    if family.name == "gamma":
        return stats.gamma.logpdf(y, 2.0, scale=mean / 2)
    if family.name == "negative-binomial":
        return stats.nbinom.logpmf(y, 2, 1 / (1 + 0.5 * mean))
    return np.log(mean[np.arange(len(y)), y.astype(int)])


@pytest.mark.parametrize("name", NAMES)
def test_log_likelihood_is_the_sum_of_scipys_log_densities(name):
    rows, family = make(name)
    likelihood = exact_likelihood(rows, family)
    atoms = atoms_for(likelihood)
    table = likelihood.log_likelihood(atoms)
    for k in range(rows.n_clients):
        part = rows.take(slice(k, k + 1))
        expected = [scipy_log_density(family, part, atom).sum() for atom in atoms]
        np.testing.assert_allclose(table[k], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_at_is_the_log_likelihood_at_points_of_the_clients_own(name):
    likelihood = exact_likelihood(*make(name))
    points = np.random.default_rng(6).normal(size=(likelihood.n_clients, likelihood.dimension)) * 0.4
    own = np.diagonal(likelihood.log_likelihood(points))
    np.testing.assert_allclose(likelihood.at(points), own, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_ascent_is_the_gradient_of_its_value(name):
    rows, family = make(name)
    likelihood = exact_likelihood(rows, family)
    atoms = atoms_for(likelihood)
    log_weights = -likelihood.log_likelihood(atoms).max(axis=1) - np.log(rows.n_clients)
    got = likelihood.ascent(atoms, log_weights)
    shares = np.exp(likelihood.log_likelihood(atoms) + log_weights[:, None])
    np.testing.assert_allclose(got.value, shares.sum(0), rtol=1e-10)
    step = 1e-4
    for c in range(likelihood.dimension):
        shift = step * np.eye(likelihood.dimension)[c]
        up, down = (likelihood.ascent(atoms + sign * shift, log_weights).value for sign in (1, -1))
        np.testing.assert_allclose(got.gradient[:, c], (up - down) / (2 * step), rtol=2e-4, atol=2e-6)
    assert likelihood.ascent(atoms, log_weights, curvature=False).outer is None


@pytest.mark.parametrize("name", NAMES)
def test_outer_minus_information_is_the_hessian_of_the_value(name):
    rows, family = make(name)
    likelihood = exact_likelihood(rows, family)
    atoms = atoms_for(likelihood)
    log_weights = -likelihood.log_likelihood(atoms).max(axis=1) - np.log(rows.n_clients)
    got = likelihood.ascent(atoms, log_weights)
    information = np.broadcast_to(got.information, got.outer.shape)
    step = 1e-5
    for c in range(likelihood.dimension):
        shift = step * np.eye(likelihood.dimension)[c]
        up, down = (likelihood.ascent(atoms + sign * shift, log_weights).gradient for sign in (1, -1))
        hessian = (got.outer - information)[:, c]
        np.testing.assert_allclose(hessian, (up - down) / (2 * step), rtol=1e-4, atol=1e-6)


def test_blocks_orders_and_subsets_do_not_matter():
    sample = simulate("poisson", 150, 5, np.random.default_rng(1))
    likelihood = exact_likelihood(sample.rows, families.poisson())
    atoms = sample.theta[:7]
    table = likelihood.log_likelihood(atoms)
    order = np.random.default_rng(2).permutation(150)
    np.testing.assert_array_equal(likelihood.take(order).log_likelihood(atoms), table[order])
    part = likelihood.take(slice(20, 90))
    np.testing.assert_array_equal(part.log_likelihood(atoms), table[20:90])
    np.testing.assert_array_equal(part.take(np.array([3])).log_likelihood(atoms), table[23:24])
    weights = -np.log(np.exp(table).sum(1)) if table.max() > -700 else np.zeros(150)
    whole = likelihood.ascent(atoms, weights - np.log(150))
    halves = [
        likelihood.take(s).ascent(atoms, weights[s] - np.log(150)) for s in (slice(0, 80), slice(80, 150))
    ]
    np.testing.assert_allclose(whole.value, halves[0].value + halves[1].value, rtol=1e-9)
    np.testing.assert_allclose(whole.outer, halves[0].outer + halves[1].outer, rtol=1e-9, atol=1e-12)


def test_many_atoms_cross_tiles():
    sample = simulate("logistic", 6, 10, np.random.default_rng(4))
    likelihood = exact_likelihood(sample.rows, families.shared_softmax(CLASS_PROJECTIONS))
    atoms = np.random.default_rng(5).normal(size=(300, 3))
    table = likelihood.log_likelihood(atoms)
    np.testing.assert_allclose(table[:, 290:], likelihood.log_likelihood(atoms[290:]), rtol=1e-12)
    weights = -table.max(1)
    some, everywhere = likelihood.ascent(atoms[250:], weights), likelihood.ascent(atoms, weights)
    np.testing.assert_allclose(everywhere.gradient[250:], some.gradient, rtol=1e-9, atol=1e-12)


def test_far_atoms_and_hopeless_clients_give_numbers():
    rows = GroupedRows.from_columns(
        np.repeat([0, 1], 6), np.column_stack([np.ones(12), np.arange(12)]), [0.0] * 12
    )
    likelihood = exact_likelihood(rows, families.poisson())
    assert not likelihood.fits.exists.any()
    atoms = np.array([[0.0, 0.0], [500.0, 100.0], [-300.0, -5.0]])
    table = likelihood.log_likelihood(atoms)
    assert not np.isnan(table).any()
    assert (table <= 1e-9).all()
    got = likelihood.ascent(atoms, np.zeros(2))
    assert all(np.isfinite(part).all() for part in got)
    assert np.isfinite(likelihood.local_estimates()).all()


@pytest.mark.parametrize("name", ["poisson", "gaussian", "shared_softmax"])
def test_peak_is_the_top_of_the_likelihood(name):
    rows, family = make(name, n_clients=6, size=60, seed=2)
    likelihood = exact_likelihood(rows, family)
    own = np.diagonal(likelihood.log_likelihood(likelihood.local_estimates()))
    converged = np.ones(6, dtype=bool) if name == "gaussian" else likelihood.fits.exists
    np.testing.assert_allclose(likelihood.peak()[converged], own[converged], atol=1e-8)
    assert (likelihood.log_likelihood(ATOMS) <= likelihood.peak()[:, None] + 0.3).all()


def test_losses_without_a_density_are_refused():
    rows, _ = make("gaussian")
    with pytest.raises(InvalidOption, match="sandwich"):
        exact_likelihood(rows, families.huber(1.0))
