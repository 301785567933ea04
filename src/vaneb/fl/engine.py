"""The loop that runs any algorithm: sample clients, update them on workers, update the server, commit.

What decides a result is the algorithm, the data and a seed.  Each (stage, round, client) has a generator
of its own, so neither the number of workers nor a kill and resume changes a bit of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb.fl.algorithm import Algorithm, Params
from vaneb.fl.checkpoint import Checkpoint, StageFolder
from vaneb.fl.errors import TrainingFailed
from vaneb.fl.federated_data import PROTOCOLS
from vaneb.fl.trees import Tree, leaves, tensor_bytes
from vaneb.fl.workbench import PRIORS, Task, peak_megabytes
from vaneb.fl.workers import Job, WorkerPool, one_torch_thread

#: Clients in one task of an algorithm that updates many at once; fixed, so that blocks do not depend on
#: the number of workers.
COHORT = 25

# What a generator is for; the second number of its seed.
_SERVER, _PARTICIPANTS, _UPDATE, _PERSONALIZE = range(4)


@dataclass(frozen=True)
class Stage:
    """A number of rounds of one algorithm.

    Parameters
    ----------
    algorithm : name of the constructor.
    options : what it is called with; plain numbers and strings.
    participation : share of the clients that take part in a round, at least one client.
    """

    algorithm: str
    rounds: int
    participation: float
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageSeeds:
    """Which stage of which run this is: what generators depend on besides round and client."""

    seed: int
    index: int

    def of(self, purpose: int, round_number: int = 0, client: int = 0) -> list[int]:
        return [self.seed, purpose, self.index, round_number, client]

    def generator(self, purpose: int, round_number: int = 0) -> np.random.Generator:
        return np.random.default_rng(self.of(purpose, round_number))


def participants(seeds: StageSeeds, round_number: int, n_clients: int, participation: float) -> list[int]:
    """The clients of a round, ascending: max(1, floor(q K)) of them, the same for every algorithm."""
    size = max(1, int(participation * n_clients + 1e-9))
    chosen = seeds.generator(_PARTICIPANTS, round_number).choice(n_clients, size, replace=False)
    return sorted(int(k) for k in chosen)


def run_stage(
    stage: Stage,
    algorithm: Algorithm,
    pool: WorkerPool,
    folder: StageFolder,
    start: Params,
    n_clients: int,
    seeds: StageSeeds,
    on_round: Callable[[Checkpoint], None] | None = None,
) -> Checkpoint:
    """Run a stage from where it stands to its last round.

    Parameters
    ----------
    algorithm : the stage's algorithm, built in this process (the workers build their own).
    start : parameters it is given if it has not begun.
    on_round : called after every round that this call ran.
    """
    with one_torch_thread():
        checkpoint = folder.read()
        if checkpoint is None:
            checkpoint = Checkpoint(algorithm.init(start, seeds.generator(_SERVER)), {}, ())
        for number in range(checkpoint.state.round, stage.rounds):
            began, cpu = time.perf_counter(), time.process_time()
            clients = participants(seeds, number, n_clients, stage.participation)
            jobs = _update_jobs(stage, algorithm, checkpoint, clients, folder, seeds)
            outputs: dict[int, Tree] = {}
            diverged: list[int] = []
            files = dict(checkpoint.client_files)
            sent = sum(tensor_bytes(message) * len(task["clients"]) for task, message in jobs)
            elsewhere, peak = 0.0, peak_megabytes()
            for reply, tree in pool.map(jobs):
                outputs.update({int(client): output for client, output in tree.items()})
                diverged += reply["diverged"]
                files.update({k: folder.client_file(k, number + 1) for k in reply["written"]})
                # Clients of a federation do not tell what they spend.
                elsewhere, peak = elsewhere + reply.get("cpu", 0.0), max(peak, reply.get("peak", 0.0))
            if not outputs:
                raise TrainingFailed(
                    f"{stage.algorithm}, round {number + 1}: every client diverged (its parameters are not "
                    "finite). Lower the learning rate."
                )
            state, info = algorithm.server_update(checkpoint.state, outputs)
            entry = {
                "participants": len(clients),
                "diverged": diverged,
                "seconds": round(time.perf_counter() - began, 3),
                "cpu_seconds": round(time.process_time() - cpu + elsewhere, 3),
                "bytes": sent + tensor_bytes({str(client): tree for client, tree in outputs.items()}),
                "peak_megabytes": round(peak, 1),
                **{path: leaf for path, leaf in leaves(info) if isinstance(leaf, int | float)},
            }
            checkpoint = Checkpoint(state, files, (*checkpoint.history, entry))
            folder.commit(checkpoint, info)
            if on_round is not None:
                on_round(checkpoint)
        return checkpoint


def _update_jobs(
    stage: Stage,
    algorithm: Algorithm,
    checkpoint: Checkpoint,
    clients: Sequence[int],
    folder: StageFolder,
    seeds: StageSeeds,
) -> list[Job]:
    """Jobs for the clients of a round, several in one where the algorithm updates many at once."""
    size = COHORT if algorithm.cohort_update is not None else 1
    blocks = [clients[first : first + size] for first in range(0, len(clients), size)]
    jobs = _jobs("update", stage, algorithm, checkpoint, blocks, folder, seeds, _UPDATE)
    for task, _ in jobs:
        names = [folder.client_file(k, checkpoint.state.round + 1) for k in task["clients"]]
        task["new_states"] = [folder.path(name) for name in names]
    return jobs


def personalised_jobs(
    do: str,
    stage: Stage,
    algorithm: Algorithm,
    checkpoint: Checkpoint,
    clients: Sequence[int],
    folder: StageFolder,
    seeds: StageSeeds,
) -> list[Job]:
    """One job for each client, to ``do`` something with its personalised network."""
    return _jobs(do, stage, algorithm, checkpoint, [[k] for k in clients], folder, seeds, _PERSONALIZE)


def _jobs(
    do: str,
    stage: Stage,
    algorithm: Algorithm,
    checkpoint: Checkpoint,
    blocks: Sequence[Sequence[int]],
    folder: StageFolder,
    seeds: StageSeeds,
    purpose: int,
) -> list[Job]:
    """A task and a message for each block of clients."""
    state, files = checkpoint.state, checkpoint.client_files
    jobs = []
    for block in blocks:
        task: Task = {
            "do": do,
            "algorithm": [stage.algorithm, stage.options],
            "clients": list(block),
            "states": [folder.path(files[k]) if k in files else None for k in block],
            "seeds": [seeds.of(purpose, state.round, k) for k in block],
        }
        jobs.append((task, algorithm.broadcast(state, block[0])))
    return jobs


@dataclass(frozen=True)
class Evaluation:
    """Accuracy of every client's personalised network.

    Parameters
    ----------
    accuracy : by (protocol, prior), shape (K,), as shares of one.
    not_finite : clients whose network has parameters that are not finite.
    """

    accuracy: dict[tuple[str, str], NDArray[np.float64]]
    not_finite: int


def evaluate(
    stage: Stage,
    algorithm: Algorithm,
    pool: WorkerPool,
    folder: StageFolder,
    checkpoint: Checkpoint,
    n_clients: int,
    seeds: StageSeeds,
    networks: Path | None = None,
) -> Evaluation:
    """Personalise every client and test it under both protocols, with each treatment of its label prior.

    Parameters
    ----------
    networks : folder to keep every client's network in.
    """
    with one_torch_thread():
        jobs = personalised_jobs("evaluate", stage, algorithm, checkpoint, range(n_clients), folder, seeds)
        for task, _ in jobs if networks is not None else []:
            task["keep"] = f"{networks}/{task['clients'][0]}.npz"
        replies = [reply for reply, _ in pool.map(jobs)]
    accuracy = {
        (protocol, prior): np.array([reply["accuracy"][f"{protocol}/{prior}"] for reply in replies])
        for protocol in PROTOCOLS
        for prior in PRIORS
    }
    return Evaluation(accuracy, sum(not reply["finite"] for reply in replies))
