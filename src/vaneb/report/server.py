"""A small server of one folder's page, for this machine only."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vaneb.errors import InvalidOption, VanebError
from vaneb.fl.results import RESULTS
from vaneb.report.embed import as_json, page
from vaneb.report.study import PAPER, REPLICATES, THEORY, study_content
from vaneb.report.train import train_content

#: Names by which a browser on this machine may ask; another site's page cannot pretend to be one of them.
HOSTS = ("localhost", "127.0.0.1")


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server on ``port`` (0: any that is free); not yet serving."""
    source = _Source(folder)

    class Handler(_Handler):
        content = source

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InvalidOption(
            f"--port {port}: cannot be used ({error.strerror}). Name another one, or 0."
        ) from None


class _Source:
    """Content of a folder, made again only when something there has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._made: tuple[int, dict[str, Any]] | None = None

    def version(self) -> int:
        return last_change(self._folder)

    def content(self) -> dict[str, Any]:
        with self._lock:
            version = self.version()
            if self._made is None or self._made[0] != version:
                self._made = (version, self._read())
            return self._made[1]

    def _read(self) -> dict[str, Any]:
        try:
            return content_of_folder(self._folder)
        except VanebError as error:
            return {
                "kind": "waiting",
                "title": f"Waiting for {self._folder.resolve().name}",
                "sentence": f"Nothing to show yet: {error}",
            }


class _Handler(BaseHTTPRequestHandler):
    content: _Source
    server_version = "vaneb"
    sys_version = ""

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in HOSTS:
            self.send_error(403, "Only for this machine")
            return
        path = urlsplit(self.path).path
        if path == "/":
            self._answer("text/html; charset=utf-8", page(self.content.content(), live=True))
        elif path == "/content.json":
            self._answer("application/json", as_json(self.content.content()))
        elif path == "/version":
            self._answer("application/json", json.dumps({"version": str(self.content.version())}))
        else:
            self.send_error(404)

    def _answer(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Every look of the page is not worth a line."""


def content_of_folder(folder: Path) -> dict[str, Any]:
    """The page of a study or of federated training, running or finished.

    Raises ``InvalidOption`` where there is nothing of either yet.
    """
    if any((folder / name).exists() for name in (REPLICATES, THEORY)):
        return study_content(folder)
    if (folder / PAPER).exists():
        return study_content(folder, paper=True)
    return train_content(folder)


def last_change(folder: Path) -> int:
    """Newest modification time of what a page is made from, in nanoseconds; 0 where there is nothing."""
    names = (REPLICATES, PAPER, THEORY, RESULTS, "stages/*/manifest.json", "stages/*/info.npz")
    times = [0]
    for pattern in names:
        for path in folder.glob(pattern):
            try:
                times.append(path.stat().st_mtime_ns)
            except FileNotFoundError:  # replaced just now
                continue
    return max(times)
