"""All problems of a table at once, and none that a reading would not have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vaneb.errors import VanebError
from vaneb.problems import find_problems
from vaneb.tables import read_reports

BAD = """client;theta_a;se_a;n
x;1,5;1;10
x;abc;0;0
;2;-1;5
y;;1;3
z;1;1
w;1e400;NA;7
v;1.500;0,2;8
"""


def test_every_problem_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(BAD)
    found = find_problems(path)
    expected = [
        "bad.csv, row 2, column theta_a: 'abc' is not a number",
        "bad.csv, row 5: 3 cells, but the header has 4. Check the semicolons",
        "bad.csv, row 7, column theta_a: '1.500' is not a number. Write thousands without a sign",
        "client 'x', column client: appears in rows 1 and 2",
        "row 3, column client: empty",
        "client 'y', column theta_a: the estimate is missing",
        "client 'w', column theta_a: the estimate is inf",
        "client 'x', column n: the sample size is 0",
        "client 'x', column se_a: the standard error is 0",
        "client '', column se_a: the standard error is -1",
        "client 'w', column se_a: the standard error is missing",
    ]
    assert len(found.problems) == len(expected)
    for said, words in zip(found.problems, expected, strict=True):
        assert words in said
    assert found.clients == 6
    assert found.ranges["n"] == (0, 10)


def test_problems_name_the_columns_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "meta.csv"
    path.write_text("study,yi,vi\n1,0.5,0\n2,,1\n2,1,1\n")
    assert [text.split(":")[0] for text in find_problems(path).problems] == [
        "client '2', column study",
        "client '2', column yi",
        "client '1', column vi",
    ]


def test_each_bad_matrix_of_many_is_named(tmp_path: Path) -> None:
    k = 3000
    off = np.where(np.isin(np.arange(k), [5, 1999, 2999]), 2.0, 0.5)
    table = {"client": np.arange(k), "theta_a": np.zeros(k), "theta_b": np.zeros(k)}
    table |= {"cov_a__a": np.ones(k), "cov_a__b": off, "cov_b__b": np.ones(k)}
    pq.write_table(pa.table(table), tmp_path / "reports.parquet")
    said = find_problems(tmp_path / "reports.parquet").problems
    assert [text.split(",")[0] for text in said] == ["client '5'", "client '1999'", "client '2999'"]


@pytest.mark.parametrize(
    "content",
    [
        "client,theta_a,se_a\nx,1,1\n",
        "client,theta_a,se_a\n",
        "",
        "client,theta_a\nx,1\n",
        "client,theta_a,se_a\nx,1,1\nx,1,1\n",
        "client,theta_a,prec_a__a\nx,1,0\ny,1,-1\n",
        "a;b;se\nx;1,5;2\ny;2,5;0\n",
        "client,theta_a,theta_b,cov_a__a,cov_a__b,cov_b__b\nx,1,2,1,1,1\n",
    ],
)
def test_a_check_finds_problems_where_a_reading_refuses(tmp_path: Path, content: str) -> None:
    path = tmp_path / "reports.csv"
    path.write_text(content)
    found = find_problems(path)
    said = None
    try:
        read_reports(path)
    except VanebError as error:
        said = str(error)
    # The reading stops at one of them.
    assert (said in found.problems) if said else (found.problems == ())


def test_a_variance_function_is_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("town,rate,cases\nx,0.5,0\n")
    from vaneb.column_choice import ColumnChoice

    choice = ColumnChoice(estimate=("rate",), n="cases")
    assert "column cases: the sample size is 0" in find_problems(path, "binomial", choice=choice).problems[0]
    assert "'cubic' is unknown" in find_problems(path, "cubic", choice=choice).problems[0]
