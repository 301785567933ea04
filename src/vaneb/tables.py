"""Files of tables <-> reports and results.

``sources`` reads any table, ``layout`` and ``column_choice`` say which columns of it are what.
"""

from __future__ import annotations

import csv
import io
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
from vaneb.column_choice import ColumnChoice, choose_columns
from vaneb.covariance import ConstantDiagonal, ConstantFull, by_name
from vaneb.dialect import TextOptions
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.files import STANDARD, replacing
from vaneb.layout import CLIENT, SIZE, Layout, folded
from vaneb.limits import as_standard_errors
from vaneb.noise import matrix_column
from vaneb.reports import Reports
from vaneb.semidefinite import covariance_of_estimates, has_full_rank, standard_errors
from vaneb.sources import need_openpyxl, open_table, refuse

if TYPE_CHECKING:
    from vaneb.posterior import Posterior

SUFFIXES = (".csv", ".parquet", ".xlsx")
#: What the last row of a table is called where it is no client, as ``folded`` writes it.
TOTALS = ("total", "totals", "grandtotal", "overall", "sum", "gesamt", "insgesamt", "summe", "ensemble")


@dataclass(frozen=True)
class ReportsTable:
    """Reports as read from a file, and what the file said besides."""

    reports: Reports
    client_type: pa.DataType
    """Type of the client column: the results' will be the same."""
    client_column: str
    """What the file calls its clients."""
    notes: tuple[str, ...]
    """How the file was read, what was taken for what, and what was not used."""
    covariates: pa.Table | None = None
    """Columns that describe the clients themselves, where such were asked for."""
    ratio: str | None = None
    """What the only parameter is the logarithm of."""


def read_reports(
    path: str | os.PathLike[str],
    variance_function: str | None = None,
    names: Sequence[str] | None = None,
    *,
    choice: ColumnChoice | None = None,
    options: TextOptions | None = None,
    covariates: Sequence[str] = (),
) -> ReportsTable:
    """Read and validate a table of reports.

    Parameters
    ----------
    path : path of a CSV, .xlsx or Parquet file, or "-" for standard input
    variance_function : str, optional
        Name of Sigma(theta) of one observation, such as "poisson"; see ``vaneb.covariance.by_name``.
        Columns for standard errors or covariances are then not needed and not used, but ``n`` is.
    names : sequence of str, optional
        The parameters that are expected, in the order that is wanted, such as those of a saved prior.
    choice : ColumnChoice, optional
        Which columns hold what; what is not said is guessed from their names.
    options : TextOptions, optional
        Separator, decimal sign and encoding of a text file; recognised by default.
    covariates : sequence of str
        Columns that describe the clients themselves.
    """
    opened = open_table(path, options)
    choice = ColumnChoice() if choice is None else choice
    if missing := [column for column in covariates if column not in opened.columns]:
        raise InvalidReport(
            f"{opened.place}: no column {missing[0]!r}, as the covariates of clients name it. The table has "
            f"{', '.join(opened.columns)}."
        )
    given = variance_function is not None
    found = choose_columns(opened.columns, choice, covariance_given=given, names=names)
    apart = [column for column in covariates if column not in found.used]
    if apart:  # they are used, if for something else
        left = [column for column in opened.columns if column not in apart]
        found = choose_columns(left, choice, covariance_given=given, names=names)
    table = opened.numbers([*found.used, *apart], found.client)
    if table.num_rows == 0:
        raise InvalidReport(f"{opened.place}: has a header but no rows. Give one row per client.")
    client_type = client_type_of(table[found.client].type, found.client)
    refuse_total(table[found.client][-1])
    read = found
    table, found = as_standard_errors(table, read, refuse, scale=choice.limits_scale, expected=names)
    ratio = read.names[0] if len(read.names) == 1 and read.names != found.names else None
    try:
        reports = reports_of(table, found, variance_function)
    except InvalidReport as error:
        raise InvalidReport(found.in_own_words(str(error))) from None
    described = table.select(list(covariates)) if covariates else None
    return ReportsTable(reports, client_type, found.client, opened.notes + found.notes, described, ratio)


