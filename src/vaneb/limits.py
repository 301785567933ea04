"""Confidence limits in place of standard errors, as papers print them.

Limits lie z standard errors to both sides of the estimate, as given or, for ratios, after taking logarithms:

    se = (upper - lower) / (2 z),    z = Phi^-1((1 + level) / 2)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from scipy.special import ndtri

from vaneb.layout import LIMITS, STANDARD_ERROR, Array, Layout, folded, numbers_of, refuse_other_names

#: Of limits whose columns do not say it.
LEVEL = 0.95
#: Begins the name of a parameter that is used on the log scale.
LOG = "log_"
#: Names of ratios, in small letters without signs.
RATIOS = (
    *("or", "rr", "hr", "irr", "smr", "sir"),
    *("oddsratio", "riskratio", "relativerisk", "hazardratio", "rateratio", "incidencerateratio"),
)
#: Words of a column's name that say which side it is, and those that say nothing.
LOWER = re.compile(r"(ci|conf)?(lower|low|lo|l|lcl|lci|lb|ll|untere?|ug|inf|inferieure?)(ci|limit|bound)?")
UPPER = re.compile(r"(ci|conf)?(upper|up|high|hi|u|ucl|uci|ub|ul|obere?|og|sup|superieure?)(ci|limit|bound)?")
FILLERS = {"ci", "conf", "confidence", "interval", "limit", "bound", "cl", "ki", "ic", "grenze", "borne"}
PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
#: Share of its interval by which an estimate may lie off the middle before something is said.
OFF_CENTRE = 0.1


def limit_columns(columns: Sequence[str]) -> tuple[str, str, float | None] | None:
    """The columns of lower and upper limits, and the level in their names; None unless they are clear."""
    tails = {column: float(hit[1]) for column in columns if (hit := PERCENT.fullmatch(column.strip()))}
    if len(tails) == 2 and sum(tails.values()) == 100:
        low, high = sorted(tails, key=tails.__getitem__)
        return low, high, (tails[high] - tails[low]) / 100
    sides: tuple[dict[str, list[str]], ...] = (defaultdict(list), defaultdict(list))
    levels = set()
    for column in columns:
        words = [word for word in re.findall(r"[a-z]+|\d+", folded(column, " ")) if word not in FILLERS]
        numbers = {int(word) for word in words if word.isdecimal() and 50 <= int(word) < 100}
        for pattern, side in zip((LOWER, UPPER), sides, strict=True):
            others = [word for word in words if not pattern.fullmatch(word)]
            if len(others) == len(words) - 1:
                side[" ".join(others)].append(column)
                levels |= numbers
    pairs = [(low, sides[1][rest]) for rest, low in sides[0].items() if rest in sides[1]]
    if len(pairs) != 1 or len(pairs[0][0]) != 1 or len(pairs[0][1]) != 1:
        return None
    return pairs[0][0][0], pairs[0][1][0], levels.pop() / 100 if len(levels) == 1 else None


def as_standard_errors(
    table: pa.Table,
    found: Layout,
    problem: Callable[[str], object],
    scale: str | None = None,
    expected: Sequence[str] | None = None,
    told: Collection[int] = (),
) -> tuple[pa.Table, Layout]:
    """The table with standard errors in place of limits, and the layout that uses them.

    Parameters
    ----------
    table : columns as ``found`` names them
    problem : told of each client whose limits do not enclose its estimate; its error becomes null
    scale : "given" or "log"; by default the one on which the limits are symmetric
    expected : names of the parameters, in the order that is wanted
    told : rows whose problems are known already
    """
    if found.noise != LIMITS or found.limits_level is None:  # which limits always have
        return table, found
    width = 2 * float(ndtri((1 + found.limits_level) / 2))
    lows, highs = found.noise_columns[: len(found.names)], found.noise_columns[len(found.names) :]
    made: dict[str, tuple[str, str]] = {}
    notes = list(found.notes)
    for name, column, low, high in zip(found.names, found.estimates, lows, highs, strict=True):
        wanted = scale
        if expected is not None and {name, f"{LOG}{name}"} & set(expected):
            wanted = "given" if name in expected else "log"
        numbers = _enclosing(table, found.client, (low, column, high), wanted == "log", problem, told)
        off_centre = _off_centre(*numbers)
        logs = _log(numbers[0]), _log(numbers[1]), _log(numbers[2])
        off_centre_of_logs = _off_centre(*logs)
        if wanted is None:
            clearly = 1.0 if folded(column) in RATIOS else 0.5
            wanted = "log" if off_centre_of_logs < clearly * off_centre else "given"
        way = f"({high} - {low})"
        if wanted == "log":
            name, numbers, way = f"{LOG}{name}", logs, f"(log {high} - log {low})"
            column = f"logarithm of {column}"
            table = table.append_column(column, pa.array(numbers[1]))
        error = f"standard error of {name}"
        values = (numbers[2] - numbers[0]) / width
        # Null rather than missing: what is wrong with it has been said.
        table = table.append_column(error, pa.array(values, mask=np.isnan(values)))
        made[name] = column, error
        notes.append(
            f"took {way} / {width:.3g} as standard error of {name}"
            + ("; results are logarithms, unless --limits-scale given" if wanted == "log" else "")
        )
        if min(off_centre, off_centre_of_logs) > OFF_CENTRE:
            notes.append(
                f"{low} and {high} are symmetric neither as given nor as logarithms: standard errors would "
                "be better"
            )
    names = tuple(made)
    if expected is not None:
        refuse_other_names(names, expected)
        names = tuple(expected)
    estimates, errors = zip(*(made[name] for name in names), strict=True)
    return table, replace(
        found,
        names=names,
        estimates=estimates,
        noise=STANDARD_ERROR,
        noise_columns=errors,
        notes=tuple(notes),
    )


def _enclosing(
    table: pa.Table,
    client: str,
    columns: tuple[str, str, str],
    ratio: bool,
    problem: Callable[[str], object],
    told: Collection[int],
) -> tuple[Array, Array, Array]:
    """Lower limit, estimate, upper limit of each client; NaN where they are not in this order."""
    lower, estimate, upper = (numbers_of(table, column) for column in columns)
    with np.errstate(invalid="ignore"):
        fine = (lower <= estimate) & (estimate <= upper) & (lower < upper) & (upper < np.inf)
        fine &= lower > (0 if ratio else -np.inf)
    for k in sorted({*np.flatnonzero(~fine).tolist()} - {*told}):
        numbers = ", ".join(f"{column[k]:g}" for column in (lower, estimate, upper))
        problem(
            f"client {str(table[client][k])!r}, columns {', '.join(columns)}: {numbers} are not a lower "
            f"limit, an estimate and an upper limit{' of a ratio' if ratio else ''}. Correct them, leave the "
            "client out, or name other columns: --estimate COLUMN --lower COLUMN --upper COLUMN."
        )
    lower, upper = np.where(fine, lower, np.nan), np.where(fine, upper, np.nan)
    return lower, estimate, upper


def _off_centre(lower: Array, estimate: Array, upper: Array) -> float:
    """Average distance of the estimates from the middle of their intervals, as a share of the width."""
    with np.errstate(invalid="ignore"):  # there is no logarithm, or no interval
        off = np.abs((lower + upper) / 2 - estimate) / (upper - lower)
    off = off[~np.isnan(lower)]
    return float(off.mean()) if len(off) and np.isfinite(off).all() else np.inf


def _log(values: Array) -> Array:
    """NaN or -inf where there is no logarithm."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.log(values)
