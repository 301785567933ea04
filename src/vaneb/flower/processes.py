"""SuperLink, SuperNodes and runs as processes, with nothing left running afterwards.

Each process is the head of a group of its own; when its block ends, however it ends, the whole group is told
to stop and, if it does not, killed.  All of Flower's files go to a folder that is given; it does not phone
home, look for updates, or install anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vaneb.errors import InvalidOption, VanebError
from vaneb.flower.settings import Settings

#: Seconds that a group of processes gets to end by itself.
GRACE = 5.0
APP = "vaneb-federation"
#: Below the ports that systems give to outgoing connections (Linux: from 32768 on).  Such a connection may
#: take a port after it was found free and before a process listens on it, which then does not start.
PORTS = range(20_000, 32_768)
_given: set[int] = set()


class FederationFailed(VanebError):
    """Flower's own processes did not do what they were started for."""


@dataclass(frozen=True)
class Security:
    """Files that make connections private and nodes known; ``None`` everywhere for an insecure trial."""

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def of_server(cls, folder: Path) -> Security:
        found = cls(folder / "ca.crt", folder / "server.pem", folder / "server.key")
        for path in (found.authority, found.certificate, found.key):
            if path is not None and not path.is_file():
                raise InvalidOption(
                    f"{path}: missing. Make keys with 'vaneb federate keys', or say --insecure for a trial."
                )
        return found

    @property
    def on(self) -> bool:
        return self.authority is not None


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now; another one at each call."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise FederationFailed(f"no port from {PORTS[0]} to {PORTS[-1]} is free on this machine")


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """For Flower's processes: their own folder, no telemetry, no update checks, few threads."""
    home.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {
        **os.environ,
        "PATH": path,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray makes its workers yield to everything else; on a busy machine they would never be served.
        "RAY_worker_niceness": "0",
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }


@contextlib.contextmanager
def process(command: Sequence[str], log: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its own group, ended with the block; its output goes to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        yield child
    finally:
        stop(child)


def _end_with_parent() -> None:
    """Ask the system to end this process when its parent is killed (Linux; elsewhere nothing happens).

    More precisely when the parent's *thread* ends that has started it.
    """
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + GRACE
        while time.monotonic() < deadline:
            child.poll()
            if not _group_alive(child.pid):
                break
            time.sleep(0.05)
        else:
            continue
        break
    child.wait()


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass(frozen=True)
class Link:
    """A SuperLink that is listening."""

    process: subprocess.Popen[bytes]
    address: str
    home: Path
    log: Path
    security: Security


@contextlib.contextmanager
def superlink(
    home: Path,
    host: str,
    port: int,
    security: Security,
    *,
    folder: Path,
    simulation: bool = False,
    extra: Mapping[str, str] | None = None,
    seconds: float = 180.0,
) -> Iterator[Link]:
    """A SuperLink; ready when the block begins.

    ``home`` takes Flower's own files, ``folder`` is the server app's (``server_app.FOLDER``).
    """
    from vaneb.flower.server_app import FOLDER

    env = environment(home, {FOLDER: str(folder.resolve()), **(extra or {})})
    log = home / "superlink.log"
    command = [_tool("flower-superlink"), "--host", host, "--port", str(port)]
    command += ["--disable-runtime-dependency-installation"]
    if simulation:
        command += ["--simulation"]
    else:
        command += ["--database", str(home / "state.db")]
    if security.on:
        command += ["--ssl-ca-certfile", str(security.authority), "--ssl-certfile", str(security.certificate)]
        command += ["--ssl-keyfile", str(security.key), "--enable-supernode-auth"]
    else:
        command += ["--insecure"]
    with process(command, log, env) as child:
        _wait_for_port(child, host, port, log, seconds)
        yield Link(child, f"{host}:{port}", home, log, security)


def write_app(
    folder: Path,
    settings: Settings,
    *,
    server: str = "vaneb.flower.server_app:app",
    client: str = "vaneb.flower.client_app:app",
) -> Path:
    """The folder that ``flwr run`` takes: only a description, the code is what is installed on each side."""
    folder.mkdir(parents=True, exist_ok=True)
    config = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.to_run_config().items())
    (folder / "pyproject.toml").write_text(
        f"""[project]
name = "{APP}"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "vaneb"

[tool.flwr.app.components]
serverapp = "{server}"
clientapp = "{client}"

[tool.flwr.app.config]
{config}
"""
    )
    return folder


def supernode_command(
    address: str, port: int, security: Security, node_config: Mapping[str, str | int], key: Path | None
) -> list[str]:
    """The command that starts a SuperNode."""
    command = [_tool("flower-supernode"), "--superlink", address, "--port", str(port)]
    if security.on:
        command += ["--root-certificates", str(security.authority)]
        command += ["--auth-supernode-private-key", str(key)]
    else:
        command += ["--insecure"]
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in node_config.items())
    return [*command, "--node-config", config]


def _tool(name: str) -> str:
    """A program that came with Flower, beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise InvalidOption(f"{name}: not installed. pip install 'vaneb[flower]'.")
    return str(path)


def _wait_for_port(child: subprocess.Popen[bytes], host: str, port: int, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise FederationFailed(f"the SuperLink ended at once; see {log}.")
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return
        time.sleep(0.2)
    raise FederationFailed(f"the SuperLink does not listen on {host}:{port}; see {log}.")
