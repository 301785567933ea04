"""Worker processes, one thread each: the same tasks give the same results on any number of them.

A worker is ``python -m vaneb.fl.workers``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vaneb.errors import InvalidOption
from vaneb.fl.errors import TrainingFailed
from vaneb.fl.federated_data import FederatedData
from vaneb.fl.trees import Tree, pack, unpack
from vaneb.fl.workbench import Task, Workbench, peak_megabytes
from vaneb.worker_processes import Answer, Frame, WorkerLost, Workers, serve

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
    """

    def __init__(self, workers: int, model: dict[str, Any], data_folder: Path) -> None:
        if workers < 0:
            raise InvalidOption(f"workers = {workers}: must not be negative (0 runs in this process).")
        self._bench = Workbench(model, FederatedData.load(data_folder)) if workers == 0 else None
        setup = {"model": model, "data": str(data_folder.resolve())}
        self._workers = Workers("vaneb.fl.workers", setup, workers)

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
        task, message = job
        header, payload = pack(message)
        try:
            reply, payload = self._workers.ask({**task, "message": header}, payload)
        except WorkerLost as problem:
            raise TrainingFailed(str(problem)) from None
        return reply, unpack(reply.pop("tree"), payload)

    def close(self) -> None:
        """End the workers; tasks under way are abandoned."""
        self._workers.close()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(setup: dict[str, Any]) -> Answer:
    """What a worker answers: tasks for a workbench of its own."""
    torch.set_num_threads(1)
    bench = Workbench(setup["model"], FederatedData.load(Path(setup["data"])))

    def answer(task: dict[str, Any], payload: bytes) -> Frame:
        began = time.process_time()
        reply, tree = bench.run(task, unpack(task.pop("message"), payload))
        header, payload = pack(tree)
        costs = {"cpu": time.process_time() - began, "peak": peak_megabytes()}
        return {**reply, **costs, "tree": header}, payload

    return answer


if __name__ == "__main__":
    serve(start)
