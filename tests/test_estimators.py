"""The estimators: one interface, scikit-learn's conventions, what each one is, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from vaneb import (
    NPEB,
    VANEB,
    AdaMix,
    FedAvg,
    InvalidOption,
    InvalidReport,
    Local,
    Oracle,
    Posterior,
    Prior,
    Reports,
)
from vaneb.adamix import SphericalMixture, adamix, fit_spherical_mixture
from vaneb.covariance import ConstantFull, QuadraticVariance
from vaneb.estimators import PointEstimates
from vaneb.population.options import Options

#: Where only what goes in and comes out is looked at.
QUICK = Options(draws=60, burn=60, sweeps=120)
K = 50
RNG = np.random.default_rng(0)
THETA = RNG.choice([-2.0, 2.0], size=(K, 1)) + 0.3 * RNG.normal(size=(K, 2))
ERRORS = RNG.uniform(0.4, 1.0, size=(K, 2))
ESTIMATES = THETA + ERRORS * RNG.normal(size=(K, 2))
IDS = [f"client {k}" for k in range(K)]
REPORTS = Reports(ESTIMATES, n=np.arange(1.0, K + 1), standard_errors=ERRORS, ids=IDS, names=["a", "b"])
TRUTH = Prior([[-2.0, -2.0], [2.0, 2.0]], [0.5, 0.5], 0.09 * np.eye(2))
MODELS = {
    # Where the groups are differs between populations: 400 of them leave an error of 0.04 sd, the limit.
    "vaneb": VANEB(options=Options(draws=800)),
    "vaneb gaussian": VANEB(population="gaussian", options=QUICK),
    "vaneb discrete": VANEB(population="discrete"),
    "vaneb pseudo-em": VANEB(solver="pseudo-em", iterations=20),
    "vaneb grid": VANEB(solver="grid", population="discrete"),
    "npeb": NPEB(),
    "adamix": AdaMix(components=2),
    "fedavg": FedAvg(),
    "local": Local(),
    "oracle": Oracle(TRUTH),
}


@pytest.fixture(scope="module")
def fitted() -> dict:
    return {name: (model.fit(REPORTS), model.personalize(REPORTS)) for name, model in MODELS.items()}


# ---------------------------------------------------------------- one interface


@pytest.mark.parametrize("name", MODELS)
def test_fit_returns_the_model_and_personalize_estimates_with_labels(fitted: dict, name: str) -> None:
    model, found = fitted[name]
    assert model is MODELS[name]
    assert isinstance(found, Posterior | PointEstimates)
    assert found.mean.shape == (K, 2)
    assert np.isfinite(found.mean).all()
    assert found.ids == tuple(IDS)
    assert found.names == ("a", "b")


@pytest.mark.parametrize("name", MODELS)
def test_all_but_averaging_are_at_least_as_good_as_local_fits(fitted: dict, name: str) -> None:
    error = {key: np.mean((found.mean - THETA) ** 2) for key, (_, found) in fitted.items()}
    if name == "fedavg":
        assert error[name] > error["local"]
    else:
        assert error[name] <= error["local"]
        assert error[name] >= 0.9 * error["oracle"]


@pytest.mark.parametrize("name", MODELS)
def test_new_clients_are_personalised(fitted: dict, name: str) -> None:
    some = REPORTS.take([3, 1, 4])
    found = MODELS[name].personalize(some)
    assert found.mean.shape == (3, 2)
    assert found.ids == ("client 3", "client 1", "client 4")
    if name != "adamix":  # which fits its mixture to whom it personalises
        assert_allclose(found.mean, fitted[name][1].mean[[3, 1, 4]], rtol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_fitting_again_gives_the_same(fitted: dict, name: str) -> None:
    before = fitted[name][1].mean
    again = type(MODELS[name])(**MODELS[name].get_params()).fit(REPORTS).personalize(REPORTS)
    assert_array_equal(again.mean, before)


@pytest.mark.parametrize("name", MODELS)
def test_scikit_learn_clones_them(name: str) -> None:
    base = pytest.importorskip("sklearn.base")
    model = MODELS[name]
    copy = base.clone(model)
    assert type(copy) is type(model)
    assert copy is not model
    assert not any(key.endswith("_") for key in vars(copy))
    if name != "oracle":
        assert copy.get_params() == model.get_params()
    else:
        assert_array_equal(copy.prior.atoms, TRUTH.atoms)


@pytest.mark.parametrize("name", MODELS)
def test_options_go_in_and_come_out(name: str) -> None:
    model = MODELS[name]
    options = model.get_params()
    assert set(options) == set(vars(type(model)(**options)))
    assert model.set_params(**options) is model
    assert type(model).__name__ in repr(model)
    with pytest.raises(InvalidOption, match="no option 'colour'"):
        model.set_params(colour="red")


def test_set_params_sets() -> None:
    assert VANEB().set_params(tol=1e-2, solver="grid").tol == 1e-2
    shown = "VANEB(population='discrete', solver='grid', tol=0.0001, iterations=50, seed=0, outliers=0.05"
    assert repr(VANEB("discrete", "grid")).startswith(shown)
    assert repr(Local()) == "Local()"


# ---------------------------------------------------------------- VANEB


def test_what_a_discrete_fit_learned(fitted: dict) -> None:
    model, post = fitted["vaneb discrete"]
    assert model.prior_.kind == "discrete"
    assert model.prior_.clients == K
    assert model.prior_.names == ("a", "b")
    assert model.prior_.atom_variances.shape == model.prior_.atoms.shape
    assert model.certificate_.reached
    assert model.sampling_ is None
    assert model.trace_[-1].atoms == len(model.prior_.weights)
    assert_allclose(model.trace_[-1].log_likelihood, post.log_marginal.mean(), atol=1e-9)


def test_what_a_sampled_fit_learned(fitted: dict) -> None:
    model, _ = fitted["vaneb"]
    prior = model.prior_
    assert (prior.kind, prior.populations, prior.clients, prior.names) == ("mixture", 800, K, ("a", "b"))
    assert (model.certificate_, model.trace_) == (None, ())
    assert model.sampling_.reached
    assert model.sampling_.acceptance == 1  # the reports are Gaussian
    assert model.sampling_.sweeps >= 600
    assert prior.group_counts()[0] == 2
    assert_allclose(prior.mean, THETA.mean(axis=0), atol=0.3)
    assert_allclose(np.sqrt(np.diagonal(prior.covariance)), THETA.std(axis=0), rtol=0.15)


def test_one_gaussian_is_one_gaussian_in_every_population(fitted: dict) -> None:
    model, _ = fitted["vaneb gaussian"]
    assert (model.prior_.kind, model.prior_.populations, len(model.prior_.weights)) == ("gaussian", 60, 60)
    assert model.certificate_ is None


def test_groups_are_worth_more_than_one_gaussian_where_there_are_groups(fitted: dict) -> None:
    error = {name: np.mean((fitted[name][1].mean - THETA) ** 2) for name in ("vaneb", "vaneb gaussian")}
    assert error["vaneb"] < 0.7 * error["vaneb gaussian"]


def test_fitting_another_kind_forgets_the_last_one() -> None:
    model = VANEB(population="discrete", options=QUICK).fit(REPORTS)
    model.set_params(population="gaussian").fit(REPORTS)
    assert (model.certificate_, model.trace_) == (None, ())
    model.set_params(population="discrete").fit(REPORTS)
    assert model.sampling_ is None


def test_naming_a_solver_asks_for_atoms() -> None:
    assert (VANEB().kind, VANEB(solver="grid").kind, VANEB("gaussian").kind) == (
        "mixture",
        "discrete",
        "gaussian",
    )


def test_solvers_agree_as_far_as_their_certificates_say(fitted: dict) -> None:
    def average(name: str) -> float:
        return fitted[name][1].log_marginal.mean()

    best = fitted["vaneb discrete"][0]
    for name in ("vaneb pseudo-em", "vaneb grid"):
        assert average(name) <= average("vaneb discrete") + best.certificate_.bound
        assert average("vaneb discrete") <= average(name) + fitted[name][0].certificate_.bound


def test_a_saved_prior_personalises_like_the_model(fitted: dict, tmp_path) -> None:
    for name in ("vaneb", "vaneb discrete"):
        model, post = fitted[name]
        for file in ("prior.json", "prior.parquet"):
            model.prior_.save(tmp_path / file)
            again = VANEB.from_prior(Prior.load(tmp_path / file)).personalize(REPORTS)
            assert_allclose(again.mean, post.mean, rtol=1e-9)
            assert_allclose(again.interval(), post.interval(), rtol=1e-9)
            assert again.flag == post.flag


def test_a_likelihood_will_do_instead_of_reports(fitted: dict) -> None:
    model = VANEB(population="discrete").fit(REPORTS.likelihood())
    assert_array_equal(model.prior_.atoms, fitted["vaneb discrete"][0].prior_.atoms)
    assert model.personalize(REPORTS.likelihood()).ids == ()


def test_progress_is_told() -> None:
    said: list[tuple[str, int, int]] = []
    VANEB(options=QUICK).fit(REPORTS.take(np.arange(20)), progress=lambda *step: said.append(step))
    assert {what for what, _, _ in said} == {"sampling populations"}
    assert all(0 < done <= of for _, done, of in said)


def test_one_client_keeps_its_estimate() -> None:
    """To a tenth of its standard error, since a population of one is nearly, not quite, flat."""
    single = REPORTS.take([5])
    post = VANEB(population="discrete").fit(single).personalize(single)
    assert_allclose(post.mean, ESTIMATES[5:6], atol=1e-6)
    post = VANEB().fit(single).personalize(single)
    assert (np.abs(post.mean - ESTIMATES[5:6]) < 0.1 * ERRORS[5]).all()


def test_the_seed_is_the_only_randomness() -> None:
    one, two = (VANEB(population="discrete", seed=3).fit(REPORTS).prior_ for _ in range(2))
    assert_array_equal(one.atoms, two.atoms)
    other, first = (
        VANEB(population="discrete", seed=s).fit(REPORTS).personalize(REPORTS).log_marginal.mean()
        for s in (4, 0)
    )
    assert_allclose(other, first, atol=1e-4)
    same, again, different = (VANEB(seed=s, options=QUICK).fit(REPORTS).prior_ for s in (3, 3, 4))
    assert_array_equal(same.atoms, again.atoms)
    assert_array_equal(same.covariances, again.covariances)
    assert not np.isin(different.atoms, same.atoms).any()


def test_another_seed_moves_estimates_by_no_more_than_is_said(fitted: dict) -> None:
    """Differences of two estimates with that error each: 2.8 errors for 95%, over 95% of the clients."""
    model, post = fitted["vaneb"]
    other = VANEB(seed=1).fit(REPORTS).personalize(REPORTS)
    moved = np.abs(other.mean - post.mean) / post.sd
    assert np.quantile(moved, 0.95) < 2.8 * model.sampling_.error


def test_the_order_of_clients_does_not_matter() -> None:
    order = np.random.default_rng(5).permutation(K)
    here, there = (VANEB(options=QUICK).fit(r).prior_ for r in (REPORTS, REPORTS.take(order)))
    assert_allclose(there.atoms, here.atoms, rtol=1e-9)


def test_a_constant_covariance_function_is_npeb() -> None:
    constant = Reports(ESTIMATES, n=np.full(K, 3.0), covariance=QuadraticVariance.normal([1.0, 0.5], 2, K))
    ours = VANEB(population="discrete", tol=1e-6).fit(constant).personalize(constant)
    npeb = NPEB(tol=1e-6).fit(constant).personalize(constant)
    assert_allclose(ours.mean, npeb.mean, atol=1e-2)
    assert_allclose(ours.log_marginal.mean(), npeb.log_marginal.mean(), atol=1e-5)


def test_npeb_fixes_the_covariance_at_the_estimate() -> None:
    estimates = np.array([[2.0], [4.0], [3.0], [8.0]])
    poisson = Reports(estimates, n=np.full(4, 5.0), covariance=QuadraticVariance.poisson(1, 4))
    fixed = Reports(estimates, covariance=estimates / 5.0)
    here, there = (NPEB().fit(r).personalize(r) for r in (poisson, fixed))
    assert_allclose(here.mean, there.mean, rtol=1e-9)


# ---------------------------------------------------------------- the others


def test_local_keeps_estimates_and_errors(fitted: dict) -> None:
    found = fitted["local"][1]
    assert_array_equal(found.mean, ESTIMATES)
    assert_allclose(np.diagonal(found.covariance, axis1=1, axis2=2), ERRORS**2)
    low, high = found.interval(0.9)
    assert_allclose(high - low, 2 * norm.ppf(0.95) * ERRORS)
    with pytest.raises(InvalidOption, match="level"):
        found.interval(1.0)


def test_local_says_so_where_the_data_leave_a_coordinate_open() -> None:
    """The first client knows only the sum of two coordinates, the second only the first of them."""
    precision = np.array([[[1.0, 1.0], [1.0, 1.0]], [[4.0, 0.0], [0.0, 0.0]]])
    open_ended = Reports(np.zeros((2, 2)), precision=precision)
    found = Local().fit(open_ended).personalize(open_ended)
    assert_array_equal(np.diagonal(found.covariance, axis1=1, axis2=2), [[np.inf, np.inf], [0.25, np.inf]])
    assert not np.isnan(found.covariance).any()
    assert_array_equal(found.interval(0.5)[1][0], np.inf)


def test_fedavg_is_the_average_weighted_by_rows(fitted: dict) -> None:
    n = np.arange(1.0, K + 1)
    expected = (n[:, None] * ESTIMATES).sum(axis=0) / n.sum()
    assert_allclose(fitted["fedavg"][1].mean, np.tile(expected, (K, 1)))
    with pytest.raises(InvalidOption, match="no intervals"):
        fitted["fedavg"][1].interval()
    # of clients without a number of rows, the plain average
    assert_allclose(FedAvg().fit(REPORTS.likelihood()).average_, ESTIMATES.mean(axis=0))


def test_oracle_is_bayes_rule_under_the_truth(fitted: dict) -> None:
    post = fitted["oracle"][1]
    density = np.stack(
        [norm.pdf(ESTIMATES, c, np.sqrt(ERRORS**2 + 0.09)).prod(axis=1) for c in (-2.0, 2.0)], axis=1
    )
    share = density / density.sum(axis=1, keepdims=True)
    assert_allclose(post.responsibilities, share, atol=1e-10)
    gain = 0.09 / (0.09 + ERRORS**2)
    expected = sum(share[:, j : j + 1] * (c + gain * (ESTIMATES - c)) for j, c in enumerate((-2.0, 2.0)))
    assert_allclose(post.mean, expected)


def test_adamix_with_one_component_at_rest_is_shrinkage_to_the_mean() -> None:
    """At a fixed point theta = (d x + mu / tau^2) / (d + 1 / tau^2), mu and tau those of the thetas."""
    precision = 1 / ERRORS**2
    mean, mixture = adamix(
        ESTIMATES, precision, components=1, iterations=400, rate=1.0, rng=np.random.default_rng(0)
    )
    assert_allclose(mixture.means[0], mean.mean(axis=0), atol=1e-6)
    pull = 1 / mixture.variances[0]
    assert_allclose(mean, (precision * ESTIMATES + pull * mixture.means[0]) / (precision + pull), atol=1e-5)


def test_adamix_without_iterations_or_with_sure_clients_is_local() -> None:
    assert_array_equal(AdaMix(iterations=0).fit(REPORTS).personalize(REPORTS).mean, ESTIMATES)
    sure = Reports(ESTIMATES, standard_errors=np.full((K, 2), 1e-9))
    assert_allclose(AdaMix().fit(sure).personalize(sure).mean, ESTIMATES, atol=1e-6)


def test_adamix_takes_the_diagonal_of_the_covariance_not_of_the_precision() -> None:
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    full = Reports(ESTIMATES, covariance=np.tile(covariance, (K, 1, 1)))
    plain = Reports(ESTIMATES, standard_errors=np.ones((K, 2)))
    assert_allclose(
        AdaMix().fit(full).personalize(full).mean, AdaMix().fit(plain).personalize(plain).mean, rtol=1e-6
    )


def test_adamix_leaves_open_coordinates_to_the_mixture() -> None:
    precision = np.tile(np.eye(2) / 0.25, (K, 1, 1))
    precision[0, 1, 1] = 0.0
    estimates = ESTIMATES.copy()
    estimates[0] = [2.0, 0.5]
    given = Reports(estimates, n=np.ones(K), covariance=ConstantFull(precision))
    found = AdaMix(components=2, iterations=60).fit(given).personalize(given)
    assert np.isfinite(found.mean).all()
    assert found.mean[0, 1] > 1.5  # it goes where the first coordinate says


def test_spherical_mixtures_are_found_and_have_responsibilities() -> None:
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.normal(-5, 0.5, size=(300, 2)), rng.normal(5, 1.5, size=(100, 2))])
    mixture = fit_spherical_mixture(points, 2, rng)
    order = np.argsort(mixture.means[:, 0])
    assert_allclose(mixture.means[order], [[-5, -5], [5, 5]], atol=0.4)
    assert_allclose(mixture.variances[order], [0.25, 2.25], rtol=0.25)
    assert_allclose(mixture.weights[order], [0.75, 0.25], atol=1e-3)
    shares = mixture.responsibilities(points)
    assert_allclose(shares.sum(axis=1), 1.0)
    known = SphericalMixture(np.array([[0.0], [2.0]]), np.array([1.0, 4.0]), np.array([0.3, 0.7]))
    density = np.array([0.3 * norm.pdf(1.0, 0, 1), 0.7 * norm.pdf(1.0, 2, 2)])
    assert_allclose(known.responsibilities(np.array([[1.0]]))[0], density / density.sum())


def test_more_components_than_clients_are_not_more_than_clients() -> None:
    few = REPORTS.take([0, 1, 2])
    assert np.isfinite(AdaMix(components=10).fit(few).personalize(few).mean).all()
    same = Reports(np.ones((5, 1)), standard_errors=np.ones((5, 1)))
    assert_allclose(AdaMix(components=3).fit(same).personalize(same).mean, 1.0)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "magic"}, "solver must be one of"),
        ({"tol": 0.0}, "tol"),
        ({"tol": -1.0}, "tol"),
        ({"tol": np.nan}, "tol"),
        ({"tol": np.inf}, "tol"),
        ({"tol": "small"}, "tol"),
        ({"iterations": -1}, "iterations"),
        ({"iterations": 2.5}, "iterations"),
        ({"population": "normal"}, "population must be one of"),
        ({"population": None}, "population must be one of"),
        ({"population": "mixture", "solver": "grid"}, "solver='grid' fits discrete populations"),
        ({"population": "gaussian", "solver": "certified"}, 'write population="discrete"'),
        ({"outliers": 1.0}, "outliers"),
        ({"outliers": -0.1}, "outliers"),
        ({"smooth": "off"}, 'write population="discrete"'),
        ({"smooth": "auto"}, "smooth is gone"),
        ({"smooth": 0}, "smooth is gone"),
        ({"smooth": np.eye(2)}, "smooth is gone"),
    ],
)
def test_senseless_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        VANEB(**options).fit(REPORTS)


@pytest.mark.parametrize(
    "options", [{"components": 0}, {"components": 1.5}, {"iterations": -1}, {"rate": 0.0}, {"rate": 2.0}]
)
def test_senseless_options_of_adamix_are_refused(options: dict) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        AdaMix(**options).fit(REPORTS).personalize(REPORTS)


@pytest.mark.parametrize("model", [VANEB(), NPEB(), FedAvg()], ids=lambda model: type(model).__name__)
def test_a_model_that_was_not_fitted_says_so(model) -> None:
    with pytest.raises(InvalidOption, match="fit the model first"):
        model.personalize(REPORTS)


@pytest.mark.parametrize("clients", [ESTIMATES, None, "reports.csv", [1.0, 2.0]])
def test_what_is_not_reports_is_refused(clients: object) -> None:
    with pytest.raises(InvalidReport, match="expected Reports"):
        VANEB().fit(clients)


def test_clients_of_another_model_are_refused(fitted: dict) -> None:
    other = Reports(np.zeros((3, 1)), standard_errors=np.ones((3, 1)))
    for name in ("vaneb", "npeb", "oracle"):
        with pytest.raises(InvalidReport, match="1 parameters, the prior has 2"):
            MODELS[name].personalize(other)
    turned = Reports(ESTIMATES[:, ::-1], standard_errors=ERRORS[:, ::-1], names=["b", "a"])
    with pytest.raises(InvalidReport, match="order"):
        fitted["vaneb"][0].personalize(turned)
