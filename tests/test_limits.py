"""Confidence limits in place of standard errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from vaneb.cli import app
from vaneb.column_choice import ColumnChoice, choose_columns
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.limits import as_standard_errors, limit_columns
from vaneb.tables import ReportsTable, read_reports


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "in.csv"
    path.write_text(text)
    return path


def interval_table(
    tmp_path: Path, name: str, level: float, *, ratio: bool
) -> tuple[Path, np.ndarray, np.ndarray]:
    """A table of limits, rounded as in a paper, and the estimates and standard errors behind it."""
    rng = np.random.default_rng(3)
    estimate, se = rng.normal(0.2, 0.4, 30), rng.uniform(0.1, 0.5, 30)
    z = norm.ppf((1 + level) / 2)
    columns = [estimate, estimate - z * se, estimate + z * se]
    printed = [np.exp(c) if ratio else c for c in columns]
    rows = "".join(
        f"s{k},{e:.2f},{a:.2f},{b:.2f}\n" for k, (e, a, b) in enumerate(zip(*printed, strict=True))
    )
    return written(tmp_path, f"study,{name},lower,upper\n{rows}"), estimate, se


def errors_of(table: ReportsTable) -> np.ndarray:
    return 1 / np.sqrt(table.reports.covariance.unit_precision[:, 0] * table.reports.n)


@pytest.mark.parametrize(
    ("header", "level"),
    [
        ("study,estimate,lower,upper", None),
        ("study,estimate,ci.lb,ci.ub", None),
        ("study,OR,CI 95% lower,CI 95% upper", 0.95),
        ("trial,HR,HR_lower,HR_upper", None),
        ("study,estimate,conf.low,conf.high", None),
        ("study,effect,l90,u90", 0.9),
        ("study,b,2.5 %,97.5 %", 0.95),
        ("study,b,5 %,95 %", 0.9),
        ("Klinik,Schätzer,untere Grenze,obere Grenze", None),
        ("étude,effet,IC inf,IC sup", None),
    ],
)
def test_columns_of_limits_are_recognised(header: str, level: float | None) -> None:
    columns = header.split(",")
    assert limit_columns(columns) == (columns[2], columns[3], level)
    layout = choose_columns(columns, ColumnChoice())
    assert layout.noise == "limits"
    assert layout.estimates == (columns[1],)
    assert layout.limits_level == (level or 0.95)


@pytest.mark.parametrize(
    "header", ["a,lower,low,upper", "a,lower", "a,low weight,high pressure", "a,95 %,2.5 %"]
)
def test_columns_that_may_be_limits_of_something_else_are_not_taken(header: str) -> None:
    assert limit_columns(header.split(",")) is None


def test_standard_errors_come_before_limits() -> None:
    layout = choose_columns(["term", "estimate", "std.error", "conf.low", "conf.high"], ColumnChoice())
    assert layout.noise_columns == ("std.error",)


@pytest.mark.parametrize("level", [0.95, 0.9])
@pytest.mark.parametrize("ratio", [False, True])
def test_the_standard_errors_behind_limits_are_found_again(tmp_path: Path, ratio: bool, level: float) -> None:
    path, estimate, se = interval_table(tmp_path, "OR" if ratio else "effect", level, ratio=ratio)
    choice = ColumnChoice(limits_level=level, estimate=("OR" if ratio else "effect",))
    table = read_reports(path, choice=choice)
    assert table.reports.names == (("log_OR",) if ratio else ("effect",))
    assert table.ratio == ("OR" if ratio else None)
    np.testing.assert_allclose(table.reports.estimate[:, 0], estimate, atol=0.02)
    np.testing.assert_allclose(errors_of(table), se, rtol=0.1)


def test_the_scale_is_seen_from_the_numbers_and_can_be_given(tmp_path: Path) -> None:
    path, estimate, _ = interval_table(tmp_path, "effect", 0.95, ratio=True)
    assert read_reports(path).reports.names == ("log_effect",)
    given = read_reports(path, choice=ColumnChoice(limits_scale="given"))
    np.testing.assert_allclose(given.reports.estimate[:, 0], np.exp(estimate), atol=0.006)
    assert not any("symmetric" in note for note in read_reports(path).notes)


@pytest.mark.parametrize("clients", [2, 20])
@pytest.mark.parametrize("ratio", [False, True])
def test_the_right_scale_is_seen_in_printed_tables(ratio: bool, clients: int) -> None:
    """Positive estimates, which could be either; rounded to two digits."""
    rng = np.random.default_rng(0)
    right = 0
    for _ in range(100):
        estimate = rng.uniform(0.5, 2, clients)
        error = rng.uniform(0.05, 0.3, clients)
        around = [np.exp(sign * 1.96 * error) if ratio else 1 + sign * 1.96 * error for sign in (-1, 0, 1)]
        lower, middle, upper = (np.round(estimate * factor, 2) for factor in around)
        ids = [f"s{k}" for k in range(clients)]
        table = pa.table({"study": ids, "effect": middle, "lower": lower, "upper": upper})
        layout = choose_columns(table.column_names, ColumnChoice())
        _, used = as_standard_errors(table, layout, pytest.fail)
        right += used.names == (("log_effect",) if ratio else ("effect",))
    assert right >= 99


def test_a_saved_population_decides_the_scale(tmp_path: Path) -> None:
    path = written(tmp_path, "study,OR,lower,upper\na,1.50,1.40,1.60\nb,1.2,1.0,1.4\n")
    assert read_reports(path, names=("log_OR",)).reports.names == ("log_OR",)
    assert read_reports(path, names=("OR",)).reports.names == ("OR",)
    with pytest.raises(InvalidReport, match="the table has OR, but log_HR is expected"):
        read_reports(path, names=("log_HR",))


def test_several_parameters_with_limits(tmp_path: Path) -> None:
    path = written(tmp_path, "s,b_x,b_z,lo_x,lo_z,hi_x,hi_z\na,1,2,0,1,2,3\nb,1,5,-1,1,3,9\n")
    choice = ColumnChoice(estimate=("b_*",), lower=("lo_*",), upper=("hi_*",), limits_scale="given")
    table = read_reports(path, choice=choice, names=("z", "x"))
    assert table.reports.names == ("z", "x")
    precision = table.reports.covariance.unit_precision * table.reports.n[:, None]
    np.testing.assert_allclose(1 / np.sqrt(precision), np.array([[1, 1], [4, 2]]) / norm.ppf(0.975))


def test_limits_that_are_lopsided_either_way_are_said_to_be(tmp_path: Path) -> None:
    path = written(tmp_path, "s,estimate,lower,upper\na,0.05,0,0.5\nb,0.1,0,0.6\n")
    assert any("symmetric neither as given nor as logarithms" in note for note in read_reports(path).notes)


@pytest.mark.parametrize("row", ["b,0.5,0.6,0.7", "b,0.5,0.5,0.5", "b,0.5,,0.7", "b,0.5,0.1,inf"])
def test_limits_that_are_none_are_refused_by_client(tmp_path: Path, row: str) -> None:
    path = written(tmp_path, f"study,estimate,lower,upper\na,0.5,0.3,0.7\n{row}\n")
    with pytest.raises(
        InvalidReport, match=r"client 'b', columns lower, estimate, upper: .*are not a lower limit"
    ):
        read_reports(path)
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 2
    assert "1 problem\n" in result.output


def test_what_is_no_number_is_said_once(tmp_path: Path) -> None:
    path = written(tmp_path, "study,estimate,lower,upper\na,n.a.,0.3,0.7\nb,0.2,0.1,0.3\n")
    result = CliRunner().invoke(app, ["check", str(path)])
    assert "1 problem\n" in result.output
    assert "row 1, column estimate: 'n.a.' is not a number" in result.output


def test_a_missing_limit_of_a_parquet_file_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    columns = {"s": ["a", "b"], "estimate": [0.5, 0.2], "lower": [0.3, None], "upper": [0.7, 0.3]}
    pq.write_table(pa.table(columns), path)
    result = CliRunner().invoke(app, ["check", str(path)])
    assert "1 problem\n" in result.output
    assert "client 'b', columns lower, estimate, upper: nan, 0.2, 0.3 are not" in result.output


def test_ratios_must_be_positive(tmp_path: Path) -> None:
    path = written(tmp_path, "study,OR,lower,upper\na,0.5,0.0,0.9\nb,1,0.5,2\n")
    with pytest.raises(InvalidReport, match=r"client 'a'.*upper limit of a ratio"):
        read_reports(path, choice=ColumnChoice(limits_scale="log"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lower": ("l",), "estimate": ("e",)}, "--lower: both limits are needed"),
        (
            {"lower": ("l",), "upper": ("u",), "se": ("s",), "estimate": ("e",)},
            "--se and --lower: both given",
        ),
        ({"lower": ("l",), "upper": ("u",)}, "--lower without --estimate"),
        ({"limits_level": 95.0}, "--limits-level 95: must lie between 0 and 1"),
        ({"limits_scale": "logit"}, "--limits-scale logit: write given or log"),
    ],
)
def test_options_that_do_not_fit_together(given: dict, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        ColumnChoice(**given)


def test_the_command_says_what_it_took(tmp_path: Path) -> None:
    path = written(
        tmp_path, "study,OR,lower,upper\na,1.5,0.9,2.5\nb,0.8,0.5,1.28\nc,2.1,1.2,3.68\nd,1.1,.7,1.73\n"
    )
    out, page = tmp_path / "out.csv", tmp_path / "page.html"
    result = CliRunner().invoke(app, ["personalize", str(path), "-o", str(out), "--report", str(page)])
    assert result.exit_code == 0, result.output
    assert "note: took study as client; OR as estimate; lower, upper as its 95% limits" in result.output
    assert (
        "(log upper - log lower) / 3.92 as standard error of log_OR; results are logarithms" in result.output
    )
    assert out.read_text().startswith("client,theta_log_OR,")
    assert "Personalised estimates of the OR run from" in page.read_text()
