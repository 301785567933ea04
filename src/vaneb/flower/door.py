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
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from vaneb.flower import keys, passage
from vaneb.flower.passage import HELLO, Answer, Meter, Passage, Refused, Request

#: What Flower allows a client's clock to be ahead or behind, in seconds.
AHEAD, BEHIND = 5.0, 305.0


@dataclass
class Door:
    """Who is let in, to what."""

    register: Path
    meter: Meter = field(default_factory=Meter)
    names: dict[bytes, str] = field(default_factory=dict)

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
            about = {"client": name, "time": datetime.datetime.now(datetime.UTC).isoformat()}
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
        return None

    def after(self, request: Request, answer: Answer) -> Answer:
        return answer


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
    context = passage.server_context(str(certificate), str(key))
    context.verify_mode = ssl.CERT_REQUIRED
    # Each client's certificate is its own authority, and nobody else's.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    for path in sorted(register.glob("*.crt")):
        context.load_verify_locations(cadata=path.read_text())
    return context


@contextlib.contextmanager
def open_door(
    host: str, port: int, certificate: Path, key: Path, register: Path, link: str, authority: Path
) -> Iterator[Door]:
    """The door at ``host:port``, in front of the SuperLink at ``link``, which shows ``authority``."""
    door = Door(register)

    def upstream() -> httpx.AsyncClient:
        trusted = ssl.create_default_context(cafile=str(authority))
        return httpx.AsyncClient(base_url=f"https://{link}", verify=trusted, trust_env=False, timeout=60.0)

    with passage.open_passage(
        Passage(upstream, door.name_of, door.before, door.after),
        host,
        port,
        context_for(certificate, key, register),
    ):
        yield door
