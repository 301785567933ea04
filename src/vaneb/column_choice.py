"""Which columns of a file are the client, the estimates and their errors, when they are not called so.

A user says which they are, or they have common names (``estimate`` and ``se``, ``coef`` and ``std.err``,
``yi`` and ``vi``).  What was taken for what is said in a note.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.layout import (
    CLIENT,
    COVARIANCE,
    ESTIMATE,
    PRECISION,
    SIZE,
    STANDARD_ERROR,
    UNNAMED,
    VARIANCE,
    Layout,
    listed,
    make_layout,
    refuse_repeated,
    reported_estimates,
    reported_noise,
    table_has,
    triangle_columns,
)

#: Names that people give to columns, in small letters without signs.
KNOWN_ESTIMATES = ("estimate", "est", "coef", "coefficient", "effect", "yi", "b", "beta", "theta")
KNOWN_ERRORS = ("se", "stderr", "stderror", "standarderror", "sei", "stde")
KNOWN_VARIANCES = ("vi", "var", "variance")
#: Taken for estimates where a variance function is named; a count is none.
KNOWN_RATES = ("rate", "share", "proportion", "mean", "average")
#: Ends of intervals, which are not read.
LIMITS = re.compile(r"(ci|conf)?(lower|upper|low|high|lcl|ucl|lb|ub)(ci|limit|bound|95)?")


@dataclass(frozen=True)
class ColumnChoice:
    """Which columns hold what, in a user's words; what is not said is guessed.

    Attributes
    ----------
    client, n : str, optional
    estimate, se, variance : tuples of str
        Columns, or patterns with one ``*``: what it stands for is the parameter's name, by which estimates
        and their errors are paired.
    """

    client: str | None = None
    estimate: tuple[str, ...] = ()
    se: tuple[str, ...] = ()
    variance: tuple[str, ...] = ()
    n: str | None = None

    def __post_init__(self) -> None:
        if self.se and self.variance:
            raise InvalidOption("--se and --variance: both given. Keep one of them.")
        if (self.se or self.variance) and not self.estimate:
            option = "--se" if self.se else "--variance"
            raise InvalidOption(f"{option} without --estimate: say whose error it is. Add --estimate COLUMN.")


def choose_columns(
    columns: Sequence[str],
    choice: ColumnChoice,
    *,
    covariance_given: bool = False,
    names: Sequence[str] | None = None,
) -> Layout:
    """The layout of a table of which a user has said something, or nothing.

    Parameters
    ----------
    columns : sequence of str
    choice : ColumnChoice
    covariance_given : bool
        The covariance comes from a function, so that columns for it are not needed and not used.
    names : sequence of str, optional
        The parameters that are expected, in the order that is wanted; by default those of the table.
    """
    refuse_repeated(columns)
    for option, column in (("--client", choice.client), ("--n", choice.n)):
        if column is not None and column not in columns:
            raise InvalidOption(f"{option} {column}: there is no such column. {table_has(column, columns)}")
    reported = not choice.estimate and any(column.startswith(ESTIMATE) for column in columns)
    rates = KNOWN_RATES if covariance_given else ()
    found = reported_estimates(columns) if reported else _estimates(columns, choice, rates)
    found = _in_order(found, names)
    size = choice.n or (SIZE if SIZE in columns else None)
    noise: str | None = None
    noise_columns: list[str] = []
    if reported and not covariance_given:
        noise, noise_columns = reported_noise(columns, tuple(found))
    elif not covariance_given:
        noise, noise_columns = _noise(columns, found, choice)
    client = choice.client or _client(columns, {size, *found.values(), *noise_columns})
    layout = make_layout(columns, client, found, noise, noise_columns, size, covariance_given)
    twice = [column for column, count in Counter(layout.used).items() if count > 1]
    if twice:
        raise InvalidOption(
            f"column {twice[0]}: taken for two things. {_what_was_taken(layout).capitalize()}. Name another "
            "column for one of them."
        )
    if reported and client == CLIENT:
        return layout
    return replace(layout, notes=(_what_was_taken(layout), *layout.notes))


def _estimates(columns: Sequence[str], choice: ColumnChoice, rates: Sequence[str] = ()) -> dict[str, str]:
    """Parameters and their columns: those that were named, or the only ones that can be meant."""
    if choice.estimate:
        found: dict[str, str] = {}
        for term in choice.estimate:
            for name, column in _matching("--estimate", term, columns).items():
                name = column.removeprefix(ESTIMATE) if name == column else name
                if name in found:
                    raise InvalidOption(f"--estimate: {name!r} names two columns. Give each once.")
                found[name] = column
        return found
    single = [column for column in columns if _plain(column) in (*KNOWN_ESTIMATES, *rates)]
    if len(single) == 1:
        return {single[0]: single[0]}
    if single:
        raise InvalidReport(
            f"columns {' and '.join(single)}: each could be the estimate. Say which: --estimate {single[0]}."
        )
    several = [column for column in columns if _prefix(column) in KNOWN_ESTIMATES]
    if len({_prefix(column) for column in several}) > 1:
        raise InvalidReport(
            f"columns {', '.join(several)}: cannot all be estimates. Say which: --estimate 'b_*' --se 'se_*'."
        )
    if several and all(map(_rest, several)):
        return {_rest(column): column for column in several}
    left = _only_one_left(columns, choice)
    if left is not None:
        return {left: left}
    title = any(column.startswith(UNNAMED) for column in columns[1:])
    raise InvalidReport(
        f"columns of estimates: not recognised. The table has: {listed(columns)}. Say which they are: "
        "--client COLUMN --estimate COLUMN --se COLUMN. Or call them client, theta_<name> and se_<name>. "
        "Rows or counts instead of estimates? Use vaneb run."
        + _of_rates(columns)
        + _of_limits(columns)
        + (" The first line must be the header: remove what stands above it." if title else "")
    )


def _only_one_left(columns: Sequence[str], choice: ColumnChoice) -> str | None:
    """The column beside the client's and a single error, as in ``hospital, mortality, se``."""
    known = KNOWN_ERRORS + KNOWN_VARIANCES
    free = [column for column in columns if _plain(column) not in known]
    client = choice.client or (CLIENT if CLIENT in free else free[0] if free else None)
    left = [column for column in free if column not in (client, choice.n or SIZE)]
    return left[0] if len(left) == 1 and len(columns) - len(free) == 1 else None


