"""Tables from the results: python benchmarks/populations/render.py [--results FOLDER] [--method vaneb]

Writes ``tables.md``, every cell, and the summary in README.md between the marks.  ``--method`` names the
method that is held against the others.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rivals import METHODS
from rows_coverage import Cell as RowsCell
from run import HERE, Cell, read

Array = NDArray[np.float64]
BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->"
#: Bounds: RMSE above the best of the others; mean coverage, also with ten clients; a replicate's coverage;
#: length relative to the oracle's.
ABOVE, COVERAGE, COVERAGE_OF_TEN, REPLICATE, LENGTH = 0.02, (0.88, 0.93), 0.85, 0.70, 1.15
ORDER = ["vaneb", *(name for name in METHODS if name != "vaneb"), "npeb"]
Rows = dict[int, dict[str, Any]]
"""Rows of one cell and method by replicate."""


class Column(NamedTuple):
    """One method in one cell."""

    rows: Rows

    def values(self, name: str) -> Array:
        return np.array([row[name] for row in self.rows.values()])


def jackknife(value: Callable[[Array], float], count: int) -> float:
    """Standard error of a function of the replicates (given by position)."""
    if count < 2:
        return float("nan")
    everyone = np.arange(count)
    left_out = np.array([value(np.delete(everyone, i)) for i in range(count)])
    return float(np.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum()))


def mean_and_error(values: Array) -> tuple[float, float]:
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return float(values.mean()), float(error)


def relative_rmse(column: Column) -> tuple[float, float]:
    """Root of the mean squared error over all replicates relative to the oracle's, and its error."""
    truth = column.values("oracle_rmse") ** 2
    own = truth * column.values("ratio") ** 2

    def value(some: Array) -> float:
        return float(np.sqrt(own[some].sum() / truth[some].sum()))

    return value(np.arange(len(own))), jackknife(value, len(own))


def excess(ours: Column, theirs: Column) -> tuple[float, float]:
    """Log of our RMSE over theirs on the same replicates, and its paired error."""
    common = [r for r in ours.rows if r in theirs.rows]
    mine, other = (
        np.array([(c.rows[r]["ratio"] * c.rows[r]["oracle_rmse"]) ** 2 for r in common])
        for c in (ours, theirs)
    )

    def value(some: Array) -> float:
        return float(0.5 * np.log(mine[some].sum() / other[some].sum()))

    return value(np.arange(len(common))), jackknife(value, len(common))


def load(folder: Path) -> tuple[dict[Cell, dict[str, Column]], list[str], dict[str, list[dict]]]:
    """Columns by cell and method; what failed; the runs of each method."""
    found: dict[Cell, dict[str, Rows]] = defaultdict(lambda: defaultdict(dict))
    failed, runs = [], {}
    for path in sorted(folder.glob("*.jsonl")):
        if path.stem == "rows":
            continue
        lines = read(path)
        runs[path.stem] = [line["run"] for line in lines if "run" in line]
        for row in lines:
            if "K" not in row:
                continue
            cell = Cell(*(row[f] for f in Cell._fields))
            if "failed" in row:
                failed.append(
                    f"{row['method']}, {place(cell)}, replicate {row['replicate']}: {row['failed']}"
                )
            else:
                found[cell][row["method"]][row["replicate"]] = row
    columns = {cell: {name: Column(rows) for name, rows in by.items()} for cell, by in found.items()}
    return columns, failed, runs


def place(cell: Cell) -> str:
    return f"{cell.population} K={cell.K} d={cell.d} ({cell.noise})"


def ordered(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else -1, name))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pm(value: float, error: float, digits: int) -> str:
    return f"{value:.{digits}f}" + (f" ± {error:.{digits}f}" if np.isfinite(error) else "")


def lead(log_ratio: float, error: float) -> str:
    """A ratio as percent; one replicate has no standard error."""
    return f"{100 * np.expm1(log_ratio):+.1f}" + (f" ± {100 * error:.1f}%" if np.isfinite(error) else "%")


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f}%"


def against(columns: dict[str, Column], method: str) -> tuple[str, float, float] | None:
    """The best of the others on the replicates that both have, and how far ``method`` is above it."""
    if method not in columns:
        return None
    ours = columns[method]
    others = [
        (name, *excess(ours, other))
        for name, other in columns.items()
        if name != method and set(ours.rows) & set(other.rows)
    ]
    return max(others, key=lambda entry: entry[1]) if others else None


def cells_in_order(found: dict[Cell, Any]) -> list[Cell]:
    names = list(dict.fromkeys(cell.population for cell in found))
    return sorted(found, key=lambda c: (c.noise != "uniform", c.noise, c.K, c.d, names.index(c.population)))