def refuse_total(last: object) -> None:
    """Raise ``InvalidReport`` if the last client is called like the sum of all."""
    if folded(str(last)) in TOTALS:
        raise InvalidReport(
            f"client {str(last)!r}: the last row seems to be a total of the others. Remove it, or rename the "
            "client if it is one."
        )


def reports_of(table: pa.Table, found: Layout, variance_function: str | None) -> Reports:
    """The reports that the columns of ``table`` hold."""
    columns = layout.columns_of(table, found)
    covariance: Any = columns.covariance
    if variance_function is not None:
        covariance = by_name(variance_function, len(columns.names), table.num_rows)
    return Reports(
        columns.estimate,
        n=columns.n,
        covariance=covariance,
        ids=columns.ids,
        names=columns.names,
        standard_errors=columns.standard_errors,
        precision=columns.precision,
    )


def client_type_of(given: pa.DataType, column: str) -> pa.DataType:
    """The type that ids have in the results."""
    kind = given.value_type if pa.types.is_dictionary(given) else given
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return kind
    if pa.types.is_string_view(kind):
        return pa.string()
    raise InvalidReport(f"column {column}: holds {given}, not ids. Convert it to text or whole numbers.")


def reports_table(reports: Reports, *, covariances: bool = False) -> pa.Table:
    """A table of reports: standard errors if all precisions are diagonal and positive, else precisions.

    With ``covariances``, covariances (standard errors of a single parameter) instead of precisions, where
    every client has them.  A covariance that depends on theta has no columns: such a table needs its variance
    function named when it is read.
    """
    names, d = reports.names, reports.dimension
    columns: dict[str, Any] = {CLIENT: pa.array(reports.ids, pa.string()), SIZE: reports.n}
    columns |= {f"{layout.ESTIMATE}{a}": reports.estimate[:, j] for j, a in enumerate(names)}
    if not isinstance(reports.covariance, ConstantDiagonal | ConstantFull):
        return pa.table(columns)
    unit = reports.covariance.unit_precision
    precision = unit * reports.n.reshape(-1, *[1] * (unit.ndim - 1))
    known = has_full_rank(precision)
    if known and (precision.ndim == 2 or (covariances and d == 1)):
        errors = standard_errors(precision)
        columns |= {f"{layout.STANDARD_ERROR}{a}": errors[:, j] for j, a in enumerate(names)}
        return pa.table(columns)
    matrices = precision if precision.ndim == 3 else precision[:, :, None] * np.eye(d)
    prefix = "cov" if covariances and known else "prec"
    if prefix == "cov":
        matrices = covariance_of_estimates(matrices)
    for first, second in zip(*layout.triangle(d), strict=True):
        columns[matrix_column(prefix, names, int(first), int(second))] = matrices[:, first, second]
    return pa.table(columns)


def write_reports(path: str | os.PathLike[str], reports: Reports) -> None:
    """Write ``reports_table``."""
    write_table(path, reports_table(reports))


def results_table(posterior: Posterior, level: float, client_type: pa.DataType | None = None) -> pa.Table:
    """The personalised estimates as a table, with the clients' own beside them.

    Parameters
    ----------
    posterior : Posterior
    level : float
        Probability that ``lower_<name>`` to ``upper_<name>`` is to hold.
    client_type : pyarrow type, optional
        Of the client column; text by default.
    """
    lower, upper = posterior.interval(level)
    own_error = standard_errors(posterior.likelihood.local_precision())
    # Of what its data leave open, a client has no estimate of its own.
    own = np.where(np.isfinite(own_error), posterior.likelihood.local_estimates(), np.nan)
    own_error = np.where(np.isfinite(own_error), own_error, np.nan)
    clients = pa.array(list(posterior.ids), pa.string()).cast(client_type or pa.string())
    columns: dict[str, Any] = {CLIENT: clients}
    blocks = {"theta": posterior.mean, "sd": posterior.sd, "lower": lower, "upper": upper}
    blocks |= {"own": own, "own_se": own_error}
    for prefix, values in blocks.items():
        for j, name in enumerate(posterior.names):
            columns[f"{prefix}_{name}"] = pa.array(values[:, j], from_pandas=True)
    columns["shrinkage"] = posterior.shrinkage
    columns["log_marginal"] = posterior.log_marginal
    columns["flag"] = pa.array([str(flag) for flag in posterior.flag], pa.string())
    return pa.table(columns)


