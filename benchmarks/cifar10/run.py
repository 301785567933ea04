"""The CIFAR-10 table, row by row; start it again and it goes on where it was.

    python benchmarks/cifar10/run.py --data-dir DATA [--workers 2]
    python benchmarks/cifar10/run.py --render

The columns come in this order: alpha = 0.1 with 100 and 500 clients, alpha = 0.5 with 100, then the other
six.  ``--alpha``, ``--clients``, ``--method`` and ``--seed`` restrict a run; ``--work`` is where it keeps its
checkpoints (runs/cifar10).  At the end, and with ``--render`` at any time, what is there so far is written as
results.csv and tables.md beside this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS = [
    (0.1, 1.0, 100),
    (0.1, 1.0, 500),
    (0.5, 1.0, 100),
    (0.01, 1.0, 100),
    (0.1, 1.0, 200),
    (0.5, 1.0, 500),
    (0.01, 1.0, 500),
    (0.5, 1.0, 200),
    (0.01, 1.0, 200),
]

if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent / "mnist"))
    from table_runs import Section, main, paper_numbers

    section = Section(
        "Label skew and number of clients, shift 1",
        lambda row: True,
        paper_numbers(HERE / "paper.csv", "cifar10", shift=1.0),
    )
    main(__doc__.splitlines()[0], HERE, "cifar10", "CIFAR-10", {"main": COLUMNS}, [section])
