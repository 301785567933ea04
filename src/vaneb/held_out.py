"""How well kinds of populations predict clients that they have not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.estimators import POPULATIONS, VANEB, as_likelihood
from vaneb.likelihood.base import Array
from vaneb.population.options import Options
from vaneb.population.sampler import canonical_order

#: The default population first, then what it is compared with.
KINDS = ("mixture", "gaussian", "discrete")


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """Log densities of clients' reports under populations learnt from other clients.

    Parameters
    ----------
    kinds : kinds of populations
    log_density : (kinds, K)
    """

    kinds: tuple[str, ...]
    log_density: Array

    def lead(self, kind: str, over: str) -> tuple[float, float]:
        """Average lead of one kind over another, and its standard error over clients."""
        gain = self.log_density[self.kinds.index(kind)] - self.log_density[self.kinds.index(over)]
        return float(gain.mean()), float(gain.std(ddof=1) / np.sqrt(len(gain)))

    def __str__(self) -> str:
        """The first kind beside the others, in words."""
        first, *others = self.kinds
        said = []
        for other in others:
            lead, error = self.lead(first, other)
            word = "level with" if abs(lead) < 2 * error else "ahead of" if lead > 0 else "behind"
            said.append(f"{word} {other} ({lead:+.3g} ± {error:.1g})")
        return f"held-out log density, {first}: " + ", ".join(said)


def held_out_scores(
    clients: Any,
    kinds: Sequence[str] = KINDS,
    *,
    folds: int = 2,
    seed: int = 0,
    options: Options | None = None,
) -> HeldOutScores:
    """Learn each kind of population without one fold of the clients, and score that fold; all folds in turn.

    Parameters
    ----------
    clients : ``Reports``, or any likelihood
    kinds : of "mixture", "gaussian" and "discrete"
    folds : parts of the clients; folds do not depend on the order of the clients
    """
    likelihood = as_likelihood(clients)
    n = likelihood.n_clients
    if unknown := [kind for kind in kinds if kind not in POPULATIONS]:
        raise InvalidOption(f"no population {unknown[0]!r}: choose of {', '.join(POPULATIONS)}")
    if not 2 <= folds <= n:
        raise InvalidReport(f"{folds} folds of {n} clients: there must be at least as many clients as folds")
    rank = np.empty(n, dtype=np.intp)
    rank[canonical_order(likelihood.expanded(None))] = np.random.default_rng([seed, 5]).permutation(n)
    fold = rank % folds
    scores = np.empty((len(kinds), n))
    for i in range(folds):
        inside, outside = np.flatnonzero(fold == i), np.flatnonzero(fold != i)
        for j, kind in enumerate(kinds):
            model = VANEB(kind, seed=seed, options=options).fit(likelihood.take(outside))
            scores[j, inside] = model.personalize(likelihood.take(inside)).log_marginal
    return HeldOutScores(tuple(kinds), scores)
