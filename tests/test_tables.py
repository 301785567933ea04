"""Files in and out: round trips, refusals that name the cell, garbage, and writes that are all or nothing."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from report_strategies import reports
from vaneb.covariance import QuadraticVariance, by_name
from vaneb.errors import InvalidOption, InvalidReport, VanebError
from vaneb.files import replacing, write_atomically
from vaneb.reports import Reports
from vaneb.tables import read_reports, results_table, write_reports, write_table


def in_one_folder(examples: int = 100) -> settings:
    """Examples may share the test's temporary folder: each overwrites the file of the one before."""
    return settings(max_examples=examples, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, content: str | bytes, name: str = "reports.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refused(path: Path, message: str, **options) -> None:
    with pytest.raises(VanebError, match=message):
        read_reports(path, **options)


# ---------------------------------------------------------------- reading


def test_a_plain_csv(tmp_path: Path) -> None:
    path = write(tmp_path, "\ufeffclient,theta_a,se_a,n\r\n007, 1.5 ,0.5,10\r\n\r\n'x,+2e-1,.25,20\r\n")
    made = read_reports(path).reports
    assert made.ids.tolist() == ["007", "'x"]
    assert_array_equal(made.estimate, [[1.5], [0.2]])
    assert_array_equal(made.n, [10, 20])
    assert_allclose(made.n[:, None] * made.covariance.unit_precision, [[4.0], [16.0]])


def test_columns_in_any_order_and_either_triangle(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        'prec_b__a,theta_b,note,client,prec_b__b,theta_a,prec_a__a\n1,20,"x,y",one,2,10,3\n-1,40,,two,2,30,1\n',
    )
    table = read_reports(path)
    assert table.reports.names == ("b", "a")
    assert_array_equal(table.reports.estimate, [[20, 10], [40, 30]])
    assert_array_equal(table.reports.covariance.unit_precision, [[[2, 1], [1, 3]], [[2, -1], [-1, 1]]])
    assert table.notes == ("ignored columns: note",)


def test_variance_function_needs_n_and_no_standard_errors(tmp_path: Path) -> None:
    path = write(tmp_path, "client,n,theta_a\nx,10,1.5\ny,20,2.5\n")
    made = read_reports(path, variance_function="poisson").reports
    assert isinstance(made.covariance, QuadraticVariance)
    refused(path, r"column se_<name>, cov_<a>__<b> or prec_<a>__<b>: missing.*variance function")
    without = write(tmp_path, "client,theta_a,se_a\nx,1.5,1\n", "without.csv")
    refused(without, "column n: missing.*n is needed", variance_function="poisson")
    refused(path, "'poison' is unknown", variance_function="poison")
    both = write(tmp_path, "client,n,theta_a,se_a\nx,10,1.5,1\n", "both.csv")
    assert read_reports(both, variance_function="poisson").notes == ("ignored columns: se_a",)


def test_parameter_names_may_contain_the_separator_unless_ambiguous(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "client,theta_a__b,theta_c,cov_a__b__a__b,cov_a__b__c,cov_c__c\nx,1,2,1,0,1\n",
    )
    assert read_reports(path).reports.names == ("a__b", "c")
    columns = [f"theta_{a}" for a in ("a", "a__b", "b__c", "c")] + ["cov_a__b__c"]
    refused(
        write(tmp_path, f"client,{','.join(columns)}\nx,1,2,3,4,5\n"),
        "column cov_a__b__c: could be two pairs of parameters",
    )


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint8(), pa.string(), pa.large_string()])
def test_the_client_column_keeps_its_type(tmp_path: Path, kind: pa.DataType) -> None:
    clients = pa.array(["5", "17"]).cast(kind)
    path = tmp_path / "reports.parquet"
    pq.write_table(pa.table({"client": clients, "theta_a": [1, 2], "se_a": [0.1, 0.2]}), path)
    table = read_reports(path)
    assert table.reports.ids.tolist() == ["5", "17"]
    out = results_table(posterior_like(table.reports), 0.9, table.client_type)
    assert out["client"].combine_chunks() == clients


