"""Jobs on worker processes with one thread each; rows come back as they are made.

A worker is ``python -m vaneb.study.workers``: it reads one job per line from its standard input and writes
one row per line to its standard output, both as JSON, then an empty line when the job is done.  What a job
is, is known by name (``JOBS``); a job carries everything that its rows depend on, so the rows do not depend
on which worker does it, nor when.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any

from vaneb.errors import InvalidOption, VanebError
from vaneb.study.rows import Row
from vaneb.worker_environment import WORKER

Job = dict[str, Any]


class WorkerLost(VanebError):
    """A worker process ended before its job did."""


def _replicate(job: Job) -> Iterator[Row]:
    from vaneb.study.sweep import replicate_rows

    return replicate_rows(job)


def _theory(job: Job) -> Iterator[Row]:
    from vaneb.study.theory_study import theory_rows

    return theory_rows(job)


def _density(job: Job) -> Iterator[Row]:
    from vaneb.study.density_study import density_rows

    return density_rows(job)


#: Name of a job -> function that makes its rows.
JOBS: dict[str, Callable[[Job], Iterator[Row]]] = {
    "replicate": _replicate,
    "theory": _theory,
    "density": _density,
}


def run_jobs(jobs: Sequence[Job], workers: int) -> Generator[tuple[Job, Row | None], None, None]:
    """Rows of ``jobs`` in the order in which they come, each with its job; ``None`` when a job is done.

    Closing the iterator, or any exception, ends the workers at once.
    """
    if workers < 1:
        raise InvalidOption(f"workers: at least 1 is needed, not {workers}")
    if not jobs:
        return
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    made: queue.Queue[tuple[Job, Row | None] | Exception] = queue.Queue()
    processes = [_start() for _ in range(min(workers, len(jobs)))]
    feeders = [
        threading.Thread(target=_feed, args=(process, waiting, made), daemon=True) for process in processes
    ]
    try:
        for feeder in feeders:
            feeder.start()
        done = 0
        while done < len(jobs):
            item = made.get()
            if isinstance(item, Exception):
                raise item
            done += item[1] is None
            yield item
    finally:
        for process in processes:
            process.kill()
        for process, feeder in zip(processes, feeders, strict=True):
            process.wait()
            if feeder.ident is not None:
                feeder.join()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    stream.close()  # type: ignore[union-attr]


def _start() -> subprocess.Popen[str]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-m", "vaneb.study.workers"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, **WORKER, "PYTHONPATH": path},
        # An interrupt from the keyboard is for the parent, which ends its workers itself.
        start_new_session=True,
    )


def _feed(process: subprocess.Popen[str], waiting: queue.SimpleQueue[Job], made: queue.Queue) -> None:
    """Keep one worker busy until nothing is waiting."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            while (line := process.stdout.readline()) != "\n":
                if not line.endswith("\n"):
                    raise EOFError
                made.put((job, json.loads(line)))
            made.put((job, None))
    except (EOFError, OSError, ValueError):
        code = process.poll()
        made.put(
            WorkerLost(
                f"a worker process ended (exit code {code}): out of memory, killed, or an error shown above. "
                "What was finished is saved; the same command resumes."
            )
        )


def main() -> None:
    """Do jobs until the parent closes the pipe, or dies."""
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            jobs.put(json.loads(line))
        # The parent is gone: nobody will read what is being computed.
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a stray print of some library must not look like a row
    while True:
        job = jobs.get()
        for row in JOBS[job["kind"]](job):
            answers.write(json.dumps(row) + "\n")
            answers.flush()
        answers.write("\n")
        answers.flush()


if __name__ == "__main__":
    main()
