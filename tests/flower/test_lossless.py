"""Sums instead of rows: what sites find together is what a fit of their pooled rows finds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from flower.loopback import LoopbackGrid, Node, content_of
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.flower import client_data, wire
from vaneb.flower.archive import Archive
from vaneb.flower.exchange import Channel
from vaneb.flower.one_shot import run_reports
from vaneb.flower.policy import Policy
from vaneb.flower.settings import Settings
from vaneb.flower.site_sums import Population, SiteSums, site_sums
from vaneb.grouped import fit_groups
from vaneb.posterior import posterior
from vaneb.prior import Prior
from vaneb.report import federation_content, page

GAUSSIAN = Settings(formula="y ~ x", wait=0.1, timeout=5.0)
#: A site that lets everything leave.
OPEN = replace(
    Policy(), fewest_rows=1, rows_per_level=1, rows_per_coefficient=0.0, largest_leverage=2.0, farthest=100.0
)


def table(
    clients: int, n: int, family: str = "gaussian", seed: int = 0, *, groups: float = 0.0
) -> pd.DataFrame:
    """Rows of clients that differ in both coefficients; with ``groups``, of two kinds that far apart."""
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(clients), n)
    x = 3 + rng.standard_normal(len(k))
    level = 0.5 * rng.standard_normal(clients) + groups * rng.choice([-1, 1], clients)
    index = level[k] + (0.5 + 0.3 * rng.standard_normal(clients))[k] * (x - 3)
    y = {
        "gaussian": lambda: 100 + index + rng.standard_normal(len(k)),
        "binomial": lambda: (rng.random(len(k)) < 1 / (1 + np.exp(-index))).astype(int),
        "poisson": lambda: rng.poisson(np.exp(index)),
        "gamma": lambda: rng.gamma(3.0, np.exp(index) / 3),
    }[family]()
    return pd.DataFrame({"k": k, "x": x, "y": y})


def sites(
    folder: Path, frames: dict[str, pd.DataFrame], policy: Policy = OPEN, wards: str = ""
) -> dict[int, Node]:
    nodes = {}
    (folder / "policy.toml").write_text(policy.text())
    for number, (name, frame) in enumerate(frames.items()):
        frame.sample(frac=1.0, random_state=number).to_csv(folder / f"{name}.csv", index=False)
        config = {"data": folder / f"{name}.csv", "client": name, "folder": folder / name}
        config |= {"policy": folder / "policy.toml", "wards": wards}
        nodes[10 + number] = Node({key: str(value) for key, value in config.items() if value}, name=name)
    return nodes


def federate(folder: Path, nodes: dict[int, Node], settings: Settings) -> tuple[dict, LoopbackGrid]:
    settings = replace(settings, nodes=len(nodes))
    grid = LoopbackGrid(nodes, settings)
    outcome = run_reports(Channel(grid, 5.0), settings, Archive.open(folder / "server", settings))
    return outcome, grid


def one_by_one(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {f"s{k:03d}": part.drop(columns="k") for k, part in frame.groupby("k")}


def means(folder: Path, names) -> np.ndarray:
    return np.array([json.loads((folder / name / "result.json").read_text())["mean"] for name in names])


@pytest.mark.parametrize(("clients", "n", "groups"), [(24, 20, 0.0), (60, 8, 4.0)])
def test_least_squares_in_one_exchange_is_the_fit_of_pooled_rows(tmp_path, clients, n, groups):
    frame = table(clients, n, groups=groups)
    pooled = fit_groups(frame, client="k", formula="y ~ x")
    assert pooled.prior.kind == ("mixture" if groups else "gaussian")
    parts = one_by_one(frame)
    outcome, _ = federate(tmp_path, sites(tmp_path, parts), GAUSSIAN)
    assert outcome["exchanges"] == 2  # the reports, and the population to each
    assert tuple(outcome["differs"]) == pooled.varying
    assert outcome["dispersion"] == pytest.approx(pooled.local.family.dispersion, rel=1e-9)
    np.testing.assert_allclose(means(tmp_path, parts), pooled.posterior.mean, rtol=1e-6)
    found = pd.read_csv(tmp_path / "s003" / "result.csv")
    assert found.sd_x[0] == pytest.approx(pooled.posterior.sd[3, 1], rel=2e-3)  # rounded to 1/1000 of it


@pytest.mark.parametrize("family", ["binomial", "poisson", "gamma"])
def test_other_families_in_two_exchanges_are_close_to_the_fit_of_pooled_rows(tmp_path, family):
    frame = table(30, 40, family)
    pooled = fit_groups(frame, client="k", formula="y ~ x", family=family)
    parts = one_by_one(frame)
    apart = {}
    for exchanges in (1, 2):
        folder = tmp_path / str(exchanges)
        folder.mkdir()
        settings = replace(GAUSSIAN, family=family, exchanges=exchanges)
        outcome, _ = federate(folder, sites(folder, parts), settings)
        assert outcome["exchanges"] == exchanges + 1
        assert outcome["expanded"] == (30 if exchanges == 2 else 0)
        away = (means(folder, parts) - pooled.posterior.mean) / pooled.posterior.sd
        apart[exchanges] = float(np.sqrt(np.mean(away**2)))
    # In posterior standard deviations; the sampler's own accuracy is 0.03.
    assert apart[2] < 0.1, apart


def test_three_hospitals_of_many_wards_are_many_clients(tmp_path):
    frame = table(30, 12)
    pooled = fit_groups(frame, client="k", formula="y ~ x")
    hospitals = {name: frame[frame.k % 3 == i].rename(columns={"k": "ward"}) for i, name in enumerate("abc")}
    hospitals["a"] = pd.concat([hospitals["a"], pd.DataFrame({"ward": [99], "x": [3.0], "y": [120.0]})])
    careful = replace(OPEN, fewest_rows=3)
    outcome, grid = federate(tmp_path, sites(tmp_path, hospitals, careful, wards="ward"), GAUSSIAN)
    assert outcome["sites"] == {"a": 10, "b": 10, "c": 10}
    assert outcome["served"] == ["a", "b", "c"]
    found = pd.concat([pd.read_csv(tmp_path / name / "result.csv") for name in "abc"]).set_index("client")
    assert len(found) == 31
    expected = pd.DataFrame(pooled.posterior.mean, index=[int(i) for i in pooled.posterior.ids])
    np.testing.assert_allclose(found.loc[expected.index, "theta_x"], expected[1], atol=1e-3)
    # The ward of one row says nothing, and has its posterior all the same.
    assert 99 in found.index
    assert 99 not in [int(n) for _, _, m in grid.captured for n in np.ravel(content_of(m).get("n", []))]
    assert not any(b"99" in json.dumps(content_of(m).get("names", "")).encode() for _, _, m in grid.captured)


def test_a_first_answer_stands_where_there_is_no_second(tmp_path):
    parts = one_by_one(table(6, 40, "binomial"))
    nodes = sites(tmp_path, parts)

    def silent(message, genuine):
        return None if message.metadata.message_type == "query.expand" else genuine(message)

    nodes[10].behave = silent
    settings = replace(GAUSSIAN, family="binomial", timeout=0.5)
    settings = replace(settings, nodes=6)
    grid = LoopbackGrid(nodes, settings)
    outcome = run_reports(Channel(grid, 0.5), settings, Archive.open(tmp_path / "server", settings))
    assert outcome["expanded"] == 5
    assert (len(outcome["served"]), outcome["troubles"]) == (6, [])


def ask(node: Node, settings: Settings, kind: str, question: dict) -> dict | None:
    (answer,) = Channel(LoopbackGrid({1: node}, settings), 5.0).ask(kind, {1: question})
    return answer.content


def test_a_server_that_asks_about_places_far_away_hears_of_near_ones(tmp_path):
    """Far away a client's loss is that of a few rows; and there is one second question in a study."""
    parts = {"a": table(1, 60, "binomial").drop(columns="k")}
    (node,) = sites(tmp_path, parts, replace(OPEN, farthest=2.0)).values()
    settings = replace(GAUSSIAN, family="binomial")
    question = {"mean": np.array([40.0, -30.0]), "covariance": 1e-4 * np.eye(2)}
    assert ask(node, settings, "expand", question) is None  # before a report
    first = SiteSums.from_wire(ask(node, settings, "report", {})["report"])
    second = SiteSums.from_wire(ask(node, settings, "expand", question)["report"])
    fit = fit_groups(parts["a"].assign(k=0), client="k", formula="y ~ x", family="binomial").local.fits
    away = second.parts[0].point[0] - fit.theta[0]
    assert np.sqrt(away @ fit.hessian[0] @ away / 2) < 2.3
    np.testing.assert_array_equal(first.whole.n, second.whole.n)
    again = ask(node, settings, "expand", {"mean": np.zeros(2), "covariance": np.eye(2)})
    np.testing.assert_array_equal(again["report"]["point"], second.parts[0].point)
    # Least squares needs no second question.
    (node,) = sites(tmp_path, {"b": table(1, 30).drop(columns="k")}).values()
    ask(node, GAUSSIAN, "report", {})
    assert ask(node, GAUSSIAN, "expand", question) is None


