"""A table of rows -> what its clients would report: their own fits, and no population."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vaneb.errors import InvalidReport
from vaneb.grouped import frames
from vaneb.grouped.design import Design, learn_design
from vaneb.grouped.formula import parse
from vaneb.grouped.reading import Reading, read_columns
from vaneb.local.data import GroupedRows
from vaneb.local.family import family_class
from vaneb.local.family.base import Family
from vaneb.local.fit import LocalFits, fit_clients
from vaneb.local.report import report
from vaneb.reports import Reports


@dataclass(frozen=True, eq=False)
class CodedRows:
    """Complete rows as numbers, grouped by client in order of first appearance."""

    design: Design
    rows: GroupedRows
    family: Family
    names: tuple[str, ...]
    """Of the d coefficients."""
    dropped: int
    """Rows left out because a value was missing."""
    reading: Reading
    """What each column was taken for."""


def code_rows(
    frame: Any,
    *,
    client: str,
    formula: str,
    family: str = "gaussian",
    offset: str | None = None,
    weights: str | None = None,
    factors: Sequence[str] = (),
    na: Sequence[str] = (),
) -> CodedRows:
    """Put a pandas, polars or pyarrow table through a formula; options as in ``fit_groups``."""
    data = frames.as_pandas(frame)
    named = {"client": client, "offset": offset, "weights": weights}
    reserved = [column for column in named.values() if column]
    for wanted_by, column in named.items():
        if column:
            frames.need_column(data, column, wanted_by)
    parsed = parse(formula, data, reserved, allow=("survival", "trials"))
    data, reading = read_columns(data, parsed, [client], reserved[1:], factors=factors, na=na)
    design = learn_design(data, parsed, family, client=client, offset=offset, weights=weights)
    coded = design.rows(data, response=True, new=False)
    if coded.response is None or not len(coded.response):
        raise InvalidReport(f"formula {formula!r}: its terms are missing in every row. Use other columns.")
    rows = coded.by_client(design.names)
    model = family_class(family).for_rows(rows, len(design.coding.classes))
    names = design.parameter_names(model)
    return CodedRows(design, rows, model, names, len(data) - len(coded.kept), reading)


def report_rows(coded: CodedRows) -> Reports:
    """Estimate and precision of every client, by itself.

    Only the dispersion (Gaussian, gamma, negative binomial) is shared: the average of what the clients' own
    residuals say, since few rows say little of it.
    """
    return reports_of_rows(coded.rows, coded.family, fit_clients(coded.rows, coded.family), coded.names)


def reports_of_rows(
    rows: GroupedRows,
    family: Family,
    fits: LocalFits,
    names: tuple[str, ...],
    dispersion: float | None = None,
) -> Reports:
    """What clients would send to a server: estimates, and precisions at them (sandwiches for Huber)."""
    made = report(rows, family, fits, dispersion=dispersion)
    status = list(made.status)
    return Reports(
        made.estimate, n=made.n, covariance=made.covariance, ids=made.ids, names=names, status=status
    )
