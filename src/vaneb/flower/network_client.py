"""Networks at the client: carry out the engine's tasks beside the images, keep the client's own network.

A client's data folder is a ``FederatedData`` of one client, as ``write_client`` makes it.  What a method
keeps per client stays in the client's own folder, where it survives a restart.
"""

from __future__ import annotations

import json
import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.files import private_folder, write_atomically
from vaneb.fl.config import Config, config_from
from vaneb.fl.experiment import model_of
from vaneb.fl.federated_data import FederatedData
from vaneb.fl.models import build_network
from vaneb.fl.network import Network, load_params
from vaneb.fl.trees import Tree, leaves, load_tree, save_tree, unflatten
from vaneb.fl.workbench import Task, Workbench
from vaneb.fl.workers import one_torch_thread
from vaneb.flower.client_data import RESULT
from vaneb.flower.settings import Settings

#: A client's own network; ``RESULT`` has what is known of it.
NETWORK = "network.npz"
#: What a reply to an update lists: clients that diverged, and those that have written a new state.
LISTS = ("diverged", "written")
#: End of the name of a state: the client's number and the round's.
STATE = re.compile(r"\d{1,9}-\d{1,9}\.npz\Z")


def experiment_of(settings: Settings) -> Config:
    """The configuration that the run carries."""
    try:
        return config_from(tomllib.loads(settings.experiment), "experiment")
    except tomllib.TOMLDecodeError as error:
        raise InvalidOption(f"experiment: not TOML ({error}).") from None


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


@lru_cache(maxsize=4)
def _bench(model: str, data: str) -> Workbench:
    return Workbench(json.loads(model), FederatedData.load(Path(data)))


def count_images(data: Path) -> int:
    """Images that a client trains on."""
    return len(FederatedData.load(data).train_labels)


def run_task(
    question: dict[str, Any], settings: Settings, data: Path, folder: Path, name: str
) -> dict[str, Any]:
    """Carry out one of the engine's tasks; the client's state is read from, and kept in, its own folder."""
    if "task" not in question:
        return {"client": name}
    config = experiment_of(settings)
    private_folder(folder / "states")
    bench = _bench(json.dumps(model_of(config), sort_keys=True), str(data))
    task, message = dict(question["task"]), from_wire(question["message"])
    own: Task = {**task, "clients": [0], "states": [_own_file(folder, task["states"][0])]}
    with one_torch_thread():
        if task["do"] == "personalize":
            return _personalise(bench, own, message, folder, name, settings)
        own["new_states"] = [_own_file(folder, task["new_states"][0])]
        reply, tree = bench.run(own, message)
    # In the server's numbering; here the client is number 0.
    numbered = {key: [task["clients"][0]] * len(reply[key]) for key in LISTS}
    return {"reply": numbered, **({"tree": to_wire(tree["0"])} if "0" in tree else {})}


def _own_file(folder: Path, name: str | None) -> str | None:
    """Where a state that the server knows by ``name`` is at the client: by two numbers, and nowhere else."""
    if name is None:
        return None
    numbers = STATE.search(str(name))
    if numbers is None:
        raise InvalidOption("states: a client's state is known by two numbers.")
    return str(folder / "states" / numbers[0])


def _personalise(
    bench: Workbench, task: Task, message: Tree, folder: Path, name: str, settings: Settings
) -> dict[str, Any]:
    """Keep this client's own network, and how good it is on the client's own test images."""
    params = bench.personalized(task, message)
    save_tree(folder / NETWORK, params)
    about = {
        "client": name,
        "method": settings.method,
        "network": NETWORK,
        "model": model_of(experiment_of(settings)),
        "accuracy": bench.accuracy(0, params),
    }
    write_atomically(folder / RESULT, (json.dumps(about, indent=1) + "\n").encode())
    return {"kept": True}


def own_network(folder: Path) -> Network:
    """The network that a client has kept in its folder, ready to be used: ``network.module(images)``."""
    about = json.loads((folder / RESULT).read_text())
    network = build_network(**about["model"])
    load_params(network, load_tree(folder / about["network"]))
    return network
