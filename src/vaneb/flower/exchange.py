"""One exchange: the server asks some nodes one question each, and takes answers as they come.

Every exchange carries a token of its own, which an answer must repeat: an old answer that is sent again does
not fit.  An answer is matched to its node by the message that it replies to, never by what it says of itself.
An exchange ends when all have answered or its time is up; whoever has not answered then is named.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vaneb.errors import InvalidReport, VanebError
from vaneb.flower import wire

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

TOKEN, FAILED = "token", "failed"
#: Seconds between two looks for answers: short at first, and never long.
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
#: What Flower's error codes mean; its own texts are not passed on, since they quote exceptions.
ERRORS = {
    1: "it could not load the client app",
    2: "its client app raised an error that it did not handle",
    3: "its time was up before it answered",
    4: "its answer did not arrive in time",
    5: "the node is gone",
    7: "it could not read the app",
    8: "its client process is gone",
}
#: Those that mean that no answer came, as opposed to a bad one.
SILENT = (3, 4, 5, 8)


class Lost(VanebError):
    """Clients that were needed did not answer, or not with what was asked for."""

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"node {node}: {reason}" for node, reason in reasons.items()))
        self.reasons = dict(reasons)


@dataclass(frozen=True)
class Answer:
    """What came back from one node: content, or the reason why there is none."""

    node: int
    content: wire.Tree | None
    reason: str = ""
    silent: bool = False
    """No answer arrived (as opposed to a bad one)."""


@dataclass
class Traffic:
    """Messages and bytes, counted as they pass."""

    exchanges: int = 0
    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        return {
            "exchanges": self.exchanges,
            "messages": self.messages,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "seconds_exchanging": round(sum(self.seconds), 3),
            "seconds_by_exchange": [round(seconds, 3) for seconds in self.seconds[:10]],
        }


@dataclass(frozen=True)
class Line:
    """The way to the clients: a grid, the time an exchange may take, and a count of what passed."""

    grid: Grid
    timeout: float
    traffic: Traffic = field(default_factory=Traffic)
    token: Callable[[], str] = lambda: secrets.token_hex(16)

    def ask(self, kind: str, questions: Mapping[int, Mapping[str, Any]]) -> Iterator[Answer]:
        """Answers to ``questions`` (by node), as they arrive; one for every node."""
        from flwr.app import Message

        if not questions:
            return
        began = time.monotonic()
        token = self.token()
        messages = [
            Message(
                wire.to_record({**question, TOKEN: token}),
                dst_node_id=node,
                message_type=f"query.{kind}",
                ttl=self.timeout,
            )
            for node, question in questions.items()
        ]
        self.traffic.exchanges += 1
        self.traffic.messages += len(messages)
        self.traffic.bytes_down += sum(wire.size_of(message.content) for message in messages)
        sent = {str(i) for i in self.grid.push_messages(messages) if i is not None}
        waiting = {
            message.metadata.message_id: message.metadata.dst_node_id
            for message in messages
            if message.metadata.message_id in sent
        }
        for node in questions.keys() - set(waiting.values()):
            yield Answer(node, None, "the question could not be sent: the node is not there", silent=True)
        pause = FIRST_PAUSE
        while waiting:
            replies = list(self.grid.pull_messages(list(waiting)))
            for reply in replies:
                if reply.metadata.reply_to_message_id in waiting:
                    node = waiting.pop(reply.metadata.reply_to_message_id)
                    yield self._answer(node, reply, token)
            left = self.timeout - (time.monotonic() - began)
            if left <= 0:
                break
            if not replies:
                time.sleep(min(pause, left))
                pause = min(1.5 * pause, LONGEST_PAUSE)
        self.traffic.seconds.append(time.monotonic() - began)
        for node in waiting.values():
            yield Answer(node, None, f"no answer within {self.timeout:g} seconds", silent=True)

    def ask_all(self, kind: str, questions: Mapping[int, Mapping[str, Any]]) -> dict[int, wire.Tree]:
        """Answers of all nodes; ``Lost`` names those that gave none."""
        answers: dict[int, wire.Tree] = {}
        reasons: dict[int, str] = {}
        for answer in self.ask(kind, questions):
            if answer.content is None:
                reasons[answer.node] = answer.reason
            else:
                answers[answer.node] = answer.content
        if reasons:
            raise Lost(reasons)
        return answers

    def _answer(self, node: int, reply: Message, token: str) -> Answer:
        if reply.has_error():
            code = reply.error.code
            return Answer(node, None, ERRORS.get(code, f"Flower's error {code}"), silent=code in SILENT)
        self.traffic.messages += 1
        self.traffic.bytes_up += wire.size_of(reply.content)
        try:
            content = wire.from_record(reply.content)
        except InvalidReport as error:
            return Answer(node, None, str(error))
        if content.pop(TOKEN, None) != token:
            return Answer(node, None, "answer: belongs to another exchange (an old answer sent again?).")
        if FAILED in content:
            return Answer(node, None, f"client: {str(content[FAILED])[:100]}")
        return Answer(node, content)


def wait_for_nodes(
    grid: Grid, wanted: int, seconds: float, known: Callable[[int], bool] = lambda node: True
) -> dict[int, str]:
    """Nodes and the names they are registered under ("" without authentication), once ``wanted`` are there.

    Returns with fewer when the time is up; the caller decides whether they are enough.
    """
    deadline = time.monotonic() + seconds
    while True:
        nodes = {int(node.node_id): str(node.name) for node in grid.get_nodes() if known(int(node.node_id))}
        if len(nodes) >= wanted or time.monotonic() >= deadline:
            return dict(sorted(nodes.items()))
        time.sleep(0.5)
