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
    LIMITS,
    PRECISION,
    SIZE,
    STANDARD_ERROR,
    UNNAMED,
    VARIANCE,
    Layout,
    folded,
    listed,
    make_layout,
    refuse_other_names,
    refuse_repeated,
    reported_estimates,
    reported_noise,
    table_has,
    triangle_columns,
)
from vaneb.limits import LEVEL, RATIOS, limit_columns

#: Names that people give to columns, as ``layout.folded`` writes them; also in German and French.
KNOWN_ESTIMATES = (
    *("estimate", "est", "coef", "coefficient", "effect", "yi", "b", "beta", "theta"),
    *("schatzer", "schatzung", "schatzwert", "effekt", "koeffizient", "estimation", "effet"),
)
KNOWN_ERRORS = ("se", "stderr", "stderror", "standarderror", "sei", "stde", "standardfehler", "erreurtype")
KNOWN_VARIANCES = ("vi", "var", "variance", "varianz")
#: Taken for estimates where a variance function is named; a count is none.
KNOWN_RATES = ("rate", "share", "proportion", "mean", "average")
#: Standard deviations of single observations, and what a test gives.
KNOWN_DEVIATIONS, KNOWN_TESTS = ("sd", "std", "stddev"), ("p", "pvalue", "pval", "prz", "prt", "z", "t")


@dataclass(frozen=True)
class ColumnChoice:
    """Which columns hold what, in a user's words; what is not said is guessed.

    Attributes
    ----------
    client, n : str, optional
    estimate, se, variance : tuples of str
        Columns, or patterns with one ``*``: what it stands for is the parameter's name, by which estimates
        and their errors are paired.
    lower, upper : tuples of str
        Confidence limits, likewise.
    limits_level : float, optional
        Probability between the limits; by default what their names say, or 0.95.
    limits_scale : str, optional
        "given" or "log", where the limits are symmetric about the estimate; seen from the numbers by default.
    """

    client: str | None = None
    estimate: tuple[str, ...] = ()
    se: tuple[str, ...] = ()
    variance: tuple[str, ...] = ()
    n: str | None = None
    lower: tuple[str, ...] = ()
    upper: tuple[str, ...] = ()
    limits_level: float | None = None
    limits_scale: str | None = None

    def __post_init__(self) -> None:
        given = {"--se": self.se, "--variance": self.variance, "--lower": self.lower, "--upper": self.upper}
        options = [option for option, columns in given.items() if columns]
        if bool(self.lower) != bool(self.upper):
            raise InvalidOption(f"{options[-1]}: both limits are needed. Give --lower COLUMN --upper COLUMN.")
        if len(options) > (2 if self.lower else 1):
            raise InvalidOption(f"{' and '.join(options[:2])}: both given. Keep one of them.")
        if options and not self.estimate:
            raise InvalidOption(
                f"{options[0]} without --estimate: say whose error it is. Add --estimate COLUMN."
            )
        if self.limits_level is not None and not 0 < self.limits_level < 1:
            raise InvalidOption(
                f"--limits-level {self.limits_level:g}: must lie between 0 and 1; 0.95 is that of 95% limits."
            )
        if self.limits_scale not in (None, "given", "log"):
            raise InvalidOption(f"--limits-scale {self.limits_scale}: write given or log.")


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
    size = choice.n or (SIZE if SIZE in columns else None)
    noise: str | None = None
    noise_columns: list[str] = []
    if not reported and not covariance_given:
        noise, noise_columns = _noise(columns, found, choice)
    if names is not None and noise != LIMITS:  # what limits belong to may get another name
        refuse_other_names(tuple(found), names)
        found = {name: found[name] for name in names}
    if noise is not None and noise != LIMITS:
        noise, noise_columns = _noise(columns, found, choice)
    elif reported and not covariance_given:
        noise, noise_columns = reported_noise(columns, tuple(found))
    client = choice.client or _client(columns, {size, *found.values(), *noise_columns})
    layout = make_layout(columns, client, found, noise, noise_columns, size, covariance_given)
    if noise == LIMITS:
        stated = limit_columns(noise_columns)
        layout = replace(layout, limits_level=choice.limits_level or (stated and stated[2]) or LEVEL)
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
    ratios = RATIOS if limit_columns(columns) is not None else ()
    single = [column for column in columns if folded(column) in (*KNOWN_ESTIMATES, *rates, *ratios)]
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
        "Rows or counts instead of estimates? Use vaneb run, for counts with "
        "--formula 'deaths | cases ~ 1' --family binomial."
        + _remedies(columns)
        + (" The first line must be the header: remove what stands above it." if title else "")
    )


