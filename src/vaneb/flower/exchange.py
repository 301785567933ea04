"""One exchange: the server asks some nodes one question each, and takes answers as they come.

Every exchange carries a token of its own, which an answer must repeat: an old answer that is sent again does
not fit.  An answer is matched to its node by the message that it replies to, never by what it says of itself.
An exchange ends when all have answered or its time is up; whoever has not answered then is named.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
class Count:
    """Messages of one kind, and the bytes of their contents as Flower writes them."""

    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0


@dataclass
class Traffic:
    """What has passed, counted by kind of message."""

    kinds: dict[str, Count] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def of(self, kind: str) -> Count:
        return self.kinds.setdefault(kind, Count())

    def summary(self) -> dict[str, Any]:
        counts = self.kinds.values()
        return {
            "exchanges": len(self.seconds),
            "messages": sum(count.messages for count in counts),
            "bytes_down": sum(count.bytes_down for count in counts),
            "bytes_up": sum(count.bytes_up for count in counts),
            "by_kind": {kind: asdict(count) for kind, count in self.kinds.items()},
            "seconds_exchanging": round(sum(self.seconds), 3),
            "seconds_by_exchange": [round(seconds, 3) for seconds in self.seconds[:10]],
        }


@dataclass(frozen=True)
class Channel:
    """The way to the clients: a grid, the time an exchange may take, and a count of what passed."""

    grid: Grid
    timeout: float
    traffic: Traffic = field(default_factory=Traffic)
    token: Callable[[], str] = lambda: secrets.token_hex(16)

    def exchange(self, kind: str, messages: Sequence[Message]) -> Iterator[tuple[int, Message | str]]:
        """Send ``messages``, one to a node, and yield every node with its reply as it arrives.

        In place of a reply that does not come there is the reason.
        """
        began, count = time.monotonic(), self.traffic.of(kind)
        for message in messages:
            # Nobody should work on a question that nobody waits for.
            message.metadata.ttl = self.timeout
            count.messages += 1
            count.bytes_down += wire.size_of(message.content)
        nodes = {message.metadata.dst_node_id for message in messages}
        sent = {str(i) for i in self.grid.push_messages(messages) if i is not None}
        waiting = {
            message.metadata.message_id: message.metadata.dst_node_id
            for message in messages
            if message.metadata.message_id in sent
        }
        for node in nodes - set(waiting.values()):
            yield node, "the question could not be sent: the node is not there"
        pause = FIRST_PAUSE
        while waiting:
            replies = list(self.grid.pull_messages(list(waiting)))
            for reply in replies:
                if reply.metadata.reply_to_message_id in waiting:
                    if reply.has_content():
                        count.messages += 1
                        count.bytes_up += wire.size_of(reply.content)
                    yield waiting.pop(reply.metadata.reply_to_message_id), reply
            left = self.timeout - (time.monotonic() - began)
            if left <= 0:
                break
            if not replies:
                time.sleep(min(pause, left))
                pause = min(1.5 * pause, LONGEST_PAUSE)
        self.traffic.seconds.append(time.monotonic() - began)
        for node in waiting.values():
            yield node, f"no answer within {self.timeout:g} seconds"

    def ask(
        self, kind: str, questions: Mapping[int, Mapping[str, Any]], *, about: str = ""
    ) -> Iterator[Answer]:
        """Answers to ``questions`` (by node), as they arrive; one for every node.

        ``about`` is under what they are counted besides their kind.
        """
        from flwr.app import Message

        if not questions:
            return
        token = self.token()
        messages = [
            Message(
                wire.to_record({**question, TOKEN: token}), dst_node_id=node, message_type=f"query.{kind}"
            )
            for node, question in questions.items()
        ]
        for node, reply in self.exchange(f"{kind} {about}".strip(), messages):
            if isinstance(reply, str):
                yield Answer(node, None, reply, silent=True)
            else:
                yield _answer(node, reply, token)

    def ask_all(
        self, kind: str, questions: Mapping[int, Mapping[str, Any]], *, about: str = ""
    ) -> dict[int, wire.Tree]:
        """Answers of all nodes; ``Lost`` names those that gave none."""
        answers: dict[int, wire.Tree] = {}
        reasons: dict[int, str] = {}
        for answer in self.ask(kind, questions, about=about):
            if answer.content is None:
                reasons[answer.node] = answer.reason
            else:
                answers[answer.node] = answer.content
        if reasons:
            raise Lost(reasons)
        return answers


def _answer(node: int, reply: Message, token: str) -> Answer:
    """What is in a reply: an answer to the question of this token, or the reason why it is none."""
    if reply.has_error():
        return Answer(node, None, error_of(reply), silent=reply.error.code in SILENT)
    try:
        content = wire.from_record(reply.content)
    except InvalidReport as error:
        return Answer(node, None, str(error))
    if content.pop(TOKEN, None) != token:
        return Answer(node, None, "answer: belongs to another exchange (an old answer sent again?).")
    if FAILED in content:
        # It ends up on an operator's terminal.
        said = "".join(letter for letter in str(content[FAILED])[:100] if letter.isprintable())
        return Answer(node, None, f"client: {said}")
    return Answer(node, content)


def error_of(reply: Message) -> str:
    """What Flower's error means, in our words."""
    return ERRORS.get(reply.error.code, f"Flower's error {reply.error.code}")
