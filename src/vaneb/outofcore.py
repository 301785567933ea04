"""Reports that do not fit into memory: the population from a sample, posteriors block by block.

A million clients know their population as well as any client needs it, but for groups of which only a few
clients are among them (``benchmarks/populations/sample.py``).  So it is learnt from clients spread evenly
over the Parquet file, as many as memory holds.  Then blocks of clients are read, personalised, written and
forgotten.

Blocks go through one function, with the signature of ``vaneb.blocks.map_blocks``: in this process by
default, ``ray_map`` for the workers of a Ray cluster (which must see the file).  Results are the same.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from vaneb.blocks import blocks
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.estimators import VANEB
from vaneb.files import absent
from vaneb.posterior import posterior
from vaneb.prior import Prior
from vaneb.reports import Reports

#: Clients in one block on disk.
BLOCK = 65_536
#: Clients that the population is learnt from, at most.
SAMPLE = 1_000_000
#: Pieces of the file that they are from.
RUNS = 50

#: Bytes in memory for a client, and for each of its columns, at the peak of a fit that holds all of them.
PER_CLIENT, PER_COLUMN = 500, 120


def fits_in_memory(path: str | Path) -> bool:
    """Whether a Parquet file of reports can be worked on as a whole, in half of the memory that is free."""
    return _row_groups(str(path))[-1] <= _clients_in_memory(path)


def _clients_in_memory(path: str | Path) -> int:
    """How many clients of a file can be worked on at once, in half of the memory that is free."""
    import pyarrow.parquet as pq

    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return int(free / 2 / (PER_CLIENT + PER_COLUMN * pq.ParquetFile(path).metadata.num_columns))


#: ``function`` of every block of clients, in order: of a function, the number of clients, and a block's size.
MapOver = Callable[[Callable[[slice], Any], int, int], Iterator[Any]]


def in_turn(function: Callable[[slice], Any], n_clients: int, size: int) -> Iterator[Any]:
    """In this process: one block in memory at a time."""
    return map(function, blocks(n_clients, size))


def fit_file(path: str | Path, model: VANEB | None = None, *, sample: int | None = None) -> VANEB:
    """``model`` fitted to a Parquet file of reports (columns as for ``vaneb personalize``).

    ``sample``: how many clients it is learnt from; by default as many as memory holds, at most a million.
    """
    path = Path(path)
    n_clients = _row_groups(str(path))[-1]
    size = min(SAMPLE, _clients_in_memory(path)) if sample is None else sample
    model = (model or VANEB()).fit(_sample(path, n_clients, size))
    model.prior_ = replace(model.prior_, clients=n_clients)
    return model


def personalize_file(
    path: str | Path,
    prior: Prior,
    out: str | Path,
    *,
    level: float = 0.9,
    block: int = BLOCK,
    map_over: MapOver = in_turn,
) -> None:
    """Every client's posterior, written to a Parquet file block by block."""
    import pyarrow.parquet as pq

    from vaneb.files import replacing

    n_clients = _row_groups(str(path))[-1]
    writer = None
    with replacing(out) as temporary:
        try:
            for table in map_over(partial(_block_results, str(path), prior, level), n_clients, block):
                writer = writer or pq.ParquetWriter(temporary, table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def _block_results(path: str, prior: Prior, level: float, rows: slice) -> Any:
    from vaneb.tables import results_table

    part = read_block(path, rows)
    return results_table(posterior(part.likelihood(), prior, ids=tuple(part.ids), names=part.names), level)


def connect(address: str) -> None:
    """Connect to the Ray cluster at ``address``; "local" starts one on this machine."""
    try:
        import ray
    except ImportError:
        raise InvalidOption("--ray: Ray is not installed. Install it with: pip install ray") from None
    if not ray.is_initialized():
        try:
            ray.init(
                None if address == "local" else address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except ConnectionError as error:
            raise InvalidOption(f"--ray {address}: no cluster answers there ({error}).") from None


def ray_map(function: Callable[[slice], Any], n_clients: int, size: int) -> Iterator[Any]:
    """On Ray: as many blocks at a time as the cluster has processors, in order.

    Uses the cluster that ``ray.init`` has connected to, or starts one on this machine.
    """
    import ray

    connect("local")
    task = ray.remote(num_cpus=1)(_call)
    shared = ray.put(function)
    parts = blocks(n_clients, size)
    ahead = max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting: list[Any] = [task.remote(shared, rows) for rows in parts[:ahead]]
    for k in range(len(parts)):
        result = ray.get(waiting[k])
        if k + ahead < len(parts):
            waiting.append(task.remote(shared, parts[k + ahead]))
        waiting[k] = None
        yield result


def _call(function: Callable[[slice], Any], rows: slice) -> Any:
    return function(rows)


@lru_cache(maxsize=8)
def _row_groups(path: str) -> tuple[int, ...]:
    """Where the row groups of a Parquet file begin, and the number of its rows."""
    import pyarrow.parquet as pq

    if Path(path).suffix != ".parquet":
        raise InvalidOption(f"{path}: blocks are read from .parquet files only. Convert it first.")
    try:
        about = pq.ParquetFile(path).metadata
    except FileNotFoundError:
        raise InvalidReport(absent(path)) from None
    sizes = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
    if sum(sizes) == 0:
        raise InvalidReport(f"{path}: has no rows.")
    return (0, *np.cumsum(sizes).tolist())


def read_block(path: str, rows: slice) -> Reports:
    """Some consecutive clients of a file; only the row groups that they are in are read."""
    return Reports(_table(path, rows))


def _table(path: str, rows: slice) -> Any:
    import pyarrow.parquet as pq

    edges = np.array(_row_groups(path))
    first = int(np.searchsorted(edges, rows.start, side="right")) - 1
    last = int(np.searchsorted(edges, rows.stop, side="left"))
    table = pq.ParquetFile(path).read_row_groups(list(range(first, last)))
    return table.slice(rows.start - int(edges[first]), rows.stop - rows.start)


def _sample(path: Path, n_clients: int, size: int) -> Reports:
    """About ``size`` clients from all over the file, in whole runs of neighbours to spare the disk."""
    import pyarrow as pa

    if n_clients <= size:
        return read_block(str(path), slice(0, n_clients))
    length = -(-size // RUNS)
    starts = np.linspace(0, n_clients - length, n_clients // length)  # runs side by side
    starts = starts[np.linspace(0, len(starts) - 1, min(RUNS, len(starts))).astype(int)].astype(int)
    return Reports(pa.concat_tables([_table(str(path), slice(s, s + length)) for s in starts.tolist()]))
