"""The small search behind the constants in experiments/*.toml; start it again and it goes on.

    python benchmarks/mnist/search.py [--data mnist|cifar10|digits] [--data-dir DATA] [--workers 2]
                                      [--rounds N] [--only SECTION ...] [--tiny]

Unstated in the paper: learning rate, batch size, damping lambda, pseudo-EM steps S, length and rate of
fine-tuning.  They are chosen once, in the order below, on a seed that no table uses and on images that no
table tests on (a part of the training images is held out instead of the test images), and then serve every
method and every column of a data set.

1. batch size and learning rate: the best balanced accuracy of FedAvg;
2. epochs and rate of fine-tuning: fine-tuning is there for the client's own labels, so among what comes
   within 0.1 of the best matched accuracy of FedAvg+FT the one with the best balanced accuracy;
3. damping and pseudo-EM steps: the best average of balanced and matched accuracy over the variants of
   VANEB-FT and VANEB-LA that have no spread;
4. spread of the smooth prior: the same average for VANEB-LA (smooth);
5. SCAFFOLD's learning rate: its best balanced accuracy.  All others share FedAvg's; with that, all of
   SCAFFOLD's clients diverge on MNIST.

All at alpha = 0.1 with 100 clients and shift 1; the fourth at alpha = 0.01 with 500 clients too, because
one spread has to serve clients with few images and with many.  What was tried goes to search_DATA.md,
beside this file; with ``--only`` it is printed, and the other constants are those of the configuration.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vaneb.fl.config import Config, default_config
from vaneb.fl.data import ImageData, load_images
from vaneb.fl.errors import TrainingFailed
from vaneb.fl.experiment import run_experiment
from vaneb.fl.federated_data import PROTOCOLS

SEED = 1000
#: alpha and clients
FIRST, HARD = (0.1, 100), (0.01, 500)
#: Points of matched accuracy that a client would not notice.
TOLERANCE = 0.1


@dataclass(frozen=True)
class Trial:
    """Values of some constants, and what they gave."""

    values: dict[str, Any]
    balanced: float
    matched: float

    @property
    def average(self) -> float:
        return (self.balanced + self.matched) / 2


def best_balanced(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.balanced)


def best_average(trials: Sequence[Trial]) -> Trial:
    return max(trials, key=lambda trial: trial.average)


def best_balanced_of_best_matched(trials: Sequence[Trial]) -> Trial:
    enough = max(trial.matched for trial in trials) - TOLERANCE
    return best_balanced([trial for trial in trials if trial.matched >= enough])


@dataclass(frozen=True)
class Search:
    """Some constants of one section of the configuration, ``options.METHOD`` for those of one method."""

    section: str
    methods: tuple[str, ...]
    grid: dict[str, tuple]
    choose: Callable[[Sequence[Trial]], Trial]
    columns: tuple[tuple[float, int], ...] = (FIRST,)

    def trials(self) -> list[dict[str, Any]]:
        return [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        ]

    def at(self, config: Config, values: dict[str, Any]) -> Config:
        """``config`` with other values of these constants."""
        kind, _, method = self.section.partition(".")
        before = getattr(config, kind)
        if method:
            return replace(config, **{kind: {**before, method: {**before.get(method, {}), **values}}})
        return replace(config, **{kind: replace(before, **values)})


SEARCHES = (
    Search("training", ("fedavg",), {"batch_size": (10, 32), "learning_rate": (0.03, 0.1)}, best_balanced),
    Search(
        "fine_tuning",
        ("fedavg_ft",),
        {"epochs": (2, 5, 10), "learning_rate": (0.01, 0.05, 0.2)},
        best_balanced_of_best_matched,
    ),
    Search(
        "vaneb",
        ("vaneb_ft", "vaneb_la_direct", "vaneb_la_coordinate"),
        {"damping": (0.001, 0.01, 0.1), "iterations": (5, 20)},
        best_average,
    ),
    Search(
        "vaneb", ("vaneb_la_smooth",), {"prior_count": (1.0, 10.0, 50.0, 200.0)}, best_average, (FIRST, HARD)
    ),
    Search("options.scaffold", ("scaffold",), {"learning_rate": (0.01, 0.03)}, best_balanced),
)


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


def accuracies(config: Config, search: Search, output: Path, images: ImageData, workers: int) -> list[float]:
    """Balanced and matched accuracy, averaged over the methods and the columns of a search; 0 if diverged."""
    rows = []
    for alpha, clients in search.columns:
        asked = replace(config, methods=search.methods).at(alpha=alpha, clients=clients)
        try:
            rows += run_experiment(asked, output, workers=workers, images=images)
        except TrainingFailed:
            return [0.0 for _ in PROTOCOLS]
    return [
        float(np.mean([row.mean for row in rows if row.last and row.own and row.protocol == protocol]))
        for protocol in PROTOCOLS
    ]


def run_searches(
    config: Config, searches: Iterable[Search], images: ImageData, output: Path, workers: int
) -> Iterator[str]:
    """Lines of the report; every choice is kept for the searches that follow."""
    for search in searches:
        where = "; ".join(f"alpha {alpha:g}, {clients} clients" for alpha, clients in search.columns)
        yield f"## {search.section}: {', '.join(search.methods)} ({where})\n"
        yield f"| {' | '.join(search.grid)} | balanced | matched |"
        yield "|" + "---:|" * (len(search.grid) + 2)
        trials = []
        for values in search.trials():
            trial = Trial(values, *accuracies(search.at(config, values), search, output, images, workers))
            trials.append(trial)
            cells = [
                *(f"{value:g}" for value in values.values()),
                f"{trial.balanced:.2f}",
                f"{trial.matched:.2f}",
            ]
            yield f"| {' | '.join(cells)} |"
        best = search.choose(trials).values
        config = search.at(config, best)
        yield f"\nChosen: {', '.join(f'{name} = {value:g}' for name, value in best.items())}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path("runs/search"))
    parser.add_argument("--rounds", type=int, help="fewer than the tables have")
    parser.add_argument("--only", nargs="+", default=[], choices=sorted({s.section for s in SEARCHES}))
    parser.add_argument("--tiny", action="store_true", help="one value of each, few rounds: does it work?")
    asked = parser.parse_args()
    config = replace(default_config(asked.data), seed=SEED)
    images = without_test_images(load_images(asked.data, asked.data_dir))
    config = replace(config, data=replace(config.data, total=min(config.data.total, len(images.labels))))
    if asked.rounds is not None:
        config = replace(config, training=replace(config.training, rounds=asked.rounds))
    searches = [search for search in SEARCHES if not asked.only or search.section in asked.only]
    if asked.tiny:
        config = replace(
            config,
            data=replace(config.data, total=min(config.data.total, 2000)),
            training=replace(config.training, rounds=3),
        )
        searches = [
            replace(search, grid={name: values[:1] for name, values in search.grid.items()})
            for search in searches
        ]
    lines = [
        f"# Search on {asked.data}",
        "",
        f"Seed {SEED}; shift {config.data.shift:g}; {config.training.rounds} rounds; "
        f"{len(images.holdout_labels):,} of the training images held out.",
        "",
    ]
    for line in run_searches(config, searches, images, asked.work / asked.data, asked.workers):
        print(line, flush=True)
        lines.append(line)
    if not asked.tiny and not asked.only:
        (Path(__file__).parent / f"search_{asked.data}.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
