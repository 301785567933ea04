"""CSV and Parquet files <-> reports and results.  The columns are described in ``layout``.

A CSV file is read by pyarrow.  Where that fails, a slow reader goes through it cell by cell, and either
finds the place to complain about or reads what pyarrow would not.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from vaneb import layout
from vaneb.covariance import ConstantDiagonal, ConstantFull, by_name
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.files import absent, replacing
from vaneb.layout import CLIENT, SIZE, Layout
from vaneb.noise import matrix_column
from vaneb.reports import Reports

if TYPE_CHECKING:
    from vaneb.posterior import Posterior

SUFFIXES = (".csv", ".parquet")
#: What stands for a missing number in a CSV file, as in pyarrow.
MISSING = frozenset(pa.csv.ConvertOptions().null_values)


@dataclass(frozen=True)
class ReportsTable:
    """Reports as read from a file, and what the file said besides."""

    reports: Reports
    client_type: pa.DataType
    """Type of the client column: the results' will be the same."""
    notes: tuple[str, ...]
    """What was not used of the file."""


def read_reports(
    path: str | os.PathLike[str], variance_function: str | None = None, names: Sequence[str] | None = None
) -> ReportsTable:
    """Read and validate a table of reports.

    Parameters
    ----------
    path : path of a .csv or .parquet file
    variance_function : str, optional
        Name of Sigma(theta) of one observation, such as "poisson"; see ``vaneb.covariance.by_name``.
        Columns for standard errors or covariances are then not needed and not used, but ``n`` is.
    names : sequence of str, optional
        The parameters that are expected, in the order that is wanted, such as those of a saved prior.
    """
    covariance_given = variance_function is not None
    read = _read_csv if suffix_of(path) == ".csv" else _read_parquet
    try:
        table, found = read(Path(path), covariance_given, names)
    except FileNotFoundError:
        raise InvalidReport(absent(path)) from None
    except IsADirectoryError:
        raise InvalidReport(f"{path}: is a folder. Name a .csv or .parquet file.") from None
    except PermissionError:
        raise InvalidReport(f"{path}: no permission to read it.") from None
    if table.num_rows == 0:
        raise InvalidReport(f"{path}: has a header but no rows. Give one row per client.")
    client_type = _client_type(table[CLIENT].type)
    columns = layout.columns_of_frame(table, covariance_given=covariance_given, names=names)
    covariance: Any = columns.covariance
    if variance_function is not None:
        covariance = by_name(variance_function, len(columns.names), table.num_rows)
    reports = Reports(
        columns.estimate,
        n=columns.n,
        covariance=covariance,
        ids=columns.ids,
        names=columns.names,
        standard_errors=columns.standard_errors,
        precision=columns.precision,
    )
    return ReportsTable(reports, client_type, found.notes)


def write_reports(path: str | os.PathLike[str], reports: Reports) -> None:
    """Write a table of reports: standard errors if all precisions are diagonal and positive, else precisions.

    A covariance that depends on theta has no columns: such a table needs its variance function named
    when it is read.
    """
    columns: dict[str, Any] = {CLIENT: pa.array(reports.ids, pa.string()), SIZE: reports.n}
    columns |= {f"{layout.ESTIMATE}{a}": reports.estimate[:, j] for j, a in enumerate(reports.names)}
    if isinstance(reports.covariance, ConstantDiagonal) and (reports.covariance.unit_precision > 0).all():
        errors = 1.0 / np.sqrt(reports.n[:, None] * reports.covariance.unit_precision)
        columns |= {f"{layout.STANDARD_ERROR}{a}": errors[:, j] for j, a in enumerate(reports.names)}
    elif isinstance(reports.covariance, ConstantDiagonal | ConstantFull):
        unit = reports.covariance.unit_precision
        matrices = unit if unit.ndim == 3 else unit[:, :, None] * np.eye(reports.dimension)
        for first, second in zip(*layout.triangle(reports.dimension), strict=True):
            column = matrix_column("prec", reports.names, int(first), int(second))
            columns[column] = reports.n * matrices[:, first, second]
    write_table(path, pa.table(columns))


def results_table(posterior: Posterior, level: float, client_type: pa.DataType | None = None) -> pa.Table:
    """The personalised estimates as a table.

    Parameters
    ----------
    posterior : Posterior
    level : float
        Probability that ``lower_<name>`` to ``upper_<name>`` is to hold.
    client_type : pyarrow type, optional
        Of the client column; text by default.
    """
    lower, upper = posterior.interval(level)
    clients = pa.array(list(posterior.ids), pa.string()).cast(client_type or pa.string())
    columns: dict[str, Any] = {CLIENT: clients}
    blocks = {"theta": posterior.mean, "sd": posterior.sd, "lower": lower, "upper": upper}
    for prefix, values in blocks.items():
        columns |= {f"{prefix}_{name}": values[:, j] for j, name in enumerate(posterior.names)}
    columns["shrinkage"] = posterior.shrinkage
    columns["log_marginal"] = posterior.log_marginal
    columns["flag"] = pa.array([str(flag) for flag in posterior.flag], pa.string())
    return pa.table(columns)


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
    """Write ``table`` as CSV or Parquet, by suffix; the old file or the new one, never a part of it."""
    suffix = suffix_of(path)
    with replacing(path) as temporary:
        write_content(temporary, table, suffix)


