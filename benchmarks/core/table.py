"""Rows on file, and the page that shows the newest of them.

``results.jsonl`` keeps every row ever measured.  The page shows, for each part, the newest row of each
thing measured; rows of a comparison carry both sides' times, which were taken in one run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from measure import HERE, Row

RESULTS = HERE / "results.jsonl"
PAGE = HERE / "README.md"
#: What is written by hand: it ends the page.
BY_HAND = HERE / "by_hand.md"


class Column(NamedTuple):
    title: str
    key: str
    show: Callable[[Any], str]


class Part(NamedTuple):
    """How a part is shown: a row is known by ``key``, and newer rows with the same replace it."""

    title: str
    text: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]


def append(row: Row) -> None:
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def text(value: Any) -> str:
    return str(value)


def count(value: Any) -> str:
    return f"{value:,}"


def seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def yes(value: bool) -> str:
    return "yes" if value else "no"


def fixed(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:.{digits}f}"


def small(value: float) -> str:
    return f"{value:.1e}"


def times(value: float) -> str:
    return f"{value:.1f}x" if value < 10 else f"{value:,.0f}x"


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


WHAT, CPU = Column("", "what", text), Column("CPU s", "cpu", seconds)
CLIENTS, ATOMS = Column("clients", "clients", count), Column("atoms", "atoms", count)
RATIO = Column("times ours", "ratio", times)
LIKELIHOOD = Column("mean log-likelihood", "log_likelihood", fixed(8))

PARTS: dict[str, Part] = {
    "weights": Part(
        "Weights alone",
        "The reference problems, ours at a tolerance of 1e-7. *Gap* is max D over all columns, recomputed;"
        " *above optimum* is how far -mean log(L w) is above the known optimum, itself known to 2e-7."
        " Aims: no more than 0.46, 1.0 and 1.7 CPU seconds on a quiet core, mixsqp at least 20x on `tall`.",
        ("problem", "what"),
        (
            Column("problem", "problem", text),
            WHAT,
            CPU,
            Column("ours beside it", "ours", seconds),
            RATIO,
            Column("gap", "gap", small),
            Column("above optimum", "above_optimum", small),
            ATOMS,
        ),
    ),
    "fit": Part(
        "Whole fit",
        "`five(3200)`, d = 3, constant diagonal covariances; npeb with 10 EM steps and CLARABEL."
        " Log-likelihood and gaps are recomputed by arithmetic that belongs to neither side; the gap"
        " anywhere by scipy's L-BFGS from all atoms and 60 observations."
        " Compilation happens once after installation and is not"
        " in our time. Aims: 300x (all observations as atoms), 5x (400 atoms), a higher log-likelihood than"
        " both, gap below 1e-4.",
        ("what",),
        (
            WHAT,
            CPU,
            Column("ours beside it", "ours", seconds),
            RATIO,
            LIKELIHOOD,
            Column("max D, observations", "gap_observations", small),
            Column("max D, anywhere", "gap_anywhere", small),
            Column("MSE", "mse", fixed(4)),
            Column("MSE of the estimates", "mse_raw", fixed(4)),
            ATOMS,
        ),
    ),
    "growth": Part(
        "Growth",
        '`VANEB("discrete", outliers=0).fit(reports)` and posterior means, each size in its own process.'
        " *Times linear* is the time per client relative to the next smaller size. Aims: 1.2, and 3,072 MiB"
        " at 10^6 clients. *Given up*, before 18 November 2026: the average log-likelihood that the fit"
        " forwent by not giving an atom to a client that would have it to itself; now it is given one.",
        ("case", "clients", "tol"),
        (
            Column("case", "case", text),
            CLIENTS,
            Column("tolerance", "tol", small),
            CPU,
            Column("of it personalising", "personalize_cpu", seconds),
            Column("times linear", "times_linear", fixed(2)),
            Column("exponent", "exponent", fixed(2)),
            Column("peak MiB", "peak_mib", lambda mib: f"{mib:,.0f}"),
            Column("with data only", "data_mib", lambda mib: f"{mib:,.0f}"),
            ATOMS,
            Column("max D", "gap", small),
            Column("reached", "reached", yes),
            Column("given up", "alone", small),
            Column("MSE", "mse", fixed(3)),
            Column("MSE of the estimates", "mse_raw", fixed(3)),
        ),
    ),
    "kernels": Part(
        "Kernels against the arithmetic limit",
        "One thread, 200 atoms, no pair skipped; operations counted from the formulas as"
        " `part_kernels.py` says. The limit is a product of 1536 x 1536 matrices on the same thread.",
        ("what", "kernel"),
        (
            WHAT,
            Column("kernel", "kernel", text),
            Column("d", "dimension", text),
            Column("ns per pair", "nanoseconds", fixed(2)),
            Column("ns, five clusters", "nanoseconds_population", fixed(2)),
            Column("operations", "operations", text),
            Column("GFlop/s", "gigaflops", fixed(1)),
            Column("of the limit", "of_limit", percent),
        ),
    ),
    "solvers": Part(
        "Certified against Algorithm 1",
        "Quadratic five-curve scenario, n_k of 40 to 80, no spread. The gap is the largest D found by the"
        " same thorough search for both.",
        ("clients", "what"),
        (
            CLIENTS,
            WHAT,
            CPU,
            ATOMS,
            LIKELIHOOD,
            Column("max D", "gap", small),
            Column("RMSE", "rmse", fixed(4)),
        ),
    ),
    "coverage": Part(
        "Coverage of 90% intervals",
        "The three scenarios, n_k of 40 to 80, `VANEB()` as it is by default, one replicate.",
        ("scenario", "clients", "seen"),
        (
            Column("scenario", "scenario", text),
            Column("solver sees", "seen", text),
            CLIENTS,
            Column("coverage", "coverage", percent),
            Column("standard error", "standard_error", percent),
            Column("by parameter", "by_parameter", lambda shares: ", ".join(map(percent, shares))),
            Column("median length", "median_length", fixed(3)),
            Column("RMSE", "rmse", fixed(4)),
            Column("share chosen", "share", text),
            Column("max D", "gap", small),
            ATOMS,
            CPU,
        ),
    ),
    "command": Part(
        "The command, by default",
        "`vaneb personalize reports.parquet -o results.parquet`: CPU seconds of the whole command with its"
        " start, on one thread, after a first run that compiles. Aims: 3, 10, 40 and 400 CPU seconds with"
        " three parameters, 20 with ten; 3,072 MiB at 10^6 clients.",
        ("clients", "dimension"),
        (
            CLIENTS,
            Column("parameters", "dimension", text),
            CPU,
            Column("peak MiB", "peak_mib", lambda mib: f"{mib:,.0f}"),
            Column("population", "population", text),
        ),
    ),
}

HEAD = """# Figures of the core

    python benchmarks/core/run.py [part ...] [--npeb PYTHON] [--quick]

