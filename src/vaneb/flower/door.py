"""The server's door: the only port that is open to the world, with mutual TLS.

Behind it, on loopback, is Flower's SuperLink.  Whoever comes in shows the certificate of a client that is in
the register *now* (``keys/nodes/NAME.crt``), speaks with the key of that certificate, and reaches nothing but
what clients need.  A client whose file is taken out of the register is out with its next request.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.fleet_pb2 import PullMessagesResponse
from google.protobuf.message import DecodeError

import vaneb
from vaneb.errors import VanebError
from vaneb.files import write_atomically
from vaneb.flower import forwarding, keys
from vaneb.flower.forwarding import FLEET, HELLO, Answer, Forwarder, Meter, Refused, Request

#: Header in which a client says its version, and what that looks like.
VERSION, SHORT = "flwr-vaneb-version", re.compile(r"[0-9A-Za-z.+-]{1,30}")
#: Seconds between two looks at the register, and the file that says who is there.
LOOK, PRESENT = 1.0, "present.json"
#: What Flower allows a client's clock to be ahead or behind, in seconds.
AHEAD, BEHIND = 5.0, 305.0
#: Objects of one client that are remembered; a message has a few.
MOST_OBJECTS = 20_000


@dataclass
class Belongings:
    """Messages, and objects that they are made of, that a client was sent or has announced.

    Flower checks that a request is of the node that it names.  It does not check that an answer in it is of
    that node, nor that an object is part of one of its messages.
    """

    sent: dict[str, dict[str, None]] = field(default_factory=dict)
    announced: dict[str, dict[str, None]] = field(default_factory=dict)

    def check(self, name: str, request: Request) -> None:
        """Refuse what is about another client's messages; note what this one announces."""
        call = request.path.removeprefix(FLEET)
        forms: dict[str, Any] = {
            "push-messages": fleet_pb2.PushMessagesRequest,
            "push-object": message_pb2.PushObjectRequest,
            "pull-object": message_pb2.PullObjectRequest,
            "confirm-message-received": message_pb2.ConfirmMessageReceivedRequest,
        }
        if call not in forms:
            return
        try:
            asked = forms[call].FromString(request.body)
        except DecodeError:
            raise Refused(400, "the request is not one of the Fleet API") from None
        own = (self.announced if call == "push-object" else self.sent).get(name, {})
        if call == "push-messages":
            for about in (message.metadata for message in asked.messages_list):
                if about.src_node_id != asked.node.node_id or about.reply_to_message_id not in own:
                    raise Refused(403, "the answer is not to a question that this client was asked")
            _note(self.announced, name, asked.message_object_trees)
        elif (asked.message_object_id if call.startswith("confirm") else asked.object_id) not in own:
            raise Refused(403, "the object is part of no message of this client")

    def note_sent(self, name: str, answer: Answer) -> None:
        """Note the messages in an answer to a client."""
        with contextlib.suppress(DecodeError):
            _note(self.sent, name, PullMessagesResponse.FromString(answer.body).message_object_trees)


def _note(objects: dict[str, dict[str, None]], name: str, trees: Iterable[Any]) -> None:
    own, left = objects.setdefault(name, {}), list(trees)
    while left:
        tree = left.pop()
        own[tree.object_id] = None
        left += tree.children
    for old in list(own)[:-MOST_OBJECTS]:
        del own[old]


@dataclass
class Door:
    """Who is let in, to what."""

    register: Path
    meter: Meter = field(default_factory=Meter)
    belongings: Belongings = field(default_factory=Belongings)
    names: dict[bytes, str] = field(default_factory=dict)
    present: dict[str, dict[str, str]] = field(default_factory=dict)
    tell: Callable[..., None] = lambda *_, **__: None

    def name_of(self, peer: bytes) -> str:
        """The client that this certificate is registered for at this moment."""
        name = self.names.get(peer)
        if name is None or not self._registered(name, peer):
            name = next((path.stem for path in self.register.glob("*.crt") if _is(path, peer)), None)
        if name is None:
            self.names.pop(peer, None)
            raise Refused(401, "the server does not know this client's certificate, or no longer")
        self.names[peer] = name
        return name

    def _registered(self, name: str, peer: bytes) -> bool:
        return _is(self.register / f"{name}.crt", peer)

    def before(self, request: Request) -> Answer | None:
        """Refuse whoever is not registered, or speaks with another's key, or too much.

        A SuperNode that hears 401 ends; it would take 403 for a run that is over, and stay.
        """
        name = self.name_of(request.peer)
        if request.path == HELLO:
            self._greet(name, request.headers.get(VERSION, ""))
            about = {"client": name, "time": datetime.datetime.now(datetime.UTC).isoformat()}
            about["version"] = vaneb.__version__
            return Answer(200, {"content-type": "application/json"}, json.dumps(about).encode())
        certificate = keys.load_certificate(request.peer)
        if certificate.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
            raise Refused(401, "the client's certificate has expired")  # on a connection that is still open
        spoken = base64.b64encode(keys.public_bytes(certificate)).decode()
        if request.headers.get("flwr-public-key") != spoken:
            raise Refused(401, "the node's key is not the one of the client's certificate")
        if off := clock_of(request.headers.get("flwr-timestamp", "")):
            raise Refused(401, off)
        self.meter.count(
            name, request.path, len(request.body), announces="push-messages", carries="push-object"
        )
        self.belongings.check(name, request)
        return None

    def _greet(self, name: str, version: str) -> None:
        """Note that a client is there, and with which version."""
        version = version if SHORT.fullmatch(version) else "?"
        if self.present.get(name, {}).get("version") != version:
            self.tell("client", f"{name} has come, version {version}", client=name, client_version=version)
        self.present[name] = {"version": version, "seen": _now()}

    def after(self, request: Request, answer: Answer) -> Answer:
        name = self.names.get(request.peer, "")
        if name in self.present:
            self.present[name]["seen"] = _now()
        if request.path == FLEET + "pull-messages" and answer.status == 200:
            self.belongings.note_sent(name, answer)
        return answer


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _is(path: Path, peer: bytes) -> bool:
    """Whether a file holds this certificate; one that cannot be read holds none."""
    try:
        return bool(peer) and ssl.PEM_cert_to_DER_cert(path.read_text()) == peer
    except (OSError, ValueError):
        return False


