"""The one reader of tables, for all commands: CSV, Excel's .xlsx, Parquet.

The content says which it is, not the name; ``dialect`` recognises how a text was written.  A text is read by
pyarrow.  Where that fails, a slow reader goes through it cell by cell, and either finds the place to complain
about or reads what pyarrow would not.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from vaneb import dialect, layout
from vaneb.dialect import Dialect, TextOptions
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.files import STANDARD, absent

#: What stands for a missing value in a text, as in pyarrow.
MISSING = frozenset(pa.csv.ConvertOptions().null_values)
#: What a site of a federation takes for a missing value in rows.
MISSING_IN_ROWS = ["", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "null", "NULL", "#N/A", "<NA>"]
EXCEL = "Excel"
SAVE_AS = "Save it as .csv, .xlsx or .parquet."
#: What spreadsheets make of numbers such as 1.2 and 3/4, and how their dates arrive here.
MONTH = "jan|feb|m[aä]?r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz]"
DATE = re.compile(
    rf"\d{{1,4}}([./-])\d{{1,2}}\1\d{{2,4}}(T[\d:.]+)?|\d{{1,2}}[. -]*({MONTH})[a-z]*[. -]*(\d{{2,4}})?",
    re.IGNORECASE,
)

Problem = Callable[[str], None]


def refuse(message: str) -> NoReturn:
    """The problem that ends a reading; a check collects them instead."""
    raise InvalidReport(message)


@dataclass(frozen=True)
class TextTable:
    """A table of text that was opened: its columns are known, its cells are read when asked for."""

    place: str
    text: bytes
    """UTF-8."""
    dialect: Dialect
    columns: tuple[str, ...]
    header_lines: int
    """Lines up to the end of the header."""
    kind: str
    """In words, such as "CSV, UTF-8, commas between columns, decimal points"."""
    notes: tuple[str, ...]

    def numbers(self, used: Sequence[str], client: str) -> pa.Table:
        """The columns ``used`` as numbers, but ``client`` as text."""
        types = {column: pa.string() if column == client else pa.float64() for column in used}
        try:
            return self._arrow(column_types=types, include_columns=list(used))
        except pa.ArrowException:
            return self.numbers_by_cell(used, client, refuse)[0]

    def numbers_by_cell(
        self, used: Sequence[str], client: str, problem: Problem
    ) -> tuple[pa.Table, list[int]]:
        """The same, slowly, and the number of each row.

        ``problem`` is told of every cell that is no number, which becomes null (a missing one is NaN), and of
        every row that has not as many cells as the header, which is left out.
        """
        places = [(column, self.columns.index(column)) for column in used]
        cells: dict[str, list[Any]] = {column: [] for column in used}
        numbers = []
        for number, row in self.rows(problem):
            numbers.append(number)
            for column, at in places:
                text = row[at]
                cells[column].append(
                    text if column == client else self._number(text, number, column, problem)
                )
        kinds = {column: pa.string() if column == client else pa.float64() for column in used}
        return pa.table({c: pa.array(values, kinds[c]) for c, values in cells.items()}), numbers

    def inferred(self, ids: Sequence[str] = (), missing: Sequence[str] = MISSING_IN_ROWS) -> pa.Table:
        """All columns, their types inferred; ``ids`` with leading zeros stay what they are: text.

        ``missing``: cells that are missing values.
        """
        layout.refuse_repeated(self.columns)
        options = {"null_values": list(missing), "strings_can_be_null": True}
        try:
            table = self._arrow(**options)
            padded = {c: pa.string() for c in ids if c in self.columns and self._has_leading_zeros(c)}
            return self._arrow(**options, column_types=padded) if padded else table
        except pa.ArrowException as error:
            for _ in self.rows(refuse):
                pass
            raise InvalidReport(f"{self.place}: cannot be read as a table ({_first_line(error)}).") from None

    def rows(self, problem: Problem) -> Iterator[tuple[int, list[str]]]:
        """Rows that have as many cells as the header, with their numbers, counted from 1 below it."""
        reader = dialect.rows_of(self.text, self.dialect.separator)
        number = 0
        try:
            for row in (row for row in reader if row):
                number += 1
                if number == 1:
                    continue
                if len(row) == len(self.columns):
                    yield number - 1, row
                    continue
                separators = dialect.SEPARATORS.get(self.dialect.separator, "separators")
                problem(
                    f"{self.place}, row {number - 1}: {_count(len(row), 'cell')}, but the header has "
                    f"{len(self.columns)}. Check the {separators} and quotes of that row."
                )
        except csv.Error as error:
            problem(f"{self.place}, line {reader.line_num}: not a CSV file ({error}). Check its quotes.")

    def _number(self, text: str, row: int, column: str, problem: Problem) -> float | None:
        text = text.strip()
        if text in MISSING:
            return math.nan
        decimal = self.dialect.decimal
        try:
            # Python reads 1_000 as a number; in a table it is more likely a slip.
            plain = text.replace("_", "?").replace("\N{MINUS SIGN}", "-")
            return float(plain.replace(".", "?").replace(",", ".") if decimal == "," else plain)
        except ValueError:
            pass
        problem(
            f"{self.place}, row {row}, column {column}: {text[:40]!r} is not a number. "
            + _remedy_of_number(text, decimal, self.kind.startswith(EXCEL))
        )
        return None

    def _has_leading_zeros(self, column: str) -> bool:
        texts = self._arrow(include_columns=[column], column_types={column: pa.string()})[column]
        return bool(pc.any(pc.match_substring_regex(texts, r"^0\d")).as_py())

    def _arrow(self, **options: Any) -> pa.Table:
        return pa.csv.read_csv(
            pa.BufferReader(self.text),
            read_options=pa.csv.ReadOptions(column_names=self.columns, skip_rows=self.header_lines),
            parse_options=pa.csv.ParseOptions(delimiter=self.dialect.separator, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(decimal_point=self.dialect.decimal, **options),
        )


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file that was opened."""

    place: str
    file: pq.ParquetFile
    columns: tuple[str, ...]
    kind: str = "Parquet"
    notes: tuple[str, ...] = ()

    def numbers(self, used: Sequence[str], client: str) -> pa.Table:
        """The columns ``used`` as they are."""
        return _parquet(self.place, lambda: self._valid(list(used)))

    def inferred(self, ids: Sequence[str] = (), missing: Sequence[str] = MISSING_IN_ROWS) -> pa.Table:
        """All columns as they are."""
        return _parquet(self.place, lambda: self._valid(None))

    def _valid(self, columns: list[str] | None) -> pa.Table:
        table = self.file.read(columns=columns)
        table.validate(full=True)
        return table


