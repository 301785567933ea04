"""What can be done with a fit: summaries, frames, intervals of rows, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats
from scipy.special import expit

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped import GroupedFit, fit_groups, load
from vaneb.grouped.known import KnownClients
from vaneb.grouped.summary import FixedEffects, PopulationSummary
from vaneb.prior import Prior

DRAW = {
    "gaussian": lambda rng, eta: eta + 0.7 * rng.standard_normal(len(eta)),
    "poisson": lambda rng, eta: rng.poisson(np.exp(eta)),
    "binomial": lambda rng, eta: (rng.random(len(eta)) < expit(eta)).astype(int),
    "gamma": lambda rng, eta: rng.gamma(4.0, np.exp(eta) / 4),
    "multinomial": lambda rng, eta: np.where(rng.random(len(eta)) < 0.3, "c", np.where(eta > 1, "b", "a")),
    "huber": lambda rng, eta: eta + 0.7 * rng.standard_normal(len(eta)),
}
MEAN = {"gaussian": lambda eta: eta, "poisson": np.exp, "gamma": np.exp, "binomial": expit}


def groups(seed: int, clients: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.multivariate_normal([1, 0.5], [[0.5, 0.1], [0.1, 0.2]], clients)


def rows_of(theta: np.ndarray, rows: int, family: str, seed: int, first: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(len(theta)), rows)
    x = rng.standard_normal(len(k))
    eta = theta[k, 0] + theta[k, 1] * x
    return pd.DataFrame({"site": k + first, "x": x, "eta": eta, "y": DRAW[family](rng, eta)})


_FITS: dict[str, GroupedFit] = {}


def fitted(family: str) -> GroupedFit:
    """One fit for all tests of a family."""
    if family not in _FITS:
        frame = rows_of(groups(1, 120), 6, family, 2).drop(columns="eta")
        _FITS[family] = fit_groups(
            frame, client="site", formula="y ~ x", family=family, population="gaussian"
        )
    return _FITS[family]


# ---------------------------------------------------------------- intervals


def held(fit: GroupedFit, new: pd.DataFrame, family: str) -> tuple[float, float]:
    """Shares of expected and of new responses that lie in their 90% intervals."""
    confidence, prediction = (
        fit.predict(new, interval=kind, level=0.9) for kind in ("confidence", "prediction")
    )
    truth = MEAN[family](new.eta)
    return (
        ((confidence.lower <= truth) & (truth <= confidence.upper)).mean(),
        ((prediction.lower <= new.y) & (new.y <= prediction.upper)).mean(),
    )


#: Counts come in steps: an interval of whole numbers holds more than was asked for.
MOST = {"gaussian": 0.94, "gamma": 0.94, "poisson": 0.98}


@pytest.mark.parametrize("family", ["gaussian", "poisson", "gamma"])
def test_intervals_of_known_groups_hold_what_they_promise(family: str) -> None:
    expected, new = held(fitted(family), rows_of(groups(1, 120), 12, family, 4), family)
    assert 0.86 < expected < 0.94
    assert 0.87 < new < MOST[family]


@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_intervals_of_new_groups_hold_what_they_promise(family: str) -> None:
    """On average over fits: one set of groups may be more alike than the population."""
    shares = []
    for seed in range(8):
        frame = rows_of(groups(100 + seed, 60), 6, family, 200 + seed)
        fit = fit_groups(frame, client="site", formula="y ~ x", family=family, population="gaussian")
        shares.append(held(fit, rows_of(groups(300 + seed, 200), 1, family, 400 + seed, 10_000), family))
    expected, new = np.mean(shares, axis=0)
    assert 0.86 < expected < 0.94
    assert 0.87 < new < MOST[family]


def posterior_of_index(fit: GroupedFit, client: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values of x' theta and their probabilities, on a grid: prior times likelihood of the client's own rows,
    for each of the populations drawn, and averaged over them."""
    at = fit.rows.ids.index(client)
    rows = slice(fit.rows.starts[at], fit.rows.starts[at + 1])
    sd = 6 * fit.posterior.sd[at]
    axes = [np.linspace(m - s, m + s, 121) for m, s in zip(fit.posterior.mean[at], sd, strict=True)]
    theta = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    index = theta @ fit.rows.design[rows].T
    y, phi = fit.rows.response[rows], fit.family.dispersion
    mean = np.exp(index)
    log_likelihood = {
        "gaussian": lambda: stats.norm.logpdf(y, index, np.sqrt(phi)),
        "poisson": lambda: stats.poisson.logpmf(y, mean),
        "gamma": lambda: stats.gamma.logpdf(y, 1 / phi, scale=mean * phi),
    }[fit.family.name]().sum(axis=1)
    total = np.zeros(len(theta))
    for atom, covariance in zip(fit.prior.atoms, fit.prior.covariances, strict=True):
        log_density = log_likelihood + stats.multivariate_normal(atom, covariance).logpdf(theta)
        density = np.exp(log_density - log_density.max())
        total += density / density.sum()
    eta = theta @ x
    order = np.argsort(eta)
    return eta[order], total[order] / total.sum()


