"""Posteriors against brute force: Tweedie's form, moments, quantiles, draws, shrinkage and flags."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import multivariate_normal, norm

from vaneb import VANEB, InvalidOption, InvalidReport, Prior, Reports
from vaneb.covariance import ConstantDiagonal, ConstantFull, MomentPoisson, QuadraticVariance
from vaneb.likelihood.gaussian import gaussian_likelihood
from vaneb.npmle.support import atom_variances
from vaneb.posterior import Posterior, posterior, tweedie, unexplained
from vaneb.quantiles import quantiles_of_block

K, D = 7, 2
RNG = np.random.default_rng(0)
N = RNG.integers(2, 9, size=K).astype(float)
ESTIMATES = 1.5 + 0.6 * RNG.normal(size=(K, D))
ATOMS = 1.5 + 0.5 * RNG.normal(size=(5, D))
WEIGHTS = np.array([0.1, 0.3, 0.25, 0.15, 0.2])
SPREAD = np.array([[0.2, 0.08], [0.08, 0.1]])
_ROOTS = RNG.normal(size=(K, D, D))
FULL = _ROOTS @ np.swapaxes(_ROOTS, 1, 2) + 0.3 * np.eye(D)
SINGULAR = FULL.copy()
SINGULAR[::2] = _ROOTS[::2, :, :1] @ np.swapaxes(_ROOTS[::2, :, :1], 1, 2)
SINGULAR[3] = 0.0
COVARIANCES = {
    "diagonal": ConstantDiagonal(np.abs(RNG.normal(size=(K, D))) + 0.2),
    "full": ConstantFull(FULL),
    "singular": ConstantFull(SINGULAR),
    "shared": QuadraticVariance.poisson(D, K),
    "function": MomentPoisson(0.2 * RNG.normal(size=(K, D)), FULL / 10),
}
SPREADS = {"discrete": None, "diagonal": np.diag([0.2, 0.1]), "full": SPREAD}


def reports(kind: str) -> Reports:
    return Reports(ESTIMATES, n=N, covariance=COVARIANCES[kind])


def make(kind: str, smooth: str) -> Posterior:
    return posterior(reports(kind).likelihood(), Prior(ATOMS, WEIGHTS, SPREADS[smooth]))


def brute_force(kind: str, post: Posterior, client: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares (m,), means (m, d) and covariances (m, d, d) of a client's mixture posterior, one by one.

    Everything from the covariance of the pair (theta, B'theta_hat), B a basis of what the client knows of.
    """
    precision = precisions(kind, post.prior.atoms)
    shares, means, own = [], [], []
    spread = np.zeros((D, D)) if post.prior.spread is None else post.prior.spread
    for j, atom in enumerate(post.prior.atoms):
        values, basis = np.linalg.eigh(precision[client, j])
        basis, values = basis[:, values > 1e-9], values[values > 1e-9]
        total = np.diag(1 / values) + basis.T @ spread @ basis
        difference = basis.T @ (ESTIMATES[client] - atom)
        density = 1.0
        gain = np.zeros((D, len(values)))
        if len(values):
            density = multivariate_normal(np.zeros(len(values)), total).pdf(difference)
            gain = spread @ basis @ np.linalg.inv(total)
        shares.append(post.prior.weights[j] * density)
        means.append(atom + gain @ difference)
        own.append(spread - gain @ basis.T @ spread)
    return np.array(shares), np.array(means), np.array(own)


def precisions(kind: str, atoms: np.ndarray) -> np.ndarray:
    """n_k Sigma_k(a_j)^{-1}, (K, m, d, d), straight from the covariance function of the test's reports."""
    unit = COVARIANCES[kind].precision(atoms[None])
    if unit.ndim == 3:
        unit = unit[..., None] * np.eye(D)
    return N[:, None, None, None] * unit


