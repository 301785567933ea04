"""A SuperNode beside a data set: reach the server, be let in, stay, and tell the one who started it."""

from __future__ import annotations

import contextlib
import math
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vaneb.files import private_folder
from vaneb.flower import checks, processes
from vaneb.flower.client_app import ERRORS
from vaneb.flower.client_data import RESULT
from vaneb.flower.gate import newest_context, open_gate
from vaneb.flower.keeper import open_keeper
from vaneb.flower.keys import expires_soon
from vaneb.flower.messenger import KEEPER
from vaneb.flower.processes import FederationFailed
from vaneb.flower.sandbox import Sandbox

HOUR = 3600.0
#: Seconds without an answer after which a server is held to be away; a SuperNode asks every three.
QUIET = 20.0
#: Seconds between two tries to reach the server.
PAUSE = 3.0
#: Seconds after which a SuperNode that still runs has been let in.
SETTLED = 30.0
#: Seconds that a client with a result stays at most: Flower drops an answer that the server has not fetched
#: by the time its node goes.
LINGER = 60.0


@dataclass(frozen=True)
class Node:
    """One client: its name, its folder, the server it works for, and what its keeper is started with.

    ``context`` and ``key`` are ``None`` for a trial without protection; ``keeper`` is where that listens.
    """

    name: str
    folder: Path
    server: str
    context: ssl.SSLContext | None
    key: Path | None
    node_config: Mapping[str, str]
    keeper: str = ""
    certificates: tuple[Path, ...] = ()
    """Of this client and its authority: read again whenever a connection is made."""
    number: int = 0
    """Of the server, where a client has several."""

    @property
    def home(self) -> Path:
        """For certificates and logs; what Flower's own processes write is ``inside``."""
        return self.folder / (f"flower-{self.number + 1}" if self.number else "flower")

    def refreshed(self) -> Node:
        """With certificates as they are now, the renewed one among them if the server knows it."""
        if not self.certificates or self.key is None:
            return self
        authority, own = self.certificates
        context = newest_context(authority, own, self.key, lambda one: not checks.greeted(self.server, one))
        return replace(self, context=context)

    def sandbox(self, port: int = 0, gate: int = 0, files: Sequence[Path] = ()) -> Sandbox:
        """In which its SuperNode runs, and all that this starts."""
        return processes.around_supernode(self.home, port, gate, self.key, files)

    @property
    def log(self) -> Path:
        return self.home / "supernode.log"


def serve(
    node: Node,
    *,
    patience: float,
    once: bool,
    tell: Callable[[str], None],
    connected: Callable[[str, bool], None] = lambda server, now: None,
    others: Sequence[str] = (),
) -> None:
    """Run until stopped, or with ``once`` until a result has arrived; for ``others``, servers too, if any.

    One keeper answers them all, one question after the other, so that there is one policy and one ledger.

    ``FederationFailed`` after ``patience`` seconds in which the server was not there or did not let it in.
    """
    with open_keeper(node.folder, node.node_config) as (keeper, address):
        nodes = [
            replace(node, keeper=address, server=server, number=number)
            for number, server in enumerate((node.server, *others))
        ]
        ended, failed = threading.Event(), list[Exception]()

        def one(node: Node) -> None:
            try:
                _serve(node, keeper, patience, once, tell, connected, ended)
            except Exception as error:
                failed.append(error)
            ended.set()

        # A SuperNode ends with the thread that has started it: each has one of its own, until all end.
        threads = [threading.Thread(target=one, args=(node,), daemon=True) for node in nodes[1:]]
        for thread in threads:
            thread.start()
        try:
            one(nodes[0])
        finally:
            ended.set()
            for thread in threads:
                thread.join(3 * processes.GRACE)
    if failed:
        raise failed[0]