@pytest.mark.parametrize("family", ["gaussian", "poisson", "gamma"])
def test_intervals_are_those_of_brute_force(family: str) -> None:
    fit, rng = fitted(family), np.random.default_rng(0)
    eta, probability = posterior_of_index(fit, "7", np.array([1.0, 0.8]))
    draws = [rng.choice(eta, 200_000, p=probability), fit.prior.sample(200_000, rng) @ [1, 0.8]]
    row = pd.DataFrame({"site": [7, -1], "x": [0.8, 0.8]})
    phi = fit.family.dispersion
    scatter = {
        "gaussian": lambda eta: eta + np.sqrt(phi) * rng.standard_normal(len(eta)),
        "poisson": lambda eta: rng.poisson(np.exp(eta)),
        "gamma": lambda eta: rng.gamma(1 / phi, np.exp(eta) * phi),
    }[family]
    for i, values in enumerate(draws):
        for kind, truth in (("confidence", MEAN[family](values)), ("prediction", scatter(values))):
            found = fit.predict(row, interval=kind, level=0.8).loc[i, ["lower", "upper"]].to_numpy()
            if family == "poisson" and kind == "prediction":
                assert_array_equal(found, np.quantile(truth, [0.1, 0.9], method="inverted_cdf"))
            else:
                assert_allclose(found, np.quantile(truth, [0.1, 0.9]), atol=0.03 * truth.std())


@pytest.mark.parametrize("family", ["gaussian", "poisson", "binomial", "huber"])
def test_the_interval_of_a_unit_vector_is_that_of_the_coefficient(family: str) -> None:
    fit = fitted(family)
    for made, other in zip(
        KnownClients.of(fit.posterior).interval(0.8), fit.posterior.interval(0.8), strict=True
    ):
        assert_allclose(made, other, rtol=0, atol=1e-9)


