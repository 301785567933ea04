"""The command line: what it writes, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner, Result

from vaneb.cli import app
from vaneb.estimators import VANEB
from vaneb.npmle.fit import Certificate
from vaneb.prior import Prior
from vaneb.reports import Reports
from vaneb.tables import write_reports

COLUMNS = ["client", "theta_a", "theta_b", "sd_a", "sd_b", "lower_a", "lower_b", "upper_a", "upper_b"]
COLUMNS += ["own_a", "own_b", "own_se_a", "own_se_b", "shrinkage", "log_marginal", "flag"]
NOISE = np.full((40, 2), 0.5)


def vaneb(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def reports() -> Reports:
    """40 clients from two groups, with standard errors."""
    rng = np.random.default_rng(0)
    theta = np.where(rng.random((40, 1)) < 0.5, [[0.0, 0.0]], [[4.0, -4.0]])
    ids = [f"site {k:02d}" for k in range(40)]
    return Reports(
        theta + NOISE * rng.standard_normal((40, 2)), standard_errors=NOISE, ids=ids, names=["a", "b"]
    )


@pytest.fixture
def table(reports: Reports, tmp_path: Path) -> Path:
    path = tmp_path / "reports.csv"
    write_reports(path, reports)
    return path


def read(path: Path) -> pa.Table:
    return pa.csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)


# ---------------------------------------------------------------- what it writes


def test_personalize_writes_what_python_computes(table: Path, reports: Reports, tmp_path: Path) -> None:
    result = vaneb(
        "personalize", table, "-o", tmp_path / "out.csv", "--population", "discrete", "--level", 0.8
    )
    assert result.exit_code == 0, result.output
    out = read(tmp_path / "out.csv")
    assert out.column_names == COLUMNS
    assert out["client"].to_pylist() == reports.ids.tolist()
    posterior = VANEB(population="discrete").fit(reports).personalize(reports)
    lower, upper = posterior.interval(0.8)
    for j, name in enumerate("ab"):
        columns = {"theta": posterior.mean, "lower": lower, "upper": upper, "sd": posterior.sd}
        columns |= {"own": reports.estimate, "own_se": NOISE}
        for prefix, values in columns.items():
            error = np.abs(out[f"{prefix}_{name}"].to_numpy() - values[:, j])
            assert (error <= posterior.sd[:, j] / 1000 / 2 * (1 + 1e-6) + 1e-12).all()  # to 1/1000 of an sd
    assert_allclose(out["log_marginal"], posterior.log_marginal, atol=1e-5)
    assert_allclose(out["shrinkage"], posterior.shrinkage, atol=1e-5)
    for line in ("clients            40", "parameters         2", "certificate        max D"):
        assert line in result.output


def test_a_saved_prior_personalises_new_clients(table: Path, tmp_path: Path) -> None:
    prior, first, second = tmp_path / "prior.json", tmp_path / "first.parquet", tmp_path / "second.parquet"
    assert (
        vaneb(
            "personalize", table, "-o", first, "--prior-out", prior, "--population", "discrete", "-q"
        ).exit_code
        == 0
    )
    assert Prior.load(prior).names == ("a", "b")
    # The same two clients in another order of columns and rows get the same answer.
    lines = ["theta_b,se_b,client,theta_a,se_a"]
    source = read(table).to_pydict()
    for k in (7, 3):
        values = [source[column][k] for column in lines[0].split(",")]
        lines.append(",".join(map(str, values)))
    new = tmp_path / "new.csv"
    new.write_text("\n".join(lines))
    result = vaneb("personalize", new, "-o", second, "--prior-in", prior)
    assert result.exit_code == 0, result.output
    assert "none, the population was given" in result.output
    one, other = read(first).take([7, 3]), read(second)
    assert other.column_names == COLUMNS
    for column in COLUMNS[1:-1]:
        assert_allclose(other[column], one[column], rtol=1e-9, atol=1e-12)


def test_integer_clients_stay_integers(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"client": [30, 10, 20], "theta_a": [1.0, 2.0, 3.0], "se_a": [1.0, 1.0, 1.0]}),
        tmp_path / "reports.parquet",
    )
    arguments = (
        "personalize",
        tmp_path / "reports.parquet",
        "-o",
        tmp_path / "out.parquet",
        "--population",
        "discrete",
    )
    assert vaneb(*arguments).exit_code == 0
    assert read(tmp_path / "out.parquet")["client"].to_pylist() == [30, 10, 20]


def test_variance_function_in_place_of_standard_errors(tmp_path: Path) -> None:
    (tmp_path / "reports.csv").write_text("client,n,theta_a\nx,10,1.5\ny,20,2.5\nz,5,3\n")
    arguments = (
        "personalize",
        tmp_path / "reports.csv",
        "-o",
        tmp_path / "out.csv",
        "--population",
        "discrete",
    )
    assert vaneb(*arguments, "--variance-function", "poisson").exit_code == 0
    assert read(tmp_path / "out.csv").num_rows == 3


def test_with_a_singular_precision_any_solution_gives_the_same_answer(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    roots = rng.standard_normal((12, 3, 2))
    precision = roots @ roots.transpose(0, 2, 1)
    theta = rng.standard_normal((12, 3))
    null = np.linalg.svd(roots.transpose(0, 2, 1))[2][:, 2]
    outputs = []
    for shift in (0.0, 7.0):
        write_reports(tmp_path / "reports.csv", Reports(theta + shift * null, precision=precision))
        arguments = (
            "personalize",
            tmp_path / "reports.csv",
            "-o",
            tmp_path / "out.parquet",
            "--population",
            "discrete",
        )
        assert vaneb(*arguments).exit_code == 0
        outputs.append(read(tmp_path / "out.parquet"))
    one, other = outputs
    for column in one.column_names[1:-1]:
        assert_allclose(other[column], one[column], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("solver", ["certified", "pseudo-em", "grid"])
def test_every_solver_ends_well(table: Path, tmp_path: Path, solver: str) -> None:
    out = tmp_path / "out.csv"
    result = vaneb("personalize", table, "-o", out, "--solver", solver, "--population", "discrete")
    assert result.exit_code == 0, result.output
    assert read(out).num_rows == 40


def test_quiet_says_nothing(table: Path, tmp_path: Path) -> None:
    result = vaneb("personalize", table, "-o", tmp_path / "out.csv", "--population", "discrete", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_columns_that_are_not_used_are_noted(tmp_path: Path) -> None:
    (tmp_path / "reports.csv").write_text("client,theta_a,se_a,region\nx,1,1,north\ny,2,1,south\n")
    result = vaneb(
        "personalize", tmp_path / "reports.csv", "-o", tmp_path / "out.csv", "--population", "discrete"
    )
    assert result.exit_code == 0
    assert "note: ignored columns: region" in result.stderr


def test_a_fit_that_misses_its_tolerance_is_written_and_said(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = VANEB.fit

    def missed(self: VANEB, *arguments, **options) -> VANEB:
        fit(self, *arguments, **options)
        self.certificate_ = Certificate(0.25, np.zeros(2), "ascent", self.tol, 1)
        return self

    monkeypatch.setattr(VANEB, "fit", missed)
    result = vaneb("personalize", table, "-o", tmp_path / "out.csv", "--population", "discrete", "-q")
    assert result.exit_code == 3
    assert "gap of 0.25, above the tolerance 0.0001" in result.stderr
    assert read(tmp_path / "out.csv").num_rows == 40


# ---------------------------------------------------------------- what it refuses

REFUSED = {
    "no such file": (["none.csv", "-o", "out.csv"], "none.csv: there is no such file"),
    "suffix out": (["reports.csv", "-o", "out.pdf"], "unknown kind of table '.pdf'"),
    "folder": (["reports.csv", "-o", "none/out.csv"], "does not exist. Create it first."),
    "folder of prior": (["reports.csv", "-o", "out.csv", "--prior-out", "none/p.json"], "does not exist."),
    "level": (["reports.csv", "-o", "out.csv", "--level", "90"], "--level 90: must lie between 0 and 1"),
    "tolerance": (["reports.csv", "-o", "out.csv", "--tol", "0"], "--tol 0: must be positive"),
    "onto itself": (["reports.csv", "-o", "./reports.csv"], "is the same file as REPORTS"),
    "smooth off": (["reports.csv", "-o", "out.csv", "--smooth", "off"], "Write --population discrete"),
    "solver of another": (
        ["reports.csv", "-o", "out.csv", "--solver", "grid", "--population", "mixture"],
        "solver='grid' fits discrete populations",
    ),
    "two priors": (
        ["reports.csv", "-o", "out.csv", "--prior-in", "p", "--prior-out", "q"],
        "Leave one of them out",
    ),
    "no such prior": (["reports.csv", "-o", "out.csv", "--prior-in", "p.json"], "p.json"),
    "not a prior": (["reports.csv", "-o", "out.csv", "--prior-in", "garbage.json"], "not a saved prior"),
    "other prior": (["reports.csv", "-o", "out.csv", "--prior-in", "other.json"], "but age, b are expected"),
    "variance": (["reports.csv", "-o", "out.csv", "--variance-function", "cubic"], "'cubic' is unknown"),
    "bad cell": (["bad.csv", "-o", "out.csv"], "bad.csv, row 1, column theta_a: 'one' is not a number"),
    "bad number": (["negative.csv", "-o", "out.csv"], "client 'x', column se_a: the standard error is -1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_get_one_line_and_code_2(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("garbage.json").write_text('{"atoms": 1}')
    Prior(np.zeros((1, 2)), np.ones(1), names=("age", "b")).save("other.json")
    Path("bad.csv").write_text("client,theta_a,se_a\nx,one,1\n")
    Path("negative.csv").write_text("client,theta_a,se_a\nx,1,-1\n")
    before = sorted(os.listdir())
    arguments, message = REFUSED[case]
    if "--variance-function" in arguments:
        Path("reports.csv").write_text("client,n,theta_a\nx,1,1\n")
    result = vaneb("personalize", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["personalize"],
        ["personalize", "reports.csv"],
        ["personalize", "reports.csv", "-o", "out.csv", "--solver", "magic"],
        ["personalize", "reports.csv", "-o", "out.csv", "--population", "maybe"],
        ["personalize", "reports.csv", "-o", "out.csv", "--seed", "-1"],
        ["personalize", "reports.csv", "-o", "out.csv", "--unknown"],
        ["fly"],
    ],
)
def test_bad_usage_is_code_2_without_a_traceback(arguments: list[str]) -> None:
    result = vaneb(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert "Error" in result.stderr


def test_version_and_help() -> None:
    result = vaneb("--version")
    assert result.exit_code == 0
    assert result.output.startswith("vaneb ")
    assert "personalize" in vaneb("--help").output
    said = vaneb("personalize", "--help").output
    assert "[required]" in said
    assert "\\" not in said


# ---------------------------------------------------------------- how it is interrupted


def test_an_interrupt_leaves_the_old_output(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out.csv"
    out.write_text("old")
    for place in (
        "vaneb.estimators.VANEB.fit",
        "vaneb.estimators.VANEB.personalize",
        "vaneb.tables._write_csv",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, interrupted)
            result = vaneb("personalize", table, "-o", out, "--population", "discrete", "-q")
        assert (result.exit_code, result.stderr) == (130, "interrupted.\n")
        assert out.read_text() == "old"
        assert sorted(os.listdir(tmp_path)) == ["out.csv", "reports.csv"]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_stopped_while_writing_leaves_the_old_output_or_the_new(
    tmp_path: Path, signum: int
) -> None:
    n_clients = 100_000
    rng = np.random.default_rng(1)
    made = Reports(
        rng.standard_normal((n_clients, 2)), standard_errors=np.ones((n_clients, 2)), names=["a", "b"]
    )
    write_reports(tmp_path / "reports.parquet", made)
    prior, out = tmp_path / "prior.json", tmp_path / "out.csv"
    Prior(np.zeros((1, 2)), np.ones(1), names=("a", "b")).save(prior)
    out.write_text("old")
    command = [sys.executable, "-m", "vaneb", "personalize", tmp_path / "reports.parquet", "-o", out]
    process = subprocess.Popen([*command, "--prior-in", prior, "--quiet"], stderr=subprocess.PIPE)
    partial = _wait_for_partial(tmp_path, process)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert partial is not None, errors.decode()
    assert b"Traceback" not in errors
    content = out.read_text()
    if content == "old":
        assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[signum]
    else:
        assert content.count("\n") == n_clients + 1
        assert content.endswith("\n")
    if signum != signal.SIGKILL:
        assert not list(tmp_path.glob(".*.partial"))


def _wait_for_partial(folder: Path, process: subprocess.Popen, seconds: float = 60) -> Path | None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        for partial in folder.glob(".out.csv.*.partial"):
            return partial
    return None


# ---------------------------------------------------------------- the demonstration


def test_demo_beats_local_and_pooled_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vaneb.commands.demo.CLIENTS", 200)
    result = vaneb("demo")
    assert result.exit_code == 0, result.output
    assert "Clemente" in result.output
    errors = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in result.output.splitlines()
        if line.startswith("│")
    }
    local, pooled, james_stein, ours, _ = errors["total squared error"]
    assert (local, pooled, james_stein) == ("0.0755", "0.0243", "0.0214")
    assert float(ours) < float(local)
    assert "James-Stein, a simpler rule, is as good here" in result.output
    curves = {name: float(cells[0]) for name, cells in errors.items() if len(cells) == 1}
    assert (
        curves["oracle (knows the population)"] < curves["VANEB"] < curves["NPEB (takes variances as known)"]
    )
    assert curves["NPEB (takes variances as known)"] < curves["its own rows"] < curves["the average of all"]
    assert result.output.index("below the best of the others") < result.output.index("Clemente")


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (0.5, "VANEB has an error 50% below"),
        (0.98, "as good here"),
        (1.02, "as good here"),
        (2, "better here"),
    ],
)
def test_the_demonstration_says_who_is_better(ours: float, said: str) -> None:
    from vaneb.commands.demo import verdict

    assert said in verdict({"mean": 1.0, "own": 3.0, "VANEB": ours})


def test_the_prior_file_is_plain_json(table: Path, tmp_path: Path) -> None:
    prior = tmp_path / "prior.json"
    arguments = (
        "personalize",
        table,
        "-o",
        tmp_path / "out.csv",
        "--prior-out",
        prior,
        "--population",
        "discrete",
        "-q",
    )
    assert vaneb(*arguments).exit_code == 0
    assert json.loads(prior.read_text())["names"] == ["a", "b"]


def test_a_misspelt_command_gets_one_hint() -> None:
    result = vaneb("personalise")
    assert result.exit_code == 2
    assert result.output.count("Did you mean 'personalize'?") == 1


@pytest.mark.parametrize(("quiet", "times"), [(False, 1), (True, 0)])
def test_compilation_is_said_once(
    quiet: bool, times: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from numba import njit

    from vaneb.commands.progress import progress_bar

    monkeypatch.setenv("FORCE_COLOR", "1")  # taken for a terminal
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar(quiet):
        assert njit(lambda x: x + 1)(1) == 2
        assert njit(lambda x: x + 2)(1) == 3
    njit(lambda x: x + 3)(1)
    assert capsys.readouterr().err.count("Compiling") == times