def all_cells(found: dict[Cell, dict[str, Column]], method: str) -> str:
    """Two tables for each noise and number of clients: errors, and intervals."""
    parts = []
    groups: dict[tuple[str, int], list[Cell]] = defaultdict(list)
    for cell in cells_in_order(found):
        groups[cell.noise, cell.K].append(cell)
    for (noise, K), some in groups.items():
        names = ordered({name for cell in some for name in found[cell]})
        errors, intervals = [], []
        for cell in some:
            columns = found[cell]
            values = {name: relative_rmse(column) for name, column in columns.items()}
            best = min(values, key=lambda name: values[name][0])
            label = f"{cell.population}, d = {cell.d}"
            line = [label, str(max(len(column.rows) for column in columns.values()))]
            for name in names:
                text = pm(*values[name], 3) if name in values else ""
                if text:
                    text += f" ({columns[name].values('ratio').max():.2f})"
                line.append(f"**{text}**" if name == best else text)
            gap = against(columns, method)
            line.append("" if gap is None else f"{lead(gap[1], gap[2])} ({gap[0]})")
            errors.append(line)
            truth = max(columns.values(), key=lambda column: len(column.rows)).values("oracle_coverage")
            line = [label, f"{100 * truth.mean():.0f} ({100 * truth.min():.0f})"]
            for name in names:
                if name not in columns:
                    line.append("")
                    continue
                held, length = columns[name].values("coverage"), columns[name].values("length_ratio")
                worst = columns[name].values("worst_coordinate").mean()
                line.append(
                    f"{100 * held.mean():.0f} ({100 * held.min():.0f}; {100 * worst:.0f}) {length.mean():.2f}"
                )
            intervals.append(line)
        parts += [
            f"## Noise {noise}, K = {K:,}",
            "RMSE relative to the oracle's ± standard error (worst replicate); the lowest in bold.",
            table(["population", "replicates", *names, f"{method} against the best other"], errors),
            "Coverage of 90% intervals in % (worst replicate; worst coordinate) and length / oracle's.",
            table(["population", "oracle", *names], intervals),
        ]
    return "\n\n".join(parts)


def by_method(found: dict[Cell, dict[str, Column]]) -> str:
    """One line for each method over all of its cells."""
    best = {cell: min(relative_rmse(c)[0] for c in columns.values()) for cell, columns in found.items()}
    lines = []
    for name in ordered({name for columns in found.values() for name in columns}):
        mine = {cell: columns[name] for cell, columns in found.items() if name in columns}
        over = np.array([relative_rmse(column)[0] / best[cell] for cell, column in mine.items()])
        held = np.array([c.values("coverage").mean() for cell, c in mine.items() if cell.K >= 20])
        inside = (held >= COVERAGE[0]) & (held <= COVERAGE[1])
        cpu = np.array([c.values("cpu").mean() for c in mine.values()])
        lines.append([
            name, str(len(mine)), str(int((over == 1).sum())), str(int((over > 1 + ABOVE).sum())),
            f"{np.median(over):.3f}", f"{over.max():.2f}",
            f"{100 * held.min():.0f} to {100 * held.max():.0f}%", str(int((~inside).sum())),
            f"{np.median(cpu):.2g}", f"{cpu.max():.2g}",
        ])  # fmt: skip
    head = ["method", "cells", "lowest RMSE", f"more than {100 * ABOVE:.0f}% above the lowest"]
    head += ["median over lowest", "largest", "mean coverage", "cells outside 88 to 93%"]
    return table([*head, "CPU s, median", "largest"], lines)


def misses(K: int, coverage: float) -> bool:
    """Mean coverage is outside its bounds."""
    return not COVERAGE[0] <= coverage <= COVERAGE[1] if K >= 20 else coverage < COVERAGE_OF_TEN


def missed(found: dict[Cell, dict[str, Column]], method: str) -> list[str]:
    """Where ``method`` misses a bound."""
    behind, outside, replicates, long, count = [], [], [], [], 0
    for cell in cells_in_order(found):
        if method not in found[cell]:
            continue
        count += 1
        gap = against(found[cell], method)
        if gap is not None and np.expm1(gap[1]) > ABOVE:
            behind.append(f"{place(cell)}: {lead(gap[1], gap[2])} over {gap[0]}")
        own = found[cell][method]
        held, error = mean_and_error(own.values("coverage"))
        if misses(cell.K, held):
            truth = own.values("oracle_coverage").mean()
            outside.append(f"{place(cell)}: {percent(held)} ± {percent(error)} (oracle {percent(truth)})")
        # Where all clients are equal they share one error: a replicate is all or nothing.
        if cell.K >= 50 and cell.population != "equal" and own.values("coverage").min() < REPLICATE:
            replicates.append(f"{place(cell)}: {percent(own.values('coverage').min())}")
        length = own.values("length_ratio").mean()
        if cell.K >= 200 and length > LENGTH:
            long.append(f"{place(cell)}: {length:.2f}")
    if not count:
        return [f"No rows of `{method}` yet."]
    return [
        listing(f"RMSE more than {100 * ABOVE:.0f}% above the best of the others", behind, count),
        listing("Mean coverage outside 88 to 93% (below 85% with fewer than 20 clients)", outside, count),
        listing(f"A replicate below {100 * REPLICATE:.0f}%, K >= 50 (without `equal`)", replicates, count),
        listing(f"Intervals longer than {LENGTH} of the oracle's, K >= 200", long, count),
    ]


