"""A worker process: reads tasks from standard input, answers on standard output.

Started as ``python -m vaneb.fl.worker`` by ``workers.WorkerPool``.  A frame is a length and a JSON text;
tensors travel in a buffer that both processes have mapped.  The worker ends when its input does, so it
does not outlive a parent that was killed.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import VanebError


def send(stream: IO[bytes], content: dict[str, Any], overflow: bytes = b"") -> None:
    """One frame: length, JSON, and what did not fit into the buffer."""
    text = json.dumps(content).encode()
    stream.write(struct.pack("<QQ", len(text), len(overflow)))
    stream.write(text)
    stream.write(overflow)
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], NDArray[np.uint8] | None]:
    """The other side of ``send``; raises EOFError when the stream has ended."""
    lengths = stream.read(16)
    if len(lengths) < 16:
        raise EOFError
    text, overflow = struct.unpack("<QQ", lengths)
    content = json.loads(stream.read(text))
    return content, np.frombuffer(stream.read(overflow), dtype=np.uint8) if overflow else None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    tasks = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a model prints must not end up between frames

    import torch

    from vaneb.fl.federated_data import FederatedData
    from vaneb.fl.trees import pack, unpack
    from vaneb.fl.workbench import Workbench, peak_megabytes

    torch.set_num_threads(1)
    try:
        setup, _ = receive(tasks)
        buffer = np.memmap(setup["buffer"], dtype=np.uint8, mode="r+")
        bench = Workbench(setup["model"], FederatedData.load(Path(setup["data"])))
        send(answers, {"ready": True})
        while True:
            task, inline = receive(tasks)
            message = unpack(task.pop("message"), buffer if inline is None else inline)
            try:
                began = time.process_time()
                reply, tree = bench.run(task, message)
                reply |= {"cpu": time.process_time() - began, "peak": peak_megabytes()}
                header, overflow = pack(tree, buffer)
                send(answers, {**reply, "tree": header}, overflow)
            except VanebError as error:
                send(answers, {"error": str(error), "kind": type(error).__name__})
            except Exception:
                send(answers, {"error": traceback.format_exc(), "kind": "unexpected"})
    except (EOFError, BrokenPipeError):
        pass
    finally:
        # Nothing is buffered that anyone still waits for; skip torch's slow shutdown.
        os._exit(0)


if __name__ == "__main__":
    main()
