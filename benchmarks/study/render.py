"""Write what ``results/*.csv`` say into README.md, beside the paper's statements.

python benchmarks/study/render.py
"""

from __future__ import annotations

import math
from pathlib import Path

from vaneb.files import write_atomically
from vaneb.growing_tables import read_rows
from vaneb.study import density_study, statements
from vaneb.study.estimators import ESTIMATORS
from vaneb.study.figures import draw_sweeps
from vaneb.study.rates import slopes, slopes_as_markdown
from vaneb.study.scenarios import SCENARIOS
from vaneb.study.sweep import Cell, cells
from vaneb.study.tables import Rows, Summary, as_markdown, summarise
from vaneb.study.theory_study import THEORY, draw_theory

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
WANTED = 20
#: Goals for ``vaneb``: largest ratio to the oracle's RMSE.
GOALS = {(3200, 40): 1.05, (3200, 10): 1.10, (3200, 5): 1.10}


def main() -> None:
    rows = read_rows(RESULTS / "replicates.csv")
    lines = summarise(rows)
    parts = [_what_is_there(lines), _paper(lines), _goal(rows, lines), _cost(lines)]
    for scenario in SCENARIOS:
        own = [line for line in lines if line.cell.scenario == scenario]
        if own:
            draw_sweeps(rows, scenario, RESULTS / f"{scenario}.png")
            parts.append(f"## {scenario}\n\n![{scenario}](results/{scenario}.png)\n\n{as_markdown(own)}")
    theory = read_rows(RESULTS / "theory.csv")
    if theory:
        draw_theory(theory, RESULTS / "theory.png")
        rates = slopes_as_markdown(slopes(THEORY, theory))
        parts.append(f"## Rates\n\n![rates](results/theory.png)\n\n{rates}")
    page = (HERE / "README.md").read_text(encoding="utf-8")
    page = _filled(page, "results", "\n\n".join(parts))
    paper = read_rows(RESULTS / "paper.csv")
    if paper:
        page = _filled(page, "paper", statements.as_markdown(paper))
    density = read_rows(RESULTS / "density.csv")
    if density:
        page = _filled(page, "density", density_study.as_markdown(density))
    write_atomically(HERE / "README.md", page.encode())


def _filled(page: str, name: str, body: str) -> str:
    """``page`` with ``body`` between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    return f"{page.split(begin)[0]}{begin}\n{body}\n{end}{page.split(end)[1]}"


def _place(cell: Cell) -> str:
    return f"{cell.scenario} K={cell.clients} n_min={cell.n_min}"


def _what_is_there(lines: list[Summary]) -> str:
    """Cells that are complete, that are not, and that have not been run."""
    counts = {(line.cell, line.estimator): line.replicates + line.failed for line in lines}
    full: list[str] = []
    some: dict[str, list[str]] = {}
    none: list[str] = []
    for cell in cells(SCENARIOS, "both"):
        done = {name: counts.get((cell, name), 0) for name in ESTIMATORS}
        if min(done.values()) >= WANTED:
            full.append(_place(cell))
        elif max(done.values()) == 0:
            none.append(_place(cell))
        else:
            short = ", ".join(f"{name} {count}" for name, count in done.items() if count < WANTED)
            some.setdefault(short, []).append(_place(cell))
    failed = [f"{_place(line.cell)} {line.estimator} ({line.failed})" for line in lines if line.failed]
    return "\n".join(
        [
            "## What is there",
            "",
            f"- {len(full)} of {len(cells(SCENARIOS, 'both'))} cells have {WANTED} replicates or more "
            f"of every estimator: {'; '.join(full) or 'none'}.",
            *(f"- Replicates so far: {short}, in {'; '.join(where)}." for short, where in some.items()),
            f"- Not run: {'; '.join(none) or 'none'}.",
            f"- Failures, number of replicates in parentheses: {'; '.join(failed) or 'none'}.",
        ]
    )


def _number(line: Summary | None) -> str:
    if line is None or not line.replicates:
        return "not run"
    error = "" if math.isnan(line.error) else f" ({line.error:.3f})"
    return f"{line.rmse:.3f}{error}"


def _paper(lines: list[Summary]) -> str:
    """The paper's numbers beside our own estimators."""
    by_name = {(line.cell, line.estimator): line for line in lines}
    names = ("algorithm-1", "vaneb-reports", "vaneb", "npeb", "oracle")
    out = [
        "## The paper's numbers beside our own estimators",
        "",
        "Mean RMSE, standard error in parentheses. These are other experiments than the paper's: curves of",
        "unit size, reports with the information of their rows, a safer start. Its own are under Paper mode.",
        "",
        f"| cell | paper: VANEB | paper: NPEB | {' | '.join(names)} |",
        "|---|---:|---:|" + "---:|" * len(names),
    ]
    for cell, (vaneb, npeb) in statements.PRINTED.items():
        ours = " | ".join(_number(by_name.get((cell, name))) for name in names)
        out.append(f"| {_place(cell)} | {vaneb:.3f} | {npeb:.3f} | {ours} |")
    out += ["", "What it says of the sweeps, in the cells that have been run:", ""]
    out += [
        _count(
            "algorithm-1, from our start, is below NPEB",
            lines,
            ("quadratic", "poisson"),
            "algorithm-1",
        ),
        _count(
            "the same in the logistic scenario, from K = 3200 on only", lines, ("logistic",), "algorithm-1"
        ),
        _count(
            "and with the same reports, a few of which may be off", lines, tuple(SCENARIOS), "vaneb-reports"
        ),
        _count("and with the default, vaneb", lines, tuple(SCENARIOS), "vaneb"),
    ]
    return "\n".join(out)


