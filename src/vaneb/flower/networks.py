"""Federated training of networks over Flower, by the engine's own loop.

The engine hands tasks to a pool and takes replies (``vaneb.fl.engine``).  ``FlowerPool`` is a pool whose
workers are Flower's clients: a task goes to the node that holds the client's images and is carried out there
by the same ``Workbench`` that the engine's own workers use (``network_client``).  So all methods run, from
the same five functions and the same generators, and give the same numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from vaneb.errors import InvalidReport
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.checkpoint import StageFolder
from vaneb.fl.engine import StageSeeds, personalised_jobs, run_stage
from vaneb.fl.experiment import model_of
from vaneb.fl.methods import build_method
from vaneb.fl.models import build_network
from vaneb.fl.network import read_params
from vaneb.fl.trees import is_finite, leaves
from vaneb.fl.workbench import Task
from vaneb.fl.workers import Job
from vaneb.flower.archive import Archive
from vaneb.flower.attendance import Attendance, nodes_there, wait_for_nodes
from vaneb.flower.exchange import Channel
from vaneb.flower.network_client import LISTS, experiment_of, from_wire, to_wire
from vaneb.flower.one_shot import FEWEST
from vaneb.flower.settings import Settings


class FlowerPool:
    """The engine's workers, elsewhere: client k is at ``nodes[k]``.

    A client that does not answer, or not with what the others answer, is left out of the round and named.
    """

    def __init__(self, channel: Channel, nodes: Mapping[int, int], attendance: Attendance) -> None:
        self.channel, self.nodes, self.attendance = channel, nodes, attendance

    def map(self, jobs: Sequence[Job], done: Callable[[], None] | None = None) -> Iterator[Job]:
        """Replies to ``jobs``; one exchange for all, since every client is at a node of its own."""
        answers = self._alike(self.ask(jobs))
        if not answers:
            reasons = self.attendance.in_words()
            raise InvalidReport(f"clients: none has answered as asked in this round. {reasons}")
        for task, _ in jobs:
            there = [answers[client] for client in task["clients"] if client in answers]
            reply = {key: [x for answer in there for x in answer["reply"][key]] for key in LISTS}
            outputs = {
                str(client): answers[client]["tree"] for client in task["clients"] if client in answers
            }
            if done is not None:
                done()
            yield reply, {client: tree for client, tree in outputs.items() if tree is not None}

    def ask(self, jobs: Sequence[Job]) -> dict[int, dict[str, Any]]:
        """Answers by client, from those that are there."""
        numbers = {node: client for client, node in self.nodes.items()}
        there = nodes_there(self.channel.grid)
        questions = {}
        for task, message in jobs:
            for place, client in enumerate(task["clients"]):
                node = self.nodes.get(client)
                if node in there:
                    questions[node] = {"task": _alone(task, place), "message": to_wire(message)}
                elif node is not None:
                    self.attendance.lose(node, "the node was not there when a round began")
        answers = {}
        for answer in self.channel.ask("network", questions, about=jobs[0][0]["do"]):
            if answer.content is None:
                (self.attendance.lose if answer.silent else self.attendance.refuse)(
                    answer.node, answer.reason
                )
            else:
                answers[numbers[answer.node]] = answer.content
        return answers

    def _alike(self, answers: Mapping[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Answers with trees of the shapes that most have; finite throughout."""
        read: dict[int, dict[str, Any]] = {}
        for client, content in answers.items():
            try:
                read[client] = read_update(content, client)
            except InvalidReport as error:
                self.attendance.refuse(self.nodes[client], str(error))
        shapes = Counter(answer["shapes"] for answer in read.values() if answer["tree"] is not None)
        common = shapes.most_common(1)[0][0] if shapes else None
        for client, answer in list(read.items()):
            if answer["tree"] is not None and answer["shapes"] != common:
                self.attendance.refuse(self.nodes[client], "update: its shapes are not those of the others.")
                del read[client]
        return read


