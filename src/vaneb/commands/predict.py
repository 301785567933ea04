"""``vaneb predict``: a saved model and new rows in, expected responses with intervals out."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaneb.commands import options
from vaneb.commands.outcome import complain, errors_in_words
from vaneb.commands.streams import (
    check_files,
    check_level,
    print_json,
    print_rows,
    summary_stream,
    table_writer,
    write_together,
)
from vaneb.errors import InvalidOption

if TYPE_CHECKING:
    import pyarrow as pa

    from vaneb.grouped import LoadedFit


IntervalName = StrEnum("IntervalName", ["CONFIDENCE", "PREDICTION", "NONE"])


def predict(
    model: Annotated[Path, typer.Argument(help="What vaneb run --save wrote.", metavar="MODEL")],
    new: Annotated[Path, typer.Argument(help=f"Table of rows: {options.TABLE_IN}", metavar="NEW")],
    out: options.Out = None,
    interval: Annotated[
        IntervalName,
        typer.Option(help="confidence: of the expected response; prediction: of a new response, with noise."),
    ] = IntervalName.CONFIDENCE,
    level: Annotated[
        float | None, typer.Option(help="Probability of the intervals. That of the model by default.")
    ] = None,
    na: options.Na = None,
    sep: options.Sep = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict new rows with a model that `run --save` wrote.

    OUT has a line for each row of NEW, in the same order: row (counted from 1, without the header), the
    group, known (true: the group was in the fit; false: the population predicts it), mean (the expected
    response; for several classes p_<class> instead), lower and upper. Where a value is missing they are
    empty.
    """
    with errors_in_words(as_json=as_json):
        check_level(level)
        check_files({"MODEL": model, "NEW": new}, {"--out": out}, as_json)
        from vaneb.dialect import TextOptions
        from vaneb.grouped import load
        from vaneb.sources import read_rows

        fit = load(model)
        text = TextOptions(sep, decimal, encoding)
        rows, notes = read_rows(new, text, [fit.design.client], na or ())
        level = fit.level if level is None else level
        table = _predictions(fit, rows, interval, level)
        write_together((out, table_writer(table)))
        if not quiet:
            for note in notes:
                complain(f"note: {note}")
            with summary_stream(out, as_json):
                _summarise(fit, table, interval, level)
        if as_json:
            print_json({"command": "predict", "level": level, "interval": interval.value, "notes": notes,
                        "rows": table.to_pylist()})  # fmt: skip


def _predictions(fit: LoadedFit, rows: pa.Table, interval: IntervalName, level: float) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    from vaneb.grouped import frames
    from vaneb.grouped.reading import check_new_rows

    client, classes = fit.design.client, fit.design.coding.classes
    data = frames.as_pandas(rows)
    frames.need_column(data, client, "the model")
    check_new_rows(data, fit.design)
    values = data[client]
    known = fit.known.positions(frames.client_ids(values)) >= 0
    columns: dict[str, Any] = {
        "row": pa.array(np.arange(1, rows.num_rows + 1)),
        client: rows[client],
        "known": pa.array(known, mask=values.isna().to_numpy()),
    }
    if fit.family.n_index > 1:
        probabilities = fit.predict(rows)
        made = {f"p_{c}": probabilities[:, i] for i, c in enumerate(classes)}
    elif interval is IntervalName.NONE:
        made = {"mean": fit.predict(rows)}
    else:
        found = fit.predict(rows, interval=interval.value, level=level)
        made = {name: found[name].to_numpy() for name in ("mean", "lower", "upper")}
    if client in ("row", "known", *made):
        raise InvalidOption(
            f"column {client}: the results have a column of that name. Rename it in both files."
        )
    return pa.table(columns | {name: pa.array(v, from_pandas=True) for name, v in made.items()})


def _summarise(fit: LoadedFit, table: pa.Table, interval: IntervalName, level: float) -> None:
    import pyarrow.compute as pc

    known = table["known"]
    groups = table[fit.design.client].filter(pc.invert(pc.fill_null(known, True)))
    missing = table.columns[3].null_count
    rows = {
        "model": f"{fit.design.formula.text}, by {fit.design.client} ({fit.family.name})",
        "rows": f"{table.num_rows:,}" + (f", {missing:,} of them with missing values" if missing else ""),
        "new groups": f"{len(groups.unique()):,}" + (" (predicted by the population)" if len(groups) else ""),
    }
    if "lower" in table.column_names:
        rows["intervals"] = f"{interval.value}, {100 * level:.3g}%"
    print_rows(rows)