def _count(text: str, lines: list[Summary], scenarios: tuple[str, ...], name: str) -> str:
    """In how many cells an estimator is below NPEB."""
    rmse = {(line.cell, line.estimator): line.rmse for line in lines if line.replicates}
    both = [c for c in {cell for cell, _ in rmse} if {(c, name), (c, "npeb")} <= rmse.keys()]
    found = sorted(c for c in both if c.scenario in scenarios)
    held = [c for c in found if rmse[c, name] < rmse[c, "npeb"]]
    missed = "; ".join(_place(c) for c in found if c not in held)
    return f"- {text}: {len(held)} of {len(found)} cells" + (f"; not in {missed}." if missed else ".")


def _goal(rows: Rows, lines: list[Summary]) -> str:
    """Is the default the best but the oracle, and near enough to it?"""
    out = [
        "## The default against the best rival, and the oracle",
        "",
        "Rivals: npeb, adamix, fedavg and local. The difference is the RMSE of vaneb minus that of the rival",
        "with the smallest mean, on the same replicates; negative is better.",
        "",
        "| cell | vaneb | best rival | difference | s.e. | to oracle | goal |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for cell in sorted({line.cell for line in lines}):
        own = {line.estimator: line for line in lines if line.cell == cell and line.replicates}
        rivals = [own[name] for name in ("npeb", "adamix", "fedavg", "local") if name in own]
        if "vaneb" not in own or not rivals:
            continue
        rival = min(rivals, key=lambda line: line.rmse)
        found = statements.examine(rows, statements.Comparison(cell, "vaneb", rival.estimator))
        goal = GOALS.get((cell.clients, cell.n_min))
        out.append(
            f"| {_place(cell)} | {_number(own['vaneb'])} | {rival.estimator} {rival.rmse:.3f} "
            f"| {found.difference:+.4f} | {'' if math.isnan(found.error) else format(found.error, '.4f')} "
            f"| {own['vaneb'].ratio:.3f} | {'' if goal is None else goal} |"
        )
    return "\n".join(out)


def _cost(lines: list[Summary]) -> str:
    """CPU seconds of a replicate, and hours of a study of all that has been run."""
    largest = (3200, 40)
    seconds = {(line.cell, line.estimator): line.seconds for line in lines if line.replicates}
    out = [
        "## What it costs",
        "",
        "Median CPU seconds of a replicate at K = {}, n_min = {}; local fits under local:".format(*largest),
        "",
        f"| scenario | {' | '.join(ESTIMATORS)} |",
        "|---|" + "---:|" * len(ESTIMATORS),
    ]
    for scenario in SCENARIOS:
        own = [seconds.get((Cell(scenario, *largest), name)) for name in ESTIMATORS]
        out.append(f"| {scenario} | {' | '.join('' if s is None else f'{s:.1f}' for s in own)} |")
    total = {name: sum(s for (_, own), s in seconds.items() if own == name) for name in ESTIMATORS}
    hours = WANTED * sum(total.values()) / 3600
    parts = ", ".join(f"{name} {WANTED * s / 3600:.1f}" for name, s in total.items())
    out += [
        "",
        f"{WANTED} replicates of all that is in the tables below: {hours:.1f} hours of one core ({parts}).",
    ]
    return "\n".join(out)


if __name__ == "__main__":
    main()