def read_update(content: Mapping[str, Any], client: int) -> dict[str, Any]:
    """A client's answer in a round, checked: lists of its own number, and a finite tree or none."""
    reply = content.get("reply")
    if not isinstance(reply, dict) or any(_numbers(reply.get(key)) not in ([], [client]) for key in LISTS):
        raise InvalidReport("update: its reply is not what this version writes.")
    if "tree" not in content:
        return {"reply": reply, "tree": None, "shapes": ()}
    try:
        tree = from_wire(content["tree"])
    except Exception:  # from outside: any of a dozen kinds of error
        raise InvalidReport("update: its tree is not what this version writes.") from None
    if not is_finite(tree):
        raise InvalidReport("update: holds numbers that are not finite.")
    shapes = tuple(
        (path, tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf).__name__)
        for path, leaf in sorted(leaves(tree))
    )
    return {"reply": reply, "tree": tree, "shapes": shapes}


def _numbers(value: Any) -> Any:
    return value if isinstance(value, list) and all(type(number) is int for number in value) else None


def _alone(task: Task, place: int) -> Task:
    """The part of a task that is one client's."""
    lists = ("clients", "states", "seeds", "new_states")
    return {key: [value[place]] if key in lists else value for key, value in task.items()}


def numbered_nodes(channel: Channel, archive: Archive, attendance: Attendance, count: int) -> dict[int, int]:
    """The node of each client number; a client has the same number in every run of a folder.

    Names are those that nodes are registered under; without authentication, those that they give.
    """
    names = dict(attendance.names)
    nameless: dict[int, dict[str, Any]] = {node: {} for node, name in names.items() if not name}
    for answer in channel.ask("network", nameless, about="name"):
        if answer.content is None:
            attendance.lose(answer.node, answer.reason)
        names[answer.node] = str((answer.content or {}).get("client", ""))
    claimed = Counter(names.values())
    for node, name in list(names.items()):
        if not name or claimed[name] > 1:
            if node not in attendance.troubles:
                attendance.refuse(node, f"id: {name!r:.40} is claimed by {claimed[name]} nodes.")
            del names[node]
    attendance.names.update(names)
    numbers = archive.numbers(sorted(names.values()), count)
    return {numbers[name]: node for node, name in names.items() if name in numbers}


def run_networks(channel: Channel, settings: Settings, archive: Archive) -> dict[str, Any]:
    """All stages of a method, and every client's own network at the end, kept by the client."""
    config = experiment_of(settings)
    method = build_method(settings.method, config)
    count = config.data.clients
    attendance = wait_for_nodes(channel.grid, max(settings.nodes, count), settings.wait, archive.registered())
    nodes = numbered_nodes(channel, archive, attendance, count)
    if len(nodes) < FEWEST:
        raise InvalidReport(
            f"clients: {len(nodes)} of {count} are there. Start more, or wait longer (--wait)."
        )
    pool = FlowerPool(channel, nodes, attendance)
    network = build_network(**model_of(config))
    params = read_params(network)
    for index, stage in enumerate(method.stages):
        algorithm = build_algorithm(stage.algorithm, network, stage.options)
        folder, seeds = StageFolder(archive.folder / "stages" / str(index)), StageSeeds(config.seed, index)
        checkpoint = run_stage(stage, algorithm, pool, folder, params, count, seeds)  # type: ignore[arg-type]
        params = checkpoint.state.params
    kept = pool.ask(
        personalised_jobs("personalize", stage, algorithm, checkpoint, sorted(nodes), folder, seeds)
    )
    return archive.keep_outcome(
        settings.mode,
        [attendance.name(nodes[k]) for k, answer in kept.items() if answer.get("kept") is True],
        attendance.troubles,
        channel.traffic.summary(),
        absent=list(attendance.absent),
        clients=len(nodes),
        rounds=[stage.rounds for stage in method.stages],
    )
