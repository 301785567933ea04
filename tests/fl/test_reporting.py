"""Configurations, results files, tables and the commands that make them."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import typer
from typer.testing import CliRunner

from vaneb.commands.compare import compare
from vaneb.commands.table import table
from vaneb.commands.train import train
from vaneb.errors import InvalidOption
from vaneb.fl.config import PRESETS, Config, config_from, default_config, fingerprint, read_config
from vaneb.fl.errors import MissingData
from vaneb.fl.head_priors import principal_axes, read_head_priors
from vaneb.fl.results import Row, append_rows, read_rows, spread
from vaneb.fl.tables import as_csv, as_markdown, as_text, evaluated_models, make_panels

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


# ---------------------------------------------------------------- configurations


@pytest.mark.parametrize("name", list(PRESETS))
def test_the_files_say_what_the_defaults_say(name):
    """experiments/NAME.toml and `vaneb train --data NAME` are the same experiment, but for what is run."""
    file, preset = read_config(EXPERIMENTS / f"{name}.toml"), default_config(name)
    assert replace(file, methods=preset.methods, grid={}) == preset


def test_a_grid_is_all_combinations():
    config = read_config(EXPERIMENTS / "mnist.toml")
    settings = config.settings()
    assert len(settings) == 9
    assert {(s.data.alpha, s.data.clients) for s in settings} == {
        (a, k) for a in (0.01, 0.1, 0.5) for k in (100, 200, 500)
    }
    assert len(config.at(alpha=0.1).settings()) == 3
    assert len(config.at(alpha=0.1, clients=50, seed=3).settings()) == 1
    assert config.at(seed=3).settings()[0].seed == 3
    assert len(config_from({"grid": {"seed": [0, 1]}}).settings()) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": {"alpha": -1}}, r"\[data\] alpha = -1: must be a positive number"),
        ({"data": {"alpha": 0}}, r"\[data\] alpha"),
        ({"data": {"shift": 7}}, r"\[data\] shift = 7: must be a number from 0"),
        ({"data": {"shift": -0.1}}, r"\[data\] shift"),
        ({"data": {"shift": float("nan")}}, r"\[data\] shift"),
        ({"data": {"clients": 0}}, r"\[data\] clients = 0: must be a whole number of at least 1"),
        ({"data": {"size_ratio": 0.5}}, r"\[data\] size_ratio"),
        ({"data": {"label_groups": 0}}, r"\[data\] label_groups"),
        ({"data": {"clients": 2.5}}, r"\[data\] clients = 2.5: must be a whole number"),
        ({"data": {"clients": True}}, "whole number"),
        ({"training": {"participation": 0}}, "participation"),
        ({"training": {"learning_rate": "fast"}}, "learning_rate = 'fast'"),
        ({"training": {"rounds": 0}}, "at least 1"),
        ({"fine_tuning": {"epochs": 0}}, "epochs"),
        ({"vaneb": {"atoms": 0}}, "atoms"),
        ({"vaneb": {"damping": 0}}, "damping"),
        ({"data": {"aplha": 1}}, r"\[data\] aplha is not known. Use alpha"),
        ({"trainig": {}}, "'trainig' is not known"),
        ({"training": 3}, "section of its own"),
        ({"grid": {"rounds": [1]}}, "only alpha"),
        ({"grid": {"alpha": 0.1}}, "list of values"),
        ({"methods": []}, "at least one"),
        ({"seed": -1}, "seed"),
        ({"evaluate_every": -1}, "evaluate_every"),
    ],
)
def test_settings_out_of_range_are_named(content, message):
    with pytest.raises(InvalidOption, match=message):
        config_from(content)


def test_files_that_are_no_configuration(tmp_path):
    with pytest.raises(InvalidOption, match="there is no such file"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[data\n")
    with pytest.raises(InvalidOption, match="not a TOML file"):
        read_config(tmp_path / "bad.toml")


def test_fingerprints_depend_on_content_not_on_order():
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


# ---------------------------------------------------------------- results


def row(method="FedAvg", protocol="balanced", mean=50.0, clients=100, alpha=0.1, seed=0, **changes) -> Row:
    fields = {
        "data": "mnist", "clients": clients, "alpha": alpha, "shift": 1.0, "method": method,
        "evaluated": "the server's network, in short", "round": 50, "last": True, "protocol": protocol,
        "prior": "none", "own": True, "seed": seed, "config": "abc", "mean": mean,
        **{f"decile_{i}": mean - 5 + i for i in range(1, 10)},
        "worst_tenth": mean - 9, "diverged": 0, "seconds": 1.5,
    }  # fmt: skip
    return Row(**{**fields, **changes})


def test_rows_come_back(tmp_path):
    rows = [row(), row(method='with, comma and "quotes"', own=False, last=False)]
    append_rows(tmp_path / "results.csv", rows[:1])
    append_rows(tmp_path / "results.csv", rows[1:])
    assert read_rows(tmp_path) == rows


def test_a_file_from_before_code_was_recorded_is_read_and_added_to(tmp_path):
    path = tmp_path / "results.csv"
    append_rows(path, [row()])
    lines = path.read_text().splitlines()
    path.write_text("".join(line.rpartition(",")[0] + "\n" for line in lines))
    assert read_rows(path) == [row()]
    append_rows(path, [row(seed=1, code="abc")])
    assert read_rows(path) == [row(), row(seed=1, code="abc")]


def test_a_line_cut_short_is_ignored_and_overwritten(tmp_path):
    path = tmp_path / "results.csv"
    append_rows(path, [row(), row(seed=1)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert read_rows(path) == [row()]
    append_rows(path, [row(seed=1)])
    assert path.read_bytes() == whole


def test_what_is_no_results_file_is_refused(tmp_path):
    with pytest.raises(MissingData, match="no results there"):
        read_rows(tmp_path)
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(MissingData, match="not a results file"):
        read_rows(tmp_path)
    (tmp_path / "results.csv").write_bytes(b"\xff\xfe\n")
    with pytest.raises(InvalidOption, match="is not a table of results"):
        read_rows(tmp_path)
    path = tmp_path / "other.csv"
    append_rows(path, [row(), row(seed=1)])
    path.write_text(path.read_text().replace(",1,", ",True,", 1))
    with pytest.raises(MissingData, match="cannot be read"):
        read_rows(path)


def test_spread_of_known_accuracies():
    found = spread(np.arange(1, 101) / 100)
    np.testing.assert_allclose([found["mean"], found["worst_tenth"]], [50.5, 5.5])
    deciles = [found[f"decile_{i}"] for i in range(1, 10)]
    np.testing.assert_allclose(deciles, np.quantile(np.arange(1, 101), np.arange(1, 10) / 10))
    assert spread(np.array([0.25]))["worst_tenth"] == 25.0


# ---------------------------------------------------------------- tables

ROWS = [
    row("VANEB-FT (direct)", mean=70.0),
    row("FedAvg", mean=60.0),
    row("FedAvg", mean=64.0, seed=1),
    row("FedAvg", mean=80.0, clients=500),
    row("FedAvg", "matched", 55.0),
    row("FedAvg", "matched", 95.0, prior="added", own=False),
    row("FedAvg", "balanced", 10.0, prior="removed", own=False),
    row("VANEB-FT (direct)", "matched", 75.0),
    row("FedAvg", mean=99.0, last=False, round=10),
]


def test_panels_have_the_best_marked_and_seeds_averaged():
    balanced, matched = make_panels(ROWS)
    assert [column[3] for column in balanced.columns] == [100, 500]
    # In the order of the methods, whatever the order of the rows.
    assert list(balanced.cells) == ["FedAvg", "VANEB-FT (direct)"]
    cell = balanced.cells["FedAvg"][balanced.columns[0]]
    assert (cell.value, cell.seeds, cell.best) == (62.0, 2, False)
    np.testing.assert_allclose(cell.deviation, np.std([60, 64], ddof=1))
    assert balanced.cells["VANEB-FT (direct)"][balanced.columns[0]].best
    assert matched.protocol == "matched"


def test_the_corrected_table_uses_the_corrected_rows():
    balanced, matched = make_panels(ROWS, points="corrected")
    assert balanced.cells["FedAvg"][balanced.columns[0]].value == 10.0
    assert matched.cells["FedAvg"][matched.columns[0]].value == 95.0
    assert make_panels(ROWS, value="worst_tenth")[1].cells["FedAvg"][matched.columns[0]].value == 46.0
    for wrong in ({"points": "mine"}, {"value": "median"}):
        with pytest.raises(InvalidOption, match="use one of"):
            make_panels(ROWS, **wrong)


def test_tables_as_text_markdown_and_csv():
    panels = make_panels(ROWS)
    text = as_text(panels)
    assert "Panel A: balanced test labels (mnist, alpha = 0.1, shift = 1)" in text
    assert "70.00*" in text
    assert "\x1b[1m" not in text
    assert "\x1b[1m" in as_text(panels, bold=True)
    markdown = as_markdown(panels)
    assert "| VANEB-FT (direct) | **70.00** | - |" in markdown
    assert "62.00 ± 2.83" in markdown
    lines = list(csv.DictReader(io.StringIO(as_csv(panels))))
    assert len(lines) == 5
    assert {line["best"] for line in lines if line["method"] == "VANEB-FT (direct)"} == {"1"}
    assert evaluated_models(ROWS)[1] == "FedAvg: the server's network, in short; round 50 (the last)"
    costs = [replace(row, cpu_seconds=60.0, megabytes=5.0, peak_megabytes=400.0 + row.seed) for row in ROWS]
    assert evaluated_models(costs)[1].endswith("(the last); 60.0 CPU seconds, 5.00 MB sent, 401 MB of memory")


def test_published_numbers_stand_beside_ours():
    published = {("balanced", "FedAvg", ("mnist", 0.1, 1.0, 100)): 61.5}
    assert "62.00 ± 2.83 (61.50)" in as_markdown(make_panels(ROWS, published=published))


# ---------------------------------------------------------------- commands

app = typer.Typer(pretty_exceptions_enable=False)
for command in (train, table, compare):
    app.command()(command)
runner = CliRunner()
FLAGS = ["--clients", "6", "--alpha", "0.5", "--shift", "0", "--rounds", "2", "--method", "fedavg"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("run")
    arguments = ["train", *FLAGS, "--method", "vaneb_la_coordinate", "-o", str(output)]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "Panel B" in result.output
    assert "VANEB-LA (coordinate)" in result.output
    return output


def test_train_and_table(run):
    (first,) = {row.config for row in read_rows(run) if row.method == "FedAvg"}
    assert len(first) == 12
    markdown = runner.invoke(app, ["table", str(run), "--format", "markdown", "--points", "corrected"])
    assert markdown.exit_code == 0
    assert "log-proportions added" in markdown.output
    assert "- VANEB-LA (coordinate): the FedAvg body with the client's posterior mean head" in markdown.output
    target = run / "table.csv"
    assert runner.invoke(app, ["table", str(run), "--format", "csv", "-o", str(target)]).exit_code == 0
    assert len(target.read_text().splitlines()) == 5
    text = runner.invoke(app, ["table", str(run), "--value", "worst_tenth"])
    assert "(worst_tenth)" in text.output


def test_label_adjustment_has_two_operating_points(run):
    rows = {(r.protocol, r.prior): r for r in read_rows(run) if r.method == "VANEB-LA (coordinate)"}
    assert rows["balanced", "none"].own
    assert rows["matched", "added"].own
    assert not rows["matched", "none"].own


def test_the_prior_is_kept_for_the_figure(run):
    (prior,) = read_head_priors(run)
    assert prior.title.startswith("VANEB-LA (coordinate), digits, 6 clients")
    assert prior.reported.shape == prior.posterior.shape == (6, 330)
    np.testing.assert_allclose(prior.responsibilities @ prior.atoms, prior.posterior, atol=1e-5)


def test_principal_axes_are_those_of_the_covariance():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((30, 5)) * [5, 1, 3, 0.1, 0.2]
    axes = principal_axes(points, 2)
    np.testing.assert_allclose(axes.directions.T @ axes.directions, np.eye(2), atol=1e-10)
    values, vectors = (part[..., ::-1][..., :2] for part in np.linalg.eigh(np.cov(points.T)))
    np.testing.assert_allclose(np.abs(axes.directions.T @ vectors), np.eye(2), atol=1e-8)
    np.testing.assert_allclose(axes.centre, points.mean(0))
    np.testing.assert_allclose(axes.shares, values / np.trace(np.cov(points.T)))
    np.testing.assert_allclose(axes.of(points).var(0, ddof=1), values)
    assert principal_axes(points[:2], 3).directions.shape == (5, 1)


def test_figures_are_written(run, tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install 'vaneb[plots]'")
    result = runner.invoke(app, ["compare", str(run), "-o", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "client_scaling.png").read_bytes()[:4] == b"\x89PNG"
    assert len(list(tmp_path.glob("prior_*.png"))) == 1
    assert runner.invoke(app, ["compare", str(run), "--format", "gif"]).exit_code == 2
    taken = runner.invoke(app, ["compare", str(run), "-o", str(tmp_path / "client_scaling.png")])
    assert taken.exit_code == 2
    assert "Name another folder" in taken.stderr


def test_an_interrupted_training_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("vaneb.fl.experiment.run_experiment", interrupted)
    result = runner.invoke(app, ["train", "-o", str(tmp_path), "-q"])
    assert result.exit_code == 130
    assert (
        result.stderr == f"interrupted: finished rounds are saved in {tmp_path}; the same command resumes.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--data", "mnist"], "VANEB_DATA"),
        (["train", "--data", "svhn"], "not known"),
        (["train", "--clients", "5000"], "leaves clients without any"),
        (["train", "--alpha", "-1"], "alpha"),
        (["train", "--method", "fedsgd"], "fedsgd"),
        (["train", "--workers", "-1", *FLAGS], "workers"),
        (["train", "no.toml"], "there is no such file"),
        (["table", "nowhere"], "no results there"),
    ],
)
def test_refusals_name_the_place_in_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.delenv("VANEB_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_configuration_file_with_flags_over_it(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'methods = ["local_only"]\n[data]\nclients = 5\ntotal = 100\ntest_per_client = 10\n'
        "[training]\nrounds = 1\n[model]\noptions = { channels = 2, hidden = 4 }\n"
        "[grid]\nalpha = [0.1, 1.0]\n"
    )
    result = runner.invoke(
        app, ["train", str(tmp_path / "mine.toml"), "--seed", "4", "-q", "-o", str(tmp_path / "run")]
    )
    assert result.exit_code == 0, result.output
    assert result.output == ""
    rows = read_rows(tmp_path / "run")
    assert {r.alpha for r in rows} == {0.1, 1.0}
    assert {r.seed for r in rows} == {4}


def test_the_core_does_not_import_torch():
    code = "import sys, vaneb, vaneb.commands.train, vaneb.commands.table; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_the_default_is_the_digits():
    assert replace(default_config("digits"), options={}) == Config()