def open_table(path: str | os.PathLike[str], options: TextOptions | None = None) -> TextTable | ParquetTable:
    """Open a table: CSV, .xlsx or Parquet, by its content; ``-`` is standard input."""
    options = TextOptions() if options is None else options
    place = "standard input" if str(path) == STANDARD else str(path)
    suffix, source = Path(path).suffix.lower(), _opened(path)
    start = source.read(4)
    source.seek(0)
    if start == b"PAR1" or suffix == ".parquet":
        file = _parquet(place, lambda: pq.ParquetFile(source))
        return ParquetTable(place, file, tuple(_parquet(place, lambda: file.schema_arrow.names)))
    data = source.read()
    if start == b"PK\x03\x04" or suffix == ".xlsx":
        return _opened_sheet(place, data)
    if start == b"\xd0\xcf\x11\xe0":
        raise InvalidReport(f"{place}: an Excel file of the old kind (.xls). {SAVE_AS}")
    text, encoding = dialect.as_utf8(data, options, place)
    text, found = dialect.recognise(text, encoding, options)
    notes = () if found.is_plain else (f"read {place} as {found.words}",)
    return _opened_text(place, text, found, f"CSV, {found.words}", notes)


def read_rows(
    path: str | os.PathLike[str],
    options: TextOptions | None = None,
    ids: Sequence[str] = (),
    na: Sequence[str] = (),
) -> tuple[pa.Table, tuple[str, ...]]:
    """A table of rows with the types it seems to have, and notes on how it was read.

    Columns ``ids`` whose numbers have leading zeros stay text.  Empty cells are missing, and those that hold
    one of ``na``; anything else is what it is.
    """
    opened = open_table(path, options)
    table = opened.inferred(ids, ["", *na])
    if table.num_rows == 0:
        raise InvalidReport(f"{opened.place}: has no rows below its header.")
    return table, opened.notes


