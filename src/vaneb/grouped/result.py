"""What a fit of grouped rows gives back: each client's coefficients, the population, and predictions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.estimators import VANEB
from vaneb.grouped import frames
from vaneb.grouped.design import Design, DesignRows
from vaneb.grouped.fixed import FixedEffects
from vaneb.grouped.models import LocalModel
from vaneb.grouped.population import client_reports
from vaneb.grouped.predictive import expected_response
from vaneb.grouped.scores import HeldOut
from vaneb.local.data import GroupedRows
from vaneb.posterior import Posterior
from vaneb.prior import Prior
from vaneb.reports import Reports

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GroupedFit:
    """What was learned from grouped rows.

    Clients are in the order of their ids, whatever the order of the rows.
    """

    design: Design
    rows: GroupedRows
    """Rows of the fit."""
    local: LocalModel
    model: VANEB
    posterior: Posterior
    likelihood: str
    """"exact" or "gaussian"."""
    level: float
    dropped: int
    """Rows left out because a value was missing."""
    held_out: HeldOut | None
    whole_ids: bool
    """The client column holds whole numbers."""
    notes: tuple[str, ...] = ()
    fixed: FixedEffects | None = None
    """The coefficients on average over clients, with standard errors; ``None`` for a discrete population."""
    varying: tuple[str, ...] = ()
    """Names of the coefficients that differ between clients."""

    @property
    def prior(self) -> Prior:
        """The population."""
        return self.model.prior_

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the d coefficients."""
        return self.posterior.names

    @property
    def outcomes(self) -> dict[str, int]:
        """How the local fits ended, and how many ended so."""
        found, counts = np.unique(self.local.fits.outcome, return_counts=True)
        return {str(o): int(c) for o, c in sorted(zip(found, counts, strict=True), key=lambda oc: -oc[1])}

    @cached_property
    def reports(self) -> Reports:
        """What the clients would send to a server: estimates, and precisions at them."""
        return client_reports(self.rows, self.local, self.names)

    def table(self, level: float | None = None) -> pa.Table:
        """Coefficients of each client with their uncertainty, one row per client.

        ``theta_``, ``sd_``, ``lower_`` and ``upper_`` of every coefficient, ``own_`` and ``own_se_`` from the
        client's rows alone, ``shrinkage``, ``log_marginal``, ``flag``, ``n`` (rows) and ``outcome`` of the
        client's own fit.
        """
        import pyarrow as pa

        from vaneb.tables import results_table

        kind = pa.int64() if self.whole_ids else pa.string()
        table = results_table(self.posterior, self.level if level is None else level, kind)
        table = table.append_column("n", pa.array(self.local.fits.n.astype(np.int64)))
        return table.append_column("outcome", pa.array(self.local.fits.outcome.tolist(), pa.string()))

    @cached_property
    def coefficients(self) -> pd.DataFrame:
        """``table`` as a pandas frame, indexed by client."""
        return self.table().to_pandas().set_index("client")

    def predict(self, frame: Any, *, use: str = "personalised") -> Array:
        """Expected response of each row of ``frame``; NaN where a value is missing.

        Parameters
        ----------
        frame : data frame with the client's column and those of the right-hand side
        use : "personalised": the mean of the response over the client's posterior, or over the population for
            a client that was not in the fit.  "local", "pooled": the response at the client's own estimate,
            or at the pooled one, which also stands in for a client that was not in the fit.

        Returns
        -------
        (N,), or (N, classes) for the multinomial family, classes as in ``design.coding.classes``
        """
        data = frames.as_pandas(frame)
        rows = self.design.rows(data, response=False)
        mean = predicted(self, rows, use)
        out = np.full((len(data), *mean.shape[1:]), np.nan)
        out[rows.kept] = mean
        return out


def predicted(fit: GroupedFit, rows: DesignRows, use: str) -> Array:
    """Expected response of rows, (N,) or (N, classes)."""
    family, at = fit.local.family, _positions(fit.rows.ids, rows.clients)
    if use == "personalised":
        return expected_response(family, fit.posterior, at, rows.covariates, rows.offset)
    pooled = fit.local.pooled.theta
    sources = {"local": np.vstack([fit.local.fits.theta, pooled]), "pooled": pooled}
    if use not in sources:
        raise InvalidOption(f"use: choose one of personalised, {', '.join(sources)}, not {use!r}")
    theta = sources[use][at if use == "local" else np.zeros_like(at)]
    with np.errstate(over="ignore"):
        return family.mean(family.index(theta, rows.covariates, rows.offset))


def _positions(ids: tuple[str, ...], clients: NDArray[np.object_]) -> NDArray[np.intp]:
    """Position of each row's client; -1, which is the last, for clients that were not in the fit."""
    place = {name: k for k, name in enumerate(ids)}
    return np.array([place.get(c, -1) for c in clients], dtype=np.intp)
