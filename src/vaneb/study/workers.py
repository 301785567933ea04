"""Jobs on worker processes with one thread each; their rows come back as each is done.

A job carries everything that its rows depend on, so these do not depend on which worker does it, nor when.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import as_completed
from importlib import import_module
from typing import Any

from vaneb.errors import InvalidOption
from vaneb.growing_tables import Row
from vaneb.worker_processes import Answer, Frame, Workers, serve

Job = dict[str, Any]

#: Name of a job -> module and function that makes its rows.
JOBS = {
    "replicate": ("vaneb.study.sweep", "replicate_rows"),
    "theory": ("vaneb.study.theory_study", "theory_rows"),
    "density": ("vaneb.study.density_study", "density_rows"),
}


def run_jobs(jobs: Sequence[Job], workers: int) -> Generator[tuple[Job, list[Row]], None, None]:
    """Jobs in the order in which they are done, each with its rows.

    Closing the iterator, or any exception, ends the workers at once.
    """
    if workers < 1:
        raise InvalidOption(f"workers: at least 1 is needed, not {workers}")
    processes = Workers("vaneb.study.workers", {}, min(workers, len(jobs)))
    try:
        waiting = {processes.threads.submit(processes.ask, job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()[0]["rows"]
    finally:
        processes.close()


def start(setup: dict[str, Any]) -> Answer:
    def answer(job: Job, payload: bytes) -> Frame:
        module, function = JOBS[job["kind"]]
        return {"rows": list(getattr(import_module(module), function)(job))}, b""

    return answer


if __name__ == "__main__":
    serve(start)
