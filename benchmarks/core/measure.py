"""Clocks, child processes, and what the machine and the versions are."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
Row = dict[str, Any]

HERE = Path(__file__).parent
THREADS = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VANEB_THREADS",
)


def one_thread() -> None:
    """Everything on one thread; to be called before numpy is imported."""
    for name in THREADS:
        os.environ[name] = "1"


def cpu_seconds() -> float:
    """User and system time of this process and of its finished children."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


def peak_mib() -> float:
    """Largest resident size that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(function: Callable[[], Result]) -> tuple[Result, float, float]:
    """The result, CPU seconds and wall seconds."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    result = function()
    return result, cpu_seconds() - cpu, time.perf_counter() - wall


def fastest(function: Callable[[], Result], repeats: int) -> tuple[Result, float]:
    """The result and the smallest CPU seconds of ``repeats`` runs."""
    best = float("inf")
    for _ in range(repeats):
        result, cpu, _ = timed(function)
        best = min(best, cpu)
    return result, best


def child(command: list[str], **environment: str) -> Any:
    """Run a command that prints JSON on its last line; other output goes to our standard error."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment}
    )
    *said, last = done.stdout.rstrip("\n").split("\n")
    sys.stderr.write("".join(line + "\n" for line in said))
    return json.loads(last)


def script(name: str, *arguments: Any, python: str = sys.executable, **environment: str) -> Any:
    """Run a script of this folder in a process of its own."""
    return child([python, str(HERE / name), *map(str, arguments)], **environment)


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def processor() -> str:
    """Model name and clock, as the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    known = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {key.strip(): value.strip() for key, value in known.items()}
    family, model = fields.get("cpu family", "?"), fields.get("model", "?")
    return f"{fields.get('model name', platform.machine())} (family {family}, model {model})"


def context() -> Row:
    """Date, machine, load and versions: stored with every row."""
    packages = ("vaneb", "numpy", "scipy", "numba")
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        "machine": f"{processor()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "versions": f"python {platform.python_version()} {versions}",
        "commit": _commit(),
    }


def _commit() -> str:
    """Commit of the working tree, with a mark if the sources differ from it."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(HERE), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", ":/src/vaneb")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