def test_halves_leave_only_where_each_may(tmp_path):
    parts = {"a": table(1, 14).drop(columns="k")}
    for fewest, apart in ((7, True), (8, False)):
        folder = tmp_path / str(fewest)
        folder.mkdir()
        (node,) = sites(folder, parts, replace(OPEN, fewest_rows=fewest)).values()
        n = ask(node, GAUSSIAN, "report", {})["report"]["n"]
        assert n.tolist() == ([[7, 7]] if apart else [[14, 0]])


def test_no_more_digits_leave_than_the_policy_says(tmp_path):
    parts = {"a": table(1, 30).drop(columns="k")}
    (node,) = sites(tmp_path, parts, replace(OPEN, digits=4)).values()
    report = ask(node, GAUSSIAN, "report", {})["report"]
    for name in ("point", "loss", "hessian", "mean"):
        for value in np.ravel(report[name]):
            assert float(f"{value:.4g}") == pytest.approx(value, rel=1e-12)
    assert report["n"].sum() == 30


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"n": np.array([[0, 5]])}, "n:"),
        ({"n": np.array([[2.5, 5]])}, "n:"),
        ({"hessian": np.array([[[1.0, 5.0, 1.0], [1.0, 0.0, 1.0]]])}, "semidefinite"),
        ({"gradient": np.zeros((1, 2, 3))}, "gradient"),
        ({"loss": np.array([[np.nan, 1.0]])}, "loss"),
        ({"scale": np.array([[-1.0, 1.0]])}, "scale"),
        ({"mean": np.zeros((1, 3)), "scale": np.zeros((1, 3))}, "columns"),
        ({"point": [1.0]}, "point"),
        ({"id": 3}, "not sums"),
    ],
)
def test_sums_that_are_none_are_refused(tmp_path, change, match):
    (node,) = sites(tmp_path, {"a": table(1, 30).drop(columns="k")}).values()
    good = ask(node, GAUSSIAN, "report", {})["report"]
    SiteSums.from_wire(good)
    with pytest.raises(InvalidReport, match=match):
        SiteSums.from_wire({**good, **change})


