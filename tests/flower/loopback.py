"""A grid in this process: real messages through the real client app, every one of them captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from vaneb.flower import client_app, wire
from vaneb.flower.settings import Settings

# Flower sets these in the processes that it starts.
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

Behaviour = Callable[[Message, Callable[[Message], Message]], Message | None]
"""What a node does with a question; ``None`` is silence."""


@dataclass
class Node:
    """One virtual node."""

    node_config: dict[str, Any]
    name: str = ""
    behave: Behaviour | None = None
    state: RecordDict = field(default_factory=RecordDict)
    settings: Settings | None = None
    """What a malicious server tells this node of the run."""


@dataclass
class LoopbackGrid:
    """Nodes by id; ``captured`` has the content of all messages, both ways, as they would be on the wire."""

    nodes: dict[int, Node]
    settings: Settings
    captured: list[tuple[str, int, Message]] = field(default_factory=list)
    replies: dict[str, Message] = field(default_factory=dict)
    errors: list[Message] = field(default_factory=list)
    pushed: int = 0

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=value.name) for node, value in self.nodes.items()]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.pushed += 1
            message.metadata.__dict__["_message_id"] = f"m{self.pushed}"
            ids.append(message.metadata.message_id)
            node = message.metadata.dst_node_id
            self.captured.append(("down", node, _over_the_wire(message)))
            reply = self._handle(self.nodes[node], node, _over_the_wire(message))
            if reply is not None:
                if reply.has_content():
                    reply = _over_the_wire(reply)
                    self.captured.append(("up", node, reply))
                else:
                    self.errors.append(reply)
                reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
                self.replies[message.metadata.message_id] = reply
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(i) for i in list(ids) if i in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _handle(self, value: Node, node: int, message: Message) -> Message | None:
        context = Context(
            run_id=1,
            node_id=node,
            node_config=value.node_config,
            state=value.state,
            run_config=(value.settings or self.settings).to_run_config(),
        )

        def genuine(question: Message) -> Message:
            try:
                return client_app.app(question, context)
            except Exception as error:  # as Flower does it
                return Message(Error(code=2, reason=str(error)), reply_to=question)

        return genuine(message) if value.behave is None else value.behave(message, genuine)


def _over_the_wire(message: Message) -> Message:
    """The message that the other side rebuilds from bytes."""
    objects = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
    copy = inflate_object_from_contents(message.object_id, objects)
    copy.metadata.__dict__["_message_id"] = message.metadata.message_id
    return copy


def write_rows(path: Path, k: int, n: int = 30, *, seed: int = 0, family: str = "gaussian") -> Path:
    """Rows of client k; its coefficients depend on k."""
    rng = np.random.default_rng([seed, k])
    x = rng.normal(size=n)
    index = (0.5 if k % 2 else -0.5) + (1.0 + 0.2 * rng.normal()) * x
    if family == "gaussian":
        y = index + rng.normal(size=n)
    elif family == "poisson":
        y = rng.poisson(np.exp(0.5 * index)).astype(float)
    else:
        y = (rng.random(n) < 1 / (1 + np.exp(-index))).astype(float)
    lines = [f"{a!r},{b!r}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    path.write_text("x,y\n" + "\n".join(lines) + "\n")
    return path


def federation(
    folder: Path, settings: Settings, clients: int, *, named: bool = True, n: int = 30, atoms: bool = True
) -> LoopbackGrid:
    """Clients ``c0``, ``c1``, ... with a file and a folder each, and a policy that answers what tests ask."""
    nodes = {}
    policy = folder / "policy.toml"
    policy.write_text(f'likelihoods = ["covariance", "exact"]\nsums_at_atoms = {str(atoms).lower()}\n')
    for k in range(clients):
        data = write_rows(folder / f"c{k}.csv", k, n, family=settings.family)
        own = {"data": data, "client": f"c{k}", "folder": folder / f"c{k}", "policy": policy}
        config = {key: str(value) for key, value in own.items()}
        nodes[1000 + k] = Node(config, name=f"c{k}" if named else "")
    return LoopbackGrid(nodes, settings)


def bytes_of(message: Message) -> bytes:
    """All bytes of a message, as Flower writes them."""
    return b"".join(part.deflate() for part in get_all_nested_objects(message).values())


def content_of(message: Message) -> wire.Tree:
    return wire.from_record(message.content)
