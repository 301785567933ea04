"""Cells, replicates and the rows they give: the simulation study as a resumable loop.

A cell is a scenario with a number of clients K and a smallest sample size n_min.  A replicate of a cell
draws its clients from a generator keyed by (seed, scenario, K, n_min, replicate), so that its numbers depend
on nothing else: not on the number of workers, the order, or which other cells are asked for.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.growing_tables import Row, appending, read_rows
from vaneb.study.prior_curves import FiveCurves
from vaneb.study.scenarios import SCENARIOS, Sample
from vaneb.study.workers import Job, run_jobs

if TYPE_CHECKING:
    from vaneb.blocks import Progress
    from vaneb.estimators import PointEstimates
    from vaneb.posterior import Posterior
    from vaneb.study.estimators import Clients, Estimated

Array = NDArray[np.float64]

CLIENTS = (50, 200, 800, 3200)
N_MIN = (5, 10, 20, 40)
SWEEPS = ("K", "n", "both")
LEVEL = 0.9

#: What identifies a row, and what it says.
KEYS = ("scenario", "clients", "n_min", "replicate", "seed", "estimator")
MEASURED = ("rmse", "cpu_seconds", "atoms", "gap", "coverage", "flagged", "status")
COLUMNS = KEYS + MEASURED


class Cell(NamedTuple):
    """A scenario at one size."""

    scenario: str
    clients: int
    n_min: int


def cells(
    scenarios: Iterable[str], sweep: str, clients: Sequence[int] = CLIENTS, n_min: Sequence[int] = N_MIN
) -> list[Cell]:
    """The cells of a sweep: over K at the largest of ``n_min``, over n_min at the largest of ``clients``."""
    if sweep not in SWEEPS:
        raise InvalidOption(f"sweep must be one of {', '.join(SWEEPS)}, not {sweep!r}")
    if not clients or min(clients) < 2:
        raise InvalidOption(f"clients: numbers of at least 2 are needed, not {list(clients)}")
    if not n_min or min(n_min) < 2:
        raise InvalidOption(f"n_min: numbers of at least 2 are needed, not {list(n_min)}")
    pairs = [(k, max(n_min)) for k in clients] if sweep in ("K", "both") else []
    pairs += [(max(clients), n) for n in n_min] if sweep in ("n", "both") else []
    found = [Cell(scenario, *pair) for scenario in scenarios for pair in pairs]
    for cell in found:
        if cell.scenario not in SCENARIOS:
            raise InvalidOption(
                f"scenario {cell.scenario!r} is unknown; choose one of {', '.join(SCENARIOS)}"
            )
    return list(dict.fromkeys(found))  # both sweeps meet in one cell


def generator(cell: Cell, replicate: int, seed: int) -> np.random.Generator:
    """The source of all randomness of one replicate."""
    key = (zlib.crc32(cell.scenario.encode()), cell.clients, cell.n_min, replicate)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


class Mode(NamedTuple):
    """Whose estimators: ours, or the paper's."""

    prior: FiveCurves
    clients: Callable[[Sample, FiveCurves], Clients]
    estimators: dict[str, Callable[[Clients], Estimated]]


def mode(paper: bool) -> Mode:
    """The paper's estimators and curves, or ours."""
    if paper:
        from vaneb.study.paper_mode import CURVES, PAPER_ESTIMATORS, PaperClients

        return Mode(CURVES, PaperClients, PAPER_ESTIMATORS)
    from vaneb.study.estimators import ESTIMATORS, Clients

    return Mode(FiveCurves(), Clients, ESTIMATORS)


def replicate_rows(job: Job) -> Iterator[Row]:
    """One row per estimator of one replicate, as each is finished."""
    from vaneb.study.scenarios import simulate

    cell = Cell(job["scenario"], job["clients"], job["n_min"])
    prior, make_clients, estimators = mode(job["paper"])
    sample = simulate(*cell, generator(cell, job["replicate"], job["seed"]), prior)
    clients = make_clients(sample, prior)
    begin = time.process_time()
    flagged = clients.flagged  # makes the local fits, which all estimators share
    fitting = time.process_time() - begin
    for name in job["estimators"]:
        yield {
            **{key: job[key] for key in KEYS if key != "estimator"},
            "estimator": name,
            **measure(estimators[name], clients, fitting if name == "local" else 0.0),
            "flagged": flagged,
        }


