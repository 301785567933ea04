"""What really passes between a SuperNode and the SuperLink: a relay that keeps every byte, and its calls."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Calls that carry the contents of messages, or say that they are there.
OF_MESSAGES = ("pull-messages", "pull-object", "confirm-message-received", "push-messages", "push-object")


@dataclass(frozen=True)
class Call:
    """One request and its response, headers included."""

    name: str
    up: int
    down: int


@dataclass
class Relay:
    """Connections of one node, as (bytes up, bytes down)."""

    port: int
    connections: list[tuple[bytearray, bytearray]] = field(default_factory=list)

    @property
    def up(self) -> bytes:
        """All that the node has sent."""
        return b"".join(bytes(up) for up, _ in self.connections)

    @property
    def down(self) -> bytes:
        return b"".join(bytes(down) for _, down in self.connections)

    def calls(self) -> list[Call]:
        """Complete calls, by connection.  Only without TLS."""
        return [call for up, down in self.connections for call in _calls(bytes(up), bytes(down))]

    def clear(self) -> None:
        """Forget what has passed so far."""
        for up, down in self.connections:
            up.clear()
            down.clear()


def _calls(up: bytes, down: bytes) -> Iterator[Call]:
    while up and down:
        first, size_up = _message(up)
        _, size_down = _message(down)
        if not size_up or not size_down:
            return
        name = first.split(b" ")[1].rsplit(b"/", 1)[-1].decode()
        yield Call(name, size_up, size_down)
        up, down = up[size_up:], down[size_down:]


def _message(data: bytes) -> tuple[bytes, int]:
    """First line and length of the HTTP message at the beginning of ``data``; length 0 if it is not whole."""
    head, found, _ = data.partition(b"\r\n\r\n")
    if not found:
        return b"", 0
    first, *lines = head.split(b"\r\n")
    fields = {line.partition(b":")[0].strip().lower(): line.partition(b":")[2].strip() for line in lines}
    if b"transfer-encoding" in fields:
        raise ValueError("chunked bodies are not expected here")
    size = len(head) + 4 + int(fields.get(b"content-length", b"0"))
    return first, size if size <= len(data) else 0


@contextlib.contextmanager
def relay(target: tuple[str, int]) -> Iterator[Relay]:
    """A port on loopback from which everything goes on to ``target``."""
    server = socket.create_server(("127.0.0.1", 0))
    found = Relay(server.getsockname()[1])
    open_sockets: list[socket.socket] = [server]

    def pump(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(target, timeout=10)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            open_sockets.extend((near, far))
            pair = (bytearray(), bytearray())
            found.connections.append(pair)
            for ends in ((near, far, pair[0]), (far, near, pair[1])):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield found
    finally:
        for end in open_sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