def test_a_categorical_client_column(tmp_path: Path) -> None:
    path = tmp_path / "reports.parquet"
    clients = pa.array(["a", "b"]).dictionary_encode()
    pq.write_table(pa.table({"client": clients, "theta_a": [1.0, 2.0], "se_a": [0.1, 0.2]}), path)
    assert read_reports(path).reports.ids.tolist() == ["a", "b"]


# ---------------------------------------------------------------- refusals

REFUSED = {
    "empty": ("", r"reports\.csv: empty"),
    "blank lines": ("\n\n", r"reports\.csv: empty"),
    "header only": ("client,theta_a,se_a\n", r"reports\.csv: has a header but no rows"),
    "no client column": ("theta_a,se_a\n1,1\n", r"column client: missing.*theta_a, se_a. Add a column"),
    "no estimate": ("client,size,se_a\nx,1,1\n", r"columns of estimates: not recognised.*client, size, se_a"),
    "theta without name": ("client,theta_,se_a\nx,1,1\n", r"column theta_: has no parameter name"),
    "missing se": (
        "client,theta_age,theta_b,se_b,se_agee\nx,1,2,1,1\n",
        r"column se_age: missing.*'se_agee'",
    ),
    "se of a stranger": (
        "client,theta_age,se_age,se_agf\nx,1,2,3\n",
        r"column se_agf: there is no theta_ column for 'agf'. Did you mean 'age'",
    ),
    "se and cov": (
        "client,theta_a,se_a,cov_a__a\nx,1,1,1\n",
        r"columns se_\.\.\. and cov_\.\.\.: both present",
    ),
    "incomplete triangle": (
        "client,theta_a,theta_b,cov_a__a,cov_b__b\nx,1,2,1,1\n",
        r"column cov_a__b: missing, the triangle is incomplete",
    ),
    "both triangles": (
        "client,theta_a,theta_b,cov_a__a,cov_a__b,cov_b__a,cov_b__b\nx,1,2,1,0,0,1\n",
        r"columns cov_a__b and cov_b__a: the same entry twice",
    ),
    "cov of a stranger": (
        "client,theta_a,cov_a__a,cov_a__z\nx,1,1,0\n",
        r"column cov_a__z: there is no theta_ column for 'a__z'",
    ),
    "column twice": ("client,theta_a,theta_a,se_a\nx,1,1,1\n", r"column theta_a: appears twice"),
    "not a number": (
        "client,theta_a,se_a\nx,1,1\ny,abc,1\n",
        r"reports\.csv, row 2, column theta_a: 'abc' is not a number",
    ),
    "thousands": ('client,theta_a,se_a\nx,"1,500",1\n', r"row 1, column theta_a: '1,500'.*with a point"),
    "both signs": (
        "client;theta_a;se_a\nx;1.500;1,5\ny;1,5;2,5\n",
        r"row 1, column theta_a: '1.500'.*thousands",
    ),
    "underscore": ("client,theta_a,se_a\nx,1_000,1\n", r"row 1, column theta_a: '1_000' is not a number"),
    "hexadecimal": ("client,theta_a,se_a\nx,0x10,1\n", r"row 1, column theta_a: '0x10' is not a number"),
    "short row": ("client,theta_a,se_a\nx,1,1\ny,1\n", r"row 2: 2 cells, but the header has 3"),
    "long row": ("client,theta_a,se_a\nx,1,1,1\n", r"row 1: 4 cells, but the header has 3"),
    "open quote": ('client,theta_a,se_a\n"x,1,1\ny,1,1\n', r"row 1: 1 cell, but"),
    "missing number": ("client,theta_a,se_a\nx,,1\n", r"client 'x', column theta_a: the estimate is missing"),
    "NA": ("client,theta_a,se_a\nx,1,NA\n", r"client 'x', column se_a: the standard error is missing"),
    "infinite": ("client,theta_a,se_a\nx,1e999,1\n", r"client 'x', column theta_a: the estimate is inf"),
    "no id": ("client,theta_a,se_a\nx,1,1\n,1,1\n", r"row 2, column client: empty"),
    "id twice": (
        "client,theta_a,se_a\nx,1,1\nx,1,1\n",
        r"client 'x', column client: appears in rows 1 and 2",
    ),
    "binary": (b"\x7fELF\x00\x01\x02" * 9, r"reports\.csv: not a table of text. Save it as"),
    "old Excel": (b"\xd0\xcf\x11\xe0" * 9, r"an Excel file of the old kind \(\.xls\). Save it as"),
    "huge cell": ('client,theta_a,se_a\nx,"' + "9," * 100_000 + '",1\n', r"not a CSV file|is not a number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_name_the_place(tmp_path: Path, case: str) -> None:
    content, message = REFUSED[case]
    refused(write(tmp_path, content), message)


def test_refusals_of_paths(tmp_path: Path) -> None:
    refused(tmp_path / "none.csv", "there is no such file")
    refused(tmp_path / "none.parquet", "there is no such file")
    (tmp_path / "sites.csv").write_text("client,theta_a,se_a\n")
    refused(tmp_path / "site.csv", r"Did you mean .*sites\.csv\?")
    refused(tmp_path / "folder" / "sites.csv", "no folder .*folder. Check the path")
    (tmp_path / "folder.csv").mkdir()
    refused(tmp_path / "folder.csv", "is a folder")
    refused(write(tmp_path, "client,theta_a\n", "csv.parquet"), "not a Parquet file")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("client", [1.5, 2.5], "column client: holds double, not ids"),
        ("client", [1, None], "row 2, column client: None is not an id"),
        ("theta_a", ["1", "2"], "column theta_a: holds String, not numbers"),
        ("theta_a", [[1.0], [2.0]], "column theta_a: holds List"),
        ("se_a", [True, True], "column se_a: holds Boolean"),
        ("se_a", [1.0, None], "client '2', column se_a: the standard error is missing"),
    ],
)
def test_refusals_of_parquet_columns(tmp_path: Path, column: str, values: list, message: str) -> None:
    columns = {"client": ["1", "2"], "theta_a": [1.0, 2.0], "se_a": [1.0, 2.0]} | {column: values}
    path = tmp_path / "reports.parquet"
    pq.write_table(pa.table(columns), path)
    refused(path, message)