def _in_order(found: dict[str, str], expected: Sequence[str] | None) -> dict[str, str]:
    if expected is None:
        return found
    if sorted(found) != sorted(expected):
        raise InvalidReport(
            f"columns of estimates: the table has {', '.join(found)}, but {', '.join(expected)} are "
            "expected. Rename, add or remove columns so that the parameters are the same."
        )
    return {name: found[name] for name in expected}


def _noise(columns: Sequence[str], found: dict[str, str], choice: ColumnChoice) -> tuple[str, list[str]]:
    """The kind of noise, and its columns: those that were named, or the only ones that can be meant."""
    if choice.se:
        return STANDARD_ERROR, _paired("--se", choice.se, columns, found, choice)
    if choice.variance:
        return VARIANCE, _paired("--variance", choice.variance, columns, found, choice)
    for prefix in (COVARIANCE, PRECISION):
        if all(f"{prefix}{name}__{name}" in columns for name in found):
            return prefix, triangle_columns(prefix, tuple(found), columns)
    free = [column for column in columns if column not in found.values()]
    for kind, known in ((STANDARD_ERROR, KNOWN_ERRORS), (VARIANCE, KNOWN_VARIANCES)):
        errors = {_rest(column): column for column in free if _prefix(column) in known}
        # se_age belongs to the parameter age, or to the column b_age.
        for key in (list(found), [_rest(column) for column in found.values()]):
            if all(name in errors for name in key):
                return kind, [errors[name] for name in key]
        single = [column for column in free if _plain(column) in known]
        if len(single) > 1:
            raise InvalidReport(
                f"columns {' and '.join(single)}: each could be the error. Say which: --se {single[0]}."
            )
        if single and len(found) == 1:
            return kind, single
    raise InvalidReport(
        f"columns of standard errors: not recognised for {', '.join(found)}. The table has: "
        f"{listed(columns)}. Say which they are: --estimate COLUMN --se COLUMN (or --variance COLUMN), "
        "once for each estimate." + _of_rates(columns) + _of_limits(columns)
    )


