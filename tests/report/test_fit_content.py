"""What the page of a fit says: numbers against the posterior and the theory."""

from __future__ import annotations

import json
import re
from importlib.resources import files

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import ndtr

from vaneb import VANEB, Prior, Reports
from vaneb.covariance import by_name
from vaneb.grouped import fit_groups
from vaneb.population.options import Options
from vaneb.posterior import posterior
from vaneb.report import fit, fit_content, grouped_content, page
from vaneb.report.calibration import probability_transforms
from vaneb.report.embed import as_json, numbers
from vaneb.report.gap_map import gap_at, gap_map
from vaneb.report.quantities import ratio_of
from vaneb.theory import gap


def two_groups(clients: int = 60, d: int = 2) -> Reports:
    rng = np.random.default_rng(0)
    theta = np.where(rng.random((clients, 1)) < 0.5, 0.0, 3.0) * np.ones(d)
    errors = 0.5 + rng.random((clients, d))
    estimates = theta + errors * rng.standard_normal((clients, d))
    return Reports(estimates, standard_errors=errors, ids=[f"site {k}" for k in range(clients)])


@pytest.fixture(scope="module")
def fitted():
    reports = two_groups()
    model = VANEB(population="discrete").fit(reports)
    return model, model.personalize(reports), reports


def test_the_page_says_what_the_posterior_says(fitted):
    model, post, reports = fitted
    content = fit_content(model, post, reports, level=0.8, seconds=1.25)
    clients = content["clients"]
    assert clients["ids"] == list(reports.ids)
    assert_allclose(np.array(clients["mean"]).T, post.mean, rtol=1e-5)
    assert_allclose(np.array(clients["own"]).T, reports.estimate, rtol=1e-5)
    assert_allclose(np.array(clients["lower"]).T, post.interval(0.8)[0], rtol=1e-5)
    assert_allclose(clients["shrinkage"], post.shrinkage, rtol=1e-5)
    half = 1.2816 / np.sqrt(reports.covariance.unit_precision)
    assert_allclose(np.array(clients["own_upper"]).T, reports.estimate + half, atol=1e-3)
    assert content["sentence"].startswith("**60 clients**. Personalised estimates of ")
    details = content["details"]
    assert "60 clients with **2 parameters**" in details
    assert f"**{len(model.prior_.weights)} atoms**" in details
    assert f"**{post.shrinkage.mean():.0%}**" in details
    assert f"**{model.certificate_.bound:.2g}**" in details
    assert "**1.2 seconds**" in details
    assert len(content["trace"]) == len(model.trace_)


def test_a_given_prior_has_no_certificate_and_says_so(fitted):
    _, _, reports = fitted
    model = VANEB.from_prior(Prior(np.zeros((1, 2)), np.ones(1), np.eye(2)))
    content = fit_content(model, model.personalize(reports), reports)
    assert "given, not fitted" in content["details"]
    assert content["gap"] is None
    assert content["trace"] is None


def test_a_sampled_population_shows_some_of_its_populations_and_how_sure_it_is(fitted):
    _, _, reports = fitted
    model = VANEB(options=Options(draws=60, burn=60, sweeps=120)).fit(reports)
    post = model.personalize(reports)
    content = fit_content(model, post, reports, level=0.8)
    words = str(model.prior_).split("; ")
    assert f"**{words[0]}** (posterior over 60 populations)" in content["details"]
    assert f"**{2.8 * model.sampling_.error:.2g}**" in content["details"]
    for word in ("certificate", "atom", "spread", "gap"):
        assert word not in content["sentence"] + content["details"] + content["methods"]
    assert (content["gap"], content["trace"], content["tolerance"]) == (None, None, None)
    assert content["sampling"] is not None
    assert_allclose(np.array(content["clients"]["lower"]).T, post.interval(0.8)[0], rtol=1e-5)
    shown = content["prior"]
    assert np.shape(shown["spreads"])[1:] == (2, 2)
    assert len(shown["spreads"]) < len(model.prior_.weights)
    assert json.loads(as_json(content))["level"] == 0.8


def test_transforms_are_uniform_under_the_truth_and_follow_their_formula():
    rng = np.random.default_rng(1)
    truth = Prior(np.array([[1.0], [4.0]]), np.array([0.3, 0.7]), np.array([[0.2]]))
    n, clients = 5.0, 4000
    theta = truth.atoms[rng.choice(2, clients, p=truth.weights)]
    # The noise is taken at the component's centre.
    noise = np.sqrt(theta / n + 0.2)
    reports = Reports(
        theta + noise * rng.standard_normal((clients, 1)), n=n, covariance=by_name("poisson", 1, clients)
    )
    post = posterior(reports.likelihood(), truth)
    values = probability_transforms(post, reports, (0,))
    assert np.abs(np.histogram(values, 10, (0, 1))[0] / clients - 0.1).max() < 0.02
    x = reports.estimate[7, 0]
    by_hand = 0.3 * ndtr((x - 1) / np.sqrt(1 / n + 0.2)) + 0.7 * ndtr((x - 4) / np.sqrt(4 / n + 0.2))
    assert_allclose(values[7, 0], by_hand)