def clock_of(stamp: str, now: datetime.datetime | None = None) -> str:
    """What is wrong with a client's clock, in words; empty if Flower would accept it."""
    now = now or datetime.datetime.now(datetime.UTC)
    try:
        ahead = (datetime.datetime.fromisoformat(stamp) - now).total_seconds()
    except (ValueError, TypeError):
        return "the request does not say when it was made"
    if -BEHIND < ahead < AHEAD:
        return ""
    way = "ahead of" if ahead > 0 else "behind"
    return f"the client's clock is {abs(ahead):.0f} seconds {way} the server's. Set both by NTP."


def context_for(certificate: Path, key: Path, register: Path) -> ssl.SSLContext:
    """Only who shows a certificate of the register gets as far as speaking."""
    context = forwarding.server_context(str(certificate), str(key))
    context.verify_mode = ssl.CERT_REQUIRED
    # Each client's certificate is its own authority, and nobody else's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for path in sorted(register.glob("*.crt")):
        context.load_verify_locations(cadata=path.read_text())
    return context


def _times(paths: Iterable[Path]) -> dict[Path, int]:
    """When files were last changed; without those that are gone."""
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            found[path] = path.stat().st_mtime_ns
    return found


def _watch(
    door: Door,
    context: ssl.SSLContext,
    certificate: Path,
    key: Path,
    folder: Path | None,
    changed: Callable[[], object],
    times: tuple[dict[Path, int], dict[Path, int]],
    ended: threading.Event,
) -> None:
    """Take renewed certificates as they come, and write down who is there, until the door is closed.

    ``times`` are those of the clients' certificates and of the server's when they were read.
    """
    (known, own), written = times, ""
    while not ended.wait(LOOK):
        now = _times(door.register.glob("*.crt"))
        for path in [path for path in now if known.get(path) != now[path]]:
            try:
                context.load_verify_locations(cadata=path.read_text())
                door.tell("register", f"{path.name} is new or renewed")
            except (OSError, ssl.SSLError, ValueError):
                door.tell("register", f"{path.name} cannot be read")
        for path in set(known) - set(now):
            door.tell("register", f"{path.name} was taken out")
        if now != known:
            with contextlib.suppress(VanebError, httpx.HTTPError):
                changed()
        known = now
        if (latest := _times([certificate, key])) != own and len(latest) == 2:
            # Between the two files a key may not be that of the certificate; the next look comes soon.
            with contextlib.suppress(OSError, ssl.SSLError):
                context.load_cert_chain(str(certificate), str(key))
                own = latest
                door.tell("certificate", f"{certificate.name} was renewed")
        text = json.dumps(door.present, sort_keys=True)
        if folder is not None and text != written:
            with contextlib.suppress(VanebError, OSError):
                write_atomically(folder / PRESENT, text.encode())
                written = text


@contextlib.contextmanager
def open_door(
    host: str,
    port: int,
    certificate: Path,
    key: Path,
    register: Path,
    link: str,
    authority: Path,
    *,
    folder: Path | None = None,
    changed: Callable[[], object] = lambda: None,
    tell: Callable[..., None] = lambda *_, **__: None,
) -> Iterator[Door]:
    """The door at ``host:port``, in front of the SuperLink at ``link``, which shows ``authority``.

    Who is there is written to ``folder``; ``changed`` is called when the register has; what happens is told.
    """
    door = Door(register, tell=tell)

    def upstream() -> httpx.AsyncClient:
        trusted = ssl.create_default_context(cafile=str(authority))
        return httpx.AsyncClient(base_url=f"https://{link}", verify=trusted, trust_env=False, timeout=60.0)

    times = _times(register.glob("*.crt")), _times([certificate, key])
    context, ended = context_for(certificate, key, register), threading.Event()
    watch = threading.Thread(
        target=_watch,
        args=(door, context, certificate, key, folder, changed, times, ended),
        name="register",
        daemon=True,
    )
    with forwarding.open_forwarder(
        Forwarder(upstream, door.name_of, door.before, door.after), host, port, context
    ):
        watch.start()
        try:
            yield door
        finally:
            ended.set()
            watch.join(5)
