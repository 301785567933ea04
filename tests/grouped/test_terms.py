"""Fixed and random terms in one formula, covariates of clients, several groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from vaneb.errors import InvalidOption
from vaneb.grouped import fit_groups, load


def frame(seed: int = 0, clients: int = 30, rows: int = 6) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(clients), rows)
    n = len(k)
    x, w, z = rng.standard_normal(n), rng.standard_normal(n), rng.standard_normal(clients)[k]
    u, v = rng.standard_normal(clients)[k], 0.5 * rng.standard_normal(clients)[k]
    y = 1 + 0.5 * x + 0.7 * z - 0.3 * w + u + v * x + rng.standard_normal(n)
    other = rng.integers(0, 8, n)
    y = y + rng.standard_normal(8)[other]
    return pd.DataFrame({"g": k, "x": x, "w": w, "z": z, "h": other, "district": k // 5, "y": y})


def test_terms_outside_the_bar_are_the_same_for_all() -> None:
    fit = fit_groups(frame(), formula="y ~ x + w + z + (1 + x | g)")
    assert fit.varying == ("Intercept", "x")
    assert fit.design.client == "g"
    mean = fit.posterior.mean
    assert_allclose(np.ptp(mean[:, 2:], axis=0), 0, atol=1e-9)
    assert (np.ptp(mean[:, :2], axis=0) > 0.3).all()
    assert (fit.posterior.sd > 0).all()  # what is shared is not known exactly either
    assert fit.fixed.names == fit.names
    assert_allclose(fit.posterior.sd[0, 2:], fit.fixed.standard_error[2:], rtol=0.15)
    assert_allclose(fit.fixed.z, fit.fixed.estimate / fit.fixed.standard_error)
    assert fit.fixed.p_value[3] < 0.1 < fit.fixed.p_value[1] + 1


def test_fixed_effects_are_those_of_statsmodels() -> None:
    smf = pytest.importorskip("statsmodels.formula.api")
    data = frame(1, clients=60)
    fit = fit_groups(data, formula="y ~ x + w + z + (1 + x | g)")
    theirs = smf.mixedlm("y ~ x + w + z", data, groups="g", re_formula="~x").fit(reml=True, method="powell")
    assert_allclose(fit.fixed.estimate, theirs.fe_params, atol=2e-3)
    assert_allclose(fit.fixed.standard_error, theirs.bse_fe, rtol=0.01)
    assert fit.local.family.dispersion == pytest.approx(theirs.scale, rel=0.01)


def test_a_covariate_of_the_client_has_no_random_slope() -> None:
    fit = fit_groups(frame(2), client="g", formula="y ~ x + z")
    assert "z" not in fit.varying
    assert any(note.startswith("z does not vary within clients") for note in fit.notes)
    asked = fit_groups(frame(2), formula="y ~ x + z + (1 + z | g)")
    assert asked.varying == ("Intercept",)


def test_effects_of_the_bar_have_an_average_and_double_bars_are_spoken_of() -> None:
    fit = fit_groups(frame(3), formula="y ~ 1 + (x || g)")
    assert fit.names == ("Intercept", "x")
    assert any("||" in note for note in fit.notes)
    assert any(note.startswith("x stands in random terms only") for note in fit.notes)
    only = fit_groups(frame(3), formula="y ~ x + (0 + x | g)")
    assert only.varying == ("x",)
    assert_allclose(np.ptp(only.posterior.mean[:, 0]), 0, atol=1e-9)


def test_all_levels_of_a_factor_in_the_bar() -> None:
    data = frame(4).assign(f=np.tile(list("abc"), 60))
    fit = fit_groups(data, formula="y ~ f + (0 + f | g)")
    assert fit.varying == fit.names  # the levels span the intercept


@pytest.mark.parametrize(
    ("formula", "options", "message"),
    [
        ("y ~ x", {}, "client: name the column"),
        ("y ~ x + (1 | g)", {"client": "h"}, "has the groups g"),
        ("y ~ x + (1 | g) + (1 | h)", {"family": "huber"}, "need a family whose rows have one index"),
        ("y ~ x + (1 | g) + (1 | h)", {"likelihood": "gaussian"}, "likelihood exact"),
        ("y ~ x + (1 | g)", {"population": "discrete"}, "without bars"),
        ("y ~ x + C(g) + (1 | g)", {}, "leave the client column g out"),
    ],
)
def test_mistakes(formula: str, options: dict, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        fit_groups(frame(), formula=formula, **options)


def dense(data: pd.DataFrame, variances: dict[str, float], noise: float) -> tuple:
    """beta, its covariance, and the groups' effects with their variances, from the definition."""
    x = np.column_stack([np.ones(len(data)), data.x])
    cov = noise * np.eye(len(data))
    for group, variance in variances.items():
        cov += variance * (data[group].to_numpy()[:, None] == data[group].to_numpy())
    weight = np.linalg.inv(cov)
    known = np.linalg.inv(x.T @ weight @ x)
    beta = known @ x.T @ weight @ data.y.to_numpy()
    left = weight @ (data.y.to_numpy() - x @ beta)
    log_likelihood = -0.5 * (
        np.linalg.slogdet(cov)[1] - np.linalg.slogdet(known)[1] + (data.y - x @ beta).to_numpy() @ left
    )
    effects = {
        group: v * np.array([left[data[group] == one].sum() for one in np.unique(data[group])])
        for group, v in variances.items()
    }
    return beta, known, effects, log_likelihood