def test_transforms_of_an_open_parameter_are_missing():
    precision = np.array([np.diag([1.0, 0.0]), np.diag([1.0, 4.0])])
    reports = Reports([[1.0, 0.0], [2.0, 1.0]], precision=precision)
    prior = Prior(np.zeros((1, 2)), np.ones(1), np.eye(2))
    values = probability_transforms(posterior(reports.likelihood(), prior), reports, (0, 1))
    assert np.isnan(values).tolist() == [[False, True], [False, False]]


def test_the_gap_is_the_theorys_and_its_picture_shows_the_certificates_maximum(fitted):
    model, post, _ = fitted
    points = np.random.default_rng(2).uniform(-2, 5, (30, 2))
    prior, likelihood = model.prior_, post.likelihood
    ours = gap_at(likelihood, post.log_marginal, points)
    assert_allclose(ours, gap(likelihood, prior.atoms, prior.weights, points), rtol=1e-9, atol=1e-12)
    drawn = gap_map(post, model.certificate_)
    line = drawn["lines"][0]
    # The line passes through the maximum, and nothing on it or in the plane is higher.
    at = int(np.argmin(np.abs(np.array(line["at"]) - drawn["location"][0])))
    assert_allclose(line["gap"][at], model.certificate_.gap, atol=1e-5)
    assert max(drawn["plane"]["gap"]) <= model.certificate_.gap + 1e-6
    assert drawn["whole"]


def test_principal_components_beyond_three_parameters():
    reports = two_groups(40, d=5)
    model = VANEB(population="discrete").fit(reports)
    post = model.personalize(reports)
    content = fit_content(model, post, reports)
    axes = content["prior"]["axes"]
    assert axes[:5] == ["1", "2", "3", "4", "5"]
    assert axes[5].startswith("component 1 (")
    # The two groups differ along the first component only.
    first = np.array(content["points"]["mean"][5])
    group = post.mean.mean(axis=1) > 1.5
    assert abs(np.corrcoef(first, group)[0, 1]) > 0.9


def test_a_singular_report_has_no_estimate_where_its_data_leave_one_open():
    reports = Reports(
        [[1.0, 0.0], [2.0, 1.0], [0.0, 1.0]], precision=np.array([[1.0, 0.0], [1.0, 4.0], [2.0, 1.0]])
    )
    model = VANEB(population="discrete").fit(reports)
    clients = fit_content(model, model.personalize(reports), reports)["clients"]
    assert clients["own"][1][0] is None
    assert clients["error"][1][0] is None
    assert clients["own"][0][0] == 1


def test_too_many_clients_and_parameters_are_left_out_and_told(fitted, monkeypatch):
    model, post, reports = fitted
    monkeypatch.setattr(fit, "MOST_CLIENTS", 20)
    monkeypatch.setattr(fit, "MOST_PARAMETERS", 1)
    content = fit_content(model, post, reports)
    assert len(content["clients"]["ids"]) == 20
    assert content["clients"]["parameters"] == ["1"]
    assert "20 of 60 clients" in content["notes"][0]
    assert "first 1 of 2 parameters" in content["notes"][1]
    assert "**60 clients**" in content["sentence"]


def test_exact_likelihoods_are_not_passed_off_as_reports():
    import pandas as pd

    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(12), 12)
    frame = pd.DataFrame({"g": group, "test": np.tile([0, 0, 0, 1], 36)})
    frame["y"] = (rng.random(144) < 1 / (1 + np.exp(-rng.normal(0, 1, 12)[group]))).astype(int)
    frame.loc[frame.g == 0, "y"] = 1
    fitted = fit_groups(frame, client="g", formula="y ~ 1", family="binomial", test_column="test")
    content = grouped_content(fitted)
    assert content["exact"]
    assert content["calibration"] is None
    assert content["held_out"]["values"].keys() == {"local", "pooled", "personalised"}
    assert content["clients"]["flag"][0] == "constant-response"
    frame["z"] = rng.standard_normal(144)
    linear = grouped_content(fit_groups(frame, client="g", formula="z ~ 1"))
    assert not linear["exact"]  # least squares: the likelihood is that of a Gaussian report
    assert linear["calibration"] is not None


