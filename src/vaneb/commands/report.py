"""``vaneb report``: a table of rows in, one report per client out; no population is fitted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaneb.commands import options, streams
from vaneb.commands.outcome import complain, errors_in_words

if TYPE_CHECKING:
    from vaneb.grouped.client_reports import CodedRows
    from vaneb.reports import Reports


def report(
    rows: Annotated[Path, typer.Argument(help=f"Table of rows: {options.TABLE_IN}", metavar="ROWS")],
    client: Annotated[str, typer.Option(help="Column that names the client (group) of a row.")],
    formula: Annotated[str, typer.Option(help='Model of every client, such as "y ~ x1 + x2".')],
    out: Annotated[Path, typer.Option("--out", "-o", help=options.TABLE_OUT)],
    family: options.Family = "gaussian",
    offset: options.Offset = None,
    weights: options.Weights = None,
    factor: options.Factor = None,
    na: options.Na = None,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    quiet: options.Quiet = False,
) -> None:
    """Turn each client's rows into a report. No population is fitted.

    The table is input for `vaneb personalize`. Sites can each make one and send it; their rows stay at home.
    """
    with errors_in_words():
        streams.check_files({"ROWS": rows}, {"--out": out})
        from vaneb.dialect import TextOptions
        from vaneb.grouped.client_reports import code_rows, report_rows
        from vaneb.sources import read_rows
        from vaneb.tables import reports_table

        table, notes = read_rows(rows, TextOptions(sep, decimal, encoding), [client], na or ())
        coded = code_rows(
            table,
            client=client,
            formula=formula,
            family=family,
            offset=offset,
            weights=weights,
            factors=factor or (),
            na=na or (),
        )
        made = report_rows(coded)
        content = reports_table(made, covariances=True)
        streams.write_together((out, streams.table_writer(content)))
        if not quiet:
            for line in coded.reading.columns:
                complain(f"read: {line}")
            for note in (*notes, *coded.reading.notes):
                complain(f"note: {note}")
            with streams.summary_stream(out, False):
                _summarise(coded, made, content.column_names)


def _summarise(coded: CodedRows, made: Reports, columns: list[str]) -> None:
    prefix = next(c.split("_", 1)[0] for c in columns[::-1])
    kinds = {"se": "standard errors (se_)", "cov": "covariances (cov_)"}
    kinds["prec"] = "precisions (prec_): some clients have too few rows for a covariance"
    rows = {
        "clients": f"{len(made):,}",
        "rows": f"{len(coded.rows.response):,}",
        "dropped rows": f"{coded.dropped:,}" + (" (missing values)" if coded.dropped else ""),
        "coefficients": ", ".join(coded.names),
        "local fits": ", ".join(f"{status} {count:,}" for status, count in Counter(made.status).items()),
        "uncertainty": kinds[prefix],
    }
    streams.print_rows(rows)
