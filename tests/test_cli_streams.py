"""Streams instead of files, JSON for scripts, and the help of every command."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import typer.main
from numpy.testing import assert_allclose
from typer.testing import CliRunner, Result

from vaneb.cli import app
from vaneb.commands.examples import EXAMPLES
from vaneb.prior import Prior
from vaneb.tables import read_reports, rounded

HOSPITALS = Path(__file__).parent / "files" / "hospitals_german_excel.csv"


def vaneb(*arguments: object, given: bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)


@pytest.fixture
def pupils(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    school = np.repeat(np.arange(20), 6)
    x = rng.standard_normal(120)
    y = rng.standard_normal(20)[school] + 2 * x + rng.standard_normal(120)
    lines = [f"{s};{a:.4f};{b:.4f}".replace(".", ",") for s, a, b in zip(school, x, y, strict=True)]
    (tmp_path / "pupils.csv").write_text("\n".join(["school;x;y", *lines]))
    return tmp_path / "pupils.csv"


# ---------------------------------------------------------------- streams


def test_from_standard_input_to_standard_output(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert vaneb("personalize", HOSPITALS, "-o", out).exit_code == 0
    result = vaneb("personalize", "-", "-o", "-", given=HOSPITALS.read_bytes())
    assert result.exit_code == 0, result.output
    assert result.stdout == out.read_text()
    for words in ("read standard input as Latin-1", "took Krankenhaus as client", "clients            12"):
        assert words in result.stderr
    assert vaneb("personalize", "-", "-o", "-", "-q", given=HOSPITALS.read_bytes()).stderr == ""


def test_rows_and_reports_through_streams(pupils: Path) -> None:
    model = ("--client", "school", "--formula", "y ~ x", "-o", "-", "-q")
    made = vaneb("report", pupils, *model)
    assert made.exit_code == 0, made.output
    rows = list(csv.DictReader(io.StringIO(made.stdout)))
    assert len(rows) == 20
    assert "cov_Intercept__x" in rows[0]
    personalised = vaneb("personalize", "-", "-o", "-", "-q", given=made.stdout.encode())
    assert personalised.exit_code == 0, personalised.output
    again = list(csv.DictReader(io.StringIO(personalised.stdout)))
    assert_allclose([float(r["own_x"]) for r in again], [float(r["theta_x"]) for r in rows], atol=1e-3)
    ran = vaneb("run", "-", *model, given=pupils.read_bytes())
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("client,theta_Intercept,theta_x,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "-", "--json"), "--out and --json: only one can have standard output"),
        (("-o", "out.csv", "--prior-out", "-"), "--prior-out -: only --out can have standard output"),
        (("-o", "-", "--prior-out", "-"), "--out and --prior-out: only one can have standard output"),
    ],
)
def test_one_stream_has_one_content(
    arguments: tuple, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = vaneb("personalize", HOSPITALS, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert os.listdir() == []


def test_a_failure_writes_nothing_to_standard_output() -> None:
    result = vaneb("personalize", "-", "-o", "-", given=b"client,theta_a,se_a\nx,1,0\n")
    assert (result.exit_code, result.stdout) == (2, "")


# ---------------------------------------------------------------- digits


def test_digits_that_are_written_mean_something(tmp_path: Path) -> None:
    for name in ("out.csv", "out.parquet"):
        assert vaneb("personalize", HOSPITALS, "-o", tmp_path / name, "-q").exit_code == 0
    exact = pq.read_table(tmp_path / "out.parquet")
    assert len(repr(exact["theta_estimate"][0].as_py())) > 10  # Parquet is not rounded
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for k, row in enumerate(rows):
        unit = exact["sd_estimate"][k].as_py() / 1000
        for prefix in ("theta", "sd", "lower", "upper", "own", "own_se"):
            column = f"{prefix}_estimate"
            assert abs(float(row[column]) - exact[column][k].as_py()) <= unit / 2
            assert len(row[column].lstrip("-")) <= 8
    assert_allclose(
        [float(row["own_estimate"]) for row in rows], read_reports(HOSPITALS).reports.estimate[:, 0]
    )


def test_nothing_is_rounded_where_nothing_is_known_of_its_digits() -> None:
    import pyarrow as pa

    values = {"sd_a": [0.0, 1e-14, 2.0, 5e3], "theta_a": [1 / 3, 1 / 3, 1 / 3, 123456.789]}
    values |= {f"{block}_a": [1 / 3] * 4 for block in ("lower", "upper", "own", "own_se")}
    table = pa.table(values | {"shrinkage": [0.5] * 4, "log_marginal": [0.5] * 4})
    assert rounded(table, ("a",))["theta_a"].to_pylist() == [1 / 3, 1 / 3, 0.333, 123457.0]


# ---------------------------------------------------------------- JSON


def test_json_of_personalize_has_all_that_the_files_have(tmp_path: Path) -> None:
    files = ("-o", tmp_path / "out.parquet", "--prior-out", tmp_path / "prior.json")
    result = vaneb("personalize", HOSPITALS, *files, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["clients"] == pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert said["population"].pop("words") == str(Prior.load(tmp_path / "prior.json"))
    assert said["population"] == json.loads((tmp_path / "prior.json").read_text())
    assert said["exit_code"] == 0
    assert said["parameters"] == ["estimate"]
    assert said["certificate"] is None
    assert said["sampling"]["error"] < 2 * said["sampling"]["accuracy"]
    assert "took Krankenhaus as client" in said["notes"][1]
    assert "clients            12" in result.stderr


def test_json_of_a_discrete_population_has_its_certificate() -> None:
    said = json.loads(vaneb("personalize", HOSPITALS, "--population", "discrete", "--json", "-q").stdout)
    assert said["population"]["kind"] == "discrete"
    assert said["population"]["words"].endswith("atoms")
    assert said["certificate"]["tolerance"] == 1e-4
    assert said["sampling"] is None


def test_json_needs_no_file(pupils: Path) -> None:
    result = vaneb("run", pupils, "--client", "school", "--formula", "y ~ x", "--json", "-q")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert [client["client"] for client in said["clients"]] == list(range(20))
    assert said["rows"] == 120
    assert said["held_out"] is None
    assert said["local_fits"] == {"converged": 20}
    assert result.stderr == ""


def test_json_of_a_failure_says_which() -> None:
    result = vaneb("personalize", "none.csv", "--json")
    assert result.exit_code == 2
    said = json.loads(result.stdout)
    assert said["exit_code"] == 2
    assert "none.csv: there is no such file" in said["error"]


def test_check_in_words_and_as_json(tmp_path: Path) -> None:
    result = vaneb("check", HOSPITALS)
    assert result.exit_code == 0
    for words in ("decimal commas", "clients              12", "ignored columns      Fälle", "no problems"):
        assert words in result.stdout
    said = json.loads(vaneb("check", HOSPITALS, "--json").stdout)
    assert (said["problems"], said["clients"], said["client_column"]) == ([], 12, "Krankenhaus")
    bad = tmp_path / "bad.csv"
    bad.write_text("a,estimate,se\n" + "".join(f"{k},1,0\n" for k in range(150)))
    result = vaneb("check", bad)
    assert result.exit_code == 2
    assert "150 problems" in result.stdout
    assert "and 50 more; --json lists them all" in result.stdout
    result = vaneb("check", bad, "--json")
    assert result.exit_code == 2
    assert len(json.loads(result.stdout)["problems"]) == 150


def test_what_a_file_holds_does_not_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("client,theta_a,se_a\n" + "x,1,1\n" * 1000 + "y,\x1b[2J,1\n")
    for result in (vaneb("check", path), vaneb("personalize", path, "-o", tmp_path / "out.csv")):
        assert result.exit_code == 2
        assert "\x1b" not in result.output
    assert "\ufffd" not in vaneb("check", HOSPITALS).output


def test_check_of_rows(pupils: Path) -> None:
    result = vaneb("check", pupils, "--client", "school", "--formula", "y ~ x")
    assert result.exit_code == 0, result.output
    for words in ("clients              20", "rows of a client     6 to 6", "Intercept, x", "no problems"):
        assert words in result.stdout
    result = vaneb("check", pupils, "--client", "scool", "--formula", "y ~ z", "--offset", "w")
    assert result.exit_code == 2
    for words in ("3 problems", "column scool: missing", "column w: missing", "column z: missing"):
        assert words in result.stdout
    assert vaneb("check", pupils, "--formula", "y ~ x").exit_code == 2
    assert vaneb("check", pupils, "--client", "school", "--se", "x", "--formula", "y ~ x").exit_code == 2


# ---------------------------------------------------------------- help


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {"vaneb": group} | group.commands | group.commands["federate"].commands


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_every_command_has_examples_that_it_takes(name: str) -> None:
    command: Any = commands()[name]
    said = command.get_help(command.make_context(name, [], resilient_parsing=True))
    for example in EXAMPLES[name]:
        assert f"\n    {example}\n" in said + "\n"
        words = shlex.split(example.split("vaneb ", 1)[1].split(" | ")[0])
        command, context = commands()["vaneb"], None
        while hasattr(command, "commands"):
            context = command.make_context(name, words, parent=context, resilient_parsing=True)
            _, command, words = command.resolve_command(context, words)
        command.make_context(command.name, list(words), parent=context)  # raises for what it does not take


def test_all_commands_are_covered() -> None:
    assert set(commands()) == set(EXAMPLES)


@pytest.mark.parametrize("command", [(), ("personalize",), ("check",), ("federate",), ("federate", "client")])
def test_short_help(command: tuple[str, ...]) -> None:
    result = vaneb(*command, "-h")
    assert result.exit_code == 0
    assert result.output == vaneb(*command, "--help").output
    assert "Examples:" in result.output


def test_arguments_are_explained_and_exit_codes_listed() -> None:
    said = " ".join(vaneb("personalize", "-h").output.split())
    assert said.count("Table of reports: CSV, .xlsx or .parquet") == 1
    said = vaneb("-h").output
    for code in ("0 done", "2 the options or the input", "3 written, but", "130, 143"):
        assert code in said
    assert vaneb("-V").output == vaneb("--version").output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("vaneb perso", "personalize"), ("vaneb personalize --enc", "--encoding")],
)
def test_completion(typed: str, offered: str) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" ")), "_VANEB_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", "from vaneb.cli import app; app(prog_name='vaneb')"],
        env=os.environ | words,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [offered]
