"""Federated training of networks over Flower, by the engine's own loop.

The engine hands tasks to a pool and takes replies (``vaneb.fl.engine``).  ``FlowerPool`` is a pool whose
workers are Flower's clients: a task goes to the node that holds the client's images, is carried out there by
the same ``Workbench`` that the engine's own workers use, and what a method keeps per client stays in the
client's folder, where it survives a restart.  So all methods run, from the same five functions and the same
generators, and give the same numbers.

A client's data folder is a ``FederatedData`` of one client, as ``write_client`` makes it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.checkpoint import StageFolder
from vaneb.fl.config import Config, config_from
from vaneb.fl.engine import Seat, run_stage
from vaneb.fl.experiment import model_of
from vaneb.fl.federated_data import FederatedData
from vaneb.fl.methods import build_method
from vaneb.fl.models import build_network
from vaneb.fl.network import read_params
from vaneb.fl.trees import Tree, leaves, save_tree, unflatten
from vaneb.fl.workbench import Task, Workbench
from vaneb.fl.workers import Job, one_torch_thread
from vaneb.flower.archive import Archive
from vaneb.flower.exchange import Line, wait_for_nodes
from vaneb.flower.settings import Settings

NETWORK = "network.npz"


def write_client(data: FederatedData, client: int, folder: Path) -> None:
    """One client's part of a federation, as a folder of its own."""

    def part(values: Any, edges: Any) -> Any:
        return values[int(edges[client]) : int(edges[client + 1])]

    tests: dict[str, Any] = {}
    for protocol in ("balanced", "matched"):
        rows = part(getattr(data, f"{protocol}_rows"), getattr(data, f"{protocol}_edges"))
        tests[f"{protocol}_rows"] = rows
        tests[f"{protocol}_edges"] = np.array([0, len(rows)])
    images = part(data.train_images, data.train_edges)
    FederatedData(
        train_images=images,
        train_labels=part(data.train_labels, data.train_edges),
        train_edges=np.array([0, len(images)]),
        test_images=data.test_images,
        test_labels=data.test_labels,
        cluster=data.cluster[client : client + 1],
        n_classes=data.n_classes,
        mean=data.mean,
        deviation=data.deviation,
        **tests,
    ).save(folder)


def to_wire(tree: Tree) -> dict[str, Any]:
    """A tree of tensors with numpy arrays for leaves, flat, as messages carry it."""
    return {
        path: leaf.detach().contiguous().numpy() if isinstance(leaf, torch.Tensor) else leaf
        for path, leaf in leaves(tree)
    }


def from_wire(flat: Any) -> Tree:
    """Inverse of ``to_wire``."""
    if not isinstance(flat, dict):
        raise InvalidReport("tree: expected an object.")
    return unflatten(
        {p: torch.from_numpy(np.array(v)) if isinstance(v, np.ndarray) else v for p, v in flat.items()}
    )


# ---------------------------------------------------------------- at the client


@lru_cache(maxsize=4)
def _bench(model: str, data: str) -> Workbench:
    return Workbench(json.loads(model), FederatedData.load(Path(data)))


def run_task(
    question: dict[str, Any], settings: Settings, data: Path, folder: Path | None, name: str
) -> dict[str, Any]:
    """Carry out one of the engine's tasks; the client's state is read from, and kept in, its own folder."""
    if folder is None:
        raise InvalidOption("node config: folder is missing; a network needs one for the client's state.")
    config = experiment_of(settings)
    (folder / "states").mkdir(parents=True, exist_ok=True)
    bench = _bench(json.dumps(model_of(config), sort_keys=True), str(data))
    task, message = dict(question["task"]), from_wire(question["message"])
    state = None if task["states"][0] is None else str(folder / "states" / Path(task["states"][0]).name)
    own: Task = {**task, "clients": [0], "states": [state]}
    if task["do"] == "update":
        own["new_states"] = [str(folder / "states" / Path(task["new_states"][0]).name)]
    with one_torch_thread():
        if task["do"] == "personalize":
            return _personalise(bench, own, message, folder)
        reply, tree = bench.run(own, message)
    answer: dict[str, Any] = {"reply": _renamed(reply, task["clients"][0])}
    if "0" in tree:
        answer["tree"] = to_wire(tree["0"])
    return answer


