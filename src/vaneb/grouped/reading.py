"""What is made of each column before a fit: a number, a factor, a date; and what can only be a slip.

A column of text in which most cells are numbers is a column of numbers with stray cells, not a factor: one
">90" among ages would otherwise make a coefficient of every age.  Dates are no factors either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped import frames
from vaneb.grouped.formula import ParsedFormula
from vaneb.grouped.functions import FACTORS, columns_of
from vaneb.grouped.syntax import Call

if TYPE_CHECKING:
    import pandas as pd

    from vaneb.grouped.design import Design

NUMBER = re.compile(r"\s*[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)?\s*")
DATE = re.compile(r"\s*(?:\d{4}([-./])\d{1,2}\1\d{1,2}|\d{1,2}([-./])\d{1,2}\2\d{2,4})(?:[ T]\d.*)?\s*")
#: A factor of more levels than this share of the rows is more likely a slip; two levels never are.
LEVELS = 1 / 20
#: Levels, names and slips that a line lists.
LISTED = 6
#: What often stands for a missing value, and is a level of a factor unless it is said.
OFTEN_MISSING = ("NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None", "#N/A", ".", "-", "?")


@dataclass(frozen=True)
class Reading:
    """What was read, in words."""

    columns: tuple[str, ...]
    """One line for each column that is used, then one for rows that are left out."""
    notes: tuple[str, ...]
    """What may be a slip."""


def read_columns(
    data: pd.DataFrame,
    formula: ParsedFormula,
    groups: Sequence[str],
    others: Sequence[str] = (),
    *,
    factors: Sequence[str] = (),
    na: Sequence[str] = (),
) -> tuple[pd.DataFrame, Reading]:
    """The data as they are meant, and what they were taken for; raises ``InvalidReport`` for slips.

    Parameters
    ----------
    groups : columns that name clients
    others : offset, weights and test column
    factors : columns that are factors, whatever they hold
    na : texts that stand for a missing value
    """
    for column in factors:
        frames.need_column(data, column, "factors (--factor)")
    covariates = _covariates(formula)
    for column in groups:
        if column in covariates:
            raise InvalidOption(
                f"formula {formula.text!r}: leave the client column {column} out. Every client has "
                "coefficients of its own already."
            )
    used = list(dict.fromkeys([*groups, *formula.columns, *others]))
    data = data.assign(**{c: _meant(data[c], c in factors, na) for c in used})
    confirmed = {*factors, *_inside_factors(formula)}
    for column in used:
        if column not in groups:
            _refuse_strays(data[column], column, confirmed)
    for column in covariates:
        _refuse_odd_factors(data[column], column, confirmed)
    roles = {**dict.fromkeys(others, ""), **dict.fromkeys(formula.response_columns, "the response")}
    lines = [
        _group_line(data[c], c) if c in groups else _line(data[c], c, roles.get(c, ""), c in confirmed)
        for c in used
    ]
    lines.append(_rows_line(data[used]))
    notes = [note for c in groups for note in _alike(data[c], c)]
    notes += [note for c in covariates for note in _hidden_missing(data[c], c)]
    return data, Reading(tuple(lines), tuple(notes))


def _covariates(formula: ParsedFormula) -> list[str]:
    """Columns of the terms, fixed and random, and of the offsets; not those that name groups."""
    terms = [*formula.terms, *(term for random in formula.random for term in random.effects)]
    nodes = [*(node for term in terms for node in term), *formula.offsets]
    return list(columns_of(*nodes))


def _inside_factors(formula: ParsedFormula) -> set[str]:
    nodes = [node for term in formula.terms for node in term]
    calls = [node for node in nodes if isinstance(node, Call) and node.function in FACTORS]
    return set(columns_of(*calls))


def _meant(values: pd.Series, is_factor: bool, na: Sequence[str]) -> pd.Series:
    """Without what stands for a missing value; numbers as numbers, factors as factors, dates as dates."""
    import pandas as pd

    if _is_text(values):
        if na:
            values = values.mask(values.astype(str).str.strip().isin(list(na)))
        known = values.dropna()
        if not is_factor and na and len(known):
            numbers = pd.to_numeric(known, errors="coerce")
            if numbers.notna().all():
                return pd.to_numeric(values)
        if len(known) and not is_factor and all(_is_day(v) for v in known):
            return pd.to_datetime(values)
    if is_factor and not _is_text(values) and not isinstance(values.dtype, pd.CategoricalDtype):
        return values.astype(object).where(values.notna(), None)
    return values


def _is_day(value: Any) -> bool:
    from datetime import date

    return isinstance(value, date)


def _is_text(values: pd.Series) -> bool:
    import pandas as pd

    return pd.api.types.is_object_dtype(values.dtype) or isinstance(values.dtype, pd.StringDtype)


def _refuse_strays(values: pd.Series, column: str, confirmed: Iterable[str]) -> None:
    """A column of text that is numbers but for a few cells."""
    if not _is_text(values) or column in confirmed:
        return
    known = values.dropna()
    texts = known[[isinstance(v, str) for v in known]]
    strays = texts[[NUMBER.fullmatch(v) is None for v in texts]]
    if not len(strays) or len(known) <= 2 * len(strays):
        return
    first = _shown(strays.iloc[0])
    more = f" ({len(strays):,} such cells, {strays.nunique():,} different ones)" if len(strays) > 1 else ""
    raise InvalidReport(
        f"row {int(strays.index[0]) + 1}, column {column}: {first!r} is not a number, as most cells of the "
        f"column are{more}. Correct it; or say that it is a missing value (--na {first!r}; na= in Python); "
        f"or that the column is a factor (--factor {column}; factors=)."
    )


def _refuse_odd_factors(values: pd.Series, column: str, confirmed: Iterable[str]) -> None:
    """Dates, and text of many levels."""
    import pandas as pd

    if not (_is_text(values) or isinstance(values.dtype, pd.CategoricalDtype)) or column in confirmed:
        return
    known = values.dropna()
    texts = [str(v) for v in known.unique()]
    if sum(DATE.fullmatch(text) is not None for text in texts) > len(texts) / 2:
        raise InvalidReport(
            f"column {column}: holds dates, such as {_shown(texts[0])!r}. Make a number of it, such as days "
            f"since the first; or say that each is a level (--factor {column}; factors=)."
        )
    if len(texts) > max(2, LEVELS * len(known)):
        raise InvalidReport(
            f"column {column}: would be a factor of {len(texts):,} levels in {len(known):,} rows "
            f"({_listed(map(repr, texts))}). If it should be a number, look for text or decimal commas in "
            f"it; if it is a factor, say so (--factor {column}; factors=)."
        )


def check_new_rows(data: pd.DataFrame, design: Design) -> None:
    """Refuse stray cells in columns that were numbers in the fit."""
    columns = [c for c in (*design.formula.right_columns, design.offset) if c in data.columns]
    groups = {*design.who, *(c for one in design.others for c in one.columns)}
    for column in columns:
        if column is not None:
            _refuse_strays(data[column], column, {*design.levels, *groups})


def _shown(text: str) -> str:
    return text[:40] if text.isprintable() else repr(text[:40])


def _line(values: pd.Series, column: str, role: str, is_factor: bool) -> str:
    import pandas as pd

    known = values.dropna()
    what = f"{column} ({role})" if role else column
    kind = values.dtype
    if not len(known):
        return f"{what}: nothing but missing values"
    if pd.api.types.is_datetime64_any_dtype(kind):
        return f"{what}: date, {known.min():%Y-%m-%d} to {known.max():%Y-%m-%d}"
    numeric = pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind)
    if numeric and not is_factor:
        if pd.api.types.is_bool_dtype(kind):
            return f"{what}: true or false, {int(known.sum()):,} true"
        return f"{what}: number, {float(known.min()):.6g} to {float(known.max()):.6g}"
    counts = known.astype(str).value_counts().sort_index()
    word = "level" if len(counts) == 1 else "levels"
    return f"{what}: factor, {len(counts):,} {word} ({_listed(counts.index)})"


def _group_line(values: pd.Series, column: str) -> str:
    names = values.dropna().unique()
    return f"{column}: groups, {len(names):,} ({_listed(map(str, names[:LISTED]), len(names))})"


def _rows_line(used: pd.DataFrame) -> str:
    missing = used.isna()
    left_out = int(missing.any(axis=1).sum())
    if not left_out:
        return f"rows: {len(used):,}, all complete"
    by_column = ", ".join(f"{c} {int(k):,}" for c, k in missing.sum().items() if k)
    return f"rows: {len(used):,}, {left_out:,} left out for missing values ({by_column})"


def _alike(values: pd.Series, column: str) -> list[str]:
    """Names of groups that differ in blanks or in case only."""
    names = list(dict.fromkeys(str(v) for v in values.dropna().unique()))
    found = _same(names, lambda name: " ".join(name.split()).casefold())
    notes = []
    if found:
        same = "; ".join(" and ".join(map(repr, group)) for group in found[:LISTED])
        notes.append(
            f"column {column}: names that differ in case or blanks only are different groups ({same}"
            + (f"; and {len(found) - LISTED:,} more)" if len(found) > LISTED else ")")
        )
    spaced = [name for name in names if name != name.strip()]
    if spaced:
        notes.append(
            f"column {column}: blanks before or after a name belong to it ({_listed(map(repr, spaced))})"
        )
    return notes


def _same(names: Sequence[str], key: Callable[[str], str]) -> list[list[str]]:
    by_key: dict[str, list[str]] = {}
    for name in names:
        by_key.setdefault(key(name), []).append(name)
    return [group for group in by_key.values() if len(group) > 1]


def _hidden_missing(values: pd.Series, column: str) -> list[str]:
    if not _is_text(values):
        return []
    present = [v for v in dict.fromkeys(values.dropna()) if isinstance(v, str) and v.strip() in OFTEN_MISSING]
    return [
        f"column {column}: {text!r} is taken for a level; if it is a missing value, say so (--na {text}; na=)"
        for text in present
    ]


def _listed(texts: Iterable[Any], count: int | None = None) -> str:
    items = [str(t) if str(t).isprintable() else repr(str(t)) for t in texts]
    items = [t if len(t) <= 40 else t[:37] + "..." for t in items]
    more = (len(items) if count is None else count) - LISTED
    return ", ".join(items[:LISTED]) + (f", and {more:,} more" if more > 0 else "")
