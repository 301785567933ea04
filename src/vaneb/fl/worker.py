"""A worker process of the engine: tasks for a ``Workbench``, tensors in a buffer shared with the parent.

Started as ``python -m vaneb.fl.worker`` by ``workers.WorkerPool``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaneb.fl.federated_data import FederatedData
from vaneb.fl.trees import pack, unpack
from vaneb.fl.workbench import Workbench, peak_megabytes
from vaneb.worker_processes import Answer, Frame, serve


def start(setup: dict[str, Any]) -> Answer:
    """The workbench that answers."""
    torch.set_num_threads(1)
    buffer = np.memmap(setup["buffer"], dtype=np.uint8, mode="r+")
    bench = Workbench(setup["model"], FederatedData.load(Path(setup["data"])))

    def answer(task: dict[str, Any], payload: bytes) -> Frame:
        began = time.process_time()
        message = unpack(task.pop("message"), np.frombuffer(payload, np.uint8) if payload else buffer)
        reply, tree = bench.run(task, message)
        header, overflow = pack(tree, buffer)
        costs = {"cpu": time.process_time() - began, "peak": peak_megabytes()}
        return {**reply, **costs, "tree": header}, overflow

    return answer


if __name__ == "__main__":
    serve(start)
