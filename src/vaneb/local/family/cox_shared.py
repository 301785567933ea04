"""Proportional hazards with one baseline for all clients: hazard h(t) exp(z' theta_k), z with an intercept.

Where the cumulative baseline H is known, a row that was at risk from t_0 to t counts like a Poisson response:
its events, 0 or 1, have mean (H(t) - H(t_0)) e^eta.  H is Breslow's: it rises at the time of each event by

    events / sum of E[e^eta] over the rows at risk,

with the clients' theta under a Gaussian population, estimated in turn with H until H settles.  The intercept
of a client is the logarithm of its hazard relative to the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Array
from vaneb.local.family.cox import Cox
from vaneb.local.family.poisson import Poisson
from vaneb.local.objective import Objective, RowsObjective

if TYPE_CHECKING:
    from vaneb.local.fit import LocalFits

#: H has settled when it changes by less than this share; or after so many rounds.
SETTLED, ROUNDS = 1e-3, 20


@dataclass(frozen=True, eq=False)
class CoxShared(Cox):
    """Cox's proportional hazards with one baseline hazard for all clients."""

    name: ClassVar[str] = "cox-shared"
    has_intercept: ClassVar[bool] = True

    times: Array = field(default_factory=lambda: np.zeros(0))
    """Times of events in rising order, (T,)."""
    cumulative: Array = field(default_factory=lambda: np.zeros(0))
    """H at these times, (T,)."""

    @classmethod
    def for_rows(cls, rows: GroupedRows, n_classes: int = 0) -> Self:
        """With the baseline of one Cox model of all rows."""
        from vaneb.local.fit import fit_pooled

        Cox().check(rows)
        theta = fit_pooled(rows.pooled(), Cox()).theta[0]
        return cls()._with_risks(rows, np.exp(rows.design @ theta + rows.offset))

    def _with_risks(self, rows: GroupedRows, risk: Array) -> Self:
        """Breslow's H, where rows have these e^eta (N,)."""
        entry, stop, event = rows.response.T
        died, share = (event > 0) & (rows.weight > 0), risk * rows.weight
        times, at = np.unique(stop[died], return_inverse=True)
        deaths = np.bincount(at, weights=rows.weight[died], minlength=len(times))
        # At risk at t: left at t or later, without those who entered at t or later.
        at_risk = _total_from(times, stop, share) - _total_from(times, entry, share)
        return replace(self, times=times, cumulative=np.cumsum(deaths / np.maximum(at_risk, 1e-300)))

    def exposure(self, response: Array) -> Array:
        """H(t) - H(t_0) of rows, (N,)."""
        height = np.concatenate([[0.0], self.cumulative])
        entry, stop = (np.searchsorted(self.times, t, side="right") for t in response.T[:2])
        return height[stop] - height[entry]

    def objective(self, rows: GroupedRows) -> Objective:
        """The losses of Poisson responses, given the baseline."""
        exposure = self.exposure(rows.response)
        seen = exposure > 0
        # Rows that left before the first event say nothing.
        offset = rows.offset + np.log(np.where(seen, exposure, 1.0))
        events = replace(rows, response=rows.response[:, 2], offset=offset, weight=rows.weight * seen)
        return RowsObjective(events, Poisson())

    def pooled_objective(self, rows: GroupedRows) -> Objective:
        return self.objective(rows.pooled())

    def estimated(self, rows: GroupedRows, fits: LocalFits, basis: Array) -> tuple[Self, tuple[str, ...]]:
        from vaneb.local.marginal import Population, laplace

        family = self
        latest: Population | None = None
        design, client = rows.design @ basis, rows.client_of_row
        for _ in range(ROUNDS):
            latest = laplace(rows, family, basis, latest)
            index = np.einsum("np,np->n", design, latest.modes[client]) + rows.offset
            variance = np.einsum("np,npq,nq->n", design, latest.covariance[client], design)
            before, family = family, family._with_risks(rows, np.exp(index + variance / 2))
            if np.allclose(family.cumulative, before.cumulative, rtol=SETTLED, atol=0):
                break
        return family, ()

    def client_scores(self, rows: GroupedRows, mean: Array) -> Array:
        """Poisson's deviance of the events of each client, per row."""
        expected = np.maximum(self.exposure(rows.response) * mean, 1e-12)
        return Poisson().client_scores(replace(rows, response=rows.response[:, 2]), expected)


def _total_from(times: Array, at: Array, share: Array) -> Array:
    """Sum of ``share`` over rows whose ``at`` is not before each of ``times``, (T,)."""
    order = np.argsort(at)
    total = np.concatenate([[0.0], np.cumsum(share[order])])
    return total[-1] - total[np.searchsorted(at[order], times, side="left")]