def test_names_cannot_break_out_of_the_page(fitted):
    model, _, reports = fitted
    evil = ["</script><script>alert(1)</script>", "@@data@@", "<!--", "a\u2028b", 'a"b', *map(str, range(55))]
    named = Reports(reports.estimate, standard_errors=np.ones((60, 2)), ids=evil, names=["<i>", "b"])
    content = fit_content(model, model.personalize(named), named, title="<img src=x onerror=alert(1)>")
    text = page(content)
    assert "alert(1)</script>" not in text
    assert "<img" not in text
    assert text.count("</script>") == 2
    embedded = text.split('id="data">')[1].split("</script>")[0]
    assert json.loads(embedded)["clients"]["ids"] == evil


def test_numbers_are_short_and_json_has_no_nan():
    assert numbers([1 / 3, np.nan, np.inf, 2.0]) == [0.333333, None, None, 2]
    assert numbers(np.zeros((2, 0))) == [[], []]
    assert as_json({"a": "<&>"}) == '{"a":"\\u003c\\u0026\\u003e"}'


def test_colours_have_six_digits():
    """The scripts read them so."""
    style = (files("vaneb.report") / "assets" / "page.css").read_text(encoding="utf-8")
    colours = re.findall(r"--(?:bg|panel|ink|muted|line|grid|own|after|atom|good|bad|hover): ([^;]+);", style)
    assert len(colours) == 48
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


def eight_schools() -> Reports:
    effects, errors = [28.0, 8, -3, 7, -1, 1, 18, 12], [15.0, 10, 16, 11, 9, 11, 10, 18]
    return Reports(effects, standard_errors=errors, ids=list("ABCDEFGH"), names=["effect"])


def test_eight_schools_are_inside_the_picture_and_nobody_is_said_to_differ():
    """Where the population has no width all personalised estimates coincide; the window must not."""
    reports = eight_schools()
    model = VANEB.from_prior(Prior([[7.69]], [1.0], [[1e-6]], names=("effect",)))
    content = fit_content(model, model.personalize(reports), reports, client="school")
    low, high = content["prior"]["ranges"][0]
    assert low < -3
    assert high > 28
    assert content["sentence"].startswith("**8 schools**. Personalised estimates of effect run")
    assert "No school clearly differs" in content["sentence"]


def test_a_page_opens_on_what_varies_most_not_on_the_intercept():
    rng = np.random.default_rng(0)
    theta = rng.standard_normal((40, 3)) * [3.0, 1.0, 0.1]
    reports = Reports(theta, standard_errors=np.full((40, 3), 0.5), names=["Intercept", "dose", "age"])
    model = VANEB.from_prior(Prior(np.zeros((1, 3)), [1.0], np.diag([9.0, 1.0, 0.01]), names=reports.names))
    content = fit_content(model, model.personalize(reports), reports)
    assert content["clients"]["parameters"][content["opens"]] == "dose"
    assert content["prior"]["axes"][content["prior"]["opens"]] == "dose"


def test_rows_of_a_yes_or_no_are_shown_as_rates_in_the_users_words():
    import pandas as pd

    rng = np.random.default_rng(5)
    ward = np.repeat(np.arange(20), 40)
    rate = 1 / (1 + np.exp(-rng.normal(-1, 1.2, 20)))
    frame = pd.DataFrame({"ward": ward, "age": rng.uniform(40, 80, 800)})
    frame["died"] = (rng.random(800) < rate[ward]).astype(int)
    fitted = fit_groups(frame, client="ward", formula="died ~ age", family="binomial")
    content = grouped_content(fitted)
    clients, at = content["clients"], content["opens"]
    assert content["sentence"].startswith(
        "**20 wards**. Personalised estimates of the rate of died at average covariates run"
    )
    assert clients["parameters"] == ["rate of died at average covariates", "Intercept", "age"]
    assert clients["percent"][at]
    # The expected response at the average row, against the draws' definition done by hand.
    centre = np.append(1.0, frame["age"].mean())
    index = fitted.posterior.mean @ centre
    assert_allclose(clients["mean"][at], 1 / (1 + np.exp(-index)), atol=0.02)
    assert np.corrcoef(clients["mean"][at], rate)[0, 1] > 0.9
    lower, upper = np.array(clients["lower"][at]), np.array(clients["upper"][at])
    assert ((lower < rate) & (rate < upper)).mean() > 0.7


def test_held_out_rows_are_in_the_first_sentence(fitted):
    from vaneb.grouped.result import HeldOut

    model, post, reports = fitted
    held = HeldOut("log-loss", {"local": 0.8, "pooled": 0.5, "personalised": 0.4}, 983, 0)
    sentence = fit_content(model, post, reports, held_out=held)["sentence"]
    assert "On 983 held-out rows" in sentence
    assert "**50.0% better** than each client's own (0.8)" in sentence
    assert "**20.0% better** than one model for all (0.5)" in sentence