@pytest.mark.parametrize("smooth", SPREADS)
@pytest.mark.parametrize("kind", COVARIANCES)
def test_marginal_responsibilities_mean_and_covariance(kind: str, smooth: str) -> None:
    post = make(kind, smooth)
    for k in range(K):
        shares, means, own = brute_force(kind, post, k)
        assert_allclose(post.log_marginal[k], np.log(shares.sum()), rtol=1e-9, atol=1e-9)
        shares = shares / shares.sum()
        assert_allclose(post.responsibilities[k], shares, rtol=1e-8, atol=1e-12)
        mean = shares @ means
        assert_allclose(post.mean[k], mean, rtol=1e-9)
        centred = means - mean
        expected = np.einsum("j,jab->ab", shares, own) + (centred * shares[:, None]).T @ centred
        assert_allclose(post.covariance[k], expected, rtol=1e-7, atol=1e-10)
    assert_allclose(post.sd**2, np.diagonal(post.covariance, axis1=1, axis2=2), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("smooth", SPREADS)
@pytest.mark.parametrize("kind", COVARIANCES)
def test_draws_have_the_posteriors_moments(kind: str, smooth: str) -> None:
    post = make(kind, smooth)
    draws = post.sample(4000, np.random.default_rng(1))
    assert draws.shape == (4000, K, D)
    error = 6 * post.sd / np.sqrt(4000) + 1e-12
    assert (np.abs(draws.mean(axis=0) - post.mean) < error).all()
    assert_allclose(draws.std(axis=0), post.sd, rtol=0.2, atol=1e-9)
    for k in range(K):
        assert_allclose(
            np.cov(draws[:, k].T), post.covariance[k], atol=0.15 * post.covariance[k].max() + 1e-12
        )


def test_false_sign_rate_is_the_share_of_draws_with_the_other_sign() -> None:
    centred = Prior(ATOMS - 1.5, WEIGHTS, SPREAD)
    likelihood = gaussian_likelihood(ESTIMATES - 1.5, N, COVARIANCES["full"])
    post = posterior(likelihood, centred)
    draws = post.sample(20_000, np.random.default_rng(2))
    rate = post.false_sign_rate()
    assert_allclose(rate, (np.sign(draws) != np.sign(post.mean)).mean(axis=0), atol=0.02)
    assert (rate.max() > 0.2) & (rate.min() < 0.05)


def test_false_sign_rate_of_a_discrete_prior_counts_atoms() -> None:
    """A point at zero has neither sign, so it counts as wrong whatever the estimate's sign."""
    prior = Prior([[-1.0], [0.0], [2.0]], [0.2, 0.3, 0.5])
    flat = gaussian_likelihood(np.array([[0.0], [0.0]]), np.ones(2), ConstantDiagonal(np.zeros((2, 1))))
    assert_allclose(posterior(flat, prior).false_sign_rate(), 0.5)
    mirrored = Prior([[1.0], [0.0], [-2.0]], [0.2, 0.3, 0.5])
    assert_allclose(posterior(flat, mirrored).false_sign_rate(), 0.5)


# ---------------------------------------------------------------- Tweedie


@pytest.mark.parametrize("kind", COVARIANCES)
def test_tweedie_is_the_mixture_form_to_rounding(kind: str) -> None:
    post = make(kind, "discrete")
    assert_allclose(tweedie(reports(kind).likelihood(), post.prior), post.mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_tweedie_is_the_score_of_the_marginal_density(kind: str) -> None:
    """For a constant covariance S_k: theta_hat + S_k grad log f_k(theta_hat), by finite differences."""
    prior, covariance = Prior(ATOMS, WEIGHTS), COVARIANCES[kind]
    found = tweedie(gaussian_likelihood(ESTIMATES, N, covariance), prior)
    unit = covariance.precision(np.zeros((1, 1, D)))[:, 0]
    for k in range(K):
        precision = N[k] * (np.diag(unit[k]) if unit.ndim == 2 else unit[k])
        gradient = np.zeros(D)
        for i in range(D):
            ahead, behind = (
                posterior(
                    gaussian_likelihood(ESTIMATES + s * np.eye(D)[i], N, covariance), prior
                ).log_marginal[k]
                for s in (1e-5, -1e-5)
            )
            gradient[i] = (ahead - behind) / 2e-5
        assert_allclose(found[k], ESTIMATES[k] + np.linalg.solve(precision, gradient), rtol=1e-6, atol=1e-6)


def test_rho_bounds_the_move_of_a_client_that_the_prior_hardly_explains() -> None:
    prior = Prior(ATOMS, WEIGHTS)
    estimates = np.concatenate([ESTIMATES, [[40.0, -40.0]], [[1e9, 0.0]]])
    unit = np.concatenate([COVARIANCES["full"].unit_precision, [np.eye(D)], [np.eye(D)]])
    likelihood = gaussian_likelihood(estimates, np.ones(K + 2), ConstantFull(unit))
    density = np.exp(posterior(likelihood, prior).log_marginal)
    free = tweedie(likelihood, prior)
    for rho in (1e-3, float(np.sort(density)[4]), 10.0):
        bounded = tweedie(likelihood, prior, rho)
        # theta_hat + q / max(f, rho) = theta_hat + (free move) f / max(f, rho)
        share = density / np.maximum(density, rho)
        assert_allclose(bounded, estimates + share[:, None] * (free - estimates), rtol=1e-9, atol=1e-12)
        assert_allclose(bounded[-2:], estimates[-2:], atol=1e-12)


def test_tweedie_is_stated_for_discrete_priors_only() -> None:
    with pytest.raises(InvalidOption, match="discrete"):
        tweedie(reports("full").likelihood(), Prior(ATOMS, WEIGHTS, SPREAD))


# ---------------------------------------------------------------- quantiles and intervals


@pytest.mark.parametrize("smooth", ["diagonal", "full"])
@pytest.mark.parametrize("kind", COVARIANCES)
def test_quantiles_invert_the_distribution_function(kind: str, smooth: str) -> None:
    post = make(kind, smooth)
    for probability in (0.003, 0.05, 0.5, 0.8, 0.999):
        found = post.quantile(probability)
        for k in range(K):
            shares, means, own = brute_force(kind, post, k)
            sd = np.sqrt(np.diagonal(own, axis1=1, axis2=2))
            below = (shares / shares.sum()) @ norm.cdf(found[k], means, sd)
            assert_allclose(below, probability, atol=1e-6)


def test_quantiles_of_well_separated_components() -> None:
    """Far modes with next to nothing between: the quantile lies in the right one."""
    shares = np.array([[0.3, 0.7]])
    means, variances = np.array([[[-1000.0], [1000.0]]]), np.full((1, 2, 1), 1e-6)
    found = quantiles_of_block(shares, means, variances, np.array([0.15, 0.65]))[:, 0, 0]
    assert_allclose(found, [-1000.0, 1000.0], atol=1e-5)


def test_a_direction_without_spread_has_its_point_for_quantile() -> None:
    post = make("full", "discrete")
    prior = Prior(ATOMS[:1], [1.0], np.diag([0.2, 0.0]))
    found = posterior(post.likelihood, prior).quantile(0.9)
    assert_allclose(found[:, 1], ATOMS[0, 1], rtol=1e-9)


def test_a_distant_client_does_not_widen_the_quantiles_of_others() -> None:
    prior = Prior([[0.0]], [1.0], [[1e-8]])
    precision = ConstantDiagonal(np.full((2, 1), 1e10))
    alone = posterior(gaussian_likelihood(np.array([[1e-5]]), np.ones(1), precision.take([0])), prior)
    both = posterior(gaussian_likelihood(np.array([[1e-5], [1e12]]), np.ones(2), precision), prior)
    assert_allclose(both.quantile(0.95)[0], alone.quantile(0.95)[0], rtol=1e-9)


def test_intervals_of_a_discrete_prior_are_normal_ones() -> None:
    post = make("full", "discrete")
    low, high = post.interval(0.8)
    assert_allclose(low, post.mean - norm.ppf(0.9) * post.sd)
    assert_allclose(high, post.mean + norm.ppf(0.9) * post.sd)


@pytest.mark.parametrize("smooth", SPREADS)
def test_intervals_are_nested(smooth: str) -> None:
    post = make("diagonal", smooth)
    inner, outer = post.interval(0.5), post.interval(0.95)
    assert (outer[0] < inner[0]).all()
    assert (inner[1] < outer[1]).all()
    assert_allclose(make("diagonal", smooth).interval(), make("diagonal", smooth).interval(0.9))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90, np.nan])
