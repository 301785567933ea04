"""Data frames as users have them: any kind in, pandas inside, mistakes named by their column."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Kinds of tables that results come in: that of the data.
KINDS = ("pandas", "polars", "pyarrow")


def as_pandas(frame: Any) -> pd.DataFrame:
    """A pandas, polars or pyarrow table as a pandas frame with rows numbered from 0."""
    import narwhals as nw

    try:
        table = nw.from_native(frame, eager_only=True)
    except TypeError:
        raise InvalidReport(
            f"data: {type(frame).__name__} is not a pandas, polars or pyarrow table in memory. "
            "Convert it, or collect it first."
        ) from None
    except nw.exceptions.DuplicateError as error:
        raise InvalidReport(f"data: {error}. Rename or remove columns.") from None
    decimals = [nw.col(c).cast(nw.Float64) for c, kind in table.schema.items() if kind == nw.Decimal]
    data = (table.with_columns(*decimals) if decimals else table).to_pandas().reset_index(drop=True)
    data.columns = [str(column) for column in data.columns]
    if not len(data):
        raise InvalidReport("data: has no rows.")
    return data


def kind_of(frame: Any) -> str:
    """One of ``KINDS``: that of a table that ``as_pandas`` takes."""
    import narwhals as nw

    name = nw.get_native_namespace(nw.from_native(frame, eager_only=True)).__name__
    return name if name in KINDS else "pandas"


def native(table: pa.Table, kind: str, index: Sequence[str] = ()) -> Any:
    """``table`` as one of ``KINDS``; pandas frames are indexed by the columns ``index``."""
    if kind == "pyarrow":
        return table
    if kind == "polars":
        import polars

        return polars.from_arrow(table)
    made = table.to_pandas()
    return made.set_index(list(index) if len(index) > 1 else index[0]) if index else made


def need_column(frame: pd.DataFrame, column: str, wanted_by: str) -> None:
    """Raise ``InvalidReport`` unless the frame has ``column``; names the nearest column it has."""
    if column in frame.columns:
        return
    columns = list(frame.columns)
    near = get_close_matches(column, columns, n=1, cutoff=0.5)
    lower = [c for c in columns if c.lower() == column.lower()]
    hint = f" Did you mean {(lower or near)[0]!r}?" if lower or near else ""
    listed = ", ".join(columns[:12]) + (", ..." if len(columns) > 12 else "")
    # The name may come from somebody else's formula: nothing in it is to act on a terminal.
    shown = column if column.isprintable() else repr(column)
    raise InvalidReport(f"column {shown}: missing; {wanted_by} names it. The data have: {listed}.{hint}")


def canonical_order(frame: pd.DataFrame, columns: Iterable[str]) -> NDArray[np.intp]:
    """An order of the rows that depends on their values alone: results cannot depend on how they came."""
    import pandas as pd

    codes = [pd.factorize(_sortable(frame[column]), sort=True)[0] for column in columns]
    return np.lexsort(codes[::-1])


def client_ids(values: pd.Series) -> NDArray[np.object_]:
    """Ids as text, whole numbers without a decimal point; equal ids of any kind are equal texts."""
    import pandas as pd

    if values.dtype != object:  # among objects 1 and True would be the same
        codes, found = pd.factorize(values, use_na_sentinel=False)
        return _texts(pd.Series(found))[codes]
    return _texts(values)


def _texts(values: pd.Series) -> NDArray[np.object_]:
    import pandas as pd

    if pd.api.types.is_float_dtype(values.dtype):
        numbers = values.to_numpy(dtype=np.float64, na_value=np.nan)
        known = numbers[np.isfinite(numbers)]
        if (known == np.round(known)).all() and (np.abs(known) < 2**53).all():
            return np.array([str(int(v)) if np.isfinite(v) else "" for v in numbers], dtype=object)
    return np.array([str(v) for v in values], dtype=object)


def group_ids(frame: pd.DataFrame, columns: tuple[str, ...]) -> NDArray[np.object_]:
    """The group of each row as text; of several columns joined by colons."""
    ids = client_ids(frame[columns[0]])
    for column in columns[1:]:
        ids = ids + ":" + client_ids(frame[column])
    return ids


def is_numeric(values: pd.Series) -> bool:
    """Are they numbers, or true and false?"""
    import pandas as pd

    return pd.api.types.is_numeric_dtype(values.dtype)


def contents(values: pd.Series) -> str:
    """What a column holds, for messages."""
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        return "classes"
    return "text" if pd.api.types.is_string_dtype(values.dtype) else str(values.dtype)


def is_whole(values: pd.Series) -> bool:
    """Does the column hold whole numbers, perhaps as floats because some are missing?"""
    import pandas as pd

    kind = values.dtype
    if pd.api.types.is_bool_dtype(kind) or isinstance(kind, pd.CategoricalDtype):
        return False
    if pd.api.types.is_integer_dtype(kind):
        return True
    if not pd.api.types.is_float_dtype(kind):
        return False
    numbers = values.dropna().to_numpy(dtype=np.float64)
    return bool(np.isfinite(numbers).all() and (numbers == np.round(numbers)).all())


def as_flags(values: pd.Series, column: str) -> NDArray[np.bool_]:
    """0 / 1 or false / true as booleans; the column must have no missing values left."""
    import pandas as pd

    known = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
    codes, found = pd.factorize(client_ids(values))
    flags = np.array([known.get(one.strip().lower(), -1) for one in found], dtype=np.intp)[codes]
    if (flags < 0).any():
        bad = values.tolist()[int(np.argmin(flags))]
        raise InvalidReport(f"column {column}: {bad!r} is neither 0 (fit) nor 1 (test). Recode it.")
    return flags.astype(bool)


def _sortable(values: pd.Series) -> Any:
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.codes
    if values.dtype == object:
        return values.astype(str)
    return values
