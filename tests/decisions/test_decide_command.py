"""``vaneb decide``, from a table of reports to a table of decisions."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner

from vaneb import Prior
from vaneb.cli import app
from vaneb.decisions import JointPosterior, load_posterior, save_posterior


def run(*arguments: object):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decide")
    rng = np.random.default_rng(0)
    n = rng.integers(100, 900, 30)
    deaths = rng.binomial(n, np.where(np.arange(30) < 3, 0.2, 0.05))
    lines = [f"H{k},{deaths[k] / n[k]:.8f},{n[k]}" for k in range(30)]
    (folder / "hospitals.csv").write_text("\n".join(["hospital,mortality,cases", *lines]) + "\n")
    Prior([[0.05], [0.2]], [0.9, 0.1], [[[2e-4]], [[1e-3]]], names=("mortality",)).save(folder / "prior.json")
    done = run(
        "personalize", folder / "hospitals.csv", "--estimate", "mortality", "--n", "cases",
        "--variance-function", "binomial", "--prior-in", folder / "prior.json", "-o", folder / "out.csv",
        "--posterior-out", folder / "posterior.parquet",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    return folder


def test_the_hospitals_that_differ_are_named(folder):
    done = run("decide", folder / "posterior.parquet", "--highest", "10%", "-o", folder / "decisions.csv")
    assert done.exit_code == 0, done.output
    assert "highest 10%        3 named for 3 places" in done.output
    with open(folder / "decisions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["client"] for row in rows if row["highest"]] == ["H0", "H1", "H2"]
    assert [row["differs"] for row in rows[:3]] == ["above"] * 3
    assert max(int(row["grade"]) for row in rows[:3]) < min(int(row["grade"]) for row in rows[3:])
    assert_allclose(
        [float(r["observed"]) / float(r["expected"]) for r in rows],
        [float(r["observed_over_expected"]) for r in rows],
        rtol=1e-3,
    )


def test_everything_as_json(folder):
    done = run(
        "decide", folder / "posterior.parquet", "--json", "--quiet", "--benchmark", "0.1", "--lowest", "0.2"
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["command"], found["of"], found["target"]) == ("decide", "mortality", 0.1)
    assert found["above"] == 3
    assert found["lowest_places"] == 6
    assert len(found["clients"]) == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["out.csv"], "is not a saved posterior (a table of results). Give a file that --posterior-out"),
        (["nowhere.parquet"], "no file"),
        (["posterior.parquet", "--highest", "many"], "--highest many: is not a share. Write 10% or 0.1."),
        (["posterior.parquet", "--lowest", "200%"], "--lowest 200%: must lie between 0 and 100%"),
        (["posterior.parquet", "--of", "deaths"], "there is no such parameter; choose mortality"),
        (["posterior.parquet", "--of", "a", "--of", "b"], "--of a: write NAME=WEIGHT"),
        (["posterior.parquet", "--level", "2"], "--level 2: must lie between 0 and 1"),
    ],
)
def test_refusals_name_the_place_and_the_remedy(folder, arguments, message):
    name, *rest = arguments
    done = run("decide", folder / name, *rest, "-o", folder / "never.csv")
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())
    assert not (folder / "never.csv").exists()


def test_a_posterior_that_could_not_be_found_again_is_refused(folder):
    done = run(
        "personalize", folder / "hospitals.csv", "-o", folder / "o.csv", "--posterior-out", folder / "p.json"
    )
    assert done.exit_code == 2
    assert "must end in .parquet" in done.output


def test_a_saved_posterior_comes_back_as_it_was(tmp_path):
    rng = np.random.default_rng(1)
    covariance = np.tile(np.diag([1.0, np.inf]), (4, 1, 1))
    joint = JointPosterior(
        rng.standard_normal((120, 4, 2)), ("a", "b", "c,d", "é"), ("x", "y z"), np.ones((4, 2)), covariance,
        np.arange(4.0), "poisson",
    )  # fmt: skip
    save_posterior(tmp_path / "p.parquet", joint)
    back = load_posterior(tmp_path / "p.parquet")
    assert (back.ids, back.names, back.counted) == (joint.ids, joint.names, "poisson")
    assert_allclose(back.draws, joint.draws, rtol=1e-6)
    assert_allclose(back.own_covariance, covariance)
    assert_allclose(back.n, joint.n)
