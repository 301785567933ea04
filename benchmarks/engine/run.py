"""Throughput of the federated engine: samples per second, rounds with evaluation, memory.

    python benchmarks/engine/run.py [--workers 1 2] [--batch 10 32] [--rounds 8] [--repeats 3] [-o FILE]
    python benchmarks/engine/run.py --cpu

The network is conv5x5 1->32, pool, conv5x5 32->64, pool, fc 1024->512->10 (582,026 parameters); 50 clients
of 160 training and 40 test images, 10 clients per round, 2 local epochs of plain gradient descent.  The
comparison is a plain torch loop over the same clients: one model in torch's default memory format, ReLU
before pooling, ``torch.optim.SGD``, one thread, in a process of its own with default settings.  Loop and
engine take turns, so that both see the same machine; the best of all turns counts.

``--cpu`` is for a machine that is busy with other work: it counts samples per second of processor time, of
the plain loop and of what a worker does, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

CLIENTS, TRAIN, TEST, PER_ROUND, EPOCHS, RATE = 50, 160, 40, 10, 2, 0.01
MODEL = {"name": "mnist", "head": None, "options": {"channels": [32, 64], "hidden": 512}, "seed": 0}


def federation(n_clients: int = CLIENTS, train: int = TRAIN, test: int = TEST):
    """Random images in the shape of MNIST: speed does not depend on what they show."""
    from vaneb.fl.federated_data import FederatedData

    rng = np.random.default_rng(0)
    test_edges = np.arange(n_clients + 1) * (test // 2)
    return FederatedData(
        train_images=rng.integers(0, 256, (n_clients * train, 1, 28, 28), dtype=np.uint8),
        train_labels=rng.integers(0, 10, n_clients * train),
        train_edges=np.arange(n_clients + 1) * train,
        test_images=rng.integers(0, 256, (n_clients * test, 1, 28, 28), dtype=np.uint8),
        test_labels=rng.integers(0, 10, n_clients * test),
        balanced_rows=np.arange(n_clients * (test // 2)),
        balanced_edges=test_edges,
        matched_rows=np.arange(n_clients * (test // 2), n_clients * test),
        matched_edges=test_edges,
        cluster=np.zeros(n_clients, dtype=np.int64),
        n_classes=10,
        mean=0.13,
        deviation=0.31,
    )


def plain_loop(batch: int, rounds: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Samples per second of a plain torch loop on one thread."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )
    images, labels = torch.randn(PER_ROUND, TRAIN, 1, 28, 28), torch.randint(0, 10, (PER_ROUND, TRAIN))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    loss_of, best = nn.CrossEntropyLoss(), 0.0
    for number in range(rounds + 1):
        began = clock()
        for client in range(PER_ROUND):
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
            for _ in range(EPOCHS):
                order = torch.randperm(TRAIN)
                for rows in order.split(batch):
                    optimizer.zero_grad()
                    loss_of(model(images[client, rows]), labels[client, rows]).backward()
                    optimizer.step()
        if number:  # the first round warms up
            best = max(best, PER_ROUND * TRAIN * EPOCHS / (clock() - began))
    return best


def plain_cpu(batch: int, rounds: int) -> float:
    """Samples per second of processor time of the plain loop."""
    return plain_loop(batch, rounds, time.process_time)


def worker_cpu(batch: int, rounds: int) -> float:
    """Samples per second of processor time of the work of a worker process, in its environment."""
    import torch

    from vaneb.fl.network import read_params
    from vaneb.fl.workbench import Workbench

    torch.set_num_threads(1)
    bench, best = Workbench(MODEL, federation(PER_ROUND)), 0.0
    message = {"params": read_params(bench.network)}
    options = {"epochs": EPOCHS, "batch_size": batch, "learning_rate": RATE}
    for number in range(rounds + 1):
        began = time.process_time()
        for k in range(PER_ROUND):
            task = {"do": "update", "algorithm": ["fedavg", options], "clients": [k], "seeds": [[number, k]]}
            bench.run({**task, "states": [None], "new_states": [None]}, message)
        if number:
            best = max(best, PER_ROUND * TRAIN * EPOCHS / (time.process_time() - began))
    return best


def engine(workers: int, batch: int, rounds: int) -> dict[str, float]:
    """Samples per second in training, and seconds of a round in which every client is evaluated."""
    from vaneb.fl.algorithms import build_algorithm
    from vaneb.fl.checkpoint import StageFolder
    from vaneb.fl.engine import Stage, StageSeeds, evaluate, run_stage
    from vaneb.fl.models import build_network
    from vaneb.fl.network import read_params
    from vaneb.fl.workers import WorkerPool

    options = {"epochs": EPOCHS, "batch_size": batch, "learning_rate": RATE}
    network = build_network(**MODEL)
    algorithm = build_algorithm("fedavg", network, options)
    start = read_params(network)
    with tempfile.TemporaryDirectory() as temporary:
        data_folder, folder = Path(temporary) / "data", StageFolder(Path(temporary) / "stage")
        federation().save(data_folder)
        with WorkerPool(workers, MODEL, data_folder) as pool:
            stage = Stage("fedavg", 1, PER_ROUND / CLIENTS, options)
            seeds = StageSeeds(0, 0)
            run_stage(stage, algorithm, pool, folder, start, CLIENTS, seeds)  # warms up
            training, with_evaluation = [], []
            for number in range(2, rounds + 2):
                stage = Stage("fedavg", number, PER_ROUND / CLIENTS, options)
                began = time.perf_counter()
                checkpoint = run_stage(stage, algorithm, pool, folder, start, CLIENTS, seeds)
                middle = time.perf_counter()
                evaluate(stage, algorithm, pool, folder, checkpoint, CLIENTS, seeds)
                training.append(middle - began)
                with_evaluation.append(time.perf_counter() - began)
    return {
        "samples_per_second": PER_ROUND * TRAIN * EPOCHS / min(training),
        "round_with_evaluation_seconds": min(with_evaluation),
    }


def one_round(name: str, options: dict, n_clients: int, train: int, share: float, workers: int) -> dict:
    """Seconds of one round of a method with ``share`` of the clients, and largest resident sizes (MB)."""
    from vaneb.fl.algorithms import build_algorithm
    from vaneb.fl.checkpoint import StageFolder
    from vaneb.fl.engine import Stage, StageSeeds, run_stage
    from vaneb.fl.models import build_network
    from vaneb.fl.network import read_params
    from vaneb.fl.workers import WorkerPool

    options = {"epochs": 1, "batch_size": 10, "learning_rate": RATE, **options}
    network = build_network(**MODEL)
    start = read_params(network)
    with tempfile.TemporaryDirectory() as temporary:
        data_folder, folder = Path(temporary) / "data", StageFolder(Path(temporary) / "stage")
        federation(n_clients, train, test=40).save(data_folder)
        with WorkerPool(workers, MODEL, data_folder) as pool:
            algorithm = build_algorithm(name, network, options)
            began = time.perf_counter()
            stage, seeds = Stage(name, 1, share, options), StageSeeds(0, 0)
            run_stage(stage, algorithm, pool, folder, start, n_clients, seeds)
            seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "engine_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "worker_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }


def memory(n_clients: int, workers: int) -> dict[str, float]:
    """Memory with many clients of Ditto, which keeps a whole network for each, the most of all methods."""
    return one_round("ditto", {}, n_clients, 50, 0.1, workers)


def vaneb_full(coordinate: int) -> dict[str, float]:
    """A round of VANEB-Full with ten clients of 200 images, direct (0) or coordinate (1) variances."""
    rule = "coordinate" if coordinate else "direct"
    return one_round("vaneb_full", {"rule": rule, "damping": 0.1, "iterations": 20}, 10, 200, 1.0, 1)


def in_fresh_process(what: str, *arguments: int, environment: dict[str, str] | None = None):
    """Run one measurement in a process of its own, as a user would."""
    command = [sys.executable, __file__, "--measure", what, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **(environment or {})}
    )
    return json.loads(done.stdout.splitlines()[-1])


MEASURES = {
    "plain": plain_loop,
    "engine": engine,
    "memory": memory,
    "vaneb_full": vaneb_full,
    "plain_cpu": plain_cpu,
    "worker_cpu": worker_cpu,
}


def compare_processor_time(batches: list[int], rounds: int, repeats: int) -> None:
    """Print samples per second of processor time."""
    from vaneb.worker_processes import WORKER

    for batch in batches:
        plain, worker = 0.0, 0.0
        for _ in range(repeats):
            plain = max(plain, in_fresh_process("plain_cpu", batch, rounds))
            found = in_fresh_process("worker_cpu", batch, rounds, environment=WORKER)
            worker = max(worker, found)
        print(
            f"batch {batch}: plain {plain:.0f}, worker {worker:.0f}, {worker / plain:.2f} times", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, nargs="+", default=[10, 32])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--clients", type=int, default=1000, help="for the memory measurement; 0 leaves it out"
    )
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--cpu", action="store_true", help="processor time only, for a busy machine")
    asked = parser.parse_args()
    if asked.cpu:
        compare_processor_time(asked.batch, asked.rounds, asked.repeats)
        return
    if asked.measure:
        name, *numbers = asked.measure
        print(json.dumps(MEASURES[name](*map(int, numbers))))
        return
    rows = []
    for batch in asked.batch:
        turns: dict[str, list] = {"plain": [], **{str(count): [] for count in asked.workers}}
        for _ in range(asked.repeats):
            turns["plain"].append(in_fresh_process("plain", batch, asked.rounds))
            for count in asked.workers:
                turns[str(count)].append(in_fresh_process("engine", count, batch, asked.rounds))
        plain = max(turns["plain"])
        rows.append({"what": "plain loop, one thread", "batch": batch, "samples_per_second": round(plain)})
        for count in asked.workers:
            speed = max(turn["samples_per_second"] for turn in turns[str(count)])
            whole = min(turn["round_with_evaluation_seconds"] for turn in turns[str(count)])
            rows.append(
                {
                    "what": f"engine, {count} worker{'s' if count > 1 else ''}",
                    "batch": batch,
                    "samples_per_second": round(speed),
                    "times_plain": round(speed / plain, 2),
                    "round_with_evaluation_seconds": round(whole, 3),
                }
            )
            print(rows[-1], flush=True)
        print(rows[-1 - len(asked.workers)], flush=True)
    result = {
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "rows": rows,
    }
    if asked.clients:
        result["memory"] = {"clients": asked.clients, **in_fresh_process("memory", asked.clients, 1)}
        print(result["memory"], flush=True)
    if asked.output:
        asked.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
