"""The one reader of tables: every kind of file gives the same reports and rows."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.sources import open_table, read_rows
from vaneb.tables import read_reports, write_table

HOSPITALS = Path(__file__).parent / "files" / "hospitals_german_excel.csv"
COLUMNS = ["client", "estimate", "se", "remark"]
ROWS = [("007", 1.5, 0.5, "x"), ("Köln", -0.25, 1.25, None), ("a, b", 3.0, 2.0, "")]


def csv_text(separator: str, decimal: str) -> str:
    def cell(value: object) -> str:
        text = "" if value is None else str(value)
        text = text.replace(".", decimal) if isinstance(value, float) else text
        return f'"{text}"' if separator in text else text

    return "\n".join(separator.join(map(cell, row)) for row in [COLUMNS, *ROWS]) + "\n"


def as_sheet(path: Path, *others: str) -> Path:
    openpyxl = pytest.importorskip("openpyxl", reason="pip install 'vaneb[excel]'")
    book = openpyxl.Workbook()
    for row in [COLUMNS, *ROWS, (None, None)]:
        book.active.append(row)
    for name in others:
        book.create_sheet(name)
    book.save(path)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
@pytest.mark.parametrize("line", ["\n", "\r\n", "\r"])
def test_every_way_to_write_a_text(
    tmp_path: Path, separator: str, decimal: str, encoding: str, line: str
) -> None:
    path = tmp_path / "reports.txt"  # the name does not matter
    path.write_bytes(csv_text(separator, decimal).replace("\n", line).encode(encoding))
    table = read_reports(path)
    assert table.reports.ids.tolist() == ["007", "Köln", "a, b"]
    assert_array_equal(table.reports.estimate[:, 0], [1.5, -0.25, 3])
    assert_array_equal(1 / table.reports.covariance.unit_precision[:, 0] ** 0.5, [0.5, 1.25, 2])
    plain = encoding in ("utf-8", "utf-8-sig") and (separator, decimal) == (",", ".")
    assert any(note.startswith("read ") for note in table.notes) == (not plain)


def test_a_table_saved_by_a_german_excel() -> None:
    table = read_reports(HOSPITALS)
    assert table.notes == (
        f"read {HOSPITALS} as Latin-1 (Windows-1252), semicolons between columns, decimal commas",
        "took Krankenhaus as client; estimate as estimate; se as its standard error",
        "ignored columns: Fälle, Bemerkung",
    )
    assert len(table.reports) == 12  # and not the empty row at the end
    assert table.reports.ids[0] == "Städtisches Klinikum Köln"
    assert table.reports.ids[3] == "St. Josef, Münster"
    assert_array_equal(table.reports.estimate[:2, 0], [0.392, -0.230])


def test_a_sheet_of_excel(tmp_path: Path) -> None:
    table = read_reports(as_sheet(tmp_path / "reports.xlsx", "second"))
    assert table.reports.ids.tolist() == ["007", "Köln", "a, b"]
    assert_array_equal(table.reports.estimate[:, 0], [1.5, -0.25, 3])
    assert table.notes[0] == f"read {tmp_path / 'reports.xlsx'}, sheet 'Sheet', number 1 of 2"
    # The content counts, not the name.
    os.rename(tmp_path / "reports.xlsx", tmp_path / "reports.csv")
    assert read_reports(tmp_path / "reports.csv").reports.ids.tolist() == ["007", "Köln", "a, b"]


def test_sheets_come_back_as_they_were_written(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    made = pa.table({"client": ["=1+1", "Köln"], "theta_a": [0.1, None], "n": [3, 4]})
    write_table(tmp_path / "out.xlsx", made)
    again = open_table(tmp_path / "out.xlsx").inferred()
    assert again.to_pydict() == made.to_pydict()


def test_excel_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vaneb.sources.find_spec", lambda name: None)
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04")
    with pytest.raises(InvalidOption, match=r"a\.xlsx: Excel files need.*pip install 'vaneb\[excel\]'"):
        open_table(tmp_path / "a.xlsx")


def test_a_broken_sheet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InvalidReport, match=r"a\.xlsx: not an Excel file that can be read"):
        open_table(tmp_path / "a.xlsx")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_standard_input_is_what_it_holds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO(csv_text(";", ",").encode("latin-1"))
    if kind == "parquet":
        data = io.BytesIO()
        pq.write_table(pa.table(dict(zip(COLUMNS, zip(*ROWS, strict=True), strict=True))), data)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data.getvalue())))
    assert read_reports("-").reports.ids.tolist() == ["007", "Köln", "a, b"]


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, csv_text(",", ".").encode())
    os.close(writer)
    try:
        assert len(read_reports(f"/dev/fd/{reader}").reports) == 3
    finally:
        os.close(reader)


def test_columns_without_a_name(tmp_path: Path) -> None:
    """R's row names, and what a spreadsheet adds on the right."""
    path = tmp_path / "from_r.csv"
    path.write_text('"","coef","Std. Error","",""\n"north",1.5,0.5,,\n"south",2,1,,\n')
    table = read_reports(path)
    assert table.reports.ids.tolist() == ["north", "south"]
    assert table.notes == (
        "took unnamed 1 as client; coef as estimate; Std. Error as its standard error",
        "ignored columns: unnamed 4, unnamed 5",
    )
    assert read_rows(path)[0].column_names == ["unnamed 1", "coef", "Std. Error", "unnamed 4", "unnamed 5"]


def test_rows_have_the_types_they_seem_to_have(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("site;x;y;kind\n07;1,5;NA;ä\n8;2,5;3;b\n".encode("latin-1"))
    table, notes = read_rows(path, ids=["site"], na=["NA"])
    assert table.to_pydict() == {"site": ["07", "8"], "x": [1.5, 2.5], "y": [None, 3], "kind": ["ä", "b"]}
    assert read_rows(path)[0]["y"].to_pylist() == ["NA", "3"]
    assert notes == (f"read {path} as Latin-1 (Windows-1252), semicolons between columns, decimal commas",)
    path.write_text("site,x\n1,2\n1,2,3\n")
    with pytest.raises(InvalidReport, match=r"rows\.csv, row 2: 3 cells, but the header has 2"):
        read_rows(path)


def test_large_tables_are_read_by_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow reader is for complaints only."""
    monkeypatch.setattr("vaneb.sources.TextTable.numbers_by_cell", None)
    path = tmp_path / "reports.csv"
    lines = [f"{k};{k},5;1,5" for k in range(5000)]
    path.write_text("\n".join(["client;theta_a;se_a", *lines]))
    assert_array_equal(read_reports(path).reports.estimate[:, 0], np.arange(5000) + 0.5)


@pytest.mark.parametrize(
    ("cell", "is_date"),
    [
        ("01.02.2024", True),
        ("2024-01-02T00:00:00", True),
        ("05-Mrz", True),
        ("3. Mai", True),
        ("1/2/24", True),
    ]
    + [("12 mmHg", False), ("1.250.000", False), ("5 apples", False)],
)
def test_what_a_spreadsheet_made_a_date_is_told_from_other_words(
    tmp_path: Path, cell: str, is_date: bool
) -> None:
    path = tmp_path / "in.csv"
    path.write_text(f"hospital;estimate;se\nNorth;{cell};0.1\n")
    with pytest.raises(InvalidReport) as refused:
        read_reports(path)
    assert ("looks like a date" in str(refused.value)) == is_date
