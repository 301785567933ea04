"""Work over blocks of clients: ``map_blocks`` calls a function on each block, in threads.

The compiled kernels release the interpreter lock, so threads are enough.  Blocks are fixed by the number
of clients alone and results come back in order: a sum over them does not depend on the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")
#: Long work calls it with (what is being done, steps done, steps expected).
Progress = Callable[[str, int, int], None]

#: Clients in one block: large enough to hide the cost of a call, small enough to stay in the cache.
BLOCK_CLIENTS = 8192


def threads() -> int:
    """Number of threads: ``VANEB_THREADS`` if set, else the cores this process may use."""
    asked = os.environ.get("VANEB_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_thread = threading.local()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread: the products here are small, and threads of two kinds fight for the cores."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1, user_api="blas"):
        yield


@lru_cache(maxsize=1)
def _pool(workers: int, process: int) -> ThreadPoolExecutor:
    """One pool per process (``process`` is the process id: a forked child must not use its parent's)."""
    return ThreadPoolExecutor(workers, thread_name_prefix="vaneb")


def blocks(n_clients: int, size: int = BLOCK_CLIENTS) -> list[slice]:
    """Consecutive slices of about equal length, at most ``size``, that cover ``n_clients``."""
    count = max(1, -(-n_clients // size))
    edges = [i * n_clients // count for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def map_blocks(
    function: Callable[[slice], Result], n_clients: int, size: int = BLOCK_CLIENTS
) -> Iterator[Result]:
    """``function`` of every block, in order.

    Within a block, blocks are taken one after the other: a pool whose threads wait for the pool never ends.
    """
    parts = blocks(n_clients, size)
    workers = threads()
    if workers == 1 or len(parts) == 1 or getattr(_thread, "busy", False):
        return map(function, parts)

    def marked(rows: slice) -> Result:
        _thread.busy = True
        try:
            return function(rows)
        finally:
            _thread.busy = False

    return _pool(workers, os.getpid()).map(marked, parts)


def sum_blocks(
    function: Callable[[slice], tuple[NDArray[np.float64], ...]], n_clients: int, size: int = BLOCK_CLIENTS
) -> tuple[NDArray[np.float64], ...]:
    """Sums over blocks of each of the arrays that ``function`` returns."""
    parts = iter(map_blocks(function, n_clients, size))
    total = next(parts)
    for part in parts:
        total = tuple(a + b for a, b in zip(total, part, strict=True))
    return total
