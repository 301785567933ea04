"""CPU seconds of all decisions about many clients, the fit not included.

python benchmarks/decisions/speed.py 5000
"""

from __future__ import annotations

import sys
import time

import numpy as np

import vaneb
from vaneb.covariance import by_name


def main(clients: int) -> None:
    rng = np.random.default_rng(0)
    errors = rng.uniform(0.3, 1.0, clients)
    plain = vaneb.Reports(
        rng.standard_normal(clients) + errors * rng.standard_normal(clients), standard_errors=errors
    )
    n = rng.integers(50, 1000, clients)
    counts = rng.binomial(n, rng.beta(8.0, 92.0, clients)) / n
    rates = vaneb.Reports(counts, n=n, covariance=by_name("binomial", 1, clients))
    five = vaneb.Reports(rng.standard_normal((clients, 5)) * 1.4, standard_errors=np.ones((clients, 5)))
    for name, reports in (("one parameter", plain), ("rates", rates), ("five parameters", five)):
        posterior = vaneb.VANEB().fit(reports).personalize(reports)
        posterior.mean.sum()
        for turn in ("first in this process", "again"):
            begin = time.process_time()
            posterior.decide().table(highest=0.1, lowest=0.1)
            print(f"{name}, {clients:,} clients, {turn}: {time.process_time() - begin:.2f} CPU s", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