@pytest.mark.parametrize("client", ["g", "h"])
def test_crossed_groups_against_the_definition(client: str) -> None:
    data = frame(5)
    fit = fit_groups(data, formula="y ~ x + (1 | g) + (1 | h)", client=client, population="gaussian")
    other = fit.design.others[0]
    assert other.name == ("h" if client == "g" else "g")
    noise, theirs = fit.local.family.dispersion, float(other.covariance[0, 0])

    def likelihood(mine: float) -> float:
        return dense(data, {client: mine, other.name: theirs}, noise)[3]

    grid = np.linspace(0.2, 3, 60)
    mine = grid[np.argmax([likelihood(v) for v in grid])]
    best = likelihood(mine)
    for factor in (0.8, 1.25):  # the other variances are at their best as well
        assert dense(data, {client: mine, other.name: theirs * factor}, noise)[3] < best
        assert dense(data, {client: mine, other.name: theirs}, noise * factor)[3] < best
    beta, known, effects, _ = dense(data, {client: mine, other.name: theirs}, noise)
    assert_allclose(fit.fixed.estimate, beta, atol=0.02)
    assert_allclose(fit.fixed.covariance, known, rtol=0.06, atol=1e-4)
    found = [other.effects[other.levels[str(i)], 0] for i in range(len(other.levels))]
    assert_allclose(found, effects[other.name], atol=0.05)
    ids = np.array([int(name) for name in fit.rows.ids])
    own = beta[0] + effects[client][ids]
    assert_allclose(fit.posterior.mean[:, 0], own, atol=0.12)


def test_weights_of_crossed_groups_are_noise_of_another_size() -> None:
    """A row of weight 4 is as good as the mean of four rows: their sum of squares is noise only."""
    data = frame(5)
    plain = fit_groups(data, formula="y ~ x + (1 | g) + (1 | h)", population="gaussian")
    four = fit_groups(
        data.assign(w=4.0), formula="y ~ x + (1 | g) + (1 | h)", weights="w", population="gaussian"
    )
    assert four.local.family.dispersion == pytest.approx(4 * plain.local.family.dispersion, rel=1e-3)
    assert_allclose(four.design.others[0].effects, plain.design.others[0].effects, atol=2e-3)
    half = np.arange(len(data)) % 2 == 0
    noisy = data.assign(
        y=data.y + np.where(half, 0, 20 * np.random.default_rng(1).standard_normal(len(data)))
    )
    known = fit_groups(
        noisy.assign(w=np.where(half, 1, 1 / 400)),
        formula="y ~ x + (1 | g) + (1 | h)",
        weights="w",
        population="gaussian",
    )
    assert known.fixed is not None
    assert plain.fixed is not None
    assert_allclose(
        known.fixed.estimate, plain.fixed.estimate, atol=4 * np.sqrt(known.fixed.covariance.max())
    )
    assert known.local.family.dispersion == pytest.approx(plain.local.family.dispersion, rel=0.5)


def test_saved_models_know_nested_groups(tmp_path: Path) -> None:
    data = frame(6)
    fit = fit_groups(data, formula="y ~ x + (1 | district/g)", client="g")
    assert np.abs(fit.design.others[0].effects).max() > 0.1
    fit.save(tmp_path / "model.json")
    loaded = load(tmp_path / "model.json")
    assert_allclose(loaded.predict(data), fit.predict(data), rtol=1e-12)
    assert loaded.design.who == ("district", "g")


def test_nested_groups_and_new_ones() -> None:
    data = frame(6).assign(test=np.arange(180) % 4 == 0)
    fit = fit_groups(data, formula="y ~ x + (1 | district/g)", client="g", test_column="test")
    assert fit.design.client == "district:g"
    assert fit.rows.ids[0] == "0:0"
    assert [one.name for one in fit.design.others] == ["district"]
    assert fit.held_out is not None
    assert fit.held_out.values["personalised"] < fit.held_out.values["pooled"]
    new = fit.predict(pd.DataFrame({"district": [0, 99], "g": [0, 999], "x": [0.0, 0.0]}))
    at = fit.rows.ids.index("0:0")
    assert new[0] == pytest.approx(fit.posterior.mean[at, 0] + fit.design.others[0].effects[0, 0])
    assert new[1] == pytest.approx(fit.prior.mean[0])
