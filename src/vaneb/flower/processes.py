"""SuperLink, SuperNodes and runs as processes, with nothing left running afterwards.

Each process is the head of a group of its own; when its block ends, however it ends, the whole group is told
to stop and, if it does not, killed.  All of Flower's files go to a folder that is given; it does not phone
home, look for updates, or install anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaneb.errors import InvalidOption, VanebError
from vaneb.files import private_folder
from vaneb.flower.journal import rotate
from vaneb.flower.keys import loopback_certificate
from vaneb.flower.sandbox import Sandbox, program_files
from vaneb.flower.settings import Settings

#: Seconds that a group of processes gets to end by itself.
GRACE = 5.0
#: The one app that there is, as Flower names it.
APP_NAME, APP_VERSION = "vaneb-federation", "1.0.0"
APP_ID = f"vaneb/{APP_NAME}"
#: Names of this machine.  No proxy stands between its own processes.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
#: Below the ports that systems give to outgoing connections (Linux: from 32768 on).  Such a connection may
#: take a port after it was found free and before a process listens on it, which then does not start.
PORTS = range(20_000, 32_768)
_given: set[int] = set()
#: Names what a simulated client takes its data from: an environment variable, since nothing of it may come
#: from a run.
SIMULATION = "VANEB_SIMULATION"


class FederationFailed(VanebError):
    """Flower's own processes did not do what they were started for."""


@dataclass(frozen=True)
class Security:
    """Files that make connections private and nodes known; ``None`` everywhere for an insecure trial."""

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def on_loopback(cls, home: Path) -> Security:
        """For a SuperLink that is reached from its own machine only: a certificate of its own, made now."""
        certificate, key = loopback_certificate(home, "superlink")
        return cls(certificate, certificate, key)

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
    """For Flower's processes: their own folder, no telemetry, no update checks, no proxy, few threads."""
    private_folder(home)
    own = (str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ.get("PATH", ""))
    path = os.pathsep.join(dict.fromkeys(own))
    proxies = ("http_proxy", "https_proxy", "all_proxy", SIMULATION.lower())
    return {
        **{name: value for name, value in os.environ.items() if name.lower() not in proxies},
        "PATH": path,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray makes its workers yield to everything else; on a busy machine they would never be served.
        "RAY_worker_niceness": "0",
        "PYTHONUNBUFFERED": "1",
        # Seconds after which Flower looks for a new task; one by default, for each message.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        **(extra or {}),
    }


@contextlib.contextmanager
def process(
    command: Sequence[str],
    log: Path,
    env: Mapping[str, str],
    *,
    sandbox: Sandbox | None = None,
    files: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its own group, ended with the block; its output goes to ``log``.

    It starts in the ``sandbox``, and has these open ``files`` of ours.
    """
    private_folder(log.parent)
    rotate(log)
    with open(log, "ab", opener=_private) as output, (sandbox or Sandbox()).entrance() as enter:

        def first() -> None:
            _end_with_parent()
            if sandbox is not None:
                enter()

        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
            umask=0o077,
            preexec_fn=first,
            pass_fds=files,
        )
    try:
        yield child
    finally:
        stop(child)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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
    port: int,
    security: Security,
    *,
    folder: Path,
    simulation: bool = False,
    extra: Mapping[str, str] | None = None,
    seconds: float = 180.0,
) -> Iterator[Link]:
    """A SuperLink on loopback; ready when the block begins.

    Whoever reaches its port can start apps on it, so it never listens elsewhere: clients come through the
    ``door``.  ``home`` takes Flower's own files, ``folder`` is the server app's (``server_app.FOLDER``).
    """
    from vaneb.flower.server_app import FOLDER

    env = environment(home, {FOLDER: str(folder.resolve()), **(extra or {})})
    log = home / "superlink.log"
    host = LOOPBACK[0]
    command = [program("flower-superlink"), "--host", host, "--port", str(port)]
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


def app_config() -> dict[str, Any]:
    """Settings of a run with their defaults, as Flower names them."""
    return {field.name.replace("_", "-"): field.default for field in dataclasses.fields(Settings)}


def app_description(client: str = "vaneb.flower.messenger:app") -> str:
    """The app: a description only, the same for every run; the code is what is installed on each side."""
    config = "\n".join(f"{key} = {json.dumps(value)}" for key, value in app_config().items())
    return f"""[project]
name = "{APP_NAME}"
version = "{APP_VERSION}"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "vaneb"

[tool.flwr.app.components]
serverapp = "vaneb.flower.server_app:app"
clientapp = "{client}"

[tool.flwr.app.config]
{config}
"""


def app_bundle(description: str = "", files: Mapping[str, bytes] | None = None) -> bytes:
    """The app in Flower's form."""
    from flwr.cli.build import build_fab_from_files

    content = (description or app_description()).encode()
    return build_fab_from_files({"pyproject.toml": content, **(files or {})})[0]


def supernode_command(
    address: str,
    port: int,
    security: Security,
    node_config: Mapping[str, str | int],
    key: Path | None,
    trusted: Path | None = None,
) -> list[str]:
    """The command that starts a SuperNode; with ``trusted``, it runs apps of these signers only."""
    command = [program("flower-supernode"), "--superlink", address, "--port", str(port)]
    if security.on:
        command += ["--root-certificates", str(security.authority)]
        command += ["--auth-supernode-private-key", str(key)]
    else:
        command += ["--insecure"]
    if trusted is not None:
        command += ["--trusted-entities", str(trusted)]
    # As it is by default; a site must not depend on that.
    command += ["--host", LOOPBACK[0]]
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in node_config.items())
    return [*command, "--node-config", config]


def inside(home: Path) -> Path:
    """All that Flower's processes at a site may write to.

    Files of those outside are not in it: there they could be made links to others, such as the ledger.
    """
    return private_folder(home / "inside")


def around_supernode(
    home: Path, port: int, gate: int, key: Path | None, files: Sequence[Path] = ()
) -> Sandbox:
    """What a SuperNode and its apps need: programs, key and ``files``, a folder, and two ports."""
    programs, parents = program_files()
    tools = Path(program("flower-supernode")).parent
    readable = (*programs, tools, *files, *([] if key is None else [key.resolve()]))
    return Sandbox(readable, (inside(private_folder(home)),), parents, (port, gate))


def program(name: str) -> str:
    """A program that came with Flower or with this package, where this Python's packages put theirs."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).exists():
            return str(folder / name)
    raise InvalidOption(f"{name}: not installed. pip install 'vaneb[site]'.")


def _wait_for_port(child: subprocess.Popen[bytes], host: str, port: int, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise FederationFailed(f"the SuperLink ended at once; see {log}.")
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return
        time.sleep(0.2)
    raise FederationFailed(f"the SuperLink does not listen on {host}:{port}; see {log}.")
