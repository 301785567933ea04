"""What the scripts of the MNIST and CIFAR-10 tables share: run columns one by one, render what is there."""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from claims import claims

from vaneb.fl.config import read_config
from vaneb.fl.errors import TrainingFailed
from vaneb.fl.experiment import TrainingProgress, run_experiment
from vaneb.fl.methods import expand
from vaneb.fl.results import Row, append_rows, read_rows
from vaneb.fl.tables import Column, as_markdown, evaluated_models, make_panels

#: alpha, shift, clients
Setting = tuple[float, float, int]


@dataclass(frozen=True)
class Section:
    """A part of the rendered page."""

    title: str
    belongs: Callable[[Row], bool]
    paper: dict[tuple[str, str, Column], float]


def paper_numbers(path: Path, data: str, *, alpha: float | None = None, shift: float | None = None) -> dict:
    """The paper's numbers for a section; ``alpha`` or ``shift`` where the file does not have it."""
    numbers = {}
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            column = (
                data,
                float(line["alpha"] if alpha is None else alpha),
                float(line["shift"] if shift is None else shift),
                int(line["clients"]),
            )
            numbers[line["protocol"], line["method"], column] = float(line["accuracy"])
    return numbers


def tell(progress: TrainingProgress) -> None:
    """One line per finished method."""
    if progress.accuracy:
        numbers = ", ".join(f"{protocol} {value:.2f}" for protocol, value in progress.accuracy.items())
        print(f"{progress.setting}: {progress.method}: {numbers}", flush=True)


def run(asked: argparse.Namespace, config_file: Path, settings: Sequence[Setting]) -> None:
    """Run the settings that the flags leave, each with all methods, row by row.

    A method that diverges has no row; the others go on.
    """
    config = read_config(config_file)
    if asked.method:
        config = replace(config, methods=tuple(asked.method))
    for alpha, shift, clients in settings:
        left_out = (
            (asked.alpha and alpha not in asked.alpha)
            or (asked.shift and shift not in asked.shift)
            or (asked.clients and clients not in asked.clients)
        )
        if left_out:
            continue
        setting = config.at(alpha=alpha, shift=shift, clients=clients, seed=asked.seed)
        for method in expand(config.methods):
            try:
                run_experiment(
                    replace(setting, methods=(method,)),
                    asked.work,
                    workers=asked.workers,
                    data_dir=asked.data_dir,
                    on_progress=tell,
                )
            except TrainingFailed as reason:
                print(f"alpha {alpha}, shift {shift}, {clients} clients: {reason}", flush=True)


def render(work: Path, here: Path, title: str, sections: Sequence[Section]) -> None:
    """Write results.csv and tables.md beside the script."""
    rows = [row for row in read_rows(work) if row.last]
    target = here / "results.csv"
    target.unlink(missing_ok=True)
    append_rows(target, rows)
    text = [
        f"# {title}",
        "",
        "Accuracy in percent, mean over clients; the paper's numbers in parentheses.",
        "",
    ]
    for section in sections:
        chosen = [row for row in rows if section.belongs(row)]
        if not chosen:
            continue
        text += [
            f"## {section.title}",
            "",
            as_markdown(make_panels(chosen, published=section.paper)),
            "Claims:",
            "",
            *(f"- {claim}" for claim in claims(make_panels(chosen))),
            "",
            "With the client's log-proportions taken away (A) and added (B) for every method alike:",
            "",
            as_markdown(make_panels(chosen, points="corrected")),
            "Mean over the worst tenth of the clients:",
            "",
            as_markdown(make_panels(chosen, value="worst_tenth")),
        ]
    text += ["## Models evaluated", "", *(f"- {line}" for line in evaluated_models(rows)), ""]
    (here / "tables.md").write_text("\n".join(text))


def main(
    description: str,
    here: Path,
    data: str,
    title: str,
    tables: Mapping[str, Sequence[Setting]],
    sections: Sequence[Section],
) -> None:
    """The command line of both scripts."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--table", choices=tables, default=next(iter(tables)))
    parser.add_argument("--alpha", type=float, nargs="+")
    parser.add_argument("--shift", type=float, nargs="+")
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--method", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs") / data)
    parser.add_argument("--render", action="store_true", help="only write the tables of what is there")
    asked = parser.parse_args()
    if not asked.render:
        run(asked, here.parents[1] / "experiments" / f"{data}.toml", tables[asked.table])
    render(asked.work, here, title, sections)
