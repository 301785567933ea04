"""What happens to a server or a client, as lines of JSON: ``log.jsonl`` in its folder, for machines to read.

Each line has ``time``, ``version``, ``role``, ``name``, ``event`` and ``text``.  Nothing of rows, reports or
estimates is ever in it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import vaneb
from vaneb.files import private_folder

LOG = "log.jsonl"
#: Bytes of a file of lines, and how many older ones are kept.
LARGEST, KEPT = 5 << 20, 4

Tell = Callable[..., None]


@contextlib.contextmanager
def open_journal(folder: Path, role: str, name: str) -> Iterator[Tell]:
    """``tell(event, text, **more)`` writes a line; the file is this user's alone, and so are older ones."""
    path = private_folder(folder) / LOG
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    handler = _Private(path, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8")

    def tell(event: str, text: str = "", **more: Any) -> None:
        about = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "version": vaneb.__version__,
            "role": role,
            "name": name,
            "event": event,
            **({"text": text} if text else {}),
            **more,
        }
        line = json.dumps(about, ensure_ascii=False)
        handler.handle(logging.LogRecord("vaneb", logging.INFO, "", 0, line, None, None))

    tell("started", pid=os.getpid())
    try:
        yield tell
    finally:
        tell("ended")
        handler.close()


class _Private(logging.handlers.RotatingFileHandler):
    def _open(self) -> Any:
        return open(
            self.baseFilename, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)
        )


def rotate(log: Path) -> None:
    """Put a file that has grown too large aside, before it is written to again."""
    if log.exists() and log.stat().st_size > LARGEST:
        os.replace(log, log.with_name(f"{log.name}.1"))