def _only_one_left(columns: Sequence[str], choice: ColumnChoice) -> str | None:
    """The column beside the client's and a single error or pair of limits, as in ``town, mortality, se``."""
    noise = [column for column in columns if folded(column) in KNOWN_ERRORS + KNOWN_VARIANCES]
    limits = limit_columns(columns)
    noise = noise or (list(limits[:2]) if limits else [])
    free = [column for column in columns if column not in noise]
    client = choice.client or (CLIENT if CLIENT in free else free[0] if free else None)
    left = [column for column in free if column not in (client, choice.n or SIZE)]
    return left[0] if len(left) == 1 and (len(noise) == 1 or limits is not None) else None


def _noise(columns: Sequence[str], found: dict[str, str], choice: ColumnChoice) -> tuple[str, list[str]]:
    """The kind of noise, and its columns: those that were named, or the only ones that can be meant."""
    if choice.se:
        return STANDARD_ERROR, _paired("--se", choice.se, columns, found, choice)
    if choice.variance:
        return VARIANCE, _paired("--variance", choice.variance, columns, found, choice)
    if choice.lower:
        lower = _paired("--lower", choice.lower, columns, found, choice)
        return LIMITS, lower + _paired("--upper", choice.upper, columns, found, choice)
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
        single = [column for column in free if folded(column) in known]
        if len(single) > 1:
            raise InvalidReport(
                f"columns {' and '.join(single)}: each could be the error. Say which: --se {single[0]}."
            )
        if single and len(found) == 1:
            return kind, single
    limits = limit_columns(free)
    if limits is not None and len(found) == 1:
        return LIMITS, list(limits[:2])
    raise InvalidReport(
        f"columns of standard errors: not recognised for {', '.join(found)}. The table has: "
        f"{listed(columns)}. Say which they are: --estimate COLUMN --se COLUMN (or --variance COLUMN, or "
        "--lower COLUMN --upper COLUMN), once for each estimate." + _remedies(columns)
    )


def _remedies(columns: Sequence[str]) -> str:
    """What to do with columns that are no errors, but from which errors follow."""
    plain = {folded(column) for column in columns}
    said = ""
    if SIZE in columns and plain & set(KNOWN_DEVIATIONS):
        said += " The standard error of a mean is sd / sqrt(n): add such a column."
    elif SIZE in columns and plain & set(KNOWN_RATES):
        said += " Rates need no errors: add --variance-function binomial or poisson."
    if any(re.search(r"\b(ci|ki|ic|confidence)\b", column.lower()) for column in columns):
        said += " Write the two limits of an interval into columns of their own: lower and upper."
    if plain & set(KNOWN_TESTS):
        said += " A p-value is not enough: take the standard error or the interval from the same output."
    return said


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
    kinds |= {PRECISION: "precision", LIMITS: f"{100 * (layout.limits_level or 0):.3g}% limits"}
    parts = [f"{layout.client} as client"]
    one = len(layout.estimates) == 1
    parts.append(f"{', '.join(layout.estimates)} as estimate{'' if one else 's'}")
    if layout.noise is not None:
        kind = kinds[layout.noise] + ("" if one or layout.noise == LIMITS else "s")
        of_them = f"{'its' if one else 'their'} {kind}"
        parts.append(f"{', '.join(layout.noise_columns)} as {of_them}")
    if layout.size is not None:
        parts.append(f"{layout.size} as sample size")
    return f"took {'; '.join(parts)}"


def _prefix(column: str) -> str:
    """``b`` of ``b_age`` and ``se`` of ``se.age``; empty without such a sign."""
    parts = re.split(r"[_.]", column, maxsplit=1)
    return folded(parts[0]) if len(parts) == 2 else ""


def _rest(column: str) -> str:
    """``age`` of ``b_age``; all of it without such a sign."""
    return re.split(r"[_.]", column, maxsplit=1)[-1]
