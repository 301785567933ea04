"""Weights alone: three reference problems with known optima, against mixsqp.

Ours is asked for a gap of 1e-7.  Gaps are recomputed here over all columns, for both sides.  We are timed
before mixsqp and after it, and the slower of the two stands in the ratio.  The matrix is read before the
clock starts, on both sides; both use one thread of OpenBLAS.

``square`` is not given to mixsqp: it did not end within 15 minutes when it was tried.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import measure
import numpy as np
import problems
from measure import Row
from problems import Array

TOLERANCE, REPEATS = 1e-7, 3
MIXSQP_PROBLEMS = ("tall", "grid")
OPENBLAS = "/usr/lib/x86_64-linux-gnu/libopenblas.so.0"


def run(options) -> Iterator[Row]:
    if options.data is not None:
        options.data.mkdir(parents=True, exist_ok=True)
    for name in problems.MATRICES:
        likelihood = problems.matrix(name)
        weights, before = ours_timed(likelihood)
        yield {"problem": name, "what": "vaneb", "cpu": before, **judged(name, likelihood, weights)}
        if name not in MIXSQP_PROBLEMS:
            continue
        if shutil.which("Rscript") is None:
            measure.say("mixsqp is left out: there is no Rscript (Debian: r-base-core r-cran-mixsqp)")
            continue
        with tempfile.TemporaryDirectory() if options.data is None else nullcontext(options.data) as folder:
            said, theirs = mixsqp_timed(likelihood, Path(folder) / f"{name}.bin")
        _, after = ours_timed(likelihood)
        slower = max(before, after)
        yield {
            "problem": name,
            "what": "mixsqp",
            "cpu": said["cpu"],
            "ours": slower,
            "ratio": said["cpu"] / slower,
            "status": said["status"],
            "competitor": said["versions"],
            **judged(name, likelihood, theirs),
        }


def ours_timed(likelihood: Array) -> tuple[Array, float]:
    from vaneb.npmle.weights import npmle_weights

    solved, cpu = measure.fastest(lambda: npmle_weights(likelihood, tol=TOLERANCE), REPEATS)
    return solved.weights, cpu


def judged(name: str, likelihood: Array, weights: Array) -> Row:
    """Gap over all columns, and distance of -mean log(L w) from the known optimum."""
    weights = np.maximum(weights, 0.0) / np.maximum(weights, 0.0).sum()
    value = -float(np.log(likelihood @ weights).mean())
    return {
        "gap": float(problems.gaps(likelihood, weights).max()),
        "above_optimum": value - problems.OPTIMUM[name],
        "atoms": int((weights > 1e-6).sum()),
    }


def mixsqp_timed(likelihood: Array, file: Path) -> tuple[Row, Array]:
    n, m = likelihood.shape
    result = file.with_suffix(".weights")
    np.asfortranarray(likelihood).ravel(order="F").tofile(file)
    # Debian's R takes the reference BLAS unless told otherwise.
    preload = {"LD_PRELOAD": OPENBLAS} if os.path.exists(OPENBLAS) else {}
    command = ["Rscript", str(measure.HERE / "mixsqp.R"), str(file), str(n), str(m), str(result)]
    said = measure.child(command, **preload)
    return said, np.fromfile(result)