def measure(estimator: Callable[[Clients], Estimated], clients: Clients, seconds: float = 0.0) -> Row:
    """How an estimator does: the ``MEASURED`` columns but ``flagged``.

    CPU seconds are those of fit and posterior means, plus ``seconds``: the local fits are all that ``local``
    costs, and no part of what the others do.
    """
    row: Row = dict.fromkeys(MEASURED)
    truth = clients.sample.theta
    begin = time.process_time()
    try:
        estimated = estimator(clients)
        rmse = float(np.sqrt(np.mean(np.sum((estimated.mean - truth) ** 2, axis=1))))
        if not np.isfinite(rmse):
            raise FloatingPointError("the estimates are not finite")
        row["cpu_seconds"] = round(time.process_time() - begin + seconds, 3)
        row["coverage"] = _coverage(estimated.posterior, truth)
    except Exception as problem:  # a failure is a result too: the row says so, and the others go on
        text = " ".join(f"failed: {type(problem).__name__}: {problem}".split())
        return {**row, "cpu_seconds": round(time.process_time() - begin + seconds, 3), "status": text[:200]}
    gap = None if estimated.gap is None else float(estimated.gap)
    status = "ok" if estimated.certified else "above-tolerance"
    return {**row, "rmse": rmse, "atoms": estimated.atoms, "gap": gap, "status": status}


def _coverage(posterior: Posterior | PointEstimates, truth: Array) -> float | None:
    """Share of parameters inside their 90% intervals; ``None`` for methods that give none."""
    try:
        lower, upper = posterior.interval(LEVEL)
    except InvalidOption:
        return None
    return float(np.mean((lower <= truth) & (truth <= upper)))


def run_sweep(
    path: Path,
    wanted: Sequence[Cell],
    *,
    replicates: int,
    estimators: Sequence[str] | None = None,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
    paper: bool = False,
) -> None:
    """Append to ``path`` the rows of ``wanted`` that it does not have yet.

    Replicates come before cells: cut short, all cells have about as many.  ``estimators`` are all by default;
    ``paper``: the paper's, on its curves.
    """
    from vaneb.study.estimators import check_estimators

    if replicates < 1:
        raise InvalidOption(f"replicates: at least 1 is needed, not {replicates}")
    known = mode(paper).estimators
    names = tuple(known) if estimators is None else check_estimators(tuple(estimators), known)
    present = {tuple(row[key] for key in KEYS) for row in checked_rows(path, COLUMNS, seed)}
    jobs = []
    for replicate in range(replicates):
        for cell in wanted:
            key = (*map(str, cell), str(replicate), str(seed))
            missing = [name for name in names if (*key, name) not in present]
            if missing:
                jobs.append(
                    {
                        "kind": "replicate",
                        "title": f"{cell.scenario} K={cell.clients} n={cell.n_min} #{replicate + 1}",
                        "paper": paper,
                        **cell._asdict(),
                        "replicate": replicate,
                        "seed": seed,
                        "estimators": missing,
                    }
                )
    append_jobs(path, COLUMNS, jobs, workers, progress)


def checked_rows(path: Path, columns: Sequence[str], seed: int) -> list[dict[str, str]]:
    """Rows of ``path``, if they are of this study and of this seed."""
    rows = read_rows(path)
    if rows and tuple(rows[0]) != tuple(columns):
        raise InvalidOption(f"{path} has other columns than this study writes; name another folder")
    others = {row["seed"] for row in rows} - {str(seed)}
    if others:
        raise InvalidOption(
            f"{path} holds results of seed {', '.join(sorted(others))}, not {seed}: "
            "name another folder, or give that seed to add to them"
        )
    return rows


def append_jobs(
    path: Path, columns: Sequence[str], jobs: Sequence[Job], workers: int, progress: Progress | None
) -> None:
    """Run ``jobs`` on ``workers`` processes and append their rows to ``path`` as they come.

    ``progress`` is told clients: a job's share of the work is their number.
    """
    total, done = sum(job["clients"] for job in jobs), 0
    with appending(path, columns) as file, contextlib.closing(run_jobs(jobs, workers)) as made:
        for job, rows in made:
            for row in rows:
                file.write(row)
            done += job["clients"]
            if progress is not None:
                progress(job["title"], done, total)
