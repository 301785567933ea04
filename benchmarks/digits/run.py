"""Every method on the digits, several seeds, with paired differences; start it again and it goes on.

    python benchmarks/digits/run.py [--seeds 5] [--method NAME ...] [--work runs/digits]
    python benchmarks/digits/run.py --render

Settings: the default of ``vaneb train``, clients of very different sizes (1:50), and three groups in
which labels mean different things.  Writes results.csv and tables.md beside this file.
"""

from __future__ import annotations

import argparse
import platform
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import torch

from vaneb.fl.config import default_config
from vaneb.fl.errors import TrainingFailed
from vaneb.fl.experiment import run_experiment
from vaneb.fl.methods import expand
from vaneb.fl.results import RESULTS, Row, append_rows, read_rows

HERE = Path(__file__).resolve().parent
DATA = {
    "default": {},
    "sizes": {"size_ratio": 50.0},
    "groups": {"label_groups": 3},
}
REFERENCE = "Mean of heads (logit-adjusted, own share)"


def run(seeds: int, methods: list[str], work: Path) -> None:
    """One seed after another, so that what is there when it is cut is complete for some seeds."""
    for seed in range(seeds):
        for changes in DATA.values():
            config = default_config("digits")
            config = replace(config, seed=seed, data=replace(config.data, **changes))
            for method in methods:
                try:
                    run_experiment(replace(config, methods=(method,)), work)
                except TrainingFailed as reason:
                    print(f"{config.data.title}, seed {seed}, {method}: {reason}", flush=True)
            print(f"{config.data.title}, seed {seed}: done", flush=True)


def by_seed(rows: list[Row], data: str, protocol: str) -> dict[str, dict[int, float]]:
    """Mean accuracy by method and seed."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.data == data and row.protocol == protocol:
            found.setdefault(row.method, {})[row.seed] = row.mean
    return found


def paired(one: dict[int, float], other: dict[int, float]) -> str:
    """Mean difference over the seeds that both have, with its standard error."""
    seeds = sorted(set(one) & set(other))
    difference = np.array([one[seed] - other[seed] for seed in seeds])
    if len(seeds) < 2:
        return "–"
    return f"{difference.mean():+.2f} ± {difference.std(ddof=1) / len(seeds) ** 0.5:.2f}"


def table(rows: list[Row], data: str) -> list[str]:
    found = {protocol: by_seed(rows, data, protocol) for protocol in ("balanced", "matched")}
    lines = [
        f"## {data}",
        "",
        "| method | seeds | balanced | difference | matched | difference |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    order = sorted(found["balanced"], key=lambda name: -np.mean(list(found["balanced"][name].values())))
    for method in order:
        cells = []
        for values in found.values():
            cells += [
                f"{np.mean(list(values[method].values())):.2f}",
                paired(values[method], values.get(REFERENCE, {})),
            ]
        lines.append(f"| {method} | {len(found['balanced'][method])} | {' | '.join(cells)} |")
    return [*lines, ""]


def render(work: Path) -> None:
    """results.csv and tables.md from what is there."""
    if (work / RESULTS).exists():
        rows = [row for row in read_rows(work) if row.last and row.own]
        (HERE / RESULTS).unlink(missing_ok=True)
        append_rows(HERE / RESULTS, rows)
    rows = read_rows(HERE)
    codes = ", ".join(sorted({row.code for row in rows}))
    lines = [
        "# Digits: every method",
        "",
        f"`python benchmarks/digits/run.py`, {date.today()}, code {codes}, torch {torch.__version__}, "
        f"numpy {np.__version__}, Python {platform.python_version()}. Accuracy in percent, mean over seeds. "
        f"*difference* is that from “{REFERENCE}”, the twin of VANEB-LA (smooth) without an empirical Bayes "
        "step, paired by seed, with its standard error; below two of them is a tie.",
        "",
    ]
    for data in dict.fromkeys(row.data for row in rows):
        lines += table(rows, data)
    (HERE / "tables.md").write_text("\n".join(lines))


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--seeds", type=int, default=5)
    flags.add_argument("--method", nargs="+", default=["all"])
    flags.add_argument("--work", type=Path, default=Path("runs/digits"))
    flags.add_argument("--render", action="store_true", help="only write the tables of what is there")
    asked = flags.parse_args()
    if not asked.render:
        run(asked.seeds, expand(asked.method), asked.work)
    render(asked.work)


if __name__ == "__main__":
    main()
