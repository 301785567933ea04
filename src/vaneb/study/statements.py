"""What the paper says of its simulations, and whether the rows of paper mode bear it out.

A statement is one or several comparisons: this estimator here has a smaller RMSE than that one there.  In
one cell they are paired by replicate.  A comparison *holds* if the mean difference is below zero by more than
two of its standard errors, *fails* if it is above zero by more, and is *open* in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vaneb import text_tables
from vaneb.study.sweep import Cell
from vaneb.study.tables import Rows, by_replicate

#: Mean RMSEs that the paper prints, of its VANEB and of NPEB.
PRINTED = {
    Cell("poisson", 50, 40): (1.545, 1.673),
    Cell("poisson", 3200, 40): (1.300, 1.363),
    Cell("poisson", 3200, 10): (2.819, 3.8),
}
VANEB, NPEB, ADAMIX, FEDAVG, LOCAL = "algorithm-1", "npeb", "adamix", "fedavg", "local"
RIVALS = (NPEB, ADAMIX, FEDAVG, LOCAL)


@dataclass(frozen=True)
class Comparison:
    """``factor`` times the RMSE of ``lower`` in ``cell`` is below that of ``higher``, there or elsewhere."""

    cell: Cell
    lower: str
    higher: str
    other: Cell | None = None
    factor: float = 1.0

    def __str__(self) -> str:
        times = f"{self.factor:g} x " if self.factor != 1 else ""
        there = "" if self.other is None else f" at K={self.other.clients} n={self.other.n_min}"
        return f"{times}{self.lower} < {self.higher}{there}"


def _below(scenario: str, places: Sequence[tuple[int, int]], lower: str, *higher: str) -> list[Comparison]:
    return [Comparison(Cell(scenario, *place), lower, name) for place in places for name in higher]


K_SWEEP = [(k, 40) for k in (50, 200, 800, 3200)]
N_SWEEP = [(3200, n) for n in (5, 10, 20, 40)]
ALL = list(dict.fromkeys(K_SWEEP + N_SWEEP))

STATEMENTS: dict[str, list[Comparison]] = {
    "Quadratic: VANEB improves steadily with K": [
        Comparison(Cell("quadratic", *more), VANEB, VANEB, Cell("quadratic", *fewer))
        for fewer, more in pairwise(K_SWEEP)
    ],
    "Quadratic: VANEB is below NPEB once K is moderate": _below("quadratic", K_SWEEP[1:], VANEB, NPEB),
    "Quadratic: VANEB is strongly below NPEB with small samples": _below(
        "quadratic", N_SWEEP[:2], VANEB, NPEB
    ),
    "Quadratic: VANEB and NPEB are generally below AdaMix and local estimates": [
        *_below("quadratic", ALL, VANEB, ADAMIX, LOCAL),
        *_below("quadratic", ALL, NPEB, ADAMIX, LOCAL),
    ],
    "Quadratic: FedAvg is far above all others": _below("quadratic", ALL, LOCAL, FEDAVG),
    "Logistic: VANEB is substantially below NPEB, AdaMix and FedAvg with small samples": _below(
        "logistic", N_SWEEP[:2], VANEB, NPEB, ADAMIX, FEDAVG
    ),
    "Logistic: NPEB and AdaMix are slightly below VANEB at K = 50, 200, 800": [
        *_below("logistic", K_SWEEP[:3], NPEB, VANEB),
        *_below("logistic", K_SWEEP[:3], ADAMIX, VANEB),
    ],
    "Logistic: VANEB is the best at K = 3200": _below("logistic", K_SWEEP[3:], VANEB, *RIVALS),
    "Poisson: at n = 5 local estimates are several orders of magnitude worse than at n = 10": [
        Comparison(Cell("poisson", 3200, 10), LOCAL, LOCAL, Cell("poisson", 3200, 5), 100.0)
    ],
    "Poisson: from n = 10 on VANEB is the best but the oracle": _below(
        "poisson", N_SWEEP[1:], VANEB, *RIVALS
    ),
    "Poisson: VANEB is below NPEB for every K": _below("poisson", K_SWEEP, VANEB, NPEB),
}


@dataclass(frozen=True)
class Finding:
    """A comparison in numbers; all NaN, and 0 replicates, where it was not run.

    Parameters
    ----------
    difference, error : mean of RMSE(lower) * factor - RMSE(higher), and its standard error.
    median : of the paired differences, or the difference of the medians where there are no pairs.
    relative : ``difference`` as a share of the mean RMSE of ``higher``.
    """

    comparison: Comparison
    difference: float
    error: float
    median: float
    relative: float
    replicates: int

    @property
    def verdict(self) -> str:
        if not self.replicates:
            return "not run"
        if np.isnan(self.error) or abs(self.difference) <= 2 * self.error:
            return "open"
        return "holds" if self.difference < 0 else "fails"


def examine(rows: Rows, comparison: Comparison) -> Finding:
    """One comparison on the rows that there are."""
    low = by_replicate(rows, comparison.cell, comparison.lower)
    high = by_replicate(rows, comparison.other or comparison.cell, comparison.higher)
    if comparison.other is None:
        both = sorted(low.keys() & high.keys())
        a, b = (np.array([side[i] for i in both]) for side in (low, high))
        spread, median = _squared_error(a * comparison.factor - b), a * comparison.factor - b
    else:
        a, b = np.array(list(low.values())), np.array(list(high.values()))
        spread = comparison.factor**2 * _squared_error(a) + _squared_error(b)
        median = np.array([])
        if len(a) and len(b):
            median = comparison.factor * np.median(a) - np.median(b)
    if not len(a) or not len(b):
        nothing = float("nan")
        return Finding(comparison, nothing, nothing, nothing, nothing, 0)
    difference = float(comparison.factor * a.mean() - b.mean())
    return Finding(
        comparison,
        difference,
        float(np.sqrt(spread)),
        float(np.median(median)),
        difference / float(b.mean()),
        min(len(a), len(b)),
    )


def _squared_error(values: np.ndarray) -> float:
    return float(values.var(ddof=1) / len(values)) if len(values) > 1 else float("nan")


def printed_as_markdown(rows: Rows) -> str:
    """The paper's six numbers beside ours."""
    lines = []
    for cell, values in PRINTED.items():
        for name, value in zip((VANEB, NPEB), values, strict=True):
            own = np.array(list(by_replicate(rows, cell, name).values()))
            ours = ["", "", ""]
            if len(own):
                ours = [
                    f"{own.mean():.3f}",
                    _number(np.sqrt(_squared_error(own)), ".3f"),
                    f"{np.median(own):.3f}",
                ]
            place = f"{cell.scenario} K={cell.clients} n={cell.n_min}"
            lines.append([place, name, f"{value:.3f}", *ours, str(len(own))])
    head = ("cell", "estimator", "printed", "ours", "s.e.", "median", "replicates")
    return text_tables.as_markdown(head, lines, left=(0, 1))


