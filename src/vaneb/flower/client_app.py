"""What runs beside the data.

Every handler is guarded: whatever goes wrong, the server is told one of a few fixed sentences, never the text
of an exception (which may quote rows).  The full text goes to ``errors.log`` in the client's own folder.

A handler answers only in runs of the modes that it belongs to, and only in modes that the client allows: a
server that has announced sums under masks gets no answer to a question for this client's own part.

Node config: ``data`` (file), ``client`` (name), ``folder`` (where results go), ``allow`` (modes, all by
default).  In a simulation the data come from the run config and ``partition-id`` picks the client.
"""

from __future__ import annotations

import functools
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.files import write_atomically
from vaneb.flower import client_data, wire
from vaneb.flower.client_data import RESULT
from vaneb.flower.exchange import FAILED, TOKEN
from vaneb.flower.settings import Settings
from vaneb.likelihood.seam import Likelihood

app = ClientApp()

RELEASED = "released.npz"
ERRORS = "errors.log"
#: All that a server is ever told of a failure at the client.
FAILURES: tuple[tuple[type[Exception], str], ...] = (
    (InvalidReport, "its data do not fit the model; its own log says why"),
    (InvalidOption, "the run asks for something that it cannot do; its own log says why"),
    (OSError, "its file cannot be read; its own log says why"),
    (Exception, "it failed; its own log says why"),
)


@dataclass(frozen=True)
class Place:
    """Where a client is: its name, its file, its folder."""

    settings: Settings
    client: str
    data: Path
    folder: Path | None
    column: str = ""
    number: int = 0

    @classmethod
    def of(cls, context: Context) -> Place:
        settings = Settings.from_run_config(context.run_config)
        node = context.node_config
        allowed = str(node.get("allow", "")).split(",")
        if allowed != [""] and settings.mode not in allowed:
            raise InvalidOption(f"mode {settings.mode}: this client allows {', '.join(allowed)} only.")
        if settings.client:
            number = int(node.get("partition-id", 0))
            own = Path(settings.folder) / str(number) if settings.folder else None
            return cls(settings, "", Path(settings.data), own, settings.client, number)
        folder = str(node.get("folder", ""))
        if "data" not in node:
            raise InvalidOption("node config: data is missing. Start the client with --data FILE.")
        return cls(
            settings, str(node.get("client", "")), Path(str(node["data"])), Path(folder) if folder else None
        )

    def model(self) -> tuple[str, client_data.LocalModel]:
        """The client's id and its coded rows."""
        name, model, _ = self._fitted()
        return name, model

    def likelihood(self) -> tuple[str, client_data.LocalModel, Likelihood]:
        """The same, and what is evaluated at the server's atoms."""
        name, model, likelihood = self._fitted()
        return name, model, likelihood()

    def _fitted(self) -> Any:
        """Found once for a file as it is; a process that is asked again need not fit again."""
        about = self.data.stat()
        return _fitted(self, about.st_mtime_ns, about.st_size)

    def keep(self, name: str, content: bytes) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / name, content)


@functools.lru_cache(maxsize=4096)
def _fitted(place: Place, changed: int, size: int) -> Any:
    name, frame = client_data.read_client(place.data, place.column, place.number)
    model = client_data.local_model(frame, place.settings)
    likelihood = functools.cache(lambda: client_data.local_likelihood(model, place.settings))
    return place.client or name, model, likelihood


Handler = Callable[[wire.Tree, Place], dict[str, Any]]


def sentence_for(error: Exception) -> str:
    """The fixed sentence that stands for a failure."""
    return next(text for kind, text in FAILURES if isinstance(error, kind))


def write_error(context: Context) -> None:
    """Append the exception being handled to the client's own log."""
    folder = str(context.node_config.get("folder", ""))
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / ERRORS, "a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{traceback.format_exc()}\n")


def guarded(*modes: str) -> Callable[[Handler], Callable[[Message, Context], Message]]:
    """Make of a handler one that never raises, and that answers in runs of these modes only."""

    def make(handler: Handler) -> Callable[[Message, Context], Message]:
        @functools.wraps(handler)
        def run(message: Message, context: Context) -> Message:
            token = ""
            try:
                question = wire.from_record(message.content)
                token = str(question.pop(TOKEN, ""))
                place = Place.of(context)
                if place.settings.mode not in modes:
                    raise InvalidOption(f"{handler.__name__}: not a question of mode {place.settings.mode}.")
                answer = handler(question, place)
            except Exception as error:
                write_error(context)
                answer = {FAILED: sentence_for(error)}
            return Message(wire.to_record({**answer, TOKEN: token}), reply_to=message)

        return run

    return make


