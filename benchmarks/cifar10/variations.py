"""The CIFAR-10 columns with single constants of VANEB at other values than in experiments/cifar10.toml.

    python benchmarks/cifar10/variations.py --data-dir DATA [--workers 2]

A column takes FedAvg once more, and the methods after it a minute or so each; stages/ of runs/cifar10 may be
copied to ``--work`` (runs/cifar10_variations), and nothing of it is trained again.  Resumes where it was cut;
what is there is written as variations.md beside this file.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from run import COLUMNS

from vaneb.fl.config import read_config
from vaneb.fl.experiment import run_experiment
from vaneb.fl.methods import expand

HERE = Path(__file__).resolve().parent
#: Constant, value, and the methods that it matters for.
VARIATIONS = (("damping", 0.001, "vaneb_ft"), ("prior_count", 200, "vaneb_la_smooth"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs") / "cifar10_variations")
    asked = parser.parse_args()
    config = read_config(HERE.parents[1] / "experiments" / "cifar10.toml")
    settings = [config.at(alpha=alpha, shift=shift, clients=clients) for alpha, shift, clients in COLUMNS[:3]]
    lines = [
        "# CIFAR-10 with other constants",
        "",
        "As printed by `variations.py`; accuracy in percent, balanced / matched, mean over clients.",
        "",
        "| method | constant | " + " | ".join(f"alpha={a:g} K={k}" for a, _, k in COLUMNS[:3]) + " |",
        "|---|---|" + "---:|" * len(settings),
    ]
    for name, value, group in VARIATIONS:
        for method in expand((group,)):
            cells, label = [], method
            for setting in settings:
                changed = replace(setting, methods=(method,), vaneb=replace(setting.vaneb, **{name: value}))
                rows = run_experiment(changed, asked.work, workers=asked.workers, data_dir=asked.data_dir)
                own = {row.protocol: row for row in rows if row.last and row.own}
                label = own["balanced"].method
                cells.append(f"{own['balanced'].mean:.2f} / {own['matched'].mean:.2f}")
            lines.append(f"| {label} | {name} = {value:g} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
            (HERE / "variations.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
