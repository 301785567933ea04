"""``vaneb run --save`` and ``vaneb predict``: what they write, what they say, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner, Result

from vaneb.cli import app
from vaneb.grouped import fit_groups, load


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    k = np.repeat(np.arange(20), 6)
    x = rng.standard_normal(120)
    g = rng.choice(["lo", "hi"], 120)
    y = rng.standard_normal(20)[k] + 2 * x + (g == "hi") + rng.standard_normal(120)
    return pd.DataFrame({"site": [f"s{v}" for v in k], "x": x, "g": g, "y": y})


@pytest.fixture(scope="module")
def folder(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model and new rows."""
    folder = tmp_path_factory.mktemp("predict")
    frame.to_csv(folder / "data.csv", index=False)
    model = ("--client", "site", "--formula", "y ~ x + g", "--save", folder / "model.json")
    result = call("run", folder / "data.csv", *model)
    assert result.exit_code == 0, result.output
    new = pd.DataFrame(
        {"site": ["s3", "new", "s0", None], "x": [0.5, 0.5, np.nan, 1.0], "g": ["hi", "lo", "lo", "hi"]}
    )
    new.to_csv(folder / "new.csv", index=False)
    return folder


def test_the_file_has_what_python_computes(folder: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    options = ("--interval", "prediction", "--level", 0.8)
    result = call("predict", folder / "model.json", folder / "new.csv", "-o", out, *options)
    assert result.exit_code == 0, result.output
    written = pd.read_csv(out)
    assert list(written.columns) == ["row", "site", "known", "mean", "lower", "upper"]
    assert written.row.tolist() == [1, 2, 3, 4]
    assert written.known.tolist()[:3] == [True, False, True]
    assert written["mean"].isna().tolist() == [False, False, True, True]
    fit = fit_groups(frame, client="site", formula="y ~ x + g")
    expected = fit.predict(pd.read_csv(folder / "new.csv"), interval="prediction", level=0.8)
    assert_allclose(written[["mean", "lower", "upper"]], expected, rtol=1e-12)
    assert "new groups         1 (predicted by the population)" in result.output
    assert "4, 2 of them with missing values" in result.output
    assert "prediction, 80%" in result.output


def test_json_and_no_interval(folder: Path) -> None:
    result = call("predict", folder / "model.json", folder / "new.csv", "--json", "--interval", "none", "-q")
    said = json.loads(result.stdout)
    assert said["rows"][0].keys() == {"row", "site", "known", "mean"}
    assert said["rows"][2]["mean"] is None
    assert said["level"] == 0.9


def test_classes_have_a_column_each(frame: pd.DataFrame, tmp_path: Path) -> None:
    rows = frame.assign(y=np.where(frame.y > 2, "up", np.where(frame.y < 0, "down", "same")))
    rows.to_csv(tmp_path / "data.csv", index=False)
    model = (
        "--client",
        "site",
        "--formula",
        "y ~ x",
        "--family",
        "multinomial",
        "--save",
        tmp_path / "m.json",
    )
    assert call("run", tmp_path / "data.csv", *model, "-q").exit_code == 0
    assert (
        call("predict", tmp_path / "m.json", tmp_path / "data.csv", "-o", tmp_path / "o.csv").exit_code == 0
    )
    written = pd.read_csv(tmp_path / "o.csv")
    assert list(written.columns) == ["row", "site", "known", "p_down", "p_same", "p_up"]
    assert_allclose(written[["p_down", "p_same", "p_up"]].sum(axis=1), 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("site,x\ns1,1\n", "column g: missing; the fit names it"),
        ("site,x,g\ns1,1,medium\n", "column g: level 'medium' (1 rows) is in no row of the fit"),
        ("school,x,g\ns1,1,hi\n", "column site: missing; the model names it"),
        ("site,x,g\ns1,1,hi\ns1,2,hi\ns2,>90,lo\n", "row 3, column x: '>90' is not a number"),
        ("site,x,g\n", "has no rows"),
    ],
)
def test_rows_that_do_not_fit_the_model(folder: Path, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "new.csv").write_text(content)
    result = call("predict", folder / "model.json", tmp_path / "new.csv", "-o", tmp_path / "out.csv")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out.csv").exists()


def test_models_that_are_none(folder: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out.csv")
    assert "no such file" in call("predict", tmp_path / "m.json", folder / "new.csv", *out).stderr
    assert "not a saved model" in call("predict", folder / "new.csv", folder / "data.csv", *out).stderr
    wire = json.loads((folder / "model.json").read_text())
    (tmp_path / "prior.json").write_text(json.dumps(wire["clients"]["prior"]))
    assert (
        "a population, not a model"
        in call("predict", tmp_path / "prior.json", folder / "new.csv", *out).stderr
    )
    same = call("predict", folder / "model.json", folder / "new.csv", "-o", folder / "new.csv")
    assert "same file" in same.stderr
    assert load(folder / "model.json").names == ("Intercept", "x", "g[T.lo]")


def test_a_missing_value_can_be_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("site,x,g\ns1,1,hi\ns2,.,lo\ns3,2,lo\n")
    result = call(
        "predict", folder / "model.json", tmp_path / "new.csv", "-o", tmp_path / "o.csv", "--na", "."
    )
    assert result.exit_code == 0, result.output
    assert pd.read_csv(tmp_path / "o.csv")["mean"].isna().tolist() == [False, True, False]


def test_run_and_check_say_what_they_read(folder: Path) -> None:
    model = ("--client", "site", "--formula", "y ~ x + g")
    ran = call("run", folder / "data.csv", *model, "-o", folder / "o.csv").stderr
    lines = [line.removeprefix("read: ") for line in ran.splitlines() if line.startswith("read: ")]
    assert lines[0].startswith("site: groups, 20 (s0, s1")
    assert lines[3] == "g: factor, 2 levels (hi, lo)"
    assert lines[4] == "rows: 120, all complete"
    checked = call("check", folder / "data.csv", *model)
    assert checked.exit_code == 0, checked.output
    for line in lines:
        assert line in checked.output
    assert json.loads(call("check", folder / "data.csv", *model, "--json").stdout)["read"] == lines


def test_run_needs_something_to_write(folder: Path) -> None:
    result = call("run", folder / "data.csv", "--client", "site", "--formula", "y ~ x")
    assert result.exit_code == 2
    assert "name a file" in result.output