def test_one_gaussian_by_hand() -> None:
    """One known population, one client: the textbook's normal posterior, with and without noise."""
    prior = Prior(np.array([[1.0, 2.0]]), np.ones(1), np.array([[[1.0, 0.3], [0.3, 0.5]]]), ("a", "b"))
    precision, estimate, x = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([0.0, 3.0]), np.array([[1.0, -2.0]])
    covariance = np.linalg.inv(precision + np.linalg.inv(prior.covariances[0]))
    mean = covariance @ (precision @ estimate + np.linalg.inv(prior.covariances[0]) @ prior.atoms[0])
    known = KnownClients(("k",), prior, estimate[None], precision[None], mean[None], covariance[None])
    probabilities, z = np.array([0.05, 0.5, 0.95]), np.array([-1.6448536, 0, 1.6448536])
    for at, centre, spread in ((0, mean, covariance), (-1, prior.atoms[0], prior.covariances[0])):
        for noise in (0.0, 1.5):
            found = known.index_quantiles(np.array([at]), x, probabilities, noise)[:, 0]
            sd = np.sqrt(x[0] @ spread @ x[0] + noise)
            assert_allclose(found, x[0] @ centre + z * sd, atol=2e-5 * sd)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("multinomial", {"interval": "confidence"}, "not for family multinomial"),
        ("huber", {"interval": "prediction"}, "does not say how responses scatter"),
        ("gaussian", {"interval": "both"}, "choose one of confidence, prediction"),
        ("gaussian", {"interval": "confidence", "level": 1.5}, "level must lie between 0 and 1"),
        ("gaussian", {"interval": "confidence", "use": "pooled"}, "only personalised"),
        ("gaussian", {"use": "best"}, "choose one of personalised, local, pooled"),
    ],
)
def test_what_there_is_no_interval_of(family: str, options: dict, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        fitted(family).predict(pd.DataFrame({"site": [1], "x": [0.0]}), **options)


# ---------------------------------------------------------------- summaries and frames


def test_a_summary_says_what_lme4_says_and_no_row() -> None:
    fit = fitted("gaussian")
    text = str(fit)
    for word in (
        "y ~ x, by site",
        "720 rows in 120 groups (6 rows each)",
        "Residual",
        "correlation",
        "Intercept",
    ):
        assert word in text
    assert repr(fit) == text == str(fit.summary())
    html = fit._repr_html_()
    assert "<table>" in html
    assert "Residual" in html
    for value in fit.rows.response[:50]:
        assert f"{value:.5g}" not in text + html


def test_html_is_escaped() -> None:
    frame = rows_of(groups(1, 8), 5, "gaussian", 2).rename(columns={"x": "<b>x"})
    fit = fit_groups(frame, client="site", formula="y ~ `<b>x`")
    assert "<b>x" not in fit._repr_html_()
    assert "&lt;b&gt;x" in fit._repr_html_()


def test_averages_and_spread_are_those_of_the_populations() -> None:
    fit = fitted("gaussian")
    found, prior = fit.population, fit.prior
    assert prior.kind == "gaussian"
    assert_allclose(found.means, prior.atoms)
    assert_allclose(found.mean, prior.mean)
    assert_allclose(fit.fixef.se, prior.atoms.std(axis=0, ddof=1), rtol=0.15)
    assert_allclose(fit.fixef.se, fit.mixed_model.standard_error)
    assert_allclose(found.sd, np.median(np.sqrt(np.diagonal(prior.covariances, axis1=1, axis2=2)), axis=0))
    assert_allclose(found.mean, [1, 0.5], atol=0.2)
    assert_allclose(found.sd, np.sqrt([0.5, 0.2]), atol=0.12)
    assert_allclose(fit.coef.to_numpy(), fit.posterior.mean)
    assert_allclose(fit.ranef + found.mean, fit.coef)
    assert_allclose(fit.fixef.z, fit.fixef.estimate / fit.fixef.se)
    assert fit.fixef.p["Intercept"] < 1e-10


def test_a_coefficient_that_all_clients_share_is_a_fixed_effect() -> None:
    rng = np.random.default_rng(0)
    atoms = np.column_stack([rng.standard_normal(400), 3 + 0.1 * rng.standard_normal(400)])
    covariances = np.zeros((400, 2, 2))
    covariances[:, 0, 0] = 2.0
    found = PopulationSummary(Prior(atoms, np.ones(400), covariances, ("a", "b"), None, None, np.arange(400)))
    assert found.fixed.tolist() == [False, True]
    assert found.sd[1] == 0
    assert np.isnan(found.correlation[0, 1])
    assert_allclose(found.mean[1], atoms[:, 1].mean())
    fixed = FixedEffects.of_populations(("a", "b"), found.means)
    assert_allclose(fixed.estimate, found.mean)
    assert_allclose(fixed.standard_error[1], atoms[:, 1].std(ddof=1))
    assert_allclose(found.sd[0], np.sqrt(2.0))


def test_a_mixture_has_one_mean_for_each_population() -> None:
    weights = np.array([0.25, 0.75, 1.0]) / 2
    prior = Prior(np.array([[0.0], [4.0], [1.0]]), weights, np.ones((3, 1, 1)), ("a",), 100, None, [0, 0, 1])
    found = PopulationSummary(prior)
    assert_allclose(found.means.ravel(), [3.0, 1.0])
    assert_allclose(found.sds.ravel() ** 2, [1 + 0.25 * 9 + 0.75 * 1, 1.0])


def test_discrete_populations_have_no_standard_errors() -> None:
    frame = rows_of(groups(1, 20), 6, "gaussian", 2)
    fit = fit_groups(frame, client="site", formula="y ~ x", population="discrete")
    assert fit.fixef.se.isna().all()
    assert fit.confint().lower.isna().all()
    assert "no standard error" in str(fit)
    assert np.isfinite(fit.predict(frame, interval="prediction").to_numpy()).all()


def test_intervals_of_the_fit() -> None:
    fit = fitted("gaussian")
    wide, narrow = fit.confint(0.95), fit.confint(0.5)
    assert (wide.lower < narrow.lower).all()
    assert (narrow.upper < wide.upper).all()
    assert set(wide.index.get_level_values("quantity")) == {"mean", "sd", "correlation"}
    lower, upper = fit.posterior.interval(0.8)
    every = fit.confint(0.8, part="groups")
    assert_allclose(every.lower, lower.ravel())
    assert_allclose(every.loc[(3, "x"), "upper"], upper[3, 1])
    with pytest.raises(InvalidOption, match="choose one of population, groups"):
        fit.confint(part="all")
    with pytest.raises(InvalidOption, match="level"):
        fit.confint(0)


@pytest.mark.parametrize(("make", "kind"), [(pl.from_pandas, pl.DataFrame), (lambda f: f, pd.DataFrame)])
def test_what_comes_out_is_of_the_kind_that_went_in(make: Any, kind: type) -> None:
    frame = rows_of(groups(1, 10), 6, "gaussian", 2)
    fit = fit_groups(make(frame), client="site", formula="y ~ x")
    new = make(frame.head(4))
    for made in (fit.to_frame(), fit.coef, fit.ranef, fit.fixef, fit.confint(), fit.confint(part="groups")):
        assert isinstance(made, kind)
    assert isinstance(fit.predict(new, interval="confidence"), kind)
    assert next(iter(fit.to_frame().columns)) == "client"


def test_predictions_of_pandas_rows_keep_their_index() -> None:
    new = rows_of(groups(1, 3), 2, "gaussian", 5).set_axis(list("abcdef"))
    assert fitted("gaussian").predict(new, interval="confidence").index.tolist() == list("abcdef")


def test_residuals_stand_where_the_rows_stood() -> None:
    frame = rows_of(groups(1, 12), 5, "gaussian", 2)
    frame["test"] = 0
    frame.loc[3, "x"] = np.nan
    frame.loc[7, "test"] = 1
    shuffled = frame.sample(frac=1, random_state=3)
    fit = fit_groups(shuffled, client="site", formula="y ~ x", test_column="test")
    residuals = pd.Series(fit.residuals, shuffled.index).sort_index()
    assert residuals[residuals.isna()].index.tolist() == [3, 7]
    rest = frame.drop([3, 7])
    assert_allclose(residuals.dropna(), rest.y - fit.predict(rest))
    with pytest.raises(InvalidOption, match="classes"):
        _ = fitted("multinomial").residuals


def test_scores() -> None:
    fit, new = fitted("gaussian"), rows_of(groups(1, 120), 4, "gaussian", 9)
    error = ((new.y - fit.predict(new)) ** 2).mean()
    assert fit.score(new) == pytest.approx(1 - error / new.y.var(ddof=0))
    for family in ("poisson", "binomial", "multinomial"):
        assert 0 < fitted(family).score(rows_of(groups(1, 120), 4, family, 9)) < 1
    with pytest.raises(InvalidReport, match="all responses are the same"):
        fit.score(new.assign(y=1.0))


def test_the_plot_has_a_panel_for_each_coefficient() -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'vaneb[plots]'")
    fit = fitted("gaussian")
    figure = fit.plot()
    assert [axes.get_xlabel() for axes in figure.axes] == ["Intercept, 90% intervals", "x, 90% intervals"]
    (points,) = [line for line in figure.axes[1].lines if len(line.get_xdata()) == 120]
    assert_allclose(points.get_xdata(), np.sort(fit.posterior.mean[:, 1]))
    assert len(fit.plot("x", level=0.5).axes) == 1
    with pytest.raises(InvalidOption, match="there are Intercept, x"):
        fit.plot("z")


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("family", ["gaussian", "poisson", "binomial", "gamma", "huber", "multinomial"])
def test_a_loaded_fit_gives_the_same_numbers(family: str, tmp_path: Path) -> None:
    fit = fitted(family)
    fit.save(tmp_path / "model.json")
    loaded = load(tmp_path / "model.json")
    new = rows_of(groups(8, 130), 2, family, 8)
    new.loc[5, "x"] = np.nan
    for use in ("personalised", "local", "pooled"):
        assert_allclose(loaded.predict(new, use=use), fit.predict(new, use=use), rtol=1e-12, atol=1e-12)
    kinds = {"multinomial": (), "huber": ("confidence",)}.get(family, ("confidence", "prediction"))
    for kind in kinds:
        assert_allclose(
            loaded.predict(new, interval=kind, level=0.7),
            fit.predict(new, interval=kind, level=0.7),
            rtol=1e-12,
            atol=1e-12,
        )
    assert str(loaded) == str(fit)
    pd.testing.assert_frame_equal(loaded.to_frame(), fit.to_frame())
    pd.testing.assert_frame_equal(loaded.to_frame(0.5), fit.to_frame(0.5), rtol=0, atol=1e-8)
    assert loaded.score(new) == pytest.approx(fit.score(new), rel=1e-12)
    with pytest.raises(InvalidOption, match="has no rows"):
        _ = loaded.residuals


def test_factors_offsets_and_text_ids_are_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = rows_of(groups(1, 15), 8, "poisson", 2)
    frame["site"] = [f"s {k}" for k in frame.site]
    frame["g"] = rng.choice(["lo", "hi"], len(frame))
    frame["t"] = rng.uniform(1, 2, len(frame))
    fit = fit_groups(frame, client="site", formula="y ~ scale(x) + g + offset(log(t))", family="poisson")
    fit.save(tmp_path / "model.json")
    loaded = load(tmp_path / "model.json")
    assert_array_equal(loaded.predict(frame), fit.predict(frame))
    assert loaded.design.formula.text == "y ~ scale(x) + g + offset(log(t))"
    with pytest.raises(InvalidReport, match="level 'new'"):
        loaded.predict(frame.assign(g="new"))
    with pytest.raises(InvalidReport, match="column t: missing"):
        loaded.predict(frame.drop(columns="t"))


def test_a_saved_model_holds_no_row(tmp_path: Path) -> None:
    fit = fitted("binomial")
    fit.save(tmp_path / "model.json")
    text = (tmp_path / "model.json").read_text()
    assert json.loads(text)["format"] == "vaneb-model/1"
    for value in fit.rows.design[:50, 1]:
        assert repr(float(value)) not in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: "[1, 2", "not a saved model"),
        (lambda w: "[]", "not a saved model"),
        (lambda w: json.dumps(w | {"format": "vaneb-model/9"}), "format vaneb-model/9; this version"),
        (lambda w: json.dumps(w["clients"]["prior"]), "a population, not a model"),
        (lambda w: json.dumps({k: v for k, v in w.items() if k != "design"}), "incomplete or changed"),
        (lambda w: json.dumps(w | {"facts": {}}), "incomplete or changed"),
        (lambda w: json.dumps(w | {"clients": w["clients"] | {"mean": [[1]]}}), "mean: should hold finite"),
        (lambda w: json.dumps(w | {"clients": w["clients"] | {"ids": ["a"]}}), "should hold finite numbers"),
        (lambda w: json.dumps(w | {"table": {"client": [1]}}), "do not belong together"),
        (lambda w: json.dumps(w | {"design": w["design"] | {"client": 3}}), "design is not one"),
        (lambda w: json.dumps(w | {"family": {"dispersion": -1, "parameter": 1}}), "dispersion must be"),
    ],
)
def test_files_that_are_not_models(change: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    fitted("gaussian").save(path)
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(InvalidReport, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidReport, match="no such file"):
        load(tmp_path / "none.json")
    with pytest.raises(InvalidReport, match="not a saved model"):
        load(tmp_path)