@pytest.mark.parametrize(
    ("family", "field", "number"),
    [
        ("gaussian", "point", 1e300),
        ("gaussian", "point", 1e15),
        ("gaussian", "gradient", 1e49),
        ("gaussian", "freedom", 1e6),
        ("poisson", "point", 1e15),
        ("poisson", "hessian", 0.0),
    ],
)
def test_numbers_that_would_end_everybodys_run_are_refused_by_name(tmp_path, family, field, number):
    def lying(message, genuine):
        reply = genuine(message)
        content = content_of(reply)
        if "report" in content:
            told = content["report"][field].astype(float)
            told.flat[:] = number
            content["report"][field] = told
            return Message(wire.to_record(content), reply_to=message)
        return reply

    nodes = sites(tmp_path, one_by_one(table(6, 30, family)))
    nodes[10].behave = lying
    outcome, _ = federate(tmp_path, nodes, replace(GAUSSIAN, family=family))
    assert any("refused" in trouble for trouble in outcome["troubles"] if trouble["client"] == "s000")
    assert len(outcome["served"]) == 5


def test_residuals_are_those_of_the_sums_whatever_a_site_says_of_them(tmp_path):
    """A loss that has more of them would be the noise of all sites."""

    def lying(message, genuine):
        reply = genuine(message)
        content = content_of(reply)
        if "report" in content:
            content["report"]["loss"] = content["report"]["loss"] + 1e9
            return Message(wire.to_record(content), reply_to=message)
        return reply

    nodes = sites(tmp_path, one_by_one(table(6, 30)))
    nodes[10].behave = lying
    outcome, _ = federate(tmp_path, nodes, GAUSSIAN)
    assert 0.7 < outcome["dispersion"] < 1.4
    assert "its noise is of another order" in outcome["notes"][0]


