"""Worker processes, one thread each: the same tasks give the same results on any number of them."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaneb import errors
from vaneb.errors import InvalidOption, VanebError
from vaneb.fl import errors as fl_errors
from vaneb.fl.errors import TrainingFailed
from vaneb.fl.federated_data import FederatedData
from vaneb.fl.trees import Tree, pack, unpack
from vaneb.fl.workbench import Task, Workbench
from vaneb.fl.worker import receive, send
from vaneb.worker_environment import WORKER

Job = tuple[Task, Tree]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch on one thread and with its random state set apart, for work in this process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(before)


class WorkerPool:
    """Carries out tasks on ``workers`` processes, or in this process if ``workers`` is 0.

    Parameters
    ----------
    workers : number of processes.
    model : name, head, options and seed of the network (``models.build_network``).
    data_folder : where the ``FederatedData`` were saved.
    buffer_bytes : size of the buffer shared with each worker; larger trees go through its pipe.
    """

    def __init__(self, workers: int, model: dict[str, Any], data_folder: Path, buffer_bytes: int) -> None:
        if workers < 0:
            raise InvalidOption(f"workers = {workers}: must not be negative (0 runs in this process).")
        self._bench = Workbench(model, FederatedData.load(data_folder)) if workers == 0 else None
        self._processes: list[_Process] = []
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="vaneb-worker")
        try:
            for _ in range(workers):
                process = _Process(model, data_folder, buffer_bytes)
                self._processes.append(process)
                self._idle.put(process)
        except BaseException:
            self.close()
            raise

    def map(self, jobs: Sequence[Job], done: Callable[[], None] | None = None) -> Iterator[Job]:
        """Replies to ``jobs``, in order; ``done`` is called as each arrives."""
        if self._bench is not None:
            replies: Iterable[Job] = (self._run_here(*job) for job in jobs)
        else:
            replies = self._threads.map(self._run_there, jobs)
        for reply in replies:
            if done is not None:
                done()
            yield reply

    def _run_here(self, task: Task, message: Tree) -> Job:
        assert self._bench is not None
        with one_torch_thread():
            return self._bench.run(task, message)

    def _run_there(self, job: Job) -> Job:
        process = self._idle.get()
        try:
            return process.run(*job)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End the workers; tasks under way are abandoned."""
        for process in self._processes:
            process.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Process:
    """One worker process, as the parent sees it."""

    def __init__(self, model: dict[str, Any], data_folder: Path, buffer_bytes: int) -> None:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed when the worker has mapped it too
            prefix="vaneb-", dir=_memory_folder(buffer_bytes)
        )
        file.truncate(buffer_bytes)
        self._file = file
        self._buffer = np.memmap(file.name, dtype=np.uint8, mode="r+", shape=(buffer_bytes,))
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "vaneb.fl.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **WORKER, "PYTHONPATH": path},
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._tasks, self._answers = self._popen.stdin, self._popen.stdout
        self._ready = False
        send(self._tasks, {"buffer": file.name, "model": model, "data": str(data_folder.resolve())})

    def run(self, task: Task, message: Tree) -> Job:
        try:
            if not self._ready:
                receive(self._answers)
                self._file.close()  # unlinks it: the mappings stay, and nothing is left behind by a kill
                self._ready = True
            header, overflow = pack(message, self._buffer)
            send(self._tasks, {**task, "message": header}, overflow)
            reply, inline = receive(self._answers)
        except (EOFError, OSError):
            code = self._popen.poll()
            raise TrainingFailed(
                f"a worker process ended (exit code {code}): out of memory, or killed. "
                "Start the same command again to resume from the last complete round."
            ) from None
        if "error" in reply:
            raise _rebuilt(reply["kind"], reply["error"])
        return reply, unpack(reply.pop("tree"), self._buffer if inline is None else inline)

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait()
        for stream in (self._tasks, self._answers):
            with suppress(OSError):
                stream.close()
        if not self._ready:
            self._file.close()


def _rebuilt(kind: str, text: str) -> Exception:
    """The error that a worker met, as far as it is one of ours."""
    known = getattr(errors, kind, None) or getattr(fl_errors, kind, None)
    if isinstance(known, type) and issubclass(known, VanebError):
        return known(text)
    return TrainingFailed(f"a client's task failed in a worker process:\n{text}")


def _memory_folder(needed: int) -> str | None:
    """A folder that lives in memory if there is one with room, else the usual temporary folder."""
    folder = Path("/dev/shm")
    if folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 4 * needed:
        return str(folder)
    return None
