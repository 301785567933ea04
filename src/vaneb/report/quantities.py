"""What a page shows of each client: its parameters, and the outcome itself on the scale that people know.

A quantity is g^{-1}(c' theta + offset): c picks a parameter, or is the average row of the data, whose
expected outcome is a rate (logit), a count (log) or a mean (identity).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from vaneb.decisions import Decisions, JointPosterior
from vaneb.decisions.funnel import funnel
from vaneb.likelihood.base import Array
from vaneb.report.embed import numbers
from vaneb.semidefinite import standard_errors

if TYPE_CHECKING:
    from vaneb.grouped.analysis import GroupedFit
    from vaneb.posterior import Posterior

#: Numbers (draws, clients, parameters) behind a page, and draws at least.
NUMBERS, FEWEST = 1e7, 400
#: Points of each limit of a funnel plot.
LIMIT_POINTS = 121
LINKS = {"gaussian": "identity", "huber": "identity", "binomial": "logit", "poisson": "log", "gamma": "log"}
INVERSE = {"identity": lambda x: x, "logit": expit, "log": np.exp, "ratio": np.exp}
INTERCEPT = "Intercept"
LABELS = {"binomial": "cases", "poisson": "exposure", None: "precision (1 / standard error)"}


@dataclass(frozen=True, eq=False)
class Quantity:
    """One number of each client."""

    name: str
    contrast: Array
    """(d,)"""
    offset: float = 0.0
    link: str = "identity"
    percent: bool = False
    parameter: int | None = None
    """Its place among the parameters, where it is one."""


def outcome_of(fit: GroupedFit) -> Quantity | None:
    """The expected response of the average row, where it is one number."""
    link = LINKS.get(fit.local.family.name)
    if link is None:
        return None
    average = fit.rows.design.mean(axis=0)
    kind = {"logit": "rate of", "log": "mean", "identity": "mean"}[link]
    name = f"{kind} {fit.design.formula.response.partition('|')[0].strip()}"
    beside = " at average covariates" if len(average) > 1 else ""
    return Quantity(f"{name}{beside}", average, float(fit.rows.offset.mean()), link, percent=link == "logit")


def ratio_of(name: str) -> Quantity:
    """A ratio, whose logarithm is the only parameter."""
    return Quantity(name, np.ones(1), link="ratio")


def joint_of(posterior: Posterior) -> JointPosterior:
    """Draws for a page."""
    size = posterior.prior.dimension * len(posterior)
    return JointPosterior.of(posterior, max(FEWEST, min(2_000, int(NUMBERS / size))))


def quantities_of(joint: JointPosterior, shown: tuple[int, ...], outcome: Quantity | None) -> list[Quantity]:
    """The outcome first, then the parameters."""
    unit = np.eye(len(joint.names))
    percent = joint.counted == "binomial"
    made = [Quantity(joint.names[i], unit[i], percent=percent, parameter=i) for i in shown]
    return made if outcome is None else [outcome, *made]


class ShownQuantity:
    """A quantity of all clients: own and personalised, with intervals, flags and ranks."""

    def __init__(
        self,
        quantity: Quantity,
        posterior: Posterior,
        joint: JointPosterior,
        limits: tuple[Any, Any],
        level: float,
    ) -> None:
        self.quantity, z = quantity, float(ndtri((1 + level) / 2))
        inverse = INVERSE[quantity.link]
        of = {name: float(w) for name, w in zip(joint.names, quantity.contrast, strict=True) if w}
        plain = joint.decide(of or {joint.names[0]: 1.0})
        with np.errstate(over="ignore"):
            values = inverse(plain.values + quantity.offset)
        self.link_own = np.where(np.isfinite(plain.own_error), plain.own + quantity.offset, np.nan)
        self.link_error = plain.own_error
        with np.errstate(over="ignore", invalid="ignore"):
            self.own = inverse(self.link_own)
            self.own_lower, self.own_upper = (
                inverse(self.link_own + s * z * self.link_error) for s in (-1, 1)
            )
        i = quantity.parameter
        if i is not None:
            self.mean, self.sd = posterior.mean[:, i], posterior.sd[:, i]
            self.lower, self.upper = limits[0][:, i], limits[1][:, i]
            # A report whose data leave this parameter open has no error here, though a contrast might.
            error = standard_errors(posterior.likelihood.local_precision())[:, i]
            self.link_error = np.where(np.isfinite(error), error, np.inf)
            self.own = np.where(np.isfinite(error), self.own, np.nan)
        else:
            self.mean, self.sd = values.mean(axis=0), values.std(axis=0)
            if quantity.link == "ratio":  # as people read ratios: what the logarithm's mean says
                self.mean = inverse(plain.values.mean(axis=0))
            tails = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
            self.lower, self.upper = tails[0], tails[1]
        if joint.counted is not None:
            top = 1.0 if joint.counted == "binomial" else np.inf
            self.own_lower, self.own_upper = (np.clip(v, 0, top) for v in (self.own_lower, self.own_upper))
        # Ratios are compared as logarithms, as `vaneb decide` would.
        compared, own = (plain.values, self.link_own) if quantity.link == "ratio" else (values, self.own)
        self.decisions = Decisions(
            quantity.name, joint.ids, compared, own, self.link_error, plain.n, plain.counted
        )
        self.flags = self.decisions.flags()
        self.ranks = self.decisions.ranks(level)

    @property
    def between(self) -> float:
        """Differences between clients, beside what the median client does not know by itself."""
        spread = float(self.decisions.values.std(axis=1).mean())
        own = self.own_upper - self.own_lower
        finite = own[np.isfinite(own)]
        return spread / max(float(np.median(finite)) if len(finite) else 1.0, 1e-300)

    def content(self, clients: NDArray[np.intp]) -> dict[str, Any]:
        """For the page; columns over ``clients``."""
        columns = {
            "own": self.own,
            "own_lower": self.own_lower,
            "own_upper": self.own_upper,
            "error": self.link_error if self.quantity.link == "identity" else np.full(len(self.own), np.nan),
            "mean": self.mean,
            "sd": self.sd,
            "lower": self.lower,
            "upper": self.upper,
            "differs": self.flags.direction,
            "rank": self.ranks.expected.round(1),
            "rank_lower": self.ranks.lower,
            "rank_upper": self.ranks.upper,
        }
        return {name: numbers(values[clients]) for name, values in columns.items()}

    def funnel(self, clients: NDArray[np.intp]) -> dict[str, Any] | None:
        """Own estimates by how precise they are, with the limits of chance."""
        known = np.isfinite(self.link_error) & np.isfinite(self.link_own) & (self.link_error > 0)
        if known.sum() < 2:
            return None
        on_link = Decisions("", self.decisions.ids, self.decisions.values, self.link_own, self.link_error,
                            self.decisions.n, self.decisions.counted)  # fmt: skip
        found, inverse = on_link.funnel(), INVERSE[self.quantity.link]
        exposure = found.expected is not None and self.decisions.n is not None
        at = self.decisions.n if exposure else 1 / np.where(known, found.error, np.nan)
        assert at is not None
        shown = clients[known[clients]]
        # The limits of clients as large as any between the smallest and the largest.
        size = np.geomspace(at[shown].min(), at[shown].max(), LIMIT_POINTS) if len(shown) else np.ones(1)
        size = np.unique(np.round(size)) if self.decisions.counted == "binomial" and exposure else size
        counted = self.decisions.counted if exposure else None
        chance = funnel(np.full(len(size), found.target), 1 / size, size, counted, found.target)
        outside = np.where(known, found.outside, 0)
        return {
            "target": numbers(inverse(np.array(found.target))),
            "clients": [int(k) for k in np.flatnonzero(known[clients])],
            "x": numbers(at[shown]),
            "label": LABELS[counted],
            "limits": {
                "x": numbers(size),
                "lower": numbers(inverse(chance.lower)),
                "upper": numbers(inverse(chance.upper)),
            },
            "outside": [int((outside >= 1).sum()), int((outside >= 2).sum())],
        }
