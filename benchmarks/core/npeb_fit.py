"""npeb on given data, in an environment that has it: python npeb_fit.py FOLDER K d ATOMS EM_STEPS

FOLDER holds estimates.bin and precision.bin (K x d doubles each); atoms.bin, weights.bin and mean.bin
are written there.  ATOMS = 0 takes all observations as atoms.  Prints one line of JSON.

npeb's own ``solver`` argument hides cvxpy's, so that the choice of CLARABEL has to be bound to the
function that solves for the weights.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from npeb import GLMixture

CHOICE = 0


def main(folder: Path, n: int, d: int, n_atoms: int, steps: int) -> None:
    estimates = np.fromfile(folder / "estimates.bin").reshape(n, d)
    precision = np.fromfile(folder / "precision.bin").reshape(n, d)
    # The package gives the class the name of its module.
    module: Any = sys.modules["npeb.GLMixture"]
    module.solve_weights_cvx = functools.partial(module.solve_weights_cvx, solver="CLARABEL")
    atoms = None
    if n_atoms:
        atoms = estimates[np.random.default_rng(CHOICE).choice(n, n_atoms, replace=False)]
    model = GLMixture(prec_type="diagonal", atoms_init=atoms)
    began, wall = time.process_time(), time.perf_counter()
    model.fit(estimates, precision, max_iter_em=steps, row_condition=True)
    cpu, wall = time.process_time() - began, time.perf_counter() - wall
    found, weights = model.get_params()
    np.ascontiguousarray(found, dtype=float).tofile(folder / "atoms.bin")
    np.ascontiguousarray(weights, dtype=float).tofile(folder / "weights.bin")
    np.ascontiguousarray(model.posterior_mean(estimates, precision), dtype=float).tofile(folder / "mean.bin")
    versions = " ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("npeb", "cvxpy", "clarabel")
    )
    print("\n" + json.dumps({"cpu": cpu, "wall": wall, "versions": versions}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:6]))