def test_levels_outside_the_unit_interval_are_refused(level: float) -> None:
    post = make("diagonal", "full")
    with pytest.raises(InvalidOption, match="level"):
        post.interval(level)
    with pytest.raises(InvalidOption, match="probability"):
        post.quantile(level)


@pytest.mark.parametrize("kind", ["full", "diagonal", "shared"])
def test_intervals_cover_parameters_drawn_from_the_prior(kind: str) -> None:
    """3000 clients drawn from the prior itself: 90% intervals cover 90%, five standard errors allowed."""
    rng, size = np.random.default_rng(3), 3000
    prior = Prior(ATOMS + 1.0, WEIGHTS, np.diag([0.02, 0.01]) if kind == "shared" else SPREAD)
    theta = prior.sample(size, rng)
    rows = rng.integers(K, size=size)
    covariance, n = COVARIANCES[kind].take(rows), 40.0 * N[rows]
    unit = covariance.precision(theta[:, None])[:, 0]
    precision = n[:, None, None] * (unit if unit.ndim == 3 else unit[:, :, None] * np.eye(D))
    noise = np.linalg.cholesky(np.linalg.inv(precision)) @ rng.normal(size=(size, D, 1))
    post = posterior(gaussian_likelihood(theta + noise[:, :, 0], n, covariance), prior)
    for level in (0.5, 0.9):
        low, high = post.interval(level)
        covered = ((low <= theta) & (theta <= high)).mean(axis=0)
        assert_allclose(covered, level, atol=5 * np.sqrt(level * (1 - level) / size))
    # shrinking helps, and claims no more than it gives
    error = (post.mean - theta) ** 2
    assert (error.mean(axis=0) < (noise[:, :, 0] ** 2).mean(axis=0)).all()
    assert_allclose(error.mean(axis=0), (post.sd**2).mean(axis=0), rtol=0.15)