@app.query("report")
@guarded("reports")
def report(question: wire.Tree, place: Place) -> dict[str, Any]:
    """Fit locally and answer with a report in the wire form."""
    if released := _released(place):
        return released
    client, model = place.model()
    fitted = client_data.local_report(model, place.settings)
    one = fitted[0]
    answer: dict[str, Any] = {"names": list(fitted.names), "design": model.design}
    mechanism = place.settings.privacy()
    if mechanism is not None:
        one = mechanism.release(one, np.random.default_rng())
        answer["design"] = ""
    answer["report"] = {**one.to_wire(), "id": client}
    if mechanism is not None and place.folder is not None:
        place.folder.mkdir(parents=True, exist_ok=True)
        wire.save(place.folder / RELEASED, {**answer, "for": _model_text(place)})
    return answer


def _released(place: Place) -> dict[str, Any] | None:
    """What was released before: noise that is drawn twice protects half as much."""
    if place.settings.privacy() is None or place.folder is None:
        return None
    path = place.folder / RELEASED
    if not path.exists():
        return None
    saved = wire.load(path)
    return saved if saved.pop("for", None) == _model_text(place) else None


def _model_text(place: Place) -> str:
    return json.dumps(place.settings.model_key(), sort_keys=True)


@app.query("deliver")
@guarded("reports")
def deliver(question: wire.Tree, place: Place) -> dict[str, Any]:
    """Keep what the server found for this client."""
    place.keep(RESULT, (json.dumps(_plain(question), indent=1) + "\n").encode())
    return {"kept": True}


@app.query("evaluate")
@guarded("evaluate", "secure")
def evaluate(question: wire.Tree, place: Place) -> dict[str, Any]:
    """Evaluate this client's likelihood at the server's atoms."""
    from vaneb.flower.evaluation import answer_evaluation

    if place.settings.mode == "secure" and question.get("kind") != "describe":
        raise InvalidOption("evaluate: in mode secure a client gives its part only under a mask.")
    client, model, likelihood = place.likelihood()
    return {"client": client, **answer_evaluation(question, likelihood, model)}


@app.query("personalise")
@guarded("evaluate", "secure")
def personalise(question: wire.Tree, place: Place) -> dict[str, Any]:
    """Find this client's own posterior from the prior; nothing of it is told."""
    from vaneb.flower.evaluation import own_posterior

    client, model, likelihood = place.likelihood()
    found = own_posterior(question, client, likelihood, model)
    place.keep(RESULT, (json.dumps(_plain(found), indent=1) + "\n").encode())
    return {"kept": True}


class Failed(Exception):
    """A failure that may be told; raised without the exception behind it."""


def in_a_crowd(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    """Refuse a protocol that would unmask the sum of too few; the server proposes, the client checks."""
    from vaneb.flower.secure import SMALLEST_SUM, smallest_sum_of

    def check() -> None:
        if smallest_sum_of(message.content) < SMALLEST_SUM:
            raise InvalidOption(
                f"secure: the server could unmask a sum of fewer than {SMALLEST_SUM} clients."
            )

    _or_failed(check, context)
    return call_next(message, context)


def _or_failed(part: Callable[[], Any], context: Context) -> Any:
    """What ``part`` returns; ``Failed`` with nothing but a fixed sentence if it raises."""
    try:
        return part()
    except Exception as error:
        write_error(context)
        sentence = sentence_for(error)
    # Out of the block, so that nothing of the first exception hangs on to this one.
    raise Failed(sentence)


@app.train(mods=[in_a_crowd, secaggplus_mod])
def secure(message: Message, context: Context) -> Message:
    """This client's part of a sum, which Flower masks before it leaves."""
    from vaneb.flower.secure import answer_secure

    def part() -> Any:
        place = Place.of(context)
        if place.settings.mode != "secure":
            raise InvalidOption(f"secure: not a question of mode {place.settings.mode}.")
        _, _, likelihood = place.likelihood()
        return answer_secure(message.content, likelihood, place.settings)

    return Message(_or_failed(part, context), reply_to=message)


@app.query("network")
@guarded("network")
def network(question: wire.Tree, place: Place) -> dict[str, Any]:
    """One of the engine's tasks, on this client's data and with its own state."""
    from vaneb.flower.network_client import run_task

    return run_task(question, place.settings, place.data, place.folder, place.client)


def _plain(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plain(value) for value in tree]
    return tree.tolist() if isinstance(tree, np.ndarray | np.generic) else tree
