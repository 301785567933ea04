"""SuperLink, SuperNodes and runs as processes, with nothing left running afterwards.

Each process is the head of a group of its own; when its block ends, however it ends, the whole group is told
to stop and, if it does not, killed.  All of Flower's files go to a folder that is given; it does not phone
home, look for updates, or install anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaneb.errors import InvalidOption, VanebError
from vaneb.flower.settings import Settings

CONNECTION = "federation"
#: Seconds that a group of processes gets to end by itself.
GRACE = 5.0
APP = "vaneb-federation"
#: Seconds between two looks at what Flower says of a run.
LOOK = 20.0


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
    """A port of the loopback interface that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        )
    try:
        yield child
    finally:
        stop(child)


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
    env: dict[str, str]
    log: Path


@contextlib.contextmanager
def superlink(
    home: Path,
    host: str,
    port: int,
    security: Security,
    *,
    folder: Path,
    simulation: bool = False,
    seconds: float = 90.0,
) -> Iterator[Link]:
    """A SuperLink; ready when the block begins.

    ``home`` takes Flower's own files, ``folder`` is the server app's (``server_app.FOLDER``).
    """
    from vaneb.flower.server_app import FOLDER

    env = environment(home, {FOLDER: str(folder.resolve())})
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
    address = f"{host}:{port}"
    trust = (
        f'root-certificates = "{Path(str(security.authority)).resolve()}"'
        if security.on
        else "insecure = true"
    )
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{trust}\n'
    )
    with process(command, log, env) as child:
        _wait_for_port(child, host, port, log, seconds)
        yield Link(child, address, home, env, log)


def register_nodes(link: Link, public_keys: Mapping[str, Path]) -> dict[str, int]:
    """Let these nodes in, under their names; returns their ids.  Known ones are left as they are."""
    known_path = link.home / "nodes.json"
    known: dict[str, int] = json.loads(known_path.read_text()) if known_path.exists() else {}

    def register(name: str) -> int:
        command = ["supernode", "register", str(public_keys[name]), CONNECTION, "--name", name]
        return int(_flwr(link, [*command, "--format", "json"])["node-id"])

    new = [name for name in public_keys if name not in known]
    with ThreadPoolExecutor(4) as threads:
        known |= dict(zip(new, threads.map(register, new), strict=True))
    known_path.write_text(json.dumps(known))
    return {name: known[name] for name in public_keys}


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


def run_app(
    link: Link, app: Path, outcome: Path, *, federation: str = "", seconds: float = 3600.0
) -> dict[str, Any]:
    """Submit a run and wait for what its server app writes to ``outcome``, which is returned."""
    outcome.unlink(missing_ok=True)
    command = ["run", str(app), CONNECTION, "--format", "json"]
    if federation:
        command += ["--federation-config", federation]
    run = str(_flwr(link, command)["run-id"])
    deadline, look = time.monotonic() + seconds, time.monotonic() + LOOK
    while time.monotonic() < deadline:
        if outcome.exists():
            return dict(json.loads(outcome.read_text()))
        if link.process.poll() is not None:
            raise FederationFailed(f"the SuperLink has ended; see {link.log}.")
        if time.monotonic() > look:
            # A call of Flower's command line takes a second or two of processor time.
            listed = _flwr(link, ["list", CONNECTION, "--run-id", run, "--format", "json"])
            status = str(listed["runs"][0]["status"])
            if status.startswith("finished") and not outcome.exists():
                raise FederationFailed(f"the run ended as {status} without an outcome; see {link.log}.")
            look = time.monotonic() + LOOK
        time.sleep(0.2)
    raise FederationFailed(f"the run has not ended within {seconds:g} seconds; see {link.log}.")


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


def _flwr(link: Link, command: Sequence[str]) -> dict[str, Any]:
    """One call of ``flwr ... --format json``."""
    done = subprocess.run(
        [_tool("flwr"), *command],
        capture_output=True,
        text=True,
        env=link.env,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    start = done.stdout.find("{")
    try:
        answer = json.loads(done.stdout[start:])
    except ValueError:
        answer = {"success": False, "error-message": (done.stderr or done.stdout)[-300:]}
    if not answer.get("success"):
        raise FederationFailed(f"flwr {command[0]}: {answer.get('error-message', 'failed')}")
    return dict(answer)


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


def simulate(
    settings: Settings,
    folder: Path,
    clients: int,
    *,
    cpus: float = 1.0,
    client: str = "",
    seconds: float = 3600.0,
) -> dict[str, Any]:
    """A run with ``clients`` virtual nodes on this machine; returns its outcome."""
    import tempfile

    folder.mkdir(parents=True, exist_ok=True)
    home = folder.resolve() / "flower"
    app = write_app(home / "app", settings, **({"client": client} if client else {}))
    # Ray's sockets have short names or none: the path must not be long.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp" if Path("/tmp").is_dir() else None) as ray:
        os.environ.setdefault("RAY_TMPDIR", ray)
        try:
            with superlink(
                home, "127.0.0.1", free_port(), Security(), folder=folder, simulation=True
            ) as link:
                federation = f"num-supernodes={clients} client-resources-num-cpus={cpus:g}"
                return run_app(link, app, folder / "outcome.json", federation=federation, seconds=seconds)
        finally:
            if os.environ.get("RAY_TMPDIR") == ray:
                del os.environ["RAY_TMPDIR"]
