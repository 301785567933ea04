"""The MNIST tables, row by row; start it again and it goes on where it was.

    python benchmarks/mnist/run.py --data-dir DATA [--table main|shift|scaling] [--workers 2]
    python benchmarks/mnist/run.py --render

``main`` is the nine columns of the first table (alpha x clients, shift 1), ``shift`` the ablation of the
covariate shift at alpha = 0.1, ``scaling`` the columns that only the figure with 50 to 1,000 clients needs.
``--alpha``, ``--clients``, ``--shift``, ``--method`` and ``--seed`` restrict a run; ``--work`` is where it
keeps its checkpoints (runs/mnist).  At the end, and with ``--render`` at any time, what is there so far is
written as results.csv and tables.md beside this file.
"""

from __future__ import annotations

from pathlib import Path

from table_runs import Section, main, paper_numbers

HERE = Path(__file__).resolve().parent
TABLES = {
    "main": [(alpha, 1.0, clients) for alpha in (0.1, 0.01, 0.5) for clients in (100, 500, 200)],
    "shift": [(0.1, shift, clients) for clients in (100, 500, 50, 200) for shift in (0.0, 2.0, 1.0)],
    "scaling": [(alpha, 1.0, clients) for alpha in (0.1, 0.01) for clients in (50, 1000)],
}

if __name__ == "__main__":
    main(
        __doc__.splitlines()[0],
        HERE,
        "mnist",
        "MNIST",
        TABLES,
        [
            Section(
                "Label skew and number of clients, shift 1",
                lambda row: row.shift == 1.0,
                paper_numbers(HERE / "paper.csv", "mnist", shift=1.0),
            ),
            Section(
                "Covariate shift, alpha = 0.1",
                lambda row: row.alpha == 0.1,
                paper_numbers(HERE / "paper_shift.csv", "mnist", alpha=0.1),
            ),
        ],
    )
