"""What one process does for the engine: build the network once, then update or evaluate clients on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaneb.fl.algorithm import Algorithm, Params, Personalize, Predict
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.federated_data import PROTOCOLS, FederatedData
from vaneb.fl.label_prior import log_proportions
from vaneb.fl.models import build_network
from vaneb.fl.network import features, head_matrix, load_params, read_params
from vaneb.fl.personal import keep_personal
from vaneb.fl.trees import Tree, is_finite, load_tree, save_tree

Task = dict[str, Any]
"""Plain JSON: what to do ("update" or "evaluate"), for whom, with which algorithm and seeds.

algorithm : [name, options]
clients : client numbers; more than one only if the algorithm has a ``cohort_update``.
seeds : one list of integers per client.
states : per client, the file of its state or None.
new_states : per client, the file to write its new state to ("update" only).
keep : the file to keep the client's network in, if it is to be kept ("evaluate" only).
"""

#: What is done to the logits before a label is predicted: nothing, or the client's log-proportions added
#: (fit for networks that ignore them) or taken away (for networks that have learned them).
PRIORS = {"none": 0.0, "added": 1.0, "removed": -1.0}


def peak_megabytes() -> float:
    """The most memory that this process has held; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0.0
    unit = 1e-6 if sys.platform == "darwin" else 1.024e-3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Workbench:
    """One network, reused in place, and one mapped data set."""

    def __init__(self, model: dict[str, Any], data: FederatedData) -> None:
        self.network = build_network(**model)
        self.data = data
        self._algorithms: dict[str, Algorithm] = {}

    def algorithm(self, name: str, options: dict[str, Any]) -> Algorithm:
        """Built once per name and options."""
        key = json.dumps([name, options], sort_keys=True)
        if key not in self._algorithms:
            self._algorithms[key] = build_algorithm(name, self.network, options)
        return self._algorithms[key]

    def run(self, task: Task, message: Tree) -> tuple[Task, Tree]:
        """Carry out a task; returns plain JSON and a tree."""
        return {"update": self._update, "evaluate": self._evaluate}[task["do"]](task, message)

    def _update(self, task: Task, message: Tree) -> tuple[Task, Tree]:
        algorithm = self.algorithm(*task["algorithm"])
        clients = [self.data.client(k) for k in task["clients"]]
        before = [_load_state(path) for path in task["states"]]
        rngs = [np.random.default_rng(seed) for seed in task["seeds"]]
        # For modules with randomness of their own (dropout): the same whoever else is trained here.
        torch.manual_seed(int(np.random.default_rng(task["seeds"][0]).integers(2**62)))
        if len(clients) == 1:
            results = [algorithm.client_update(message, clients[0], before[0], rngs[0])]
        else:
            assert algorithm.cohort_update is not None
            results = algorithm.cohort_update(message, clients, before, rngs)
        outputs: dict[str, Tree] = {}
        diverged, written = [], []
        for k, old, (output, state), path in zip(
            task["clients"], before, results, task["new_states"], strict=True
        ):
            if not (is_finite(output) and is_finite(state)):
                diverged.append(k)
                continue
            outputs[str(k)] = output
            if state is not old and state:
                save_tree(Path(path), state)
                written.append(k)
        return {"diverged": diverged, "written": written}, outputs

    def personalized(self, task: Task, message: Tree, by: Personalize | None = None) -> Params:
        """The network that the task's client ends up with."""
        by = by or self.algorithm(*task["algorithm"]).personalize
        (k,), (state,), (seed,) = task["clients"], task["states"], task["seeds"]
        torch.manual_seed(int(np.random.default_rng(seed).integers(2**62)))
        return by(message, _load_state(state), self.data.client(k), np.random.default_rng(seed))

    def accuracy(
        self,
        client: int,
        params: Params,
        predict: Predict | None = None,
        protocols: Iterable[str] = PROTOCOLS,
    ) -> dict[str, float]:
        """Share of right labels on the client's test images, by "protocol/prior"."""
        data = self.data.client(client)
        load_params(self.network, params)
        head = head_matrix(self.network, read_params(self.network, self.network.head_names))
        offset = log_proportions(data.labels, data.n_classes)
        accuracy = {}
        for protocol in protocols:
            images, labels = (test := self.data.test(client, protocol)).images, test.labels
            scores = (
                features(self.network, images) @ head.T if predict is None else predict(params, data, images)
            )
            for prior, sign in PRIORS.items():
                right = (scores + sign * offset).argmax(1) == labels
                accuracy[f"{protocol}/{prior}"] = right.to(torch.float64).mean().item()
        return accuracy

    def _evaluate(self, task: Task, message: Tree) -> tuple[Task, Tree]:
        algorithm, (client,) = self.algorithm(*task["algorithm"]), task["clients"]
        params = self.personalized(task, message)
        accuracy = self.accuracy(client, params, algorithm.predict)
        matched = params
        if algorithm.personalize_matched is not None:
            matched = self.personalized(task, message, algorithm.personalize_matched)
            accuracy |= self.accuracy(client, matched, algorithm.predict, ["matched"])
        if "keep" in task:
            offset = torch.zeros(self.data.n_classes)
            if algorithm.adds_label_prior:
                data = self.data.client(client)
                offset = log_proportions(data.labels, data.n_classes)
            keep_personal(Path(task["keep"]), params, matched, offset)
        return {"accuracy": accuracy, "finite": is_finite(params)}, {}


def _load_state(path: str | None) -> Tree:
    return load_tree(Path(path)) if path else {}