# ---------------------------------------------------------------- round trips


@in_one_folder()
@given(reports, st.sampled_from(["reports.csv", "reports.parquet"]))
def test_round_trip(tmp_path: Path, made: Reports, name: str) -> None:
    write_reports(tmp_path / name, made)
    again = read_reports(tmp_path / name).reports
    assert again.names == made.names
    assert again.ids.tolist() == made.ids.tolist()
    assert_array_equal(again.estimate, made.estimate)
    assert_array_equal(again.n, made.n)
    unit = made.covariance.unit_precision
    scale = np.sqrt(np.max(unit if unit.ndim == 2 else np.diagonal(unit, axis1=1, axis2=2), axis=0))
    scale[scale == 0] = 1.0
    tolerance = 1e-13 * (scale if again.covariance.unit_precision.ndim == 2 else np.outer(scale, scale))
    full = (
        unit if unit.ndim == again.covariance.unit_precision.ndim else unit[:, :, None] * np.eye(len(scale))
    )
    tolerance = np.maximum(tolerance, 1e-13 * np.abs(full))
    assert (np.abs(again.covariance.unit_precision - full) <= tolerance).all()


def test_round_trip_of_a_variance_function(tmp_path: Path) -> None:
    made = Reports([[1.0], [2.0]], n=[3, 4], covariance=by_name("poisson", 1, 2), names=["a"])
    write_reports(tmp_path / "reports.csv", made)
    assert (tmp_path / "reports.csv").read_text() == "client,n,theta_a\n0,3,1\n1,4,2\n"
    again = read_reports(tmp_path / "reports.csv", variance_function="poisson").reports
    assert_array_equal(again.estimate, made.estimate)


# ---------------------------------------------------------------- garbage

PIECES = st.sampled_from(
    [
        "client",
        "theta_a",
        "theta_b",
        "se_a",
        "se_b",
        "cov_a__a",
        "prec_a__b",
        "n",
        "1",
        "-2.5",
        "1e400",
        "nan",
    ]
    + [",", ",", ",", "\n", "\n", '"', ";", "\r", "\x00", "é", " ", "x", "__", "theta_", "\ufeff"]
)


