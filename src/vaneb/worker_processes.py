"""Worker processes with one thread each: tasks go in and answers come out; nothing is ever pickled.

A worker is ``python -m MODULE``, which calls ``serve``.  A frame is two lengths, a JSON text and bytes.  It
ends as soon as its input does, so it does not outlive a parent that was killed.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any

from vaneb.errors import VanebError

#: Arrays come and go in every step.  With these thresholds glibc keeps their memory instead of giving it back
#: to the system each time; worth 10 to 20% of the time of training.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
#: Two threads on each of two cores wait for each other; and CPU seconds are only comparable on one.
ONE_THREAD = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA", "VECLIB_MAXIMUM")
} | {"VANEB_THREADS": "1"}
WORKER = MALLOC | ONE_THREAD

RESUME = "What was finished is saved; the same command resumes."

Frame = tuple[dict[str, Any], bytes]
Answer = Callable[[dict[str, Any], bytes], Frame]


class WorkerLost(VanebError):
    """A worker process ended before its task did, or its task failed."""


def send(stream: IO[bytes], content: dict[str, Any], payload: bytes = b"") -> None:
    text = json.dumps(content).encode()
    stream.write(struct.pack("<QQ", len(text), len(payload)) + text)
    stream.write(payload)
    stream.flush()


def receive(stream: IO[bytes]) -> Frame:
    """The other side of ``send``; raises EOFError when the stream has ended."""
    lengths = stream.read(16)
    if len(lengths) < 16:
        raise EOFError
    text, payload = struct.unpack("<QQ", lengths)
    return json.loads(stream.read(text)), stream.read(payload)


def serve(start: Callable[[dict[str, Any]], Answer]) -> None:
    """Answer tasks until the parent closes the pipe, or dies; ``start`` is given the parent's ``setup``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print of some library must not end up between frames
    tasks: queue.SimpleQueue[Frame] = queue.SimpleQueue()

    def read() -> None:
        with suppress(EOFError):
            while True:
                tasks.put(receive(sys.stdin.buffer))
        # Nobody will read what is being computed, and nothing is buffered; torch's shutdown is slow.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    answer = start(tasks.get()[0])
    send(answers, {})
    while True:
        try:
            reply = answer(*tasks.get())
        except VanebError as error:
            reply = {"error": str(error), "kind": type(error).__name__}, b""
        except Exception:
            reply = {"error": traceback.format_exc(), "kind": ""}, b""
        send(answers, *reply)


class WorkerProcess:
    """One worker process, as the parent sees it."""

    def __init__(self, module: str, setup: dict[str, Any]) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **WORKER, "PYTHONPATH": path},
        )
        self._ready = False
        send(self._stream("stdin"), setup)

    def _stream(self, name: str) -> IO[bytes]:
        stream = getattr(self._popen, name)
        assert stream is not None
        return stream

    def ask(self, task: dict[str, Any], payload: bytes = b"") -> Frame:
        """The answer to a task; an error of the task is raised here."""
        if not self._ready:
            self._receive()
            self._ready = True
        with suppress(OSError):  # it has ended, which is noticed next
            send(self._stream("stdin"), task, payload)
        reply, answer = self._receive()
        if "error" in reply:
            kind = {each.__name__: each for each in _below(VanebError)}.get(reply["kind"])
            if kind is None:
                raise WorkerLost(f"a task failed in a worker process:\n{reply['error']}\n{RESUME}")
            raise kind(reply["error"])
        return reply, answer

    def _receive(self) -> Frame:
        try:
            return receive(self._stream("stdout"))
        except (EOFError, OSError, ValueError):
            raise WorkerLost(
                f"a worker process ended (exit code {self._popen.poll()}): out of memory, or killed. {RESUME}"
            ) from None

    def close(self) -> None:
        """End it; a task under way is abandoned."""
        self._popen.kill()
        self._popen.wait()
        for name in ("stdin", "stdout"):
            with suppress(OSError):
                self._stream(name).close()


def _below(kind: type[VanebError]) -> Sequence[type[VanebError]]:
    return [found for each in kind.__subclasses__() for found in (each, *_below(each))]


class Workers:
    """Several worker processes, each with a thread of this process that waits for it."""

    def __init__(self, module: str, setup: dict[str, Any], count: int) -> None:
        self._processes: list[WorkerProcess] = []
        self._idle: queue.SimpleQueue[WorkerProcess] = queue.SimpleQueue()
        self.threads = ThreadPoolExecutor(max(count, 1), thread_name_prefix="vaneb-worker")
        try:
            for _ in range(count):
                self._processes.append(WorkerProcess(module, setup))
                self._idle.put(self._processes[-1])
        except BaseException:
            self.close()
            raise

    def ask(self, task: dict[str, Any], payload: bytes = b"") -> Frame:
        """The answer of a process that nobody else uses; to be called on ``threads``."""
        process = self._idle.get()
        try:
            return process.ask(task, payload)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End the workers; tasks under way are abandoned."""
        for process in self._processes:
            process.close()
        self.threads.shutdown(wait=True, cancel_futures=True)
