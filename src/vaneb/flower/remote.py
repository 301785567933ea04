"""Clients that are elsewhere: every question of Algorithm 1 is an exchange.

Each client answers for itself, from its covariance function or its rows, neither of which leaves it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from vaneb.errors import InvalidReport
from vaneb.flower.exchange import Line, Lost
from vaneb.flower.wire import Tree, check_array
from vaneb.likelihood.seam import Array
from vaneb.sums import Sums


@dataclass(frozen=True)
class RemoteClients:
    """K clients behind a line, as Algorithm 1 sees them.

    Parameters
    ----------
    nodes : where the clients are.
    names : of the d parameters.
    """

    line: Line
    nodes: tuple[int, ...]
    names: tuple[str, ...]

    def log_likelihood(self, atoms: Array) -> Array:
        answers = self._ask({"kind": "log_likelihood", "atoms": atoms})
        return self._stack(answers, "values", (len(atoms),))

    def sums(self, atoms: Array, weights: Array) -> Sums:
        """What a step of pseudo-EM needs, in one exchange."""
        m, d = atoms.shape
        answers = self._ask({"kind": "sums", "atoms": atoms, "weights": weights})
        shapes: dict[str, tuple[int, ...]] = {"share": (m,), "gradient": (m, d), "information": (m, d, d)}
        total = {key: self._stack(answers, key, shape).sum(axis=0) for key, shape in shapes.items()}
        return Sums(float(self._stack(answers, "log_density", ()).sum()), **total)

    def local_estimates(self) -> Array:
        return self._stack(self._local, "estimate", (len(self.names),))

    def local_precision(self) -> Array:
        d = len(self.names)
        diagonal = _shape(self._local, "precision") == (d,)
        return self._stack(self._local, "precision", (d,) if diagonal else (d, d))

    @cached_property
    def _local(self) -> dict[int, Tree]:
        """Each client's own point and its precision."""
        return self._ask({"kind": "local"})

    def _ask(self, question: Mapping[str, Any]) -> dict[int, Tree]:
        return self.line.ask_all("evaluate", dict.fromkeys(self.nodes, question), about=question["kind"])

    def _stack(self, answers: dict[int, Tree], key: str, shape: tuple[int, ...]) -> Array:
        """(K, *shape) in the order of ``nodes``; ``Lost`` names clients that sent something else."""
        parts, bad = [], {}
        for node in self.nodes:
            try:
                parts.append(check_array(answers[node].get(key), shape, key))
            except InvalidReport as error:
                bad[node] = str(error)
        if bad:
            raise Lost(bad)
        return np.stack(parts)


def _shape(answers: dict[int, Tree], key: str) -> tuple[int, ...]:
    """The shape that most of the answers have: one client must not decide for the others."""
    shapes: Counter[tuple[int, ...]] = Counter()
    for answer in answers.values():
        value = answer.get(key)
        if isinstance(value, np.ndarray):
            shapes[value.shape] += 1
        elif isinstance(value, list):
            shapes[(len(value),)] += 1
    return shapes.most_common(1)[0][0] if shapes else ()