def _renamed(reply: Task, client: int) -> Task:
    """The reply in the server's numbering; here the client is number 0."""
    return {
        key: [client for _ in value] if key in ("diverged", "written") else value
        for key, value in reply.items()
    }


def _personalise(bench: Workbench, task: Task, message: Tree, folder: Path) -> dict[str, Any]:
    """Keep this client's own network."""
    from vaneb.fl.workbench import _load_state

    algorithm = bench.algorithm(*task["algorithm"])
    rng = np.random.default_rng(task["seeds"][0])
    params = algorithm.personalize(message, _load_state(task["states"][0]), bench.data.client(0), rng)
    save_tree(folder / NETWORK, params)
    return {"kept": True}


# ---------------------------------------------------------------- at the server


class FlowerPool:
    """The engine's workers, elsewhere: client k is at ``nodes[k]``."""

    def __init__(self, line: Line, nodes: Sequence[int]) -> None:
        self.line = line
        self.nodes = tuple(nodes)

    def map(self, jobs: Sequence[Job], done: Callable[[], None] | None = None) -> Iterator[Job]:
        """Replies to ``jobs``; one exchange for all, since every client is at a node of its own."""
        questions = {
            self.nodes[client]: {"task": _alone(task, place), "message": to_wire(message)}
            for task, message in jobs
            for place, client in enumerate(task["clients"])
        }
        answers = self.line.ask_all("network", questions)
        for task, _ in jobs:
            replies = [answers[self.nodes[client]] for client in task["clients"]]
            merged: Task = {}
            for key, value in replies[0].get("reply", {}).items():
                both = isinstance(value, list)
                merged[key] = [x for r in replies for x in r["reply"][key]] if both else value
            outputs = {
                str(client): from_wire(reply["tree"])
                for client, reply in zip(task["clients"], replies, strict=True)
                if "tree" in reply
            }
            if done is not None:
                done()
            yield merged, outputs


def _alone(task: Task, place: int) -> Task:
    """The part of a task that is one client's."""
    lists = ("clients", "states", "seeds", "new_states")
    return {key: [value[place]] if key in lists else value for key, value in task.items()}


def experiment_of(settings: Settings) -> Config:
    """The configuration that the run carries."""
    return config_from(tomllib.loads(settings.experiment), "experiment")


def run_networks(line: Line, settings: Settings, archive: Archive) -> dict[str, Any]:
    """All stages of a method, and every client's own network at the end, kept by the client."""
    config = experiment_of(settings)
    method = build_method(settings.method, config)
    registered = wait_for_nodes(line.grid, max(settings.nodes, config.data.clients), settings.wait)
    if len(registered) < config.data.clients:
        raise InvalidReport(
            f"clients: {len(registered)} are there, the experiment is for {config.data.clients}."
        )
    # In order of their names, so that a client has the same number in every run.
    nodes = sorted(registered, key=lambda node: (registered[node], node))[: config.data.clients]
    pool = FlowerPool(line, nodes)
    network = build_network(**model_of(config))
    params = read_params(network)
    for index, stage in enumerate(method.stages):
        algorithm = build_algorithm(stage.algorithm, network, stage.options)
        folder = StageFolder(archive.folder / "stages" / str(index))
        seat = Seat(config.seed, index)
        checkpoint = run_stage(
            stage,
            algorithm,
            pool,  # type: ignore[arg-type]
            folder,
            params,
            len(nodes),
            seat,
        )
        params = checkpoint.state.params
    jobs: list[Job] = [
        (
            {
                "do": "personalize",
                "algorithm": [stage.algorithm, stage.options],
                "clients": [k],
                "states": [checkpoint.client_files.get(k)],
                "seeds": [seat.generator_seed(3, checkpoint.state.round, k)],
            },
            algorithm.broadcast(checkpoint.state, k),
        )
        for k in range(len(nodes))
    ]
    list(pool.map(jobs))
    return archive.keep_outcome(
        settings.mode,
        [registered[node] or str(node) for node in nodes],
        {},
        line.traffic.summary(),
        fitted=True,
        clients=len(nodes),
        rounds=[stage.rounds for stage in method.stages],
    )