# ---------------------------------------------------------------- shrinkage, flags, others


@pytest.mark.parametrize("kind", COVARIANCES)
@pytest.mark.parametrize("smooth", ["diagonal", "full"])
def test_shrinkage_runs_from_one_to_zero_with_the_sample_size(kind: str, smooth: str) -> None:
    prior, previous = Prior(ATOMS, WEIGHTS, SPREADS[smooth]), np.ones(K)
    informed = np.linalg.matrix_rank(SINGULAR) > 0 if kind == "singular" else np.ones(K, dtype=bool)
    for n in (1e-7, 1e-3, 1e9):
        post = posterior(gaussian_likelihood(ESTIMATES, n * N, COVARIANCES[kind]), prior)
        assert ((post.shrinkage >= 0) & (post.shrinkage <= 1)).all()
        assert (post.shrinkage <= previous + 1e-9).all()
        previous = post.shrinkage
        if n < 1e-6:
            assert (post.shrinkage > 0.999).all()
    assert (previous[~informed] == 1).all()
    if kind != "singular":
        assert_allclose(post.mean, ESTIMATES, atol=1e-3)
    # A covariance function is taken at the atom, not at the client, so that for those the limit is not zero.
    if kind in ("diagonal", "full", "singular"):
        assert (previous[informed] < 1e-3).all()


def test_shrinkage_of_one_gaussian_is_the_textbook_factor() -> None:
    post = posterior(
        gaussian_likelihood(np.array([[1.0], [2.0]]), np.ones(2), ConstantDiagonal(np.array([[1.0], [4.0]]))),
        Prior([[0.0]], [1.0], [[0.5]]),
    )
    factor = np.array([1.0, 0.25]) / (np.array([1.0, 0.25]) + 0.5)
    assert_allclose(post.shrinkage, factor)
    assert_allclose(post.mean[:, 0], (1 - factor) * [1.0, 2.0])


