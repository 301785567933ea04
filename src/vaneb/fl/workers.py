"""Worker processes, one thread each: the same tasks give the same results on any number of them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaneb.errors import InvalidOption
from vaneb.fl.errors import TrainingFailed
from vaneb.fl.federated_data import FederatedData
from vaneb.fl.trees import Tree, pack, unpack
from vaneb.fl.workbench import Task, Workbench
from vaneb.worker_processes import WorkerLost, WorkerProcess, Workers

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
        self._workers = Workers(lambda: _Process(model, data_folder, buffer_bytes), workers)

    def map(self, jobs: Sequence[Job]) -> Iterator[Job]:
        """Replies to ``jobs``, in order."""
        if self._bench is not None:
            return (self._run_here(*job) for job in jobs)
        return self._workers.threads.map(self._run_there, jobs)

    def _run_here(self, task: Task, message: Tree) -> Job:
        assert self._bench is not None
        with one_torch_thread():
            return self._bench.run(task, message)

    def _run_there(self, job: Job) -> Job:
        try:
            return self._workers.borrow(lambda process: process.run(*job))
        except WorkerLost as problem:
            raise TrainingFailed(str(problem)) from None

    def close(self) -> None:
        """End the workers; tasks under way are abandoned."""
        self._workers.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Process(WorkerProcess):
    """A worker process, and the buffer that it shares with this one."""

    def __init__(self, model: dict[str, Any], data_folder: Path, buffer_bytes: int) -> None:
        file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed when the worker has mapped it too
            prefix="vaneb-", dir=_memory_folder(buffer_bytes)
        )
        file.truncate(buffer_bytes)
        self._file = file
        self._buffer = np.memmap(file.name, dtype=np.uint8, mode="r+", shape=(buffer_bytes,))
        setup = {"buffer": file.name, "model": model, "data": str(data_folder.resolve())}
        super().__init__("vaneb.fl.worker", setup)

    def run(self, task: Task, message: Tree) -> Job:
        self.wait_until_ready()
        self._file.close()  # unlinks it: the mappings stay, and nothing is left behind by a kill
        header, overflow = pack(message, self._buffer)
        reply, payload = self.ask({**task, "message": header}, overflow)
        tree = unpack(reply.pop("tree"), np.frombuffer(payload, np.uint8) if payload else self._buffer)
        return reply, tree

    def close(self) -> None:
        super().close()
        self._file.close()


def _memory_folder(needed: int) -> str | None:
    """A folder that lives in memory if there is one with room, else the usual temporary folder."""
    folder = Path("/dev/shm")
    if folder.is_dir() and os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 4 * needed:
        return str(folder)
    return None
