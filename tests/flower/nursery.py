"""Flower's programs as processes that start at once.

Each of Flower's programs spends seconds of CPU on imports, and a deployment starts one for every message.
Here one process imports everything once and then forks: what ``flower-supernode`` and the others would run,
in a process of its own, with the arguments, the environment, the folder and the open files of whoever started
it.  In their place on the PATH are scripts that ask for such a process, pass signals on and end with its exit
code.  A script that is killed takes its process and everything started by it along, as a group of processes
would.

``examples/federation`` is tested with the programs themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = {
    "flower-superlink": "flwr.superlink.cli:flower_superlink",
    "flower-supernode": "flwr.supernode.cli:flower_supernode",
    "flower-superexec": "flwr.supercore.cli:flower_superexec",
    "flwr-serverapp": "flwr.superlink.cli:flwr_serverapp",
    "flwr-clientapp": "flwr.supernode.cli:flwr_clientapp",
}
LENGTH = struct.Struct("!I")
#: Seconds between two looks at a child.
LOOK = 0.05
#: Seconds between two signs of life of a node (30 in Flower, which takes no fewer than these), after twice
#: which it is held to be gone; and most seconds between two of its looks for a message (3 in Flower).
HEARTBEAT, POLL = 10, 1.0


# ---------------------------------------------------------------- whoever starts a program


@contextlib.contextmanager
def nursery(folder: Path) -> Iterator[Path]:
    """The folder with scripts named like Flower's programs, while the process behind them runs."""
    # Unix sockets must have short paths.
    address = f"/tmp/nursery-{os.getpid()}-{time.monotonic_ns()}.sock"
    (folder / "address").parent.mkdir(parents=True, exist_ok=True)
    (folder / "address").write_text(address)
    scripts = folder / "bin"
    scripts.mkdir(parents=True)
    # Beside the scripts: a client's sandbox lets Flower's programs read their own folder.
    program = shutil.copy(__file__, scripts / "nursery.py")
    for name in PROGRAMS:
        (scripts / name).write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -I -S "{program}" ask {address} {name} "$@"\n'
        )
        (scripts / name).chmod(0o755)
    with open(folder / "nursery.log", "wb") as log:
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", address],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"},
            start_new_session=True,
        )
    try:
        while not os.path.exists(address):
            if server.poll() is not None:
                raise RuntimeError((folder / "nursery.log").read_text())
            time.sleep(0.05)
        yield scripts
    finally:
        server.kill()
        server.wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)


def ask(address: str, name: str, arguments: list[str]) -> int:
    """Run a program in a process of the nursery; returns its exit code."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.connect(address)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: line.send(bytes([number])))
    request = {"name": name, "arguments": arguments, "env": dict(os.environ), "folder": os.getcwd()}
    text = json.dumps(request).encode()
    socket.send_fds(line, [LENGTH.pack(len(text))], [0, 1, 2])
    line.sendall(text)
    code = line.recv(1)
    return code[0] if code else 1


# ---------------------------------------------------------------- the nursery


def serve(address: str) -> None:
    """Import what will be needed, then fork whatever is asked for until standard input is closed."""
    import importlib
    from types import SimpleNamespace

    # Flower's constants, before anything is imported that copies them.
    importlib.import_module("flwr.common.constant").HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
    for target in PROGRAMS.values():
        importlib.import_module(target.partition(":")[0])
    node = importlib.import_module("flwr.supernode.start_client_internal")
    node.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, POLL)))
    for module in (
        "flwr.supernode.main",
        "flwr.supernode.runtime.run_clientapp",
        "flwr.server.workflow",
        "pandas",
        "vaneb.flower.client_app",
        "vaneb.flower.server_app",
        "vaneb.flower.secure",
        "vaneb.flower.network_client",
        "vaneb.flower.networks",
        "vaneb.grouped.design",
        "vaneb.local.report",
        "vaneb.likelihood.exact",
        "vaneb.flower.personalise",
        "vaneb.posterior",
        "vaneb.report",
        "vaneb.tables",
    ):
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(address + ".new")
    server.listen(100)
    os.rename(address + ".new", address)
    while True:
        ready, _, _ = select.select([server, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        line, _ = server.accept()
        if os.fork() == 0:
            server.close()
            keep(line)
        line.close()


def keep(line: socket.socket) -> None:
    """Fork the program itself, and stand between it and the script that has asked for it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, files, _, _ = socket.recv_fds(line, LENGTH.size, 3)
    (length,) = LENGTH.unpack(head)
    text = b""
    while len(text) < length:
        text += line.recv(length - len(text))
    child = os.fork()
    if child == 0:
        line.close()
        run(json.loads(text), files)
    for file in files:
        os.close(file)
    while True:
        ready, _, _ = select.select([line], [], [], LOOK)
        if ready:
            number = line.recv(1)
            with contextlib.suppress(ProcessLookupError):
                if number:
                    os.kill(child, number[0])
                else:
                    os.killpg(child, signal.SIGKILL)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            # What it has started and not ended, as one would end a group of processes.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            with contextlib.suppress(OSError):
                line.send(bytes([code if code >= 0 else 128 - code]))
            os._exit(0)


def run(request: dict, files: list[int]) -> None:
    """Become the program."""
    import importlib

    import numpy as np

    os.setsid()
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    np.random.seed(None)  # noqa: NPY002  Flower rounds with the global generator
    sys.argv = [request["name"], *request["arguments"]]
    module, _, function = PROGRAMS[request["name"]].partition(":")
    code = 1
    try:
        getattr(importlib.import_module(module), function)()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        sys.exit(ask(sys.argv[2], sys.argv[3], sys.argv[4:]))
