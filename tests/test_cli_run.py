"""``vaneb run``: what it writes, what it says, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose
from typer.testing import CliRunner, Result

from vaneb.cli import app
from vaneb.grouped import fit_groups
from vaneb.prior import Prior
from vaneb.tables import read_reports


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["run", *(str(argument) for argument in arguments)])


@pytest.fixture
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    k = np.repeat(np.arange(30), 6)
    x = rng.standard_normal(180)
    y = rng.standard_normal(30)[k] + 2 * x + rng.standard_normal(180)
    return pd.DataFrame({"site": k, "x": x, "y": y, "test": (np.arange(180) % 3 == 0).astype(int)})


@pytest.fixture
def data(frame: pd.DataFrame, tmp_path: Path) -> Path:
    frame.to_csv(tmp_path / "data.csv", index=False)
    return tmp_path / "data.csv"


MODEL = ("--client", "site", "--formula", "y ~ x")


def test_writes_what_python_computes(data: Path, frame: pd.DataFrame, tmp_path: Path) -> None:
    out, reports, prior = tmp_path / "out.csv", tmp_path / "reports.csv", tmp_path / "prior.json"
    files = ("-o", out, "--reports-out", reports, "--prior-out", prior)
    result = run(data, *MODEL, "--test-column", "test", *files, "--level", 0.8)
    assert result.exit_code == 0, result.output
    fit = fit_groups(frame, client="site", formula="y ~ x", test_column="test", level=0.8)
    written = pd.read_csv(out, index_col="client", keep_default_na=False)
    rounding = fit.posterior.sd.max() / 1000
    pd.testing.assert_frame_equal(
        written, fit.coefficients, check_dtype=False, check_column_type=False, rtol=0, atol=rounding
    )
    assert_allclose(read_reports(reports).reports.estimate, fit.reports.estimate)
    assert_allclose(Prior.load(prior).atoms, fit.prior.atoms)
    assert Prior.load(prior).names == ("Intercept", "x")
    assert fit.held_out is not None
    assert f"{fit.held_out.values['personalised']:.6g}" in result.output
    assert "<- best" in result.output
    assert "converged 30" in result.output


def test_parquet_in_and_out_and_text_ids(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame["site"] = [f"s{v:02}" for v in frame.site]
    frame.to_parquet(tmp_path / "data.parquet")
    result = run(tmp_path / "data.parquet", *MODEL, "-o", tmp_path / "out.parquet", "--quiet")
    assert result.exit_code == 0, result.output
    assert result.output == ""
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["client"].to_pylist() == [f"s{v:02}" for v in range(30)]


def test_ids_with_leading_zeros_stay_apart(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame["site"] = [f"{v:02}" if v % 2 else f"{v}" for v in frame.site]
    frame.to_csv(tmp_path / "data.csv", index=False)
    result = run(tmp_path / "data.csv", *MODEL, "-o", tmp_path / "out.csv")
    assert result.exit_code == 0, result.output
    assert "01" in pd.read_csv(tmp_path / "out.csv", dtype={"client": str}).client.tolist()


def test_missing_values_of_r_are_dropped_and_counted(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.loc[[2, 9], "x"] = np.nan
    frame.to_csv(tmp_path / "data.csv", index=False, na_rep="NA")
    result = run(tmp_path / "data.csv", *MODEL, "-o", tmp_path / "out.csv")
    assert result.exit_code == 2
    assert "row 3, column x: 'NA' is not a number" in result.stderr
    assert "--na 'NA'" in result.stderr
    result = run(tmp_path / "data.csv", *MODEL, "-o", tmp_path / "out.csv", "--na", "NA")
    assert "dropped rows       2 (missing values)" in result.output


def test_huber_says_what_it_uses(data: Path, tmp_path: Path) -> None:
    result = run(data, *MODEL, "--family", "huber", "-o", tmp_path / "out.csv")
    assert "sandwich" in result.stderr
    assert "likelihood         gaussian" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--client", "school", "--formula", "y ~ x"), "column school: missing"),
        (("--client", "site", "--formula", "y ~ x2"), "Did you mean 'x'"),
        ((*MODEL, "--level", 2), "--level 2"),
        ((*MODEL, "--offset", "log_n"), "column log_n: missing"),
        ((*MODEL, "--family", "binomial"), "is not 0 or 1"),
        (("--client", "site", "--formula", "y ~ x + test", "--test-column", "test"), "the test column test"),
        (("--client", "site", "--formula", "y ~ y"), "the response y stands on the right-hand side"),
        (("--client", "site", "--formula", "y ~ x + C(site)"), "leave the client column site out"),
        (("--client", "site", "--formula", "y ~ C(x)"), "Column x is taken for a factor, of 180 levels"),
        ((*MODEL, "--test-column", "site"), "2 is neither 0 (fit) nor 1 (test)"),
    ],
)
def test_mistakes_end_in_one_line_and_write_nothing(
    data: Path, tmp_path: Path, arguments: tuple, message: str
) -> None:
    result = run(data, *arguments, "-o", tmp_path / "out.csv")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "out.csv").exists()


def test_files_that_cannot_be_read_or_written(data: Path, tmp_path: Path) -> None:
    assert "no such file" in run(tmp_path / "none.csv", *MODEL, "-o", tmp_path / "o.csv").stderr
    assert "same file" in run(data, *MODEL, "-o", data).stderr
    assert ".csv, .parquet or .xlsx" in run(data, *MODEL, "-o", tmp_path / "o.pdf").stderr
    (tmp_path / "bad.parquet").write_text("no")
    assert "not a Parquet file" in run(tmp_path / "bad.parquet", *MODEL, "-o", tmp_path / "o.csv").stderr


def test_tables_that_are_not_what_they_seem(frame: pd.DataFrame, tmp_path: Path) -> None:
    def said(content: bytes, *arguments: str) -> str:
        (tmp_path / "odd.csv").write_bytes(content)
        result = run(tmp_path / "odd.csv", *(arguments or MODEL), "-o", tmp_path / "out.csv")
        assert result.exit_code == 2
        assert not (tmp_path / "out.csv").exists()
        return result.stderr

    assert "has no rows" in said(b"site,x,y\n")
    assert "odd.csv: empty" in said(b"")
    assert "column x: appears twice" in said(b"site,x,y,x\n1,2,3,1\n1,2,4,2\n2,3,4,5\n")
    spaced = frame.rename(columns={"x": "my x"}).to_csv(index=False).encode()
    assert "quoted, as in `my x`" in said(spaced, "--client", "site", "--formula", "y ~ my x")
    alike = frame.assign(y=1).to_csv(index=False).encode()
    assert "all rows of the fit are 1" in said(alike, *MODEL, "--family", "binomial")


def test_help_loads_no_heavy_library() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from vaneb.cli import app; "
        "r = CliRunner().invoke(app, ['--help']); assert 'train' in r.output and 'run' in r.output; "
        "heavy = {'torch', 'pandas', 'numba', 'matplotlib'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_training_without_torch_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "from typer.testing import CliRunner; from vaneb.cli import app\n"
        "r = CliRunner().invoke(app, ['train', '--quiet']); assert r.exit_code == 2, r\n"
        "assert \"pip install 'vaneb[nn]'\" in r.stderr, r.stderr"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
