"""Draws of all clients together -> one quantity of interest -> answers with their expected errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.decisions.funnel import Funnel, funnel
from vaneb.decisions.grading import Grades, grade
from vaneb.decisions.selection import (
    Flags,
    Ranks,
    Selection,
    among_highest,
    directions,
    most_sure,
    rank_intervals,
    ranks_of,
)
from vaneb.errors import InvalidOption
from vaneb.likelihood.base import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from vaneb.posterior import Posterior

#: Draws, and numbers (draws, clients, parameters) that are kept at most; never fewer than FEWEST draws.
DRAWS, NUMBERS, FEWEST = 2_000, 4e7, 400


@dataclass(frozen=True, eq=False)
class JointPosterior:
    """Draws of all clients together, and what they said themselves.

    Parameters
    ----------
    draws : (S, K, d)
    ids, names : of clients and parameters
    own, own_covariance : (K, d), (K, d, d); infinite variances where a client's data say nothing
    n : (K,) or None, exposures behind rates
    counted : "poisson" or "binomial" where estimates are rates of something counted
    """

    draws: NDArray[Any]
    ids: tuple[str, ...]
    names: tuple[str, ...]
    own: Array
    own_covariance: Array
    n: Array | None = None
    counted: str | None = None

    @classmethod
    def of(cls, posterior: Posterior, draws: int | None = None, seed: int = 0) -> JointPosterior:
        """Draw from ``posterior``."""
        from vaneb.semidefinite import covariance_of_estimates

        clients, d = len(posterior), posterior.prior.dimension
        if draws is None:
            draws = max(FEWEST, min(DRAWS, int(NUMBERS / (clients * d))))
        _check(draws >= 100, f"draws {draws}: take 100 or more; {DRAWS} is the default")
        n, counted = _counts(posterior)
        return cls(
            posterior.sample(draws, np.random.default_rng(seed)),
            tuple(str(i) for i in posterior.ids) or tuple(str(k) for k in range(clients)),
            tuple(posterior.names),
            posterior.likelihood.local_estimates(),
            covariance_of_estimates(posterior.likelihood.local_precision()),
            n,
            counted,
        )

    @cached_property
    def leading(self) -> str:
        """The parameter in which clients differ most, beside what the median client does not know of it."""
        between = self.draws.std(axis=1).mean(axis=0)
        noise = np.sqrt(np.median(np.diagonal(self.own_covariance, axis1=1, axis2=2), axis=0))
        return self.names[int(np.argmax(between / np.maximum(noise, 1e-300)))]

    def decide(self, of: str | Mapping[str, float] | None = None) -> Decisions:
        """About one parameter, or a weighted sum of several such as ``{"treated": 1, "control": -1}``."""
        weights = {self.leading: 1.0} if of is None else {of: 1.0} if isinstance(of, str) else dict(of)
        _check(bool(weights), "of: name a parameter, or several with their weights")
        contrast = np.zeros(len(self.names))
        for name, weight in weights.items():
            _check(name in self.names, f"of {name!r}: there is no such parameter; choose {_some(self.names)}")
            _check(math.isfinite(weight), f"of {name!r}: its weight must be a finite number, not {weight}")
            contrast[self.names.index(name)] = weight
        _check(bool(contrast.any()), "of: all weights are zero")
        used = np.flatnonzero(contrast)
        with np.errstate(invalid="ignore"):
            covariance = self.own_covariance[:, used[:, None], used]
            variance = np.einsum("kij,i,j->k", covariance, contrast[used], contrast[used])
        plain = len(weights) == 1 and contrast[used[0]] == 1.0
        return Decisions(
            next(iter(weights)) if plain else _words(weights),
            self.ids,
            np.ascontiguousarray(self.draws[:, :, used] @ contrast[used].astype(self.draws.dtype)),
            self.own[:, used] @ contrast[used],
            np.sqrt(np.where(np.isfinite(variance), np.maximum(variance, 0.0), np.inf)),
            self.n if plain else None,
            self.counted if plain else None,
        )


@dataclass(frozen=True, eq=False, repr=False)
class Decisions:
    """Answers about one quantity of K clients.

    Parameters
    ----------
    name : of the quantity
    ids : (K,)
    values : (S, K), draws of all clients together
    own, own_error : (K,), each client's own estimate
    n, counted : see ``JointPosterior``
    """

    name: str
    ids: tuple[str, ...]
    values: NDArray[Any]
    own: Array
    own_error: Array
    n: Array | None = None
    counted: str | None = None

    def __repr__(self) -> str:
        return f"Decisions({self.name!r}, {len(self.ids):,} clients, {len(self.values):,} joint draws)"

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        return np.argsort(self.values, axis=1)

    @cached_property
    def _ranks(self) -> NDArray[np.int32]:
        return ranks_of(self.values, self._order)

    def highest(self, share: float = 0.1, *, wrong: float = 0.1) -> Selection:
        """Clients that are among the highest ``share`` of these clients.

        Parameters
        ----------
        share : of the clients, such as 0.1 for the highest tenth
        wrong : expected share of the chosen that is not among them (false discovery rate), at most
        """
        return self._extreme(self._ranks, share, wrong)

    def lowest(self, share: float = 0.1, *, wrong: float = 0.1) -> Selection:
        """Clients that are among the lowest ``share``; otherwise as ``highest``."""
        return self._extreme(len(self.ids) + 1 - self._ranks, share, wrong)

    def _extreme(self, ranks: NDArray[np.int32], share: float, wrong: float) -> Selection:
        _check(0 < share < 1, f"share {share:g}: must lie between 0 and 1; 0.1 is a tenth of the clients")
        _check_wrong(wrong)
        places = max(1, round(share * len(self.ids)))
        probability = among_highest(ranks, places)
        chosen, expected = most_sure(probability, wrong, places)
        return Selection(chosen, probability, places, expected)

    def flags(self, benchmark: float | None = None, *, margin: float = 0.0, wrong: float = 0.05) -> Flags:
        """Clients that are above or below a value, or the average of all the others.

        Parameters
        ----------
        benchmark : the value; by default each client is held against the average of the others
        margin : differences up to this count as none
        wrong : expected share of the flagged that do not lie where the flag says, at most
        """
        _check_wrong(wrong)
        _check(0 <= margin < math.inf, f"margin {margin:g}: must be zero or a positive number")
        if benchmark is None:
            total, others = self.values.sum(axis=1, keepdims=True), max(len(self.ids) - 1, 1)
            difference = self.values - (total - self.values) / others
        else:
            _check(math.isfinite(benchmark), f"benchmark {benchmark}: must be a finite number")
            difference = self.values - benchmark
        return directions(difference, margin, wrong)

    def ranks(self, level: float = 0.9) -> Ranks:
        """Each client's rank, 1 for the highest, with intervals that hold it with probability ``level``."""
        _check(0 < level < 1, f"level {level:g}: must lie between 0 and 1; 0.9 is a 90% interval")
        return rank_intervals(self._ranks, level)

    def grades(self, misordered: float = 0.05) -> Grades:
        """Ordered groups; of pairs in different ones, at most this share is expected in the wrong order."""
        _check(0 < misordered < 0.5, f"misordered {misordered:g}: must lie between 0 and 0.5; 0.05 is usual")
        return grade(self.values, self._order, self._ranks.mean(axis=0), misordered)

    def funnel(self, target: float | None = None) -> Funnel:
        """Own estimates beside what chance alone would do around ``target``, by default their average."""
        return funnel(self.own, self.own_error, self.n, self.counted, target)

    def ratio(self, target: float, level: float = 0.9) -> tuple[Array, Array, Array]:
        """Observed over expected as the posterior has it, value / target: mean, lower, upper, (K,) each."""
        _check(target > 0, f"target {target:g}: a ratio needs a positive one")
        lower, upper = self.interval(level)
        return self.values.mean(axis=0) / target, lower / target, upper / target

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Credible interval of the quantity, (K,), (K,)."""
        found = np.quantile(np.ascontiguousarray(self.values.T), [(1 - level) / 2, (1 + level) / 2], axis=1)
        return found[0], found[1]

    def answers(
        self,
        *,
        highest: float | None = None,
        lowest: float | None = None,
        benchmark: float | None = None,
        margin: float = 0.0,
        wrong: float = 0.05,
        misordered: float = 0.05,
        level: float = 0.9,
    ) -> Answers:
        """All answers at once; parameters as of the methods that give them one by one."""
        named = {
            side: getattr(self, side)(share, wrong=wrong)
            for side, share in (("highest", highest), ("lowest", lowest))
            if share is not None
        }
        flags = self.flags(benchmark, margin=margin, wrong=wrong)
        ranks, grades = self.ranks(level), self.grades(misordered)
        return Answers(level, named, flags, ranks, grades, self.funnel(benchmark))

    def table(self, **asked: Any) -> pa.Table:
        """``answers(**asked)``, one row for each client."""
        from vaneb.decisions.saved import answers_table

        return answers_table(self, self.answers(**asked))


class Answers(NamedTuple):
    """What ``Decisions.answers`` found."""

    level: float
    named: dict[str, Selection]
    """``highest`` and ``lowest``, where they were asked for."""
    flags: Flags
    ranks: Ranks
    grades: Grades
    funnel: Funnel


def _counts(posterior: Posterior) -> tuple[Array | None, str | None]:
    """Exposures and what is counted, where one rate of each client was given with its variance function."""
    from vaneb.covariance import QuadraticVariance

    function, n = (getattr(posterior.likelihood, name, None) for name in ("covariance", "n"))
    if isinstance(function, QuadraticVariance) and function.dimension == 1:
        for name, curve in (("poisson", (0.0, 1.0, 0.0)), ("binomial", (0.0, 1.0, -1.0))):
            if np.array_equal(function.coefficients[0], curve):
                return np.asarray(n, dtype=np.float64), name
    return None, None


def _check(fine: bool, message: str) -> None:
    if not fine:
        raise InvalidOption(message)


def _check_wrong(wrong: float) -> None:
    _check(0 < wrong < 1, f"wrong {wrong:g}: must lie between 0 and 1; 0.05 lets one in twenty be wrong")


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _words(weights: Mapping[str, float]) -> str:
    """``a - 2 b``"""
    parts: list[str] = []
    for name, weight in weights.items():
        size = "" if abs(weight) == 1 else f"{abs(weight):g} "
        sign = ("-" if weight < 0 else "") if not parts else (" - " if weight < 0 else " + ")
        parts.append(f"{sign}{size}{name}")
    return "".join(parts)
