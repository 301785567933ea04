"""Between ``messenger`` and ``keeper``: one question and its answer over a socket of this machine's.

A frame is the length of a JSON header, the header, and the objects that Flower makes of a message, one
after the other.  Nothing in it is code.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from vaneb.errors import InvalidReport
from vaneb.flower.wire import LARGEST

_SIZE = struct.Struct("!Q")
#: Bytes of a header, and of the objects of a message.
LARGEST_HEADER, LARGEST_CONTENT = 8 << 20, LARGEST + (2 << 20)


def carried(address: str, message: Message, run_config: dict[str, Any]) -> Message | str:
    """The keeper's answer in a run with these settings, or the sentence that it gives in place of one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(address)
        send(connection, message, run_config=run_config)
        answer, header = receive(connection)
    return answer if answer is not None else str(header["failed"])


def send(connection: socket.socket, message: Message | None, **header: Any) -> None:
    objects = {} if message is None else get_all_nested_objects(message)
    parts = {key: value.deflate() for key, value in objects.items()}
    header |= {"sizes": {key: len(part) for key, part in parts.items()}}
    if message is not None:
        header |= {"root": message.object_id, "id": message.metadata.message_id}
    text = json.dumps(header).encode()
    connection.sendall(_SIZE.pack(len(text)) + text)
    for part in parts.values():
        connection.sendall(part)


def receive(connection: socket.socket) -> tuple[Message | None, dict[str, Any]]:
    """A message, if there is one, and the header; ``InvalidReport`` for anything else."""
    (length,) = _SIZE.unpack(_read(connection, _SIZE.size, _SIZE.size))
    try:
        header = json.loads(_read(connection, length, LARGEST_HEADER))
        sizes = {str(key): int(size) for key, size in header["sizes"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidReport("message: its header cannot be read.") from None
    if min(sizes.values(), default=0) < 0 or sum(sizes.values()) > LARGEST_CONTENT:
        raise InvalidReport(f"message: a message has at most {LARGEST_CONTENT} bytes.")
    if not sizes:
        return None, header
    parts = {key: _read(connection, size, LARGEST_CONTENT) for key, size in sizes.items()}
    message = inflate_object_from_contents(str(header.get("root")), parts)
    if not isinstance(message, Message):
        raise InvalidReport("message: holds no message.")
    # As Flower does it: the objects of a message do not hold its own id.
    message.metadata.__dict__["_message_id"] = str(header.get("id", ""))
    return message, header


def _read(connection: socket.socket, size: int, most: int) -> bytes:
    if not 0 <= size <= most:
        raise InvalidReport(f"message: a part of {size} bytes, but {most} are the most.")
    content = bytearray()
    while len(content) < size:
        part = connection.recv(min(1 << 20, size - len(content)))
        if not part:
            raise InvalidReport("message: ended early.")
        content += part
    return bytes(content)
