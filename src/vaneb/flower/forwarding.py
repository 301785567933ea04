"""One way through: an HTTP server that passes on what is on a list, and nothing else.

Flower's Fleet, Control and Runtime APIs share one port, and only the first of them is for clients.  So a
SuperLink listens on loopback, and clients come in through a ``door`` (at the server) by way of a ``gate`` (at
the site).  Both are passages: a request is read up to a limit, its path must be on the list, only Flower's
own headers go on, and an answer is read up to a limit as well.  No redirect is followed or passed on.

Served by uvicorn and h11, asked by httpx: what Flower itself runs on.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import httpx
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vaneb.errors import VanebError
from vaneb.flower.wire import LARGEST

#: All that a client needs of Flower's Fleet API.
FLEET = "/v1/fleet/"
CALLS = frozenset(
    FLEET + name
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
#: Where a client asks whether it is let in, and what the time is.
HELLO = "/hello"
#: Bytes of one request or answer; Flower cuts larger messages into parts.
LARGEST_PART = 32 << 20
#: Bytes of all parts of one message.
LARGEST_MESSAGE = LARGEST + (2 << 20)
#: Connections that are open at once, of all and of one client, which must not take those of the others.
MOST_AT_ONCE, MOST_OF_ONE = 512, 32
#: The same before anybody has shown a certificate: of all, and of one address, which may be a proxy's.
MOST_SOCKETS, MOST_OF_ADDRESS = 1024, 256
PLAIN, PROTOBUF = "text/plain; charset=utf-8", "application/protobuf"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Refused(VanebError):
    """A request that is not passed on; the text is told to whoever made it."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Request(NamedTuple):
    """A request on its way through; ``peer`` is the other side's certificate (DER), empty without one."""

    path: str
    headers: dict[str, str]
    body: bytes
    peer: bytes


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Meter:
    """Bytes of the parts of one message, which its sender announces."""

    seen: dict[str, int] = field(default_factory=dict)

    def count(self, who: str, path: str, size: int, *, announces: str, carries: str) -> None:
        if path == FLEET + announces:
            self.seen[who] = size
        elif path == FLEET + carries:
            self.seen[who] = self.seen.get(who, 0) + size
            if self.seen[who] > LARGEST_MESSAGE:
                raise Refused(413, f"a message has at most {LARGEST_MESSAGE} bytes")


@dataclass
class Forwarder:
    """What uvicorn serves.

    Parameters
    ----------
    upstream : where requests go on to, and how.
    admits : looks at the other side's certificate, before anything that it sends is read.
    before : looks at a request; may answer in place of the other side, or raise ``Refused``.
    after : looks at the other side's answer, and returns what is passed back.
    """

    upstream: Callable[[], httpx.AsyncClient]
    admits: Callable[[bytes], object]
    before: Callable[[Request], Answer | None]
    after: Callable[[Request, Answer], Answer]
    client: httpx.AsyncClient | None = None
    held: Counter[bytes] = field(default_factory=Counter)
    """Bytes of requests under way, by the other side's certificate."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive)
        except Refused as refused:
            answer = Answer(refused.status, {"content-type": PLAIN}, str(refused).encode())
        except httpx.HTTPError as error:
            text = f"the other side does not answer ({type(error).__name__})"
            answer = Answer(502, {"content-type": PLAIN}, text.encode())
        headers = [(key.encode(), value.encode("latin-1")) for key, value in answer.headers.items()]
        if answer.status >= 400:  # there may be more to come that nobody will read
            headers.append((b"connection", b"close"))
        headers.append((b"content-length", str(len(answer.body)).encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _live(self, receive: Receive, send: Send) -> None:
        """From start to end, with one client for all that is passed on."""
        async with self.upstream() as self.client:
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        # As it was sent, not as it may be decoded: nothing but these very letters passes.
        path = bytes(scope.get("raw_path") or b"").decode("ascii", "replace")
        if scope["method"] != "POST" or scope["query_string"] or path not in CALLS | {HELLO}:
            raise Refused(404, "there is nothing here")
        peer = scope["state"].get("peer", b"")
        self.admits(peer)
        headers = {
            key.decode("latin-1"): value.decode("latin-1")
            for key, value in scope["headers"]
            if key.startswith(b"flwr-") or key in (b"content-type", b"accept")
        }
        body = bytearray()
        try:
            async for part in _parts(receive):
                body += part
                self.held[peer] += len(part)
                if len(body) > LARGEST_PART:
                    raise Refused(413, f"a request has at most {LARGEST_PART} bytes")
                if self.held[peer] > LARGEST_MESSAGE:
                    raise Refused(413, f"requests of one client have at most {LARGEST_MESSAGE} bytes at once")
            request = Request(path, headers, bytes(body), peer)
            answer = self.before(request)
            return self.after(request, await self._pass_on(request)) if answer is None else answer
        finally:
            self.held[peer] -= len(body)

    async def _pass_on(self, request: Request) -> Answer:
        assert self.client is not None
        async with self.client.stream(
            "POST", request.path, content=request.body, headers=request.headers
        ) as response:
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > LARGEST_PART:
                    raise Refused(502, f"the answer is larger than {LARGEST_PART} bytes")
        if 300 <= response.status_code < 400 or "content-encoding" in response.headers:
            raise Refused(502, "the answer is not one of the Fleet API")
        kept = {
            key: value
            for key, value in response.headers.items()
            if key == "content-type" or key.startswith("flwr-")
        }
        return Answer(response.status_code, kept, bytes(body))


async def _parts(receive: Receive) -> AsyncIterator[bytes]:
    """The body of a request, as it comes."""
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise Refused(400, "the request has ended early")
        yield event.get("body", b"")
        if not event.get("more_body"):
            return


class _Protocol(H11Protocol):
    """uvicorn's, which notes the certificate that the other side has shown, and counts its connections."""

    open: ClassVar[Counter[bytes]]
    peer = b""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        shown = transport.get_extra_info("ssl_object")
        self.peer = (shown.getpeercert(binary_form=True) if shown is not None else None) or b""
        transport.get_extra_info("socket")._sock.has_shown()  # asyncio wraps ours
        # ``app_state`` is copied into the scope of every request of this connection.
        self.app_state = {**self.app_state, "peer": self.peer}
        self.open[self.peer] += 1
        if self.open[self.peer] > MOST_OF_ONE:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open[self.peer] -= 1
        super().connection_lost(exc)