def test_a_client_that_knows_nothing_gets_the_prior() -> None:
    post = make("singular", "full")
    assert (SINGULAR[3] == 0).all()
    assert_allclose(post.mean[3], post.prior.mean)
    assert_allclose(post.covariance[3], post.prior.covariance)
    assert_allclose(post.log_marginal[3], 0.0, atol=1e-12)
    assert post.shrinkage[3] == 1
    assert post.flag[3] == ""


def test_what_a_client_does_not_know_does_not_matter() -> None:
    """Its estimate may be anything in the null space of its precision."""
    null = np.stack([np.linalg.svd(matrix)[2][-1] for matrix in SINGULAR])
    null[np.linalg.matrix_rank(SINGULAR) == D] = 0.0
    prior = Prior(ATOMS, WEIGHTS, SPREAD)
    here, there = (
        posterior(gaussian_likelihood(x, N, COVARIANCES["singular"]), prior)
        for x in (ESTIMATES, ESTIMATES + 50.0 * null)
    )
    assert_allclose(there.mean, here.mean, rtol=1e-8)
    assert_allclose(there.covariance, here.covariance, rtol=1e-7, atol=1e-12)
    assert_allclose(there.log_marginal, here.log_marginal, rtol=1e-7, atol=1e-9)
    assert there.flag == here.flag


def test_a_client_far_from_every_shared_atom_is_flagged() -> None:
    estimates = np.concatenate([np.random.default_rng(4).normal(size=(39, 1)), [[30.0]]])
    likelihood = gaussian_likelihood(estimates, np.ones(40), ConstantDiagonal(np.ones((40, 1))))
    own_atom = Prior([[0.0], [30.0]], [39 / 40, 1 / 40], clients=40)
    assert_array_equal(np.flatnonzero(unexplained(likelihood, own_atom)), [39])
    assert posterior(likelihood, own_atom).flag == ("",) * 39 + ("unexplained",)
    # two clients there are company for each other
    shared_atom = Prior([[0.0], [30.0]], [38 / 40, 2 / 40], clients=40)
    assert not unexplained(likelihood, shared_atom).any()
    # and a prior that was given, not fitted, belongs to nobody
    assert not unexplained(likelihood, Prior([[0.0], [30.0]], [39 / 40, 1 / 40])).any()


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_new_clients_are_judged_by_the_clients_of_the_fit_not_by_their_own_number(count: int) -> None:
    prior = Prior([[0.0], [10.0], [20.0]], [0.6, 0.3, 0.1], clients=1000)
    precision = ConstantDiagonal(np.ones((count, 1)))
    for atom in prior.atoms:
        likelihood = gaussian_likelihood(np.tile(atom, (count, 1)), np.ones(count), precision)
        assert not unexplained(likelihood, prior).any()
    far = gaussian_likelihood(np.full((count, 1), 35.0), np.ones(count), precision)
    assert unexplained(far, prior).all()


def test_flags_join_what_the_report_said_of_itself() -> None:
    told = Reports(
        [0.0, 0.1, 50.0, 60.0], standard_errors=np.ones(4), status=["ok", "penalised", "ok", "separated"]
    )
    post = posterior(told.likelihood(), Prior([[0.0]], [1.0]), status=told.status)
    assert post.flag == ("", "penalised", "unexplained", "separated;unexplained")


def test_a_prior_of_another_dimension_or_order_is_refused() -> None:
    with pytest.raises(InvalidReport, match="2 parameters, the prior has 1"):
        posterior(reports("full").likelihood(), Prior([[0.0]], [1.0]))
    named = Prior(ATOMS, WEIGHTS, names=("slope", "intercept"))
    with pytest.raises(InvalidReport, match="order"):
        posterior(reports("full").likelihood(), named, names=("intercept", "slope"))
    posterior(reports("full").likelihood(), named, names=("slope", "intercept"))


