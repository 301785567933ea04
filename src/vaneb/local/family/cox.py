"""Cox's proportional hazards: hazard h_k(t) exp(z' theta_k), the baseline h_k of each client any function.

A client's loss is minus its partial log-likelihood, with Efron's way of ties; so theta_k is all that is
estimated, and nothing is said of when events happen, only of their order within the client.  The design has
no intercept: the baseline is it.  A response is three numbers: time of entry, time of leaving, and 1 for an
event or 0 for censoring.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import map_blocks
from vaneb.errors import InvalidReport
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import SURVIVAL, Array, Family
from vaneb.local.family.cox_kernels import concordant_pairs, cox_climbs, cox_sums
from vaneb.local.family.links import Link
from vaneb.local.objective import RECESSION_TOLERANCE, Clients, Objective, Terms, Together

#: Relative risks.  Their average over an uncertain index is taken at its middle, which keeps their order.
RISK = Link(np.exp, lambda e, v: np.exp(e))
#: Time of entry of rows that are at risk from the beginning.
ALWAYS = -1.0
#: Information below this share of the largest square of a covariate is none.
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Cox(Family):
    """Cox's proportional hazards with a baseline hazard for each client."""

    name: ClassVar[str] = "cox"
    link: ClassVar[Link] = RISK
    takes: ClassVar[str] = SURVIVAL
    rule: ClassVar[str] = "Surv(time, event)"
    score_name: ClassVar[str] = "1 - concordance"
    has_intercept: ClassVar[bool] = False
    by_row: ClassVar[bool] = False

    def check(self, rows: GroupedRows) -> None:
        if rows.response.ndim != 2 or rows.response.shape[1] != 3:
            raise InvalidReport(
                "response: the cox family takes three numbers for each row: entry, time and event"
            )
        entry, time, event = rows.response.T
        for wrong, what in (
            (entry >= time, "leaves at {1:g}, not after it entered at {0:g}"),
            ((event != 0) & (event != 1), "has event {2:g}, which is neither 0 nor 1"),
        ):
            if wrong.any():
                at = int(np.argmax(wrong))
                raise InvalidReport(f"client {rows.owner(at)!r}: a row {what.format(*rows.response[at])}")

    def simulate(self, index: Array, rng: np.random.Generator, weight: Array | None = None) -> Array:
        """Times of events with a baseline hazard of 1, (N, 3)."""
        time = rng.exponential(np.exp(-index))
        return np.column_stack([np.full(len(time), ALWAYS), time, np.ones(len(time))])

    def objective(self, rows: GroupedRows) -> Objective:
        return CoxObjective(rows)

    def pooled_objective(self, rows: GroupedRows) -> Objective:
        """One theta for all clients, and a baseline hazard for each."""
        return Together(CoxObjective(rows))

    @classmethod
    def score(
        cls,
        response: Array,
        mean: Array,
        weight: Array | None = None,
        group: NDArray[np.object_] | None = None,
    ) -> float:
        """Share of pairs of rows in the wrong order.

        Pairs of one client only, where ``group`` is given and each client has a baseline of its own.
        """
        labels = np.zeros(len(mean), dtype=np.intp)
        if group is not None and not cls.has_intercept:
            labels = np.unique(group, return_inverse=True)[1]
        order = np.argsort(labels, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(labels))])
        entry, time, event = np.ascontiguousarray(response[order].T)
        pairs, right = concordant_pairs(entry, time, event, mean[order], starts)
        return float(1 - right / pairs) if pairs else float("nan")

    def client_scores(self, rows: GroupedRows, mean: Array) -> Array:
        """Minus the partial log-likelihood of each client, per row."""
        given = replace(rows, design=np.zeros((len(mean), 1)), offset=np.log(mean))
        everyone = np.arange(rows.n_clients)
        return CoxObjective(given).values(np.zeros((rows.n_clients, 1)), everyone) / rows.n_rows


@dataclass(frozen=True)
class CoxObjective(Objective):
    """Minus the partial log-likelihood of each client; see ``vaneb.local.objective.Objective``."""

    rows: GroupedRows

    @property
    def n_clients(self) -> int:
        return self.rows.n_clients

    @property
    def dimension(self) -> int:
        return self.rows.design.shape[1]

    @cached_property
    def _sorted(self) -> tuple[Array, Array, Array, Array, Array, Array]:
        """Design, entry, time, event, weight and offset, by falling time within clients."""
        rows = self.rows
        order = np.lexsort((-rows.response[:, 1], rows.client_of_row))
        entry, time, event = np.ascontiguousarray(rows.response[order].T)
        # The level of a covariate does not matter, and sums are more exact about zero.
        mean = np.add.reduceat(rows.design, rows.starts[:-1], axis=0) / rows.n_rows[:, None]
        design = np.ascontiguousarray((rows.design - mean[rows.client_of_row])[order])
        return design, entry, time, event, rows.weight[order], rows.offset[order]

    @cached_property
    def _by_entry(self) -> NDArray[np.intp]:
        return np.lexsort((-self._sorted[1], self.rows.client_of_row))

    def _sums(self, theta: Array, clients: Clients, second: bool) -> Terms:
        def block(part: slice) -> Terms:
            where = self._by_entry, self.rows.starts, clients[part]
            return cox_sums(*self._sorted, *where, np.ascontiguousarray(theta[part]), second)

        value, gradient, hessian = zip(*map_blocks(block, len(clients)), strict=True)
        return np.concatenate(value), np.concatenate(gradient), np.concatenate(hessian)

    def terms(self, theta: Array, clients: Clients) -> Terms:
        value, gradient, hessian = self._sums(theta, clients, True)
        # A covariate that is the same for all at risk has no information; what sums leave of it is rounding.
        none = np.einsum("kii->ki", hessian) <= ROUNDING * (self._sorted[0] ** 2).max(axis=0)
        gradient[none] = 0.0
        hessian[none[:, :, None] | none[:, None, :]] = 0.0
        return value, gradient, hessian

    def values(self, theta: Array, clients: Clients) -> Array:
        return self._sums(theta, clients, False)[0]

    @cached_property
    def metric(self) -> Array:
        """Mean variance of the covariates among the rows at risk at an event."""
        hessian = self.terms(self.start(), np.arange(self.n_clients))[2]
        events = np.add.reduceat(self.rows.response[:, 2] * self.rows.weight, self.rows.starts[:-1])
        return hessian / np.where(events > 0, events, 1.0)[:, None, None]

    def recedes(self, direction: Array, clients: Clients) -> NDArray[np.bool_]:
        """Does every event happen to a row whose hazard rises at least as fast as the others' at risk?"""
        place = np.zeros(self.n_clients, dtype=np.intp)
        place[clients] = np.arange(len(clients))
        design, entry, time, event, weight, _ = self._sorted
        along = np.einsum("np,np->n", design, direction[place[self.rows.client_of_row]])
        worst, apart = cox_climbs(along, entry, time, event, weight, self.rows.starts, clients)
        return (apart > 0) & (worst <= RECESSION_TOLERANCE * apart)

    def take(self, clients: Clients | slice) -> Self:
        return replace(self, rows=self.rows.take(clients))