def test_methods_name_the_paper():
    reports = eight_schools()
    model = VANEB.from_prior(Prior([[8.0]], [1.0], [[25.0]], names=("effect",)))
    content = fit_content(model, model.personalize(reports), reports, client="school")
    assert "Estimates of 8 schools were personalised" in content["methods"]
    assert (
        "Personalized Federated Learning via Variance-Aware Nonparametric Empirical Bayes"
        in content["citation"]
    )


def test_clients_that_are_numbers_have_a_word_before_them_in_sentences():
    truth = np.repeat([0.0, 8.0], 15)
    reports = Reports(truth, standard_errors=np.full(30, 0.5), ids=[str(k) for k in range(30)])
    model = VANEB.from_prior(Prior([[0.0], [8.0]], [1.0, 1.0], [[1.0]]))
    content = fit_content(model, model.personalize(reports), reports, client="district")
    assert re.search(r"Highest of these are district \d+ \(.*\) and district \d+", content["sentence"])


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ({"standard_errors": np.full((4, 1), 0.1)}, "each town's estimate and its standard error"),
        ({"n": 50, "covariance": by_name("binomial", 1, 4)}, "whose variance is a function of the parameter"),
    ],
)
def test_methods_say_what_was_known_of_a_client(noise, words):
    reports = Reports([[0.1], [0.2], [0.3], [0.4]], **noise)
    model = VANEB.from_prior(Prior([[0.25]], [1.0], [[0.01]]))
    assert words in fit_content(model, model.personalize(reports), reports, client="town")["methods"]


def test_counts_of_trials_are_named_after_the_successes():
    import pandas as pd

    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"hospital": [f"h{k}" for k in range(20)], "cases": rng.integers(50, 300, 20)})
    frame["deaths"] = rng.binomial(frame.cases, np.where(np.arange(20) < 10, 0.05, 0.2))
    content = grouped_content(
        fit_groups(frame, client="hospital", formula="deaths | cases ~ 1", family="binomial")
    )
    assert content["clients"]["parameters"][0] == "rate of deaths"
    assert content["clients"]["n"] is None  # one row for each says nothing


def test_the_limits_of_a_funnel_are_those_of_clients_of_any_size(fitted):
    """Smooth curves, however few the clients; at a client's size they are that client's limits."""
    _, post, _ = fitted
    rates = Reports(
        np.full(12, 0.1), n=np.arange(50, 650, 50), covariance=by_name("binomial", 1, 12), names=["rate"]
    )
    given = VANEB.from_prior(Prior([[0.1], [0.2]], [0.5, 0.5])).personalize(rates)
    for each, logs, loose in ((post, False, 1e-3), (given, True, 1e-2)):
        content = fit_content(VANEB.from_prior(each.prior), each)
        drawn = content["funnels"][0]
        limits = each.decide(each.names[0]).funnel()
        at = np.array(limits.own.size * [0.0]) + (1 / limits.error if not logs else rates.n)
        grid = np.log(drawn["limits"]["x"])
        assert len(grid) > 50
        for side in ("lower", "upper"):
            between = [np.interp(np.log(at), grid, curve) for curve in drawn["limits"][side]]
            assert_allclose(between, getattr(limits, side), atol=loose)


def test_what_the_command_notes_is_on_the_page_once_and_as_a_sentence() -> None:
    rng = np.random.default_rng(0)
    reports = Reports(3 * rng.standard_normal(4), standard_errors=np.ones(4))
    model = VANEB().fit(reports)
    assert model.notes_  # few clients
    content = fit_content(model, model.personalize(reports), reports, notes=[*model.notes_, "rows are few"])
    assert content["notes"][-1] == "Rows are few."
    assert len(content["notes"]) == len(model.notes_) + 1
    assert all(note[0].isupper() and note.endswith(".") for note in content["notes"])


def test_a_ratio_is_its_logarithm_on_another_scale():
    rng = np.random.default_rng(5)
    logs = np.where(np.arange(20) < 5, 1.0, 0.0) + 0.2 * rng.standard_normal(20)
    reports = Reports(logs, standard_errors=np.full(20, 0.2), names=["log_OR"])
    model = VANEB().fit(reports)
    content = fit_content(model, model.personalize(reports), reports, outcome=ratio_of("OR"))
    clients = content["clients"]
    assert clients["parameters"] == ["OR", "log_OR"]
    assert content["opens"] == 0
    assert clients["differs"][0] == clients["differs"][1]
    assert clients["rank"][0] == clients["rank"][1]
    assert any(clients["differs"][0])
    for name in ("own", "own_lower", "own_upper"):
        assert_allclose(clients[name][0], np.exp(clients[name][1]), rtol=1e-4)
    for name in ("mean", "lower", "upper"):  # of draws, here and there
        assert_allclose(clients[name][0], np.exp(clients[name][1]), rtol=0.05)
