"""Populations compared on clients left out, and standard errors that do not fit the estimates."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import norm
from typer.testing import CliRunner

from vaneb import VANEB, InvalidOption, InvalidReport, Reports
from vaneb.cli import app
from vaneb.held_out import held_out_scores
from vaneb.noise_check import leaning, noise_notes, scatter_factor
from vaneb.population.options import Options

QUICK = Options(draws=60, burn=60, sweeps=120)


def groups(count: int = 160, apart: float = 3.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    errors = rng.uniform(0.2, 0.8, (count, 1))
    theta = rng.choice([-apart, apart], (count, 1)) + 0.1 * rng.standard_normal((count, 1))
    return theta + errors * rng.standard_normal((count, 1)), errors


def test_a_mixture_leads_where_there_are_groups_and_not_where_there_are_none() -> None:
    x, errors = groups()
    scores = held_out_scores(Reports(x, standard_errors=errors), ("mixture", "gaussian"), options=QUICK)
    lead, error = scores.lead("mixture", "gaussian")
    assert lead > 5 * error > 0
    assert "ahead of gaussian" in str(scores)
    x, errors = groups(apart=0.0)
    scores = held_out_scores(Reports(x, standard_errors=errors), ("mixture", "gaussian"), options=QUICK)
    assert abs(scores.lead("mixture", "gaussian")[0]) < 0.05


def test_scores_are_log_densities_under_a_population_of_the_others() -> None:
    """With very many clients of one Gaussian, what is known of it hardly matters."""
    rng = np.random.default_rng(1)
    x = 2 + np.hypot(1.0, 0.5) * rng.standard_normal((3000, 1))
    scores = held_out_scores(Reports(x, standard_errors=np.full(x.shape, 0.5)), ("gaussian",), options=QUICK)
    expected = norm(2, np.hypot(1.0, 0.5)).logpdf(x[:, 0])
    assert_allclose(scores.log_density[0].mean(), expected.mean(), atol=0.003)


def test_folds_do_not_depend_on_the_order_of_clients() -> None:
    x, errors = groups(60)
    one = held_out_scores(Reports(x, standard_errors=errors), ("gaussian",), options=QUICK)
    back = held_out_scores(Reports(x[::-1], standard_errors=errors[::-1]), ("gaussian",), options=QUICK)
    assert_allclose(back.log_density[0][::-1], one.log_density[0], rtol=1e-9)


def test_wrong_questions() -> None:
    x, errors = groups(10)
    with pytest.raises(InvalidOption, match="no population 'smooth'"):
        held_out_scores(Reports(x, standard_errors=errors), ("smooth",))
    with pytest.raises(InvalidReport, match="11 folds of 10 clients"):
        held_out_scores(Reports(x, standard_errors=errors), folds=11)


@pytest.mark.parametrize(("factor", "said"), [(0.4, "too small"), (1.0, ""), (2.5, "too large")])
def test_standard_errors_that_are_off_are_noticed(factor: float, said: str) -> None:
    rng = np.random.default_rng(2)
    errors = rng.uniform(0.2, 1.5, (600, 1))
    x = rng.standard_normal((600, 1)) + errors * rng.standard_normal((600, 1))
    notes = VANEB("gaussian", options=QUICK).fit(Reports(x, standard_errors=factor * errors)).notes_
    assert len(notes) == (said != "")
    assert not said or said in notes[0]
    kappa2, error = scatter_factor(x[:, 0], factor * errors[:, 0])
    assert abs(kappa2 * factor**2 - 1) < 4 * error * factor**2


def test_ordinary_clients_raise_no_alarm() -> None:
    """Six in 200 at most, for tails and point masses too."""
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        errors = rng.uniform(0.2, 1.5, (100, 1))
        theta = [rng.standard_t(3, (100, 1)), np.where(rng.random((100, 1)) < 0.8, 0.0, 2.0)][seed % 2]
        alarms += bool(noise_notes(theta + errors * rng.standard_normal((100, 1)), errors, ("x",)))
    assert alarms <= 6


@pytest.mark.parametrize(
    ("uneven", "spread"), [(0.0, 0.0), (0.0, 100.0), (0.03, 0.0), (0.03, 5.0), (0.1, 50.0)]
)
def test_standard_errors_that_are_nearly_equal_raise_no_alarm(uneven: float, spread: float) -> None:
    """They cannot tell noise from differences: three in 100 at most."""
    alarms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        errors = np.exp(uneven * rng.standard_normal((60, 1)))
        x = spread * rng.standard_normal((60, 1)) + errors * rng.standard_normal((60, 1))
        alarms += bool(noise_notes(x, errors, ("x",)))
    assert alarms <= 3


def test_equal_standard_errors_are_noticed_where_estimates_scatter_less() -> None:
    rng = np.random.default_rng(0)
    (note,) = noise_notes(0.5 * rng.standard_normal((60, 1)), np.ones((60, 1)), ("x",))
    assert "too large" in note


def test_few_clients_are_not_judged() -> None:
    assert noise_notes(np.zeros((39, 1)), np.ones((39, 1)), ("x",)) == ()
    assert noise_notes(np.zeros((40, 1)), np.ones((40, 1)), ("x",)) != ()


def test_the_command_compares(tmp_path) -> None:
    x, errors = groups(40)
    path = tmp_path / "reports.csv"
    lines = [f"{k},{v:.4f},{s:.4f}" for k, (v, s) in enumerate(zip(x[:, 0], errors[:, 0], strict=True))]
    path.write_text("\n".join(["client,estimate,se", *lines]))
    done = CliRunner().invoke(app, ["personalize", str(path), "--compare", "--json", "--quiet"])
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["held_out"]) == {"gaussian", "discrete"}
    done = CliRunner().invoke(app, ["personalize", str(path), "--compare", "--prior-in", "p.json"])
    assert done.exit_code == 2


def test_estimates_that_depend_on_their_standard_errors_are_noticed() -> None:
    alarms = missed = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 5])
        errors = rng.uniform(0.2, 1.5, (200, 1))
        noise = errors * rng.standard_normal((200, 1))
        heavy = rng.standard_t(3, (200, 1))
        alarms += any("covariate" in note for note in noise_notes(heavy + noise, errors, ("x",)))
        theta = 1.5 * errors + 0.3 * rng.standard_normal((200, 1))
        missed += not any("are larger" in note for note in noise_notes(theta + noise, errors, ("x",)))
    assert alarms == 0
    assert missed == 0


def test_the_slope_on_the_standard_error_is_that_of_weighted_least_squares() -> None:
    """With tau = 0 the weights are known: numpy's own fit, and twice the estimates twice the slope."""
    rng = np.random.default_rng(8)
    errors = rng.uniform(0.5, 2.0, 60)
    estimates = 0.3 * errors * rng.standard_normal(60) + np.log(errors)  # too little scatter: tau is zero
    slope, error = leaning(estimates, errors)
    assert slope == pytest.approx(np.polyfit(np.log(errors), estimates, 1, w=1 / errors)[0])
    assert leaning(2 * estimates, 2 * errors) == pytest.approx((2 * slope, 2 * error))


def test_the_standard_error_as_a_covariate_mends_it() -> None:
    rng = np.random.default_rng(4)
    errors = rng.uniform(0.2, 1.5, (300, 1))
    theta = errors + 0.2 * rng.standard_normal((300, 1))
    reports = Reports(theta + errors * rng.standard_normal((300, 1)), standard_errors=errors)
    model = VANEB().fit(reports)
    assert any("covariate" in note for note in model.notes_)
    plain = model.personalize(reports).mean
    told = VANEB().fit(reports, covariates=errors).personalize(reports, covariates=errors).mean
    assert np.sqrt(np.mean((told - theta) ** 2)) < 0.7 * np.sqrt(np.mean((plain - theta) ** 2))
