"""Figures of the core: python benchmarks/core/run.py [part ...] [--npeb PYTHON] [--quick] [--data FOLDER]

Every row is appended to ``results.jsonl`` as it is measured, and ``README.md`` is written anew from the
newest rows.  Without a part, all are run.
"""

# ruff: noqa: E402 -- the number of threads must be set before numpy is imported

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import measure

measure.one_thread()

import table

TOLERANCE = 1e-4
PARTS = ("weights", "fit", "growth", "kernels", "solvers", "coverage", "command")


def command(part: str, options: argparse.Namespace) -> str:
    """The command that makes this part's rows again; places on this machine are left out."""
    words = ["python benchmarks/core/run.py", part]
    words += ["--npeb PYTHON"] if options.npeb and part == "fit" else []
    words += ["--quick"] if options.quick else []
    words += ["--clients", *map(str, options.clients)] if options.clients else []
    words += ["--cases", *options.cases] if options.cases else []
    words += ["--tol", str(options.tol)] if part == "growth" and options.tol != TOLERANCE else []
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--npeb", metavar="PYTHON", help="interpreter that has npeb, cvxpy and clarabel")
    parser.add_argument("--quick", action="store_true", help="leave out what takes many minutes")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="keep matrices for other programs here")
    parser.add_argument("--clients", type=int, nargs="+", help="other numbers of clients (growth, coverage)")
    parser.add_argument("--cases", nargs="+", help="only these cases (growth, coverage)")
    parser.add_argument("--tol", type=float, default=TOLERANCE, help="of the fits whose growth is measured")
    parser.add_argument("--render", action="store_true", help="only write README.md anew")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}: choose of {', '.join(PARTS)}")
    if not options.render:
        for part in options.parts or PARTS:
            context = {**measure.context(), "command": command(part, options)}
            for row in importlib.import_module(f"part_{part}").run(options):
                table.append({"part": part, **row, **context})
                measure.say(f"{part}: {row}")
    table.render()


if __name__ == "__main__":
    main()
