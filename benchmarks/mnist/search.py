"""The small search behind the constants in experiments/*.toml; start it again and it goes on.

    python benchmarks/mnist/search.py [--data mnist|cifar10|digits] [--data-dir DATA] [--workers 2] [--tiny]

Unstated in the paper: learning rate, batch size, damping lambda, pseudo-EM steps S, length and rate of
fine-tuning.  They are chosen once, in the order below, on a seed that no table uses and on images that no
table tests on (a part of the training images is held out instead of the test images), and then serve every
method and every column of a data set.

1. batch size and learning rate: the best balanced accuracy of FedAvg;
2. epochs and rate of fine-tuning: the best average of balanced and matched accuracy over FedAvg+FT, plain
   and logit-adjusted, each at its own operating points;
3. damping and pseudo-EM steps: the best average of balanced and matched accuracy over the four variants of
   VANEB-FT and VANEB-LA.

One setting is searched: alpha = 0.1, 100 clients, shift 1.  What was tried goes to search_DATA.md, beside
this file.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vaneb.fl.config import Config, default_config
from vaneb.fl.data import ImageData, load_images
from vaneb.fl.experiment import run_experiment

SEED = 1000
GRIDS: dict[str, list[dict[str, Any]]] = {
    "training": [
        {"batch_size": batch, "learning_rate": rate}
        for batch, rate in itertools.product((10, 32), (0.03, 0.1))
    ],
    "fine_tuning": [
        {"epochs": epochs, "learning_rate": rate}
        for epochs, rate in itertools.product((2, 5, 10, 20), (0.01, 0.05, 0.2))
    ],
    "vaneb": [
        {"damping": damping, "iterations": steps}
        for damping, steps in itertools.product((0.001, 0.01, 0.1, 1.0), (5, 20, 100))
    ],
}
METHODS = {
    "training": ("fedavg",),
    "fine_tuning": ("fedavg_ft", "fedavg_ft_adjusted"),
    "vaneb": ("vaneb_ft", "vaneb_la"),
}


def without_test_images(images: ImageData) -> ImageData:
    """The training images alone, every sixth of them held out."""
    held_out = np.arange(len(images.labels)) % 6 == 5
    return ImageData(
        images.name,
        images.images[~held_out],
        images.labels[~held_out],
        images.images[held_out],
        images.labels[held_out],
    )


def score(config: Config, section: str, output: Path, images: ImageData, workers: int) -> dict[str, float]:
    """Accuracies of a section's methods, averaged, and the number that decides."""
    config = replace(config, methods=METHODS[section])
    rows = [
        row for row in run_experiment(config, output, workers=workers, images=images) if row.last and row.own
    ]
    balanced, matched = (
        float(np.mean([row.mean for row in rows if row.protocol == protocol]))
        for protocol in ("balanced", "matched")
    )
    decides = balanced if section == "training" else (balanced + matched) / 2
    return {"balanced": balanced, "matched": matched, "score": decides}


def search(start: Config, images: ImageData, output: Path, workers: int, grids: dict) -> Iterable[str]:
    """Lines of the report; every choice is kept for the searches that follow."""
    config = start
    for section, grid in grids.items():
        names = list(grid[0])
        yield f"## {section}: {', '.join(METHODS[section])}\n"
        yield f"| {' | '.join(names)} | balanced | matched | score |"
        yield "|" + "---:|" * (len(names) + 3)
        best: tuple[float, dict[str, Any]] = (-1.0, {})
        for values in grid:
            changed = replace(config, **{section: replace(getattr(config, section), **values)})
            found = score(changed, section, output, images, workers)
            best = max(best, (found["score"], values), key=lambda pair: pair[0])
            cells = [*(f"{values[name]:g}" for name in names), *(f"{value:.2f}" for value in found.values())]
            yield f"| {' | '.join(cells)} |"
        config = replace(config, **{section: replace(getattr(config, section), **best[1])})
        yield f"\nChosen: {', '.join(f'{name} = {value:g}' for name, value in best[1].items())}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs/search"))
    parser.add_argument("--tiny", action="store_true", help="two values of each, few rounds: does it work?")
    asked = parser.parse_args()
    config = replace(default_config(asked.data), seed=SEED)
    images = without_test_images(load_images(asked.data, asked.data_dir))
    config = replace(config, data=replace(config.data, total=min(config.data.total, len(images.labels))))
    grids = GRIDS
    if asked.tiny:
        config = replace(
            config,
            data=replace(config.data, total=min(config.data.total, 2000)),
            training=replace(config.training, rounds=3),
        )
        grids = {section: [grid[0], grid[-1]] for section, grid in GRIDS.items()}
    lines = [
        f"# Search on {asked.data}",
        "",
        f"Seed {SEED}; {config.data.clients} clients, alpha {config.data.alpha:g}, "
        f"shift {config.data.shift:g}; {config.training.rounds} rounds; "
        f"{len(images.holdout_labels):,} of the training images held out.",
        "",
    ]
    for line in search(config, images, asked.work / asked.data, asked.workers, grids):
        print(line, flush=True)
        lines.append(line)
    name = f"search_{asked.data}{'_tiny' if asked.tiny else ''}.md"
    (asked.work / name if asked.tiny else Path(__file__).parent / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