Parts: weights, fit, growth, kernels, solvers, coverage, command. `results.jsonl` keeps every row with its
date, machine, load and versions; this page is written from the newest ones and from `by_hand.md`, and
should not be edited. An aim without a row has not been measured yet.

Times are CPU seconds (user and system) of one thread. Where we are compared with another program, both run
on the same data in one run, ours before and after the other; the slower of the two is *ours beside it* and
stands in the ratio. Other work was running on the machine (see the load), which lengthens everybody's
times; ratios and gaps do not depend on it much.

mixsqp needs R (Debian: `apt-get install r-base-core r-cran-mixsqp libopenblas0-pthread`); npeb an
interpreter of its own: `python -m venv V; V/bin/pip install npeb==0.0.2 cvxpy clarabel`, then
`--npeb V/bin/python`. Either is left out where it is missing. `--quick` leaves out npeb with all observations
as atoms, which takes about half an hour. `--clients` and `--cases` choose other sizes and single cases of
growth, solvers and coverage.
"""


def newest(part: str) -> list[Row]:
    """The newest row of each thing, in the order in which things were first measured."""
    known: dict[tuple, Row] = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["part"] == part:
            if part == "growth":
                row.setdefault("tol", 1e-4)  # rows from before there was a choice
            known[tuple(row.get(name) for name in PARTS[part].key)] = row
    rows = list(known.values())
    if part == "growth":
        rows.sort(key=lambda row: (row["case"], -row["tol"], row["clients"]))
        return [row | growth(before, row) for before, row in pairwise([None, *rows])]
    return rows


def growth(before: Row | None, row: Row) -> Row:
    """How the time has grown since the next smaller size, if ``before`` is that."""
    if before is None or (before["case"], before["tol"]) != (row["case"], row["tol"]):
        return {}
    grown, more = row["cpu"] / before["cpu"], row["clients"] / before["clients"]
    return {"times_linear": grown / more, "exponent": math.log(grown) / math.log(more)}


def markdown(part: Part, rows: list[Row]) -> str:
    shown = [column for column in part.columns if any(row.get(column.key) is not None for row in rows)]
    lines = ["| " + " | ".join(column.title for column in shown) + " |", "|---" * len(shown) + "|"]
    for row in rows:
        cells = ("" if (value := row.get(c.key)) is None else c.show(value) for c in shown)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def provenance(rows: list[Row]) -> str:
    """One line for each run that rows on the page come from."""
    keys = ("command", "date", "commit", "machine", "load", "versions")
    runs: dict[tuple, set[str]] = {}
    for row in rows:
        runs.setdefault(tuple(row[key] for key in keys), set()).update(filter(None, [row.get("competitor")]))
    lines = []
    for (command, date, commit, machine, load, versions), others in runs.items():
        beside = "; ".join(["", *sorted(others)])
        lines.append(
            f"- `{command}`, {date} UTC, commit {commit}, {machine}, load {load}; {versions}{beside}"
        )
    return "\n".join(lines)


def render() -> None:
    """Write the page anew."""
    pages = [HEAD]
    for name, part in PARTS.items():
        if rows := newest(name):
            paragraphs = (f"## {part.title}", part.text, markdown(part, rows), provenance(rows))
            pages.append("\n\n".join(paragraphs) + "\n")
    pages.append(BY_HAND.read_text(encoding="utf-8"))
    PAGE.write_text("\n".join(pages), encoding="utf-8")