def _opened(path: str | os.PathLike[str]) -> pa.NativeFile:
    """A file to read from and to seek in, which a pipe is not."""
    try:
        if str(path) == STANDARD:
            return pa.BufferReader(sys.stdin.buffer.read())
        if Path(path).is_file():
            return pa.OSFile(os.fspath(path))
        return pa.BufferReader(Path(path).read_bytes())
    except FileNotFoundError:
        raise InvalidReport(absent(path)) from None
    except IsADirectoryError:
        raise InvalidReport(f"{path}: is a folder. Name a .csv, .xlsx or .parquet file.") from None
    except PermissionError:
        raise InvalidReport(
            f"{path}: no permission to read it. Copy it, or change its permissions."
        ) from None
    except OSError as error:
        raise InvalidReport(f"{path}: cannot be read ({error.strerror}). Check the path.") from None


def _opened_text(place: str, text: bytes, found: Dialect, kind: str, notes: tuple[str, ...]) -> TextTable:
    reader = dialect.rows_of(text, found.separator)
    try:
        header = next((row for row in reader if row), None)
    except csv.Error as error:
        raise InvalidReport(f"{place}: not a CSV file ({error}). {SAVE_AS}") from None
    if header is None:
        raise InvalidReport(f"{place}: empty. Give a header and one row per client.")
    columns = tuple(cell.strip() or f"{layout.UNNAMED}{i}" for i, cell in enumerate(header, start=1))
    header_lines = reader.line_num
    if len(header) == 1 and len(_next_row(reader)) > 1:
        raise InvalidReport(
            f"{place}: the first line has one cell, {header[0][:40]!r}, the next one has more. Remove what "
            "stands above the header, or say what separates columns: --sep."
        )
    return TextTable(place, text, found, columns, header_lines, kind, notes)


def _next_row(reader: Any) -> list[str]:
    """Empty at the end, and where the quotes are wrong: that is said when the row is read."""
    try:
        return next((row for row in reader if row), [])
    except csv.Error:
        return []


def need_openpyxl(place: str) -> None:
    """Raise ``InvalidOption`` unless Excel's files can be read and written."""
    if find_spec("openpyxl") is None:
        raise InvalidOption(
            f"{place}: Excel files need another package: pip install 'vaneb[excel]'. Or use a .csv file."
        )


def _opened_sheet(place: str, data: bytes) -> TextTable:
    """The first sheet of a workbook that has two columns, as text; its cells are read like those of CSV."""
    need_openpyxl(place)
    import openpyxl

    try:
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        sheets = book.worksheets
        for sheet in sheets:
            rows = _filled_rows(sheet)
            if any(len(row) > 1 for row in rows):
                break
        else:
            sheet, rows = sheets[0], _filled_rows(sheets[0])
    except Exception as error:  # whatever a broken file raises
        raise InvalidReport(f"{place}: not an Excel file that can be read ({_first_line(error)}).") from None
    width = len(rows[0]) if rows else 0
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([*map(_cell, row), *[""] * (width - len(row))] for row in rows)
    number = f", number {sheets.index(sheet) + 1} of {len(sheets)}" if len(sheets) > 1 else ""
    which = f"sheet {sheet.title!r}{number}"
    plain = Dialect("utf-8", ",", ".")
    return _opened_text(
        place, text.getvalue().encode(), plain, f"{EXCEL}, {which}", (f"read {place}, {which}",)
    )


def _filled_rows(sheet: Any) -> list[list[Any]]:
    """Without empty rows, and without empty cells at the ends of rows."""
    rows = [list(row) for row in sheet.iter_rows(values_only=True)]
    for row in rows:
        while row and row[-1] is None:
            row.pop()
    return [row for row in rows if row]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _parquet(place: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise InvalidReport(f"{place}: not a Parquet file that can be read ({_first_line(error)}).") from None


def _remedy_of_number(text: str, decimal: str, is_sheet: bool) -> str:
    if text.endswith("%"):
        return "Write the number without the sign, in the same unit in every row and column."
    if DATE.fullmatch(text):
        return "It looks like a date: correct it. In a spreadsheet, give the column the format of numbers."
    bare = text.replace(".", "").replace(",", "").replace(" ", "").replace("'", "").replace("\xa0", "")
    if not bare.lstrip("+-").isdigit() or bare == text:
        return "Correct it, or leave the client out."
    if is_sheet:
        return "The cell holds text: make it a number in the sheet."
    if decimal == "." and text.count(",") == 1 and "." not in text:
        return "Write decimals with a point (--decimal , if all have a comma), and thousands without a sign."
    return f"Write thousands without a sign; the decimal sign of this file is {decimal!r} (--decimal)."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unknown reason"])[0]