def _serve(
    node: Node,
    keeper: subprocess.Popen[bytes],
    patience: float,
    once: bool,
    tell: Callable[[str], None],
    connected: Callable[[str, bool], None],
    ended: threading.Event,
) -> None:
    before = _changed(node.folder / RESULT)
    deadline, told = time.monotonic() + patience, ""
    noted: set[str] = set()

    def note(text: str) -> None:
        if text not in noted:
            noted.add(text)
            tell(text)

    while not ended.is_set():
        if keeper.poll() is not None:
            raise FederationFailed(
                f"the process that reads the data has ended; see {node.folder / 'flower' / 'keeper.log'}."
            )
        node = node.refreshed()
        reason = checks.greeted(node.server, node.context, node.name, note)
        if not reason:
            began = time.monotonic()
            done, reason = _stay(node, keeper, once, before, tell, connected, ended)
            if done or ended.is_set():
                return
            if time.monotonic() - began > SETTLED:
                deadline = time.monotonic() + patience
        if time.monotonic() > deadline:
            raise FederationFailed(f"{reason} Gave up after {patience:g} seconds (--patience).")
        if reason != told:
            left = deadline - time.monotonic()
            tell(f"{reason} Trying again{'' if math.isinf(left) else f' for {left:.0f} seconds'}.")
            told = reason
        ended.wait(min(PAUSE, max(0.1, deadline - time.monotonic())))


def _stay(
    node: Node,
    keeper: subprocess.Popen[bytes],
    once: bool,
    before: int | None,
    tell: Callable[[str], None],
    connected: Callable[[str, bool], None],
    ended: threading.Event,
) -> tuple[bool, str]:
    """Run a SuperNode behind a gate; whether it may end now, since the result is there.

    If it ended by itself, the reason.
    """
    home, errors = node.home, node.folder / ERRORS
    failed, answered, looked, warned = _changed(errors), None, 0.0, ""
    with contextlib.ExitStack() as stack:
        gate, address, security, trusted = None, node.server, processes.Security(), None
        readable: list[Path] = []
        if node.context is not None:
            host, _ = checks.split_address(node.server)
            gate, address, shown = stack.enter_context(open_gate(home, node.server, host, node.context))
            security = processes.Security(authority=shown)
            trusted = home / "trusted.yaml"
            trusted.write_text(gate.trusted())
            readable = [shown, trusted]
        port = processes.free_port()
        config = {"client": node.name, KEEPER: node.keeper}
        command = processes.supernode_command(address, port, security, config, node.key, trusted)
        own = processes.inside(home)
        env = processes.environment(own, {"TMPDIR": str(private_folder(own / "tmp"))})
        around = node.sandbox(port, int(address.rpartition(":")[2]), readable)
        child = stack.enter_context(processes.process(command, node.log, env, sandbox=around))
        near = False
        stack.callback(connected, node.server, False)
        while child.poll() is None and keeper.poll() is None and not ended.is_set():
            if near != (gate is None or time.monotonic() - gate.heard < QUIET):
                near = not near
                connected(node.server, near)
            if time.monotonic() - looked > HOUR:
                looked = time.monotonic()
                for path in node.certificates:
                    if (warning := expires_soon(path)) and warning != warned:
                        warned = warning
                        tell(warning)
            if _changed(errors) != failed:
                failed = _changed(errors)
                tell(f"could not answer the server: {checks.last_error(errors)} All of it is in {errors}.")
            if (
                once
                and answered is None
                and _changed(node.folder / RESULT) != before
                and _all_answered(node.log)
            ):
                answered = time.monotonic()
            if answered is not None and _may_go(node, answered):
                return True, ""
            ended.wait(0.5)
    said = gate.reason if gate is not None else ""
    return False, said or checks.why_ended(node.log.read_text(errors="replace"), node.name)


def _may_go(node: Node, answered: float) -> bool:
    """Whether the server has ended, or has had time enough to fetch the last answer."""
    return time.monotonic() - answered > LINGER or bool(checks.greeted(node.server, node.context, node.name))


def _all_answered(log: Path) -> bool:
    """Whether the SuperNode has sent an answer to all that it was asked: that the result is kept, too."""
    text = log.read_text(errors="replace")
    last = text[text.rfind("Starting Flower SuperNode") :]
    return last.count("Sent successfully") + last.count("Failed to send") >= last.count("Receiving: ")


def _changed(path: Path) -> int | None:
    """When a file was written last; ``None`` without one."""
    return path.stat().st_mtime_ns if path.exists() else None