@in_one_folder(300)
@given(st.lists(PIECES, max_size=40).map("".join).map(str.encode) | st.binary(max_size=200))
@example(b"client,theta_a,se_a\nx,1,1\x00\n")
@example(b'client,theta_a,se_a\nx,1,"1"1\n')
def test_any_csv_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, content)
    for options in ({}, {"variance_function": "poisson"}):
        try:
            made = read_reports(path, **options).reports
        except VanebError:
            continue
        assert np.isfinite(made.estimate).all()


VALID_CSV = b"client,n,theta_a,theta_b,cov_a__a,cov_a__b,cov_b__b\nx,10,1,2,1,0.5,2\ny,20,3,4,2,-0.5,1\n"


@in_one_folder(200)
@given(st.lists(st.tuples(st.integers(0, len(VALID_CSV) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_mangled_csv_is_read_or_refused(tmp_path: Path, changes: list) -> None:
    content = bytearray(VALID_CSV)
    for place, value in changes:
        content[place] = value
    try:
        made = read_reports(write(tmp_path, bytes(content))).reports
    except VanebError:
        return
    assert np.isfinite(made.estimate).all()
    assert (made.n > 0).all()


@in_one_folder(200)
@given(st.data())
def test_a_mangled_parquet_file_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    source = tmp_path / "valid.parquet"
    if not source.exists():
        write_reports(source, read_reports(write(tmp_path, VALID_CSV)).reports)
    content = bytearray(source.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 3)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(VanebError):
        read_reports(write(tmp_path, bytes(content), "mangled.parquet"))


# ---------------------------------------------------------------- writing


def posterior_like(made: Reports) -> SimpleNamespace:
    """The attributes of a posterior that the table needs, with numbers that are easy to recognise."""
    n_clients, dimension = made.estimate.shape
    return SimpleNamespace(
        ids=made.ids,
        names=made.names,
        mean=made.estimate,
        sd=np.full((n_clients, dimension), 2.0),
        interval=lambda level: (made.estimate - level, made.estimate + level),
        shrinkage=np.full(n_clients, 0.25),
        log_marginal=np.full(n_clients, -1.5),
        flag=np.array([""] * (n_clients - 1) + ["unexplained"]),
        likelihood=made.likelihood(),
    )


def test_results_have_the_columns_of_the_contract(tmp_path: Path) -> None:
    made = Reports(
        [[1.0, 2.0], [3.0, 4.0]], standard_errors=np.ones((2, 2)), ids=["x", 'y, "z"'], names=["a", "b"]
    )
    table = results_table(posterior_like(made), 0.5)
    write_table(tmp_path / "out.csv", table)
    assert (tmp_path / "out.csv").read_text().splitlines() == [
        "client,theta_a,theta_b,sd_a,sd_b,lower_a,lower_b,upper_a,upper_b,own_a,own_b,own_se_a,own_se_b,"
        "shrinkage,log_marginal,flag",
        '"x",1,2,2,2,0.5,1.5,1.5,2.5,1,2,1,1,0.25,-1.5,""',
        '"y, ""z""",3,4,2,2,2.5,3.5,3.5,4.5,3,4,1,1,0.25,-1.5,"unexplained"',
    ]
    write_table(tmp_path / "out.parquet", table)
    assert pq.read_table(tmp_path / "out.parquet").equals(table)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path, "old", "out.csv")

    def fail_half_way() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.csv"]
    write_atomically(path, b"new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["out.csv"]


def test_permissions_and_links_survive(tmp_path: Path) -> None:
    path = write(tmp_path, "old", "out.csv")
    path.chmod(0o640)
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    new = tmp_path / "new.csv"
    write_atomically(new, b"")
    assert stat.S_IMODE(new.stat().st_mode) & 0o600 == 0o600


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"does not exist\. Create it first"):
        write_atomically(tmp_path / "none" / "out.csv", b"")
    with pytest.raises(InvalidOption, match="is not a file"):
        write_atomically(tmp_path, b"")


def test_unknown_suffix_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="unknown kind of table"):
        write_table(tmp_path / "out.txt", pa.table({"a": [1]}))
    with pytest.raises(InvalidReport, match="no such file"):
        read_reports(tmp_path / "reports.csv")
    assert os.listdir(tmp_path) == []