def listing(title: str, items: list[str], count: int) -> str:
    return "\n".join(
        [f"{title}: {len(items)} of {count} cells.", *([""] if items else []), *(f"- {i}" for i in items)]
    )


def rows_part(path: Path) -> list[str]:
    """The intervals of ``vaneb run``, each coefficient by itself."""
    found: dict[RowsCell, Rows] = defaultdict(dict)
    lines = read(path)
    failed = []
    for row in lines:
        if "K" in row:
            cell = RowsCell(*(row[f] for f in RowsCell._fields))
            if "failed" in row:
                failed.append(f"{cell}, replicate {row['replicate']}: {row['failed']}")
            else:
                found[cell][row["replicate"]] = row
    if not found:
        return []
    body, outside, replicates, long = [], [], [], []
    for cell in sorted(found, key=lambda c: (c.family, -c.slope_sd, c.rows, c.K)):
        column = Column(found[cell])
        name = f"{cell.family}, slope sd {cell.slope_sd:g}, {cell.rows} rows, K = {cell.K}"
        line = [name, str(len(column.rows))]
        for coefficient in ("intercept", "slope"):
            held = column.values(f"coverage_{coefficient}")
            mean, error = mean_and_error(held)
            differs = coefficient == "intercept" or cell.slope_sd > 0
            length = column.values(f"length_ratio_{coefficient}").mean() if differs else None
            ratio = column.values(f"ratio_{coefficient}").mean() if differs else None
            line += [f"{100 * mean:.1f} ± {100 * error:.1f} ({100 * held.min():.0f})"]
            line += [f"{column.values(f'length_{coefficient}').mean():.3f}"]
            line += ["" if length is None else f"{length:.2f}", "" if ratio is None else f"{ratio:.3f}"]
            where = f"{name}, {coefficient}"
            if misses(cell.K, mean):
                known = column.values(f"oracle_coverage_{coefficient}").mean() if differs else None
                truth = "" if known is None else f" (oracle {percent(known)})"
                outside.append(f"{where}: {percent(mean)} ± {percent(error)}{truth}")
            if cell.K >= 50 and differs and held.min() < REPLICATE:
                replicates.append(f"{where}: {percent(held.min())}")
            if cell.K >= 200 and length is not None and length > LENGTH:
                long.append(f"{where}: {length:.2f}")
        body.append([*line, f"{column.values('cpu').mean():.2g}"])
    per = ["coverage (worst)", "length", "/ oracle's", "RMSE / oracle's"]
    head = ["cell", "replicates", *(f"{c} {p}" for c in ("intercept", "slope") for p in per), "CPU s"]
    count = 2 * len(found)
    return [
        "## Coefficients of `vaneb run`",
        said_runs("rows", [line["run"] for line in lines if "run" in line]),
        listing("Mean coverage outside 88 to 93% (below 85% with ten groups)", outside, count),
        listing("A replicate below 70%, K >= 50, where the coefficient differs", replicates, count),
        listing(f"Intervals longer than {LENGTH} of the oracle's, K >= 200", long, count),
        *([listing("Failed", failed, count)] if failed else []),
        table(head, body),
    ]


def said_runs(name: str, runs: list[dict]) -> str:
    """Dates, commits and versions of a file."""
    if not runs:
        return f"- {name}: no run"
    dates = sorted({run["date"][:10] for run in runs})
    commits = list(dict.fromkeys(run["commit"] for run in runs))
    versions = list(dict.fromkeys(f"vaneb {run['version']}, {run['versions']}" for run in runs))
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"- {name}: {when}, commit {', '.join(commits)}; {'; '.join(versions)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER")
    parser.add_argument("--method", default="vaneb", help="the one that is held against the others")
    parser.add_argument("--print", action="store_true", help="print the summary; write nothing")
    options = parser.parse_args()
    found, failed, runs = load(options.results)
    summary = [
        "## Summary",
        "\n".join(said_runs(name, runs[name]) for name in ordered(runs)),
        *([by_method(found)] if found else []),
        *missed(found, options.method),
        *([listing("Failed", failed, sum(map(len, found.values())))] if failed else []),
        *rows_part(options.results / "rows.jsonl"),
    ]
    body = "\n\n".join(summary)
    if options.print:
        print(body)
        return
    head = "# Every cell\n\nWritten by `render.py`; see README.md for what the columns are."
    (HERE / "tables.md").write_text(f"{head}\n\n{all_cells(found, options.method)}\n", encoding="utf-8")
    page = HERE / "README.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{body}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
