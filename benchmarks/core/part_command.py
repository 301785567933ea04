"""``vaneb personalize`` by default, from a Parquet file to a Parquet file, as a user waits for it.

Clients of ``populations.clusters`` (three groups with spreads of their own), standard errors of 0.2 to 1.5,
and ten coordinates in one case.  Time is that of the whole command with its start, on one thread, after the
same command has been run once on 200 clients, which compiles.  Peak memory is that of the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import Row

SIZES = ((1_000, 3), (10_000, 3), (100_000, 3), (1_000_000, 3), (10_000, 10))


def write(path: Path, n_clients: int, dimension: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((3, dimension))
    group = rng.choice(3, n_clients, p=[0.5, 0.3, 0.2])
    theta = centres[group] + np.array([0.1, 0.5, 1.0])[group, None] * rng.standard_normal(
        (n_clients, dimension)
    )
    errors = rng.uniform(0.2, 1.5, theta.shape)
    estimates = theta + errors * rng.standard_normal(theta.shape)
    columns: dict[str, object] = {"client": [f"c{k}" for k in range(n_clients)]}
    columns |= {f"theta_{i}": estimates[:, i] for i in range(dimension)}
    columns |= {f"se_{i}": errors[:, i] for i in range(dimension)}
    pq.write_table(pa.table(columns), path)


def command(reports: Path, out: Path) -> tuple[float, float, str]:
    """CPU seconds, peak MiB and what was said of the population."""
    words = [sys.executable, "-m", "vaneb", "personalize", str(reports), "-o", str(out)]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(words, stdout=said, stderr=subprocess.DEVNULL)
        _, status, use = os.wait4(process.pid, 0)
        if status:
            raise RuntimeError(f"{' '.join(words)} ended with status {status}")
        said.seek(0)
        line = next((line for line in said if line.startswith("population")), "")
    return use.ru_utime + use.ru_stime, use.ru_maxrss / 1024, " ".join(line.split()[1:])


def run(options) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        reports, out = Path(folder) / "reports.parquet", Path(folder) / "results.parquet"
        for n_clients, dimension in SIZES:
            if options.clients and n_clients not in options.clients:
                continue
            write(reports, 200, dimension)
            command(reports, out)
            write(reports, n_clients, dimension)
            cpu, peak, population = command(reports, out)
            yield {
                "clients": n_clients,
                "dimension": dimension,
                "cpu": cpu,
                "peak_mib": peak,
                "population": population,
            }
