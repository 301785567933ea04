"""What a process may not do, whatever code it runs: Linux's Landlock, which needs no privileges.

A process that enters a sandbox can open files below the folders that it is given, and no others; it can
connect to the TCP ports that it is given, and no others; it can neither signal nor look into processes
outside.  All that it starts is in the same sandbox, and there is no way out of it.

Not covered by Landlock: UDP, and the names and sizes of files (``stat``).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_CREATE, _ADD, _ENTER = 444, 445, 446
_NO_NEW_PRIVILEGES = 38
_BENEATH, _PORT = 1, 2
#: Version of Linux's capabilities; effective, permitted and inheritable ones that are kept: to open any file.
_CAPABILITIES = 0x20080522
_KEPT = (0b110, 0b110, 0, 0, 0, 0)
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
#: All rights on files, by the version of Landlock that knows them: 13 at first, then refer, truncate, ioctl.
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_OF_A_FILE = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_BIND, _CONNECT = 1 << 0, 1 << 1
#: Neither abstract sockets of, nor signals to, processes outside.
_SCOPES = (1 << 0) | (1 << 1)
#: The version from which on ports can be limited, and from which on signals can.
PORTS_FROM, SCOPES_FROM = 4, 6
#: What any program needs of its system.  Nobody keeps rows there.
SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", "/sys", "/nix/store",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime",
    "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/resolv.conf", "/etc/passwd", "/etc/group",
    "/etc/ssl", "/etc/pki", "/etc/mime.types",
)  # fmt: skip
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm")


@functools.cache
def version() -> int:
    """Of this system's Landlock; 0 if it has none."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64", "riscv64"):
        return 0
    return max(0, _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1)))


def lacking() -> str:
    """What this system does not keep Flower's processes from; empty if it does all of it."""
    known = version()
    if not known:
        return "no Landlock (Linux 5.13 or newer): Flower's processes can open whatever this user can"
    parts = ["can reach any TCP port (limited from Linux 6.7 on)"] * (known < PORTS_FROM)
    parts += ["can send signals to other processes (limited from Linux 6.12 on)"] * (known < SCOPES_FROM)
    return f"an older Landlock (version {known}): Flower's processes {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True)
class Sandbox:
    """Limits of a process; ``None`` is no limit.

    Parameters
    ----------
    read, write : files and folders, with all that is below.
    list : folders whose names may be read, and those of all folders below; not their files.
    ports : TCP ports to connect to and to listen on.
    """

    read: tuple[Path, ...] | None = None
    write: tuple[Path, ...] = ()
    list: tuple[Path, ...] = ()
    ports: tuple[int, ...] | None = None

    @contextlib.contextmanager
    def entrance(self) -> Iterator[Callable[[], None]]:
        """What a new process calls to enter; does nothing on systems without Landlock."""
        if not version():
            yield lambda: None
            return
        rules = self._rules()
        try:
            yield functools.partial(_enter, rules)
        finally:
            os.close(rules)

    def _rules(self) -> int:
        known = version()
        rights = _FILES[max(number for number in _FILES if number <= known)]
        ports = known >= PORTS_FROM and self.ports is not None
        scopes = _SCOPES if known >= SCOPES_FROM else 0
        values = (rights if self.read is not None else 0, _BIND | _CONNECT if ports else 0, scopes)
        size = 8 * (1 if known < PORTS_FROM else 2 if known < SCOPES_FROM else 3)
        rules = _checked(_call(_CREATE, (ctypes.c_uint64 * 3)(*values), ctypes.c_size_t(size), 0))
        if self.read is not None:
            devices = tuple(map(Path, DEVICES))
            for paths, allowed in (
                ((*map(Path, SYSTEM), *self.read), _EXECUTE | _READ | _LIST),
                (self.list, _LIST),
                ((*self.write, *devices), rights),
            ):
                for path in paths:
                    _allow(rules, path, allowed & rights)
        for port in self.ports or () if ports else ():
            rule = (ctypes.c_uint64 * 2)(_BIND | _CONNECT, port)
            _checked(_call(_ADD, rules, _PORT, rule, 0))
        return rules


def program_files() -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """This Python with its packages and this package, to read; the folder that has it, to list."""
    package = Path(__file__).resolve().parents[1]
    places = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).parent, package}
    return tuple(sorted(path.resolve() for path in places)), (package.parent,)


def within_reach(sandbox: Sandbox, paths: Sequence[Path]) -> list[Path]:
    """Which of these files a process in the sandbox can open: found by a process that tries."""
    code = (
        "import sys\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        open(path, 'rb').close()\n"
        "    except IsADirectoryError:\n"
        "        print(path)\n"
        "    except OSError:\n"
        "        continue\n"
        "    print(path)\n"
    )
    with sandbox.entrance() as enter:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, *map(str, paths)],
            preexec_fn=enter,
            capture_output=True,
            text=True,
            check=True,
        )
    return [Path(line) for line in done.stdout.splitlines()]


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not on this system
        return
    try:
        rights = rights if path.is_dir() else rights & _OF_A_FILE
        rule = rights.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        _checked(_call(_ADD, rules, _BENEATH, rule, 0))
    finally:
        os.close(place)


def _enter(rules: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    if os.geteuid() == 0:
        # The superuser's powers over other processes; those over files are limited by the rules.
        _checked(libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)(*_KEPT)))
    _checked(_call(_ENTER, rules, 0))


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return result
