"""The likelihood of clients that are elsewhere: every question of a solver is an exchange.

Each client answers for itself, from its covariance function or its rows, neither of which leaves it.  Solvers
do not know the difference, so that any of them runs over a network, and finds what it would find with all
clients in one place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.flower.exchange import Line, Lost
from vaneb.flower.wire import Tree, check_array
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.likelihood.seam import Array, Ascent, Clients
from vaneb.sums import Sums


@dataclass(frozen=True)
class RemoteLikelihood(Clients):
    """K clients behind a line, as a solver sees them.

    Parameters
    ----------
    nodes : where the clients are.
    names : of the d parameters.
    local : estimate, precision and peak of each client, asked for once and shared with parts.
    """

    line: Line
    nodes: tuple[int, ...]
    names: tuple[str, ...]
    local: dict[int, Tree] = field(default_factory=dict)

    is_gaussian: ClassVar[bool] = True
    is_report: ClassVar[bool] = True

    @property
    def n_clients(self) -> int:
        return len(self.nodes)

    @property
    def dimension(self) -> int:
        return len(self.names)

    def log_likelihood(self, atoms: Array) -> Array:
        answers = self._ask({"kind": "log_likelihood", "atoms": atoms})
        return self._stack(answers, "values", (len(atoms),))

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> Ascent:
        question = {"kind": "ascent", "atoms": atoms, "frozen": frozen, "curvature": curvature}
        own = {node: {"log_weight": float(log_weights[k])} for k, node in enumerate(self.nodes)}
        answers = self._ask(question, own)
        m, d = atoms.shape
        diagonal = _shape(answers, "information") == (m, d)
        information = self._stack(answers, "information", (m, d) if diagonal else (m, d, d))
        outer = self._stack(answers, "outer", (m, d, d)).sum(axis=0) if curvature else None
        value = self._stack(answers, "value", (m,)).sum(axis=0)
        return Ascent(
            value, self._stack(answers, "gradient", (m, d)).sum(axis=0), outer, information.sum(axis=0)
        )

    def sums(self, atoms: Array, weights: Array) -> Sums:
        """What a step of pseudo-EM needs, in one exchange."""
        m, d = atoms.shape
        answers = self._ask({"kind": "sums", "atoms": atoms, "weights": weights})
        shapes: dict[str, tuple[int, ...]] = {"share": (m,), "gradient": (m, d), "information": (m, d, d)}
        total = {key: self._stack(answers, key, shape).sum(axis=0) for key, shape in shapes.items()}
        return Sums(float(self._stack(answers, "log_density", ()).sum()), **total)

    def take(self, rows: NDArray[np.intp] | slice) -> RemoteLikelihood:
        return replace(self, nodes=tuple(np.asarray(self.nodes, dtype=np.uint64)[rows].tolist()))

    def peak(self) -> Array:
        return self._stack(self._local(), "peak", (1,))[:, 0]

    def at(self, points: Array) -> Array:
        return self.expanded(None).at(points)

    def expanded(self, points: Array | None) -> ConstantGaussian:
        """The Gaussian at each client's own estimate, wherever ``points`` are: that costs no exchange."""
        return ConstantGaussian(self.local_estimates(), self.local_precision())

    def local_estimates(self) -> Array:
        return self._stack(self._local(), "estimate", (self.dimension,))

    def local_precision(self) -> Array:
        d = self.dimension
        answers = self._local()
        diagonal = _shape(answers, "precision") == (d,)
        return self._stack(answers, "precision", (d,) if diagonal else (d, d))

    def _local(self) -> dict[int, Tree]:
        """Each client's own point, its precision and its peak."""
        known = self.local
        missing = tuple(node for node in self.nodes if node not in known)
        if missing:
            known.update(replace(self, nodes=missing)._ask({"kind": "local"}))
        return {node: known[node] for node in self.nodes}

    def _ask(
        self, question: Mapping[str, Any], own: Mapping[int, Mapping[str, Any]] | None = None
    ) -> dict[int, Tree]:
        questions = {node: {**question, **(own or {}).get(node, {})} for node in self.nodes}
        return self.line.ask_all("evaluate", questions, about=question["kind"])

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
