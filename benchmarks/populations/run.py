"""RMSE, coverage and length of 90% intervals, and CPU time, beside the oracle and other methods.

    python benchmarks/populations/run.py --methods vaneb,xd,gaussian,gaussian-full,npmle [--quick]

One line of JSON for every cell (population, K, d, noise), replicate and method is appended to
``results/METHOD.jsonl`` as soon as it is there, below a line with the date and the versions of the run.
Rows that are there already are not computed again: cut the run when you like.  To measure a method anew,
delete its file or give another folder.
"""

# ruff: noqa: E402 -- the number of threads must be set before numpy is imported

from __future__ import annotations

import argparse
import os

for name in ("OPENBLAS", "OMP", "MKL", "NUMBA"):
    os.environ[f"{name}_NUM_THREADS"] = "1"
os.environ["VANEB_THREADS"] = "1"

import datetime
import importlib.metadata
import itertools
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import rivals
from mixtures import Answer, Array
from populations import LEAST_DIMENSION, NOISES, POPULATIONS, Draw, draw, oracle

import vaneb

HERE = Path(__file__).resolve().parent
#: Replicate r of a cell is drawn with seed FIRST_SEED + r.
FIRST_SEED = 2000
Row = dict[str, object]
Method = Callable[[Array, Array], rivals.Told]


class Cell(NamedTuple):
    population: str
    K: int
    d: int
    noise: str


def wanted(K: int) -> int:
    """Replicates of a cell."""
    return 20 if K <= 200 else 3


def cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Small cells first, and all populations of a size before the next size."""
    for noise, K, d, name in itertools.product(
        options.noise, options.clients, options.dimensions, options.populations
    ):
        if d >= LEAST_DIMENSION.get(name, 1):
            yield Cell(name, K, d, noise)


def score(clients: Draw, answer: Answer) -> dict[str, float]:
    theta = clients.theta
    inside = (answer.lower <= theta) & (theta <= answer.upper)
    return {
        "rmse": float(np.sqrt(((answer.mean - theta) ** 2).sum(1).mean())),
        "coverage": float(inside.mean()),
        "worst_coordinate": float(inside.mean(0).min()),
        "length": float((answer.upper - answer.lower).mean()),
    }


def measured(clients: Draw, truth: dict[str, float], method: Method) -> Row:
    """One method on one draw; a failure is a row too, so that it is seen and not tried for ever."""
    row: Row = {"oracle_rmse": truth["rmse"], "oracle_coverage": truth["coverage"]}
    began = time.process_time()
    try:
        answer, facts = method(clients.estimates, clients.standard_errors)
    except Exception as error:
        return {**row, "failed": f"{type(error).__name__}: {error}"}
    row["cpu"] = time.process_time() - began
    own = score(clients, answer)
    if not np.isfinite(list(own.values())).all():
        return {**row, "failed": "not finite"}
    return {
        **row,
        "ratio": own["rmse"] / truth["rmse"],
        "coverage": own["coverage"],
        "worst_coordinate": own["worst_coordinate"],
        "length_ratio": own["length"] / truth["length"],
        **facts,
    }


def context() -> Row:
    """Date and versions; the commit is that of the vaneb which is imported."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(vaneb.__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = "+" if git("status", "--porcelain", "--", ".") else ""
    packages = ("numpy", "scipy", "numba")
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        "version": importlib.metadata.version("vaneb"),
        "commit": git("rev-parse", "--short", "HEAD") + changed,
        "versions": f"python {platform.python_version()} {versions}",
    }


def read(path: Path) -> list[Row]:
    """Lines of a file, without a last one that was cut short or is being written."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def mend(path: Path) -> None:
    """Take off a last line that was cut short, so that the next row starts a line."""
    if path.is_file():
        text = path.read_bytes()
        if not text.endswith(b"\n"):
            path.write_bytes(text[: text.rfind(b"\n") + 1])


def append(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, separators=(",", ":")) + "\n")


def rounded(row: Row) -> Row:
    """Five digits are enough, and keep the files small."""
    return {name: float(f"{v:.5g}") if isinstance(v, float) else v for name, v in row.items()}


def chosen(options: argparse.Namespace) -> dict[str, Method]:
    """The methods by name; what cannot run here is left out with the reason."""
    out: dict[str, Method] = {}
    for name in options.methods:
        if name != "npeb":
            out[name] = rivals.METHODS[name]
        elif options.npeb is None:
            say("npeb is left out: give --npeb PYTHON, an interpreter that has npeb, cvxpy and clarabel")
        else:
            out[name] = rivals.npeb(options.npeb)
    return out


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    def listed(kind: Callable[[str], object]) -> Callable[[str], list]:
        return lambda text: [kind(word) for word in text.split(",")]

    known = [*rivals.METHODS, "npeb"]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", type=listed(str), default=known, help=", ".join(known))
    parser.add_argument("--populations", type=listed(str), default=list(POPULATIONS))
    parser.add_argument("--clients", type=listed(int), default=[20, 50, 200, 1000])
    parser.add_argument("--dimensions", type=listed(int), default=[1, 3, 5, 10])
    parser.add_argument("--noise", type=listed(str), default=list(NOISES))
    parser.add_argument("--replicates", type=int, help="default: 20 up to K = 200, else 3")
    parser.add_argument("--npeb", metavar="PYTHON", help="interpreter that has npeb, cvxpy and clarabel")
    parser.add_argument("--quick", action="store_true", help="three replicates, K up to 200, one noise")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER")
    options = parser.parse_args()
    for what, given, allowed in (
        ("method", options.methods, known),
        ("population", options.populations, POPULATIONS),
        ("noise", options.noise, NOISES),
    ):
        if unknown := set(given) - set(allowed):
            parser.error(f"no {what} {', '.join(sorted(unknown))}: choose of {', '.join(allowed)}")
    if options.quick:
        options.replicates = options.replicates or 3
        options.clients = [K for K in options.clients if K <= 200]
        options.noise = options.noise[:1]
    return options


def main() -> None:
    options = arguments()
    methods = chosen(options)
    run = context()
    paths = {name: options.results / f"{name}.jsonl" for name in methods}
    done = {
        name: {(*(row[f] for f in Cell._fields), row["replicate"]) for row in read(path) if "K" in row}
        for name, path in paths.items()
    }
    begun: set[str] = set()
    warm: set[tuple[str, int]] = set()
    for cell in cells(options):
        began, count = time.process_time(), 0
        for replicate in range(options.replicates or wanted(cell.K)):
            missing = [name for name in methods if (*cell, replicate) not in done[name]]
            if "npeb" in missing and cell.K > rivals.NPEB_MOST_CLIENTS:
                missing.remove("npeb")
            if not missing:
                continue
            clients = draw(*cell, FIRST_SEED + replicate)
            truth = score(clients, oracle(clients))
            for name in missing:
                if name != "npeb" and (name, cell.d) not in warm:
                    # Compilation happens once after installation and is in nobody's time.
                    small = draw("clusters", 3 * cell.d + 20, cell.d, "uniform", 0)
                    measured(small, score(small, oracle(small)), methods[name])
                    warm.add((name, cell.d))
                if name not in begun:
                    mend(paths[name])
                    append(paths[name], {"run": run})
                    begun.add(name)
                row = {"method": name, **cell._asdict(), "replicate": replicate}
                row |= measured(clients, truth, methods[name])
                append(paths[name], rounded(row | {"version": run["version"], "commit": run["commit"]}))
                count += 1
        if count:
            say(f"{' '.join(map(str, cell))}: {count} rows, {time.process_time() - began:.1f} CPU s")


if __name__ == "__main__":
    main()
