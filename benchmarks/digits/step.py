"""What the empirical Bayes step is worth: VANEB-GLM beside its twins without it and the controls.

    python benchmarks/digits/step.py [--data digits|mnist] [--first 10] [--seeds 8] [--data-dir DATA]
                                     [--setting default sizes groups] [--method NAME ...] [--work runs/step]
    python benchmarks/digits/step.py --render

Settings: the default of ``vaneb train``, clients of very different sizes (1:50), and three groups in which
labels mean different things.  Rows go to step.csv as they come; what is there is not run again.  The page
is README.md beside this file.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page import GLM, OTHERS, render
from run import DATA

from vaneb.fl import load_personal
from vaneb.fl.config import default_config
from vaneb.fl.data import load_images
from vaneb.fl.experiment import federate_setting, run_experiment
from vaneb.fl.federated_data import PROTOCOLS
from vaneb.fl.methods import METHODS
from vaneb.fl.network import FORWARD_BATCH

HERE = Path(__file__).resolve().parent
FILE = HERE / "step.csv"
METHOD_NAMES = ("fedavg", *OTHERS, *GLM)
COLUMNS = ("data", "setting", "seed", "method", "protocol", "accuracy", "worst_tenth", "hurt", "ece", "code")
#: Test images of each client: as many as there are, or most clients said to be hurt are so by luck.
TESTED = {"digits": 500}
#: Bins of the expected calibration error.
BINS = 15


def calibration_error(probability: np.ndarray, right: np.ndarray) -> float:
    """Mean distance, over images, between how sure a network is and how often it is right, by bins."""
    sure = probability.max(1)
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    return float(sum(abs((right[bins == b] - sure[bins == b]).sum()) for b in range(BINS)) / len(right))


def measured(federated, folder: Path, method: str, protocol: str) -> tuple[np.ndarray, float]:
    """Accuracy of every client (K,), and the calibration error over all clients' images."""
    accuracy, probability, right = [], [], []
    for k in range(federated.n_clients):
        network = load_personal(folder, k, method=method, like_own=protocol == "matched")
        test = federated.test(k, protocol)
        with torch.inference_mode():
            parts = [torch.softmax(network(part), 1) for part in test.images.split(FORWARD_BATCH)]
        found = torch.cat(parts)
        correct = (found.argmax(1) == test.labels).numpy()
        accuracy.append(correct.mean())
        probability.append(found.numpy())
        right.append(correct)
    return np.array(accuracy), calibration_error(np.concatenate(probability), np.concatenate(right))


def one(
    data: str, setting: str, seed: int, method: str, data_dir: Path | None, work: Path
) -> Iterator[dict[str, Any]]:
    """Rows of a method, both protocols; stages and networks that are there are used again."""
    config = default_config(data)
    tested = TESTED.get(data, config.data.test_per_client)
    divided = replace(config.data, **DATA[setting], test_per_client=tested)
    config = replace(config, seed=seed, methods=("fedavg", method), data=divided)
    images = load_images(data, data_dir)
    folder = work / f"{data}-{setting}-{seed}"
    codes = {
        row.method: row.code for row in run_experiment(config, folder, images=images, keep_networks=True)
    }
    federated = federate_setting(config, images)
    for protocol in PROTOCOLS:
        plain, _ = measured(federated, folder, "fedavg", protocol)
        accuracy, ece = measured(federated, folder, method, protocol)
        worst = np.sort(accuracy)[: max(1, len(accuracy) // 10)].mean()
        numbers = (100 * accuracy.mean(), 100 * worst, 100 * (accuracy < plain).mean(), 100 * ece)
        texts = [f"{number:.3f}" for number in numbers]
        values = (data, setting, seed, method, protocol, *texts, codes[METHODS[method][0]])
        yield dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--data", default="digits")
    flags.add_argument("--seeds", type=int, default=8)
    flags.add_argument("--first", type=int, default=10, help="the first seed")
    flags.add_argument("--setting", nargs="+", default=list(DATA))
    flags.add_argument("--method", nargs="+", default=list(METHOD_NAMES))
    flags.add_argument("--data-dir", type=Path)
    flags.add_argument("--work", type=Path, default=Path("runs/step"))
    flags.add_argument("--render", action="store_true", help="only write the page of what is there")
    asked = flags.parse_args()
    torch.set_num_threads(1)
    if not FILE.exists():
        FILE.write_text(",".join(COLUMNS) + "\n")
    cells = itertools.product(
        range(asked.first, asked.first + (0 if asked.render else asked.seeds)), asked.setting, asked.method
    )
    for seed, setting, method in cells:
        key = {"data": asked.data, "setting": setting, "seed": str(seed), "method": method}
        if any(key.items() <= row.items() for row in read()):
            continue
        rows = list(one(asked.data, setting, seed, method, asked.data_dir, asked.work))
        with open(FILE, "a", newline="") as file:
            csv.DictWriter(file, COLUMNS, lineterminator="\n").writerows(rows)
        print(f"{asked.data}, {setting}, seed {seed}, {METHODS[method][0]}: done", flush=True)
    render(read(), read(HERE / "oracle_digits.csv"))


def read(path: Path = FILE) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
