"""A SuperLink and SuperNodes on loopback, as processes of their own, for tests and benchmarks."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from flower.nursery import nursery
from flower.relay import Relay, relay
from vaneb.flower import control, processes
from vaneb.flower.keys import make_keys
from vaneb.flower.settings import Settings


@dataclass
class Deployment:
    """Nodes by name; what they do is in ``folder``.

    They speak to the SuperLink itself, with neither gate nor door between: hostile clients have software of
    their own.
    """

    folder: Path
    scripts: Path
    security: processes.Security
    port: int
    stack: contextlib.ExitStack
    app_client: str = "vaneb.flower.client_app:app"
    app_files: Sequence[Path] = ()
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    relays: dict[str, Relay] = field(default_factory=dict)
    pids: list[int] = field(default_factory=list)

    @property
    def path(self) -> dict[str, str]:
        return {"PATH": os.pathsep.join([str(self.scripts), os.environ["PATH"]])}

    def own(self, name: str) -> Path:
        """A client's folder."""
        return self.folder / "clients" / name

    @contextlib.contextmanager
    def superlink(self, server: Path, names: Sequence[str] = ()) -> Iterator[processes.Link]:
        """A SuperLink that lets the nodes of these names in; the server app's folder is ``server``."""
        with processes.superlink(
            self.folder / "home", self.port, self.security, folder=server, extra=self.path
        ) as link:
            self.pids.append(link.process.pid)
            if self.security.on:
                nodes = self.folder / "keys" / "nodes"
                control.register_nodes(link, {name: nodes / f"{name}.crt" for name in names})
            yield link

    def start(self, name: str, config: Mapping[str, str], *, recorded: bool = False) -> None:
        """A SuperNode with this node config; ``recorded`` puts a relay between it and the SuperLink."""
        own = self.own(name)
        own.mkdir(parents=True, exist_ok=True)
        port = self.port
        if recorded:
            self.relays[name] = self.stack.enter_context(relay(("127.0.0.1", self.port)))
            port = self.relays[name].port
        key = self.folder / "keys" / "nodes" / name if self.security.on else None
        command = processes.supernode_command(
            f"127.0.0.1:{port}",
            processes.free_port(),
            self.security,
            {"client": name, "folder": str(own), **config},
            key,
        )
        env = processes.environment(own / "flower", self.path)
        child = self.stack.enter_context(processes.process(command, own / "supernode.log", env))
        self.children[name] = child
        self.pids.append(child.pid)

    def kill(self, name: str) -> None:
        """End a node without warning."""
        os.killpg(self.children[name].pid, signal.SIGKILL)
        self.children[name].wait()

    def stop(self, name: str) -> None:
        """End a node in good order."""
        processes.stop(self.children[name])

    def run(self, link: processes.Link, settings: Settings, server: Path) -> dict[str, Any]:
        """One run on the nodes that are there; what is in its ``outcome.json``."""
        bundle = processes.app_bundle(
            processes.app_description(self.app_client),
            {path.name: path.read_bytes() for path in self.app_files},
        )
        return control.run_app(link, settings, server / "outcome.json", bundle=bundle, seconds=600.0)


@functools.cache
def shared_nursery() -> Path:
    """One nursery for all deployments of this process, since to start it takes seconds; its scripts."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(nursery(Path(stack.enter_context(tempfile.TemporaryDirectory()))))


@contextlib.contextmanager
def deployment(folder: Path, names: Sequence[str] = (), **options: Any) -> Iterator[Deployment]:
    """A deployment with TLS and keys for the nodes of these names; insecure without names."""
    security = processes.Security()
    if names:
        make_keys(folder / "keys", ["localhost", "127.0.0.1"], list(names))
        security = processes.Security.on_loopback(folder / "home")
    scripts = shared_nursery()
    with (
        mock.patch.object(processes, "program", lambda name: str(scripts / name)),
        contextlib.ExitStack() as stack,
    ):
        yield Deployment(folder, scripts, security, processes.free_port(), stack, **options)


def wait_until(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} has not happened within {seconds:g} seconds")
        time.sleep(0.1)


def running_with(*words: str) -> list[str]:
    """Command lines of running processes that contain one of the words (Linux)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if any(word in line for word in words):
                found.append(line)
    return found