def test_absurd_distances_give_numbers() -> None:
    """A client 1e9 standard errors from everything: its nearest atom, no warnings, no nan."""
    likelihood = gaussian_likelihood(np.array([[1e9], [0.1]]), np.ones(2), ConstantDiagonal([[1e18], [1.0]]))
    for prior in (Prior([[0.0], [1.0]], [0.5, 0.5]), Prior([[0.0], [1.0]], [0.5, 0.5], [[0.3]])):
        post = posterior(likelihood, prior)
        for part in (
            post.mean,
            post.sd,
            post.log_marginal,
            post.covariance,
            *post.interval(0.9),
            post.shrinkage,
        ):
            assert np.isfinite(part).all()
        assert post.flag[0] == "unexplained"
    assert_allclose(posterior(likelihood, Prior([[0.0], [1.0]], [0.5, 0.5])).mean[0], 1.0)


def test_blocks_and_threads_do_not_change_a_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    from vaneb import posterior as module

    rng, size = np.random.default_rng(5), 5000
    rows = rng.integers(K, size=size)
    likelihood = gaussian_likelihood(ESTIMATES[rows], N[rows], COVARIANCES["full"].take(rows))
    prior = Prior(ATOMS, WEIGHTS, SPREAD)
    found = []
    for threads in ("1", "2"):
        monkeypatch.setenv("VANEB_THREADS", threads)
        post = module.posterior(likelihood, prior)
        found.append((post.mean, post.sd, post.covariance, post.quantile(0.9), post.responsibilities))
    for one, two in zip(*found, strict=True):
        assert_array_equal(one, two)
    whole = make("full", "full")
    assert_allclose(found[0][0], whole.mean[rows], rtol=1e-12)


def test_repr_says_who_and_how_much() -> None:
    assert "7 clients, 2 parameters" in repr(make("full", "full"))
    assert len(make("full", "full")) == K


@pytest.mark.parametrize("smooth", ["auto", "off"])
def test_a_client_with_an_atom_to_itself_keeps_its_own_interval(smooth: str) -> None:
    rng = np.random.default_rng(30)
    estimates = np.append(rng.normal(size=60) * 1.4, 80.0)
    errors = np.append(np.ones(60), 2.0)
    reports = Reports(estimates[:, None], standard_errors=errors[:, None])
    post = VANEB(smooth=smooth).fit(reports).personalize(reports)
    low, high = post.interval(0.9)
    assert_allclose([low[-1, 0], high[-1, 0]], 80 + 2 * norm.ppf([0.05, 0.95]), rtol=1e-6)
    assert post.shrinkage[-1] < 1e-6
    assert np.median(post.shrinkage[:-1]) > 0.3


def test_places_of_atoms_are_known_as_well_as_their_clients_know_them() -> None:
    """Two groups too far apart to mix: each atom is the mean of its own clients."""
    variances = np.array([0.5, 1.0, 2.0, 4.0])
    likelihood = Reports([[0.1], [-0.1], [100.0], [100.1]], covariance=variances[:, None]).likelihood()
    found = atom_variances(likelihood, np.array([[0.0], [100.0]]), np.array([0.5, 0.5]))
    assert_allclose(found[:, 0], [1 / (1 / 0.5 + 1), 1 / (1 / 2 + 1 / 4)])


def test_unknown_places_widen_an_interval_and_leave_the_posterior_alone() -> None:
    likelihood = Reports([[0.0], [1.0]], covariance=[[1.0], [1.0]]).likelihood()
    atoms, weights = np.array([[-1.0], [1.0]]), np.array([0.5, 0.5])
    for spread in (None, np.array([[0.3]])):
        known = posterior(likelihood, Prior(atoms, weights, spread))
        unknown = posterior(likelihood, Prior(atoms, weights, spread, atom_variances=np.full((2, 1), 0.2)))
        assert_allclose(known.mean, unknown.mean)
        assert_allclose(known.sd, unknown.sd)
        (low, high), (lower, higher) = known.interval(0.9), unknown.interval(0.9)
        assert (lower < low).all()
        assert (higher > high).all()


@pytest.mark.parametrize("smooth", ["discrete", "diagonal"])
def test_what_is_kept_of_the_responsibilities_changes_nothing(
    smooth: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = make("full", smooth)
    monkeypatch.setattr("vaneb.posterior.KEPT", 0)
    other = make("full", smooth)
    for one, two in zip(kept.interval(0.9), other.interval(0.9), strict=True):
        assert_array_equal(one, two)