class _Listener(socket.socket):
    """Hangs up on an address that has too many connections: a stranger's cost a file each, too.

    If all addresses together have too many, whoever has been silent longest makes room.
    """

    def __init__(self, host: str, port: int) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        super().__init__(family, socket.SOCK_STREAM)
        self.open: Counter[str] = Counter()
        self.silent: dict[_Accepted, None] = {}
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(address)

    def accept(self) -> tuple[socket.socket, Any]:
        number, address = self._accept()  # type: ignore[attr-defined]
        connection = _Accepted(self, address[0], self.family, self.type, self.proto, number)
        full = self.open.total() > MOST_SOCKETS
        if self.open[address[0]] > MOST_OF_ADDRESS or (full and not self.silent):
            connection.close()
            raise ConnectionAbortedError
        if full:
            oldest = next(iter(self.silent))
            del self.silent[oldest]
            with contextlib.suppress(OSError):  # it may have gone by itself
                oldest.shutdown(socket.SHUT_RDWR)
        self.silent[connection] = None
        connection.setblocking(False)
        return connection, address


class _Accepted(socket.socket):
    """A connection that is counted until it is closed, and silent until a certificate is shown on it."""

    def __init__(self, listener: _Listener, address: str, *about: int) -> None:
        super().__init__(*about)
        self._listener, self._address = listener, address
        listener.open[address] += 1

    def has_shown(self) -> None:
        self._listener.silent.pop(self, None)

    def close(self) -> None:
        if self.fileno() >= 0:
            self._listener.open[self._address] -= 1
            self._listener.open += Counter()  # forgets whoever has none
        self.has_shown()
        super().close()


def _make_room() -> None:
    """For as many open files as there may be connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MOST_SOCKETS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def open_forwarder(forwarder: Forwarder, host: str, port: int, context: ssl.SSLContext) -> Iterator[None]:
    """Serve in a thread of this process, for as long as the block lasts."""
    refused = f"{host}:{port}: cannot be listened on. Choose another port."
    try:
        listener = _Listener(host, port)
    except OSError:
        raise VanebError(refused) from None
    _make_room()
    config = uvicorn.Config(
        forwarder,
        http=type("_OfThisForwarder", (_Protocol,), {"open": Counter()}),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_AT_ONCE,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=1,
        ssl_context_factory=lambda config, default: context,
    )
    # Whoever wants to hear of it sets up logging; without that Python would write it to the terminal.
    logging.getLogger("uvicorn").addHandler(logging.NullHandler())
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="forwarder", daemon=True)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.02)
    if not server.started:
        raise VanebError(refused)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10)


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.3 with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    return context
