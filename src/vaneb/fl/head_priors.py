"""What an empirical Bayes step of heads left in a folder, and how to look at it.  Torch is not needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class HeadPrior:
    """What an empirical Bayes step left in a stage's folder.

    Parameters
    ----------
    title : which method and setting.
    reported, posterior : (K, d), the clients' heads before and after.
    atoms : (m, d)
    weights : (m,)
    responsibilities : (K, m)
    """

    title: str
    reported: Array
    posterior: Array
    atoms: Array
    weights: Array
    responsibilities: Array


def read_head_priors(output: Path) -> Iterator[HeadPrior]:
    """The priors of all stages in a run's folder that have one; a file that is being written is left out."""
    for file in sorted((output / "stages").glob("*/info.npz")):
        try:
            title = json.loads((file.parent / "stage.json").read_text())["title"]
            with np.load(file, allow_pickle=False) as content:
                names = ("reported", "posterior", "atoms", "weights", "responsibilities")
                arrays = {name: content[f"tensor/{name}"].astype(np.float64) for name in names}
        except (OSError, KeyError, ValueError):
            continue
        yield HeadPrior(title, **arrays)


class Axes(NamedTuple):
    """Principal directions."""

    centre: Array
    """(d,)."""
    directions: Array
    """(d, q), the first one first."""
    shares: Array
    """(q,), of the total variance."""

    def of(self, points: Array) -> Array:
        """Coordinates (..., q)."""
        return (points - self.centre) @ self.directions


def principal_axes(points: Array, count: int) -> Axes:
    """The first ``count`` principal directions of points (K, d), or as many as there are, but at least one.

    From the K x K Gram matrix: d may be the number of weights of a network.
    """
    centre = points.mean(0)
    values, vectors = np.linalg.eigh((points - centre) @ (points - centre).T)
    count = int(np.clip((values > 1e-12 * max(values[-1], 1e-300)).sum(), 1, count))
    top = vectors[:, -count:][:, ::-1] / np.sqrt(np.maximum(values[-count:][::-1], 1e-300))
    shares = values[-count:][::-1] / max(values.sum(), 1e-300)
    return Axes(centre, (points - centre).T @ top, shares)