def write_content(path: Path, table: pa.Table, suffix: str) -> None:
    """Write ``table`` in the format of ``suffix``, whatever ``path`` is called."""
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        _write_csv(path, table)


def suffix_of(path: str | os.PathLike[str]) -> str:
    """``.csv`` or ``.parquet``."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidOption(
            f"{path}: unknown kind of table {suffix!r}. Use a name that ends in .csv or .parquet."
        )
    return suffix


def _read_parquet(path: Path, covariance_given: bool, names: Sequence[str] | None) -> tuple[pa.Table, Layout]:
    try:
        # One handle for both reads, so that the schema and the columns are those of the same file.
        with path.open("rb") as handle, pq.ParquetFile(handle) as file:
            found = layout.find_layout(
                file.schema_arrow.names, covariance_given=covariance_given, names=names
            )
            table = file.read(columns=_used(found))
        table.validate(full=True)
        return table, found
    except (pa.ArrowException, UnicodeDecodeError) as error:
        reason = _first_line(error)
    except OSError as error:
        if error.errno is not None:  # the file system's complaint, not pyarrow's
            raise
        reason = _first_line(error)
    raise InvalidReport(f"{path}: not a Parquet file that can be read ({reason}).")


def _read_csv(path: Path, covariance_given: bool, names: Sequence[str] | None) -> tuple[pa.Table, Layout]:
    header = _csv_header(path)
    if len(header) == 1 and (separator := next((s for s in ";\t|" if s in header[0]), None)):
        raise InvalidReport(f"{path}: columns seem to be separated by {separator!r}. Save it with commas.")
    found = layout.find_layout(header, covariance_given=covariance_given, names=names)
    used = _used(found)
    types = {column: pa.string() if column == CLIENT else pa.float64() for column in used}
    try:
        table = pa.csv.read_csv(
            path,
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types=types, include_columns=used),
        )
    except pa.ArrowException:
        table = _read_csv_slowly(path, header, used)
    return table, found


def _used(found: Layout) -> list[str]:
    size = [SIZE] if found.has_size else []
    return [CLIENT, *size, *(layout.ESTIMATE + name for name in found.names), *found.noise_columns]


def _csv_rows(path: Path) -> Any:
    """Rows of cells; complains about what is not text in UTF-8 or not CSV."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            yield from (row for row in csv.reader(file) if row)
        except UnicodeDecodeError as error:
            raise InvalidReport(f"{path}: not text in UTF-8 ({error.reason}). Save it as UTF-8.") from None
        except csv.Error as error:
            raise InvalidReport(f"{path}: not a CSV file ({error}).") from None


def _csv_header(path: Path) -> list[str]:
    for row in _csv_rows(path):
        return [cell.strip() for cell in row]
    raise InvalidReport(f"{path}: empty. Give a header and one row per client.")


def _read_csv_slowly(path: Path, header: list[str], used: Sequence[str]) -> pa.Table:
    rows = _csv_rows(path)
    next(rows)
    places = [(column, header.index(column)) for column in used]
    cells: dict[str, list[Any]] = {column: [] for column in used}
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise InvalidReport(
                f"{path}, row {number}: {len(row)} cells, but the header has {len(header)}. "
                "Check the commas and quotes of that row."
            )
        for column, place in places:
            text = row[place]
            cells[column].append(text if column == CLIENT else _number(text, path, number, column))
    return pa.table({column: pa.array(values) for column, values in cells.items()})


def _number(text: str, path: Path, row: int, column: str) -> float:
    text = text.strip()
    if text in MISSING:
        return math.nan
    try:
        # Python reads 1_000 as a number; in a table it is more likely a slip.
        return float(text.replace("_", "?"))
    except ValueError:
        pass
    hint = " Write decimals with a point." if "," in text else ""
    raise InvalidReport(f"{path}, row {row}, column {column}: {text[:40]!r} is not a number.{hint}")


def _client_type(given: pa.DataType) -> pa.DataType:
    kind = given.value_type if pa.types.is_dictionary(given) else given
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return kind
    if pa.types.is_string_view(kind):
        return pa.string()
    raise InvalidReport(f"column client: holds {given}, not ids. Convert it to text or whole numbers.")


def _write_csv(path: Path, table: pa.Table) -> None:
    # pyarrow quotes every text as soon as it may quote any, so ask for quotes only if one is needed.
    texts = [column for column in table.columns if pa.types.is_string(column.type)]
    special = any(pc.any(pc.match_substring_regex(column, r'[",\r\n]|^\s|\s$')).as_py() for column in texts)
    options = pa.csv.WriteOptions(include_header=False, quoting_style="needed" if special else "none")
    with path.open("wb") as file:
        file.write(_csv_line(table.column_names).encode())
        pa.csv.write_csv(table, file, options)


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unknown reason"])[0]