def _of_rates(columns: Sequence[str]) -> str:
    """What to do with rates, whose errors follow from them."""
    has = SIZE in columns and any(_plain(column) in KNOWN_RATES for column in columns)
    return " Rates need no errors: add --variance-function binomial or poisson." if has else ""


def _of_limits(columns: Sequence[str]) -> str:
    """What to do with the ends of intervals, where a table has them instead of errors."""
    has = sum(LIMITS.fullmatch(_plain(column)) is not None for column in columns) >= 2
    return " A standard error is (upper - lower) / 3.92 of a 95% interval: add such a column." if has else ""


def _paired(
    option: str, terms: Sequence[str], columns: Sequence[str], found: dict[str, str], choice: ColumnChoice
) -> list[str]:
    """The column of noise for each estimate: by the patterns' ``*``, or by order."""
    errors = {name: column for term in terms for name, column in _matching(option, term, columns).items()}
    if any("*" in term for term in (*terms, *choice.estimate)):
        for name, column in found.items():
            if name not in errors:
                raise InvalidReport(
                    f"column {column}: {option} {' '.join(terms)} matches no column for {name!r}, only for "
                    f"{', '.join(errors)}. Rename one of them, or name all columns one by one."
                )
        return [errors[name] for name in found]
    if len(errors) != len(choice.estimate):
        raise InvalidOption(
            f"{option}: given for {len(errors)} columns, --estimate for {len(choice.estimate)}. "
            "Give one for each, in the same order."
        )
    by_column = dict(zip(choice.estimate, errors.values(), strict=True))
    return [by_column[column] for column in found.values()]


def _client(columns: Sequence[str], taken: set[str | None]) -> str:
    """``client``, or the first column that is nothing else; one without a name only if there is no other."""
    free = [column for column in columns if column not in taken]
    if CLIENT in free:
        return CLIENT
    if not free:
        raise InvalidReport(
            f"column {CLIENT}: missing, no column is left for the clients' names. The table has: "
            f"{listed(columns)}. Add a column that names the client of each row."
        )
    return next((column for column in free if not column.startswith(UNNAMED)), free[0])


def _matching(option: str, term: str, columns: Sequence[str]) -> dict[str, str]:
    """Columns by the name that a term gives them: what ``*`` stands for, or their own."""
    if "*" not in term:
        if term not in columns:
            raise InvalidOption(f"{option} {term}: there is no such column. {table_has(term, columns)}")
        return {term: term}
    if term.count("*") > 1:
        raise InvalidOption(f"{option} {term!r}: write one * only. It stands for the parameter's name.")
    before, after = term.split("*")
    pattern = re.compile(f"{re.escape(before)}(.+){re.escape(after)}")
    found = {hit[1]: column for column in columns if (hit := pattern.fullmatch(column))}
    if not found:
        raise InvalidOption(f"{option} {term!r}: matches no column. {table_has(before, columns)}")
    return found


def _what_was_taken(layout: Layout) -> str:
    kinds = {STANDARD_ERROR: "standard error", VARIANCE: "variance", COVARIANCE: "covariance"}
    kinds |= {PRECISION: "precision"}
    parts = [f"{layout.client} as client"]
    one = len(layout.estimates) == 1
    parts.append(f"{', '.join(layout.estimates)} as estimate{'' if one else 's'}")
    if layout.noise is not None:
        of_them = f"its {kinds[layout.noise]}" if one else f"their {kinds[layout.noise]}s"
        parts.append(f"{', '.join(layout.noise_columns)} as {of_them}")
    if layout.size is not None:
        parts.append(f"{layout.size} as sample size")
    return f"took {'; '.join(parts)}"


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]", "", column.lower())


def _prefix(column: str) -> str:
    """``b`` of ``b_age`` and ``se`` of ``se.age``; empty without such a sign."""
    parts = re.split(r"[_.]", column, maxsplit=1)
    return _plain(parts[0]) if len(parts) == 2 else ""


def _rest(column: str) -> str:
    """``age`` of ``b_age``; all of it without such a sign."""
    return re.split(r"[_.]", column, maxsplit=1)[-1]