def verdicts(rows: Rows) -> dict[str, list[Finding]]:
    """All findings, by statement."""
    return {text: [examine(rows, each) for each in parts] for text, parts in STATEMENTS.items()}


def in_short(text: str, findings: Sequence[Finding]) -> str:
    """A statement with the number of comparisons that hold, fail, and are open."""
    counts = {name: sum(each.verdict == name for each in findings) for name in ("holds", "fails", "open")}
    run = sum(counts.values())
    if not run:
        return f"{text}: not run."
    others = "".join(f"; {name} in {counts[name]}" for name in ("fails", "open") if counts[name])
    return f"{text}: holds in {counts['holds']} of {run}{others}."


def as_markdown(rows: Rows) -> str:
    """Printed numbers, the statements in short, and every comparison."""
    found = verdicts(rows)
    lines = ["### The six printed numbers", "", printed_as_markdown(rows), "", "### What the paper says", ""]
    lines += ["Comparisons by statement; open is a difference within two standard errors.", ""]
    lines += [f"- {in_short(text, findings)}" for text, findings in found.items()]
    lines += [
        "",
        "### Every comparison",
        "",
        "Difference: mean RMSE of the left side less the right, on the same replicates where both are of one",
        "cell. Negative is what the paper says.",
        "",
    ]
    table = []
    for text, findings in found.items():
        for each in findings:
            cell = each.comparison.cell
            values = [
                _number(each.difference, "+.4f"),
                _number(each.error, ".4f"),
                _number(each.median, "+.4f"),
                _number(each.relative, "+.1%"),
            ]
            place = [text, f"K={cell.clients} n={cell.n_min}", str(each.comparison)]
            table.append([*place, *values, str(each.replicates), each.verdict])
    head = ("statement", "cell", "comparison", "difference", "s.e.", "median", "relative", "replicates")
    return "\n".join([*lines, text_tables.as_markdown((*head, "verdict"), table, left=(0, 1, 2, 8))])


def _number(value: float, form: str) -> str:
    return "" if np.isnan(value) else format(value, form)