def test_no_population_makes_one_row_all_of_a_loss(tmp_path):
    """Where the mean of a count is a thousand times that of the others, the Hessian is that row's columns."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": np.append(rng.uniform(-1, 1, 29), 3.0)})
    frame["y"] = rng.poisson(np.exp(0.2 * frame.x))
    model = client_data.local_model(frame, replace(GAUSSIAN, family="poisson"))
    policy = Policy()
    policy.check_model(model)
    for mean, width in ((3.0, 1e-6), (50.0, 1e-2), (50.0, 1e-6)):
        question = {"mean": np.array([0.0, mean]), "covariance": width * np.eye(2)}
        there = Population.of(question, 2, policy.farthest)
        point = site_sums("s", model, policy, there).whole.point
        assert policy.shows(model, point) == 0
    near = Population.of({"mean": np.array([0.1, 0.4]), "covariance": np.eye(2)}, 2, policy.farthest)
    assert (
        np.abs(
            site_sums("s", model, policy, near).whole.point - site_sums("s", model, None, near).whole.point
        ).max()
        == 0
    )


def test_a_private_client_finds_its_posterior_from_its_exact_rows(tmp_path):
    parts = one_by_one(table(12, 40))
    settings = replace(GAUSSIAN, epsilon=16.0, radius=110.0, se_low=0.05, se_high=2.0)
    outcome, _ = federate(tmp_path, sites(tmp_path, parts), settings)
    assert len(outcome["served"]) == 12
    found = Prior.load(tmp_path / "s004" / "population.json")
    model = client_data.local_model(parts["s004"], settings)
    expected = posterior(client_data.own_likelihood(model), found)
    np.testing.assert_allclose(means(tmp_path, ["s004"]), expected.mean, rtol=1e-9)


def test_the_page_of_a_federation(tmp_path):
    hospitals = {name: table(5, 20, seed=i).rename(columns={"k": "ward"}) for i, name in enumerate("ab")}
    hospitals["c"] = hospitals["a"].head(2)
    federate(tmp_path, sites(tmp_path, hospitals, replace(OPEN, fewest_rows=5), wards="ward"), GAUSSIAN)
    content = federation_content(tmp_path / "server")
    assert [row[:2] for row in content["sites"]] == [["c", "–"], ["a", "5"], ["b", "5"]]
    assert "policy does not allow" in content["sites"][0][2]
    assert [row[0] for row in content["exchanges"]] == [
        "Reports of the sites",
        "The population, to each site",
    ]
    assert "**2** sites" in content["sentence"]
    text = page(content)
    assert "A federation" in text
    for site in "ab":
        assert f"Results of {site}" in (tmp_path / site / "result.html").read_text()
    with pytest.raises(InvalidOption, match="no run has ended here"):
        federation_content(tmp_path / "nowhere")


def test_a_ward_is_not_a_term(tmp_path):
    hospitals = {name: table(4, 12, seed=i).rename(columns={"k": "ward"}) for i, name in enumerate("ab")}
    nodes = sites(tmp_path, hospitals, wards="ward")
    with pytest.raises(Exception, match="0 usable"):
        federate(tmp_path, nodes, replace(GAUSSIAN, formula="y ~ x + ward"))
    assert "leave out ward" in (tmp_path / "a" / "errors.log").read_text()


def test_bytes_of_a_site_do_not_grow_with_its_rows(tmp_path):
    for n in (20, 200):
        (tmp_path / str(n)).mkdir()
        _, grid = federate(tmp_path / str(n), sites(tmp_path / str(n), one_by_one(table(3, n))), GAUSSIAN)
        sent = [
            content_of(m)["report"]
            for way, _, m in grid.captured
            if way == "up" and "report" in content_of(m)
        ]
        d = 2
        assert [sum(v.size for v in r.values() if isinstance(v, np.ndarray)) for r in sent] == [
            d * (d + 1) + 2 * d + 2 + 2 + 3 * d + 2
        ] * 3


def survival(clients: int, n: int, seed: int = 0) -> pd.DataFrame:
    """Times to events, each client with a baseline hazard and a coefficient of its own."""
    rng = np.random.default_rng(seed)
    k = np.repeat(np.arange(clients), n)
    x, z = rng.standard_normal((2, len(k)))
    index = (0.5 + 0.4 * rng.standard_normal(clients))[k] * x - 0.3 * z
    time = rng.exponential(np.exp(-index)) * rng.gamma(2.0, 1.0, clients)[k]
    end = rng.exponential(3.0, len(k))
    return pd.DataFrame({"k": k, "x": x, "z": z, "t": np.minimum(time, end), "d": (time <= end).astype(int)})


def test_survival_in_two_exchanges_is_close_to_the_fit_of_pooled_rows(tmp_path):
    frame, formula = survival(20, 40), "Surv(t, d) ~ x + z"
    pooled = fit_groups(frame, client="k", formula=formula, family="cox")
    parts = one_by_one(frame)
    cox = replace(GAUSSIAN, formula=formula, family="cox")
    outcome, grid = federate(tmp_path, sites(tmp_path, parts), cox)
    assert outcome["exchanges"] == 3
    assert outcome["expanded"] == 20
    sent = [
        content_of(m)["report"] for way, _, m in grid.captured if way == "up" and "report" in content_of(m)
    ]
    assert all((report["n"][:, 1] == 0).all() for report in sent)  # a partial likelihood has no halves
    away = (means(tmp_path, parts) - pooled.posterior.mean) / pooled.posterior.sd
    assert np.sqrt(np.mean(away**2)) < 0.2


def test_a_site_with_few_events_says_nothing_of_them(tmp_path):
    frame = survival(3, 40)
    frame.loc[frame.k == 1, "d"] = 0
    frame.loc[frame[frame.k == 1].index[:4], "d"] = 1
    parts = one_by_one(frame)
    outcome, _ = federate(
        tmp_path, sites(tmp_path, parts, Policy()), replace(GAUSSIAN, formula="Surv(t, d) ~ x", family="cox")
    )
    assert outcome["served"] == ["s000", "s002"]
    assert "response: 4 events with others at risk" in (tmp_path / "s001" / "ledger.jsonl").read_text()


def test_cox_is_asked_for_as_sums_only():
    with pytest.raises(InvalidOption, match="family cox: in mode reports with form sums only"):
        replace(GAUSSIAN, formula="Surv(t, d) ~ x", family="cox", form="constant")
    for family in ("huber", "cox-shared", "negative-binomial", "tobit"):
        with pytest.raises(InvalidOption, match="family: choose one of gaussian, binomial, poisson, "):
            replace(GAUSSIAN, family=family)


def test_a_small_ward_does_not_end_the_second_exchange(tmp_path):
    """Its columns have been looked at with the first answer, and a second one has no others."""
    rng = np.random.default_rng(8)
    frame = pd.DataFrame({"ward": np.repeat(["a", "b", "c"], [60, 60, 13]), **{c: 0.0 for c in "xzu"}})
    frame[list("xzu")] = rng.uniform(-1, 1, (len(frame), 3))
    frame["y"] = rng.poisson(np.exp(1 + 0.3 * frame.x))
    frame.to_csv(tmp_path / "north.csv", index=False)
    settings = replace(GAUSSIAN, family="poisson", formula="y ~ x + z + u")
    model = client_data.local_model(frame, settings, "ward")
    (tmp_path / "policy.toml").write_text(Policy().text())
    files = {"data": "north.csv", "folder": "north", "policy": "policy.toml"}
    config = {"client": "north", "wards": "ward", **{key: str(tmp_path / f) for key, f in files.items()}}
    channel = Channel(LoopbackGrid({1: Node(config, name="north")}, settings), 20.0)
    (first,) = channel.ask("report", {1: {}})
    assert len(first.content["report"]["n"]) == 3 == model.rows.n_clients
    population = {"mean": np.array([1.0, 0.0, 0.0, 0.0]), "covariance": np.eye(4)}
    (second,) = channel.ask("expand", {1: population})
    assert second.content is not None, (tmp_path / "north" / "errors.log").read_text()
