"""Reports that do not fit into memory: the fit maps over blocks of a Parquet file.

    1. The certified solver fits a sample of the clients, which gives the first atoms and weights.
    2. Each step of pseudo-EM is one pass over the file.  A block of clients is read, adds to

           sum_k log f_k,   sum_k r_kj,   sum_k r_kj s_k(a_j),   sum_k r_kj I_k(a_j),

       and is forgotten; only the sums, a few kilobytes, are kept.
    3. One last pass evaluates the gap D at the sample's estimates.

Passes go through one seam, a function with the signature of ``vaneb.blocks.map_blocks``: in this process by
default, ``ray_map`` for the workers of a Ray cluster (which must see the file).  Blocks and the order of sums
are the same for both, and so is the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vaneb.blocks import blocks, map_blocks
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.estimators import VANEB
from vaneb.files import absent
from vaneb.likelihood.seam import Array
from vaneb.npmle.fit import log_mixture
from vaneb.posterior import posterior
from vaneb.prior import Prior
from vaneb.reports import Reports
from vaneb.sums import Sums, em_step, own_sums

#: Clients in one block on disk.
BLOCK = 65_536
#: Clients that the first fit looks at.
SAMPLE = 20_000
#: Points at which the gap is evaluated.
POINTS = 500


class MapOver(Protocol):
    """The seam: ``function`` of every block of clients, in order."""

    def __call__(self, function: Callable[[slice], Any], n_clients: int, size: int) -> Iterator[Any]: ...


@dataclass(frozen=True)
class FileFit:
    """A prior, and how good it is.

    Parameters
    ----------
    log_likelihood : average over all clients before each step, and after the last.
    gap : largest D at the points that were looked at; an estimate from below of what is still to be had.
    """

    prior: Prior
    log_likelihood: tuple[float, ...]
    gap: float


def fit_file(
    path: str | Path,
    *,
    steps: int = 30,
    smooth: str | float = "auto",
    tol: float = 1e-4,
    seed: int = 0,
    block: int = BLOCK,
    sample: int = SAMPLE,
    map_over: MapOver = map_blocks,
) -> FileFit:
    """The population behind a Parquet file of reports (columns as for ``vaneb personalize``)."""
    path = Path(path)
    n_clients = _groups(str(path)).n_clients
    first = _sample(path, n_clients, sample, seed)
    start = VANEB(smooth=smooth, tol=tol, seed=seed).fit(first).prior_
    atoms, weights, spread = start.atoms, start.weights, start.spread
    trace: list[float] = []
    for _ in range(steps):
        parts = map_over(partial(_block_sums, str(path), atoms, weights, spread), n_clients, block)
        total = _added(parts)
        trace.append(total.log_density / n_clients)
        atoms, weights = em_step(total, atoms)
    points = first.estimate[np.random.default_rng(seed).permutation(len(first))[:POINTS]]
    last = map_over(partial(_block_gap, str(path), atoms, weights, spread, points), n_clients, block)
    value, shares = 0.0, np.zeros(len(points))
    for log_density, share in last:
        value, shares = value + log_density, shares + share
    trace.append(value / n_clients)
    prior = Prior(atoms, weights, spread, first.names, n_clients)
    return FileFit(prior, tuple(trace), float(shares.max() / n_clients - 1))


def personalize_file(
    path: str | Path, prior: Prior, out: str | Path, *, level: float = 0.9, block: int = BLOCK
) -> None:
    """Every client's posterior, written to a Parquet file block by block."""
    import pyarrow.parquet as pq

    from vaneb.files import replacing
    from vaneb.tables import results_table

    n_clients = _groups(str(path)).n_clients
    writer = None
    with replacing(out) as temporary:
        try:
            for rows in blocks(n_clients, block):
                part = read_block(str(path), rows)
                found = posterior(part.likelihood(), prior, ids=tuple(part.ids), names=part.names)
                table = results_table(found, level)
                writer = writer or pq.ParquetWriter(temporary, table.schema)
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def ray_map(function: Callable[[slice], Any], n_clients: int, size: int) -> Iterator[Any]:
    """The seam on Ray: as many blocks at a time as the cluster has processors, in order.

    Uses the cluster that ``ray.init`` has connected to, or starts one on this machine.
    """
    import ray

    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
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


@dataclass(frozen=True)
class _Groups:
    """Where the row groups of a Parquet file begin."""

    edges: tuple[int, ...]

    @property
    def n_clients(self) -> int:
        return self.edges[-1]


@lru_cache(maxsize=8)
def _groups(path: str) -> _Groups:
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
    return _Groups((0, *np.cumsum(sizes).tolist()))


def read_block(path: str, rows: slice) -> Reports:
    """Some consecutive clients of a file; only the row groups that they are in are read."""
    import pyarrow.parquet as pq

    edges = np.array(_groups(path).edges)
    first = int(np.searchsorted(edges, rows.start, side="right")) - 1
    last = int(np.searchsorted(edges, rows.stop, side="left"))
    table = pq.ParquetFile(path).read_row_groups(list(range(first, last)))
    return Reports(table.slice(rows.start - int(edges[first]), rows.stop - rows.start))


def _sample(path: Path, n_clients: int, size: int, seed: int) -> Reports:
    """About ``size`` clients from all over the file, from whole runs of neighbours to spare the disk."""
    if n_clients <= size:
        return read_block(str(path), slice(0, n_clients))
    rng = np.random.default_rng(seed)
    runs = 50
    length = -(-size // runs)
    starts = np.unique(rng.integers(0, n_clients - length, runs))
    clients: dict[str, Any] = {}
    for start in starts.tolist():
        part = read_block(str(path), slice(start, start + length))
        clients |= {report.id: report for report in part}
    return Reports.from_clients(list(clients.values()), part.names)


def _block_sums(path: str, atoms: Array, weights: Array, spread: Array | None, rows: slice) -> Sums:
    return own_sums(read_block(path, rows).likelihood().smoothed(spread), atoms, weights)


def _block_gap(
    path: str, atoms: Array, weights: Array, spread: Array | None, points: Array, rows: slice
) -> tuple[float, Array]:
    """sum_k log f_k, and sum_k p_k(theta) / f_k at the points."""
    likelihood = read_block(path, rows).likelihood().smoothed(spread)
    density = log_mixture(likelihood, atoms, weights)
    # A client that the prior does not explain at all would make the gap infinite; a huge one is enough.
    ratio = np.exp(np.minimum(likelihood.log_likelihood(points) - density[:, None], 300.0))
    return float(density.sum()), ratio.sum(axis=0)


def _added(parts: Iterator[Sums]) -> Sums:
    total = next(parts)
    for part in parts:
        total = Sums(
            total.log_density + part.log_density,
            total.share + part.share,
            total.gradient + part.gradient,
            total.information + part.information,
        )
    return total