def rounded(results: pa.Table, names: Sequence[str]) -> pa.Table:
    """``results_table`` in digits that mean something: to 1/1000 of a standard deviation, or finer.

    The unit of a client's parameter is the power of ten at or below ``sd / 1000``; where that is beyond the
    fifteen digits of a number, or sd is zero, nothing is rounded.
    """
    for name in names:
        sd = results[f"sd_{name}"].to_numpy()
        with np.errstate(divide="ignore"):
            digits = np.ceil(3 - np.log10(sd))
        for prefix in ("theta", "sd", "lower", "upper", "own", "own_se"):
            column = f"{prefix}_{name}"
            at = results.column_names.index(column)
            values = results[column].to_numpy()
            results = results.set_column(at, column, pa.array(_rounded(values, digits), from_pandas=True))
    for column in ("shrinkage", "log_marginal"):
        at = results.column_names.index(column)
        results = results.set_column(at, column, pa.array(np.round(results[column].to_numpy(), 5)))
    return results


def _rounded(values: np.ndarray, digits: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.ceil(np.log10(np.abs(values)))
        some = np.isfinite(values) & np.isfinite(digits) & (digits + np.maximum(size, 0) < 15)
    out = values.copy()
    for count in np.unique(digits[some]):
        part = some & (digits == count)
        out[part] = np.round(values[part], int(count))
    return out


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
    """Write ``table`` as CSV, Parquet or .xlsx, by suffix: the old file or the new one, never a part."""
    suffix = suffix_of(path)
    with replacing(path) as temporary:
        write_content(temporary, table, suffix)


def write_content(path: Path, table: pa.Table, suffix: str) -> None:
    """Write ``table`` in the format of ``suffix``, whatever ``path`` is called."""
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif suffix == ".xlsx":
        _write_sheet(path, table)
    else:
        _write_csv(path, table)


def suffix_of(path: str | os.PathLike[str]) -> str:
    """``.csv``, ``.parquet`` or ``.xlsx``, of a table to write; standard output gets CSV."""
    suffix = ".csv" if str(path) == STANDARD else Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidOption(
            f"{path}: unknown kind of table {suffix!r}. Use a name that ends in .csv, .parquet or .xlsx."
        )
    if suffix == ".xlsx":
        need_openpyxl(str(path))
    return suffix


def _write_csv(path: Path, table: pa.Table) -> None:
    # pyarrow quotes every text as soon as it may quote any, so ask for quotes only if one is needed.
    texts = [column for column in table.columns if pa.types.is_string(column.type)]
    special = any(pc.any(pc.match_substring_regex(column, r'[",\r\n]|^\s|\s$')).as_py() for column in texts)
    options = pa.csv.WriteOptions(include_header=False, quoting_style="needed" if special else "none")
    with path.open("wb") as file:
        file.write(_csv_line(table.column_names).encode())
        pa.csv.write_csv(table, file, options)


def _write_sheet(path: Path, table: pa.Table) -> None:
    import openpyxl

    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("vaneb")
    sheet.append(table.column_names)
    for batch in table.to_batches(max_chunksize=10_000):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            sheet.append([_sheet_cell(sheet, value) for value in row])
    with path.open("wb") as file:  # by its content, whatever it is called
        book.save(file)


def _sheet_cell(sheet: Any, value: Any) -> Any:
    """Text that begins like a formula stays text, and what is no number is an empty cell."""
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE, WriteOnlyCell

    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, str):
        cell = WriteOnlyCell(sheet, value=ILLEGAL_CHARACTERS_RE.sub("\ufffd", value))
        cell.data_type = "s"
        return cell
    return value


def _csv_line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
