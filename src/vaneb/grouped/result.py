"""What a fit of grouped rows gives back: coefficients of every client, the population, and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.estimators import VANEB
from vaneb.grouped import frames, predictive
from vaneb.grouped.client_reports import reports_of_rows
from vaneb.grouped.design import Design, DesignRows
from vaneb.grouped.known import KnownClients
from vaneb.grouped.models import LocalModel
from vaneb.grouped.predictive import expected_response
from vaneb.grouped.summary import FixedEffects, PopulationSummary, Summary, summarise
from vaneb.local.data import GroupedRows
from vaneb.local.family import family_class
from vaneb.local.family.base import SURVIVAL, Family
from vaneb.posterior import Posterior
from vaneb.prior import Prior
from vaneb.reports import Reports

if TYPE_CHECKING:
    import os

    import pandas as pd
    import pyarrow as pa

Array = NDArray[np.float64]

#: Parts of ``confint``.
PARTS = ("population", "groups")


@dataclass(frozen=True)
class HeldOut:
    """Average losses over test rows."""

    loss: str
    """"mse", "log-loss", "deviance" or "1 - concordance"."""
    values: Mapping[str, float]
    """"local", "pooled" and "personalised"."""
    rows: int
    new_clients: int
    """Clients with test rows only: the population's mean predicts them; under "local", the pooled fit."""

    @property
    def best(self) -> str:
        return min(self.values, key=lambda name: self.values[name])


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GroupedResult:
    """What can be done with a fit, be it fresh (``GroupedFit``) or loaded from a file (``LoadedFit``)."""

    design: Design
    family: Family
    """With the numbers that all clients share."""
    estimates: Mapping[str, Array]
    """Without a population: "local" (K, d) and "pooled" (1, d)."""
    n_rows: int
    """Rows of the fit."""
    group_sizes: tuple[int, int]
    """Fewest and most rows of a client."""
    outcomes: Mapping[str, int]
    """How the local fits ended, and how many ended so."""
    likelihood: str
    """"exact" or "gaussian"."""
    level: float
    dropped: int
    """Rows left out because a value was missing."""
    whole_ids: bool
    """The client column holds whole numbers."""
    kind: str
    """Kind of table that the data were, and results are."""
    notes: tuple[str, ...]
    mixed_model: FixedEffects | None
    """Averages as the mixed model has them, where it was fitted."""

    if TYPE_CHECKING:

        @property
        def known(self) -> KnownClients:
            """Posterior of every client."""

        def table(self, level: float | None = None) -> pa.Table:
            """Coefficients of each client with their uncertainty, one row per client."""

    # ---------------------------------------------------------------- what was found

    @property
    def prior(self) -> Prior:
        """The population."""
        return self.known.prior

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the d coefficients."""
        return self.design.parameter_names(self.family)

    @cached_property
    def population(self) -> PopulationSummary:
        """Mean and spread of the population."""
        return PopulationSummary(self.prior)

    @property
    def fixed(self) -> FixedEffects:
        """The coefficients on average over clients."""
        return self.mixed_model or FixedEffects.of_populations(self.names, self.population.means)

    def summary(self) -> Summary:
        """What ``print(fit)`` prints: population, averages, residual scale, groups, what was noticed."""
        return summarise(self)

    def __repr__(self) -> str:
        return str(self.summary())

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    @cached_property
    def fixef(self) -> Any:
        """Averages over clients: ``estimate``, ``se``, ``z``, ``p`` and whether the coefficient ``varies``.

        See ``FixedEffects``; p is two-sided, from the normal distribution.  A coefficient that does not vary
        is a fixed effect in the narrow sense.
        """
        import pyarrow as pa

        found = self.fixed
        columns = {"coefficient": list(self.names), "estimate": found.estimate, "se": found.standard_error}
        columns |= {"z": found.z, "p": found.p_value, "varies": ~self.population.fixed}
        return frames.native(pa.table(columns), self.kind, ["coefficient"])

    @cached_property
    def coef(self) -> Any:
        """Coefficients of every client: the posterior means."""
        return self._by_client(self.known.mean, range(len(self.names)))

    @cached_property
    def ranef(self) -> Any:
        """How far the coefficients of every client are from the average; those that vary only."""
        away = self.known.mean - self.population.mean
        return self._by_client(away, np.flatnonzero(~self.population.fixed))

    def _by_client(self, values: Array, which: Any) -> Any:
        import pyarrow as pa

        columns = {"client": self._client_column(), **{self.names[i]: values[:, i] for i in which}}
        return frames.native(pa.table(columns), self.kind, ["client"])

    def _client_column(self) -> pa.Array:
        import pyarrow as pa

        return pa.array(list(self.known.ids), pa.string()).cast(pa.int64() if self.whole_ids else pa.string())

    def confint(self, level: float | None = None, part: str = "population") -> Any:
        """Intervals: ``estimate``, ``lower`` and ``upper``.

        Parameters
        ----------
        level : probability; that of the fit by default
        part : "population": averages over clients, standard deviations between them and correlations.
            "groups": every coefficient of every client, from its posterior.
        """
        import pyarrow as pa

        level = self._checked_level(level)
        if part not in PARTS:
            raise InvalidOption(f"part: choose one of {', '.join(PARTS)}, not {part!r}")
        if part == "groups":
            lower, upper = self._interval(level)
            d = len(self.names)
            client = self._client_column().take(pa.array(np.repeat(np.arange(len(self.known.ids)), d)))
            columns: dict[str, Any] = {"client": client, "coefficient": [*self.names] * len(self.known.ids)}
            columns |= {"estimate": self.known.mean.ravel(), "lower": lower.ravel(), "upper": upper.ravel()}
            return frames.native(pa.table(columns), self.kind, ["client", "coefficient"])
        found, varying = self.population, np.flatnonzero(~self.population.fixed)
        pairs = [(i, j) for at, i in enumerate(varying) for j in varying[:at]]
        values = [*found.means.T, *found.sds[:, varying].T, *(found.correlations[:, i, j] for i, j in pairs)]
        names = [
            *(("mean", name) for name in self.names),
            *(("sd", self.names[i]) for i in varying),
            *(("correlation", f"{self.names[j]}, {self.names[i]}") for i, j in pairs),
        ]
        lower, upper = found.interval(np.ma.column_stack(values), level)
        middle = [*found.mean, *found.sd[varying], *(found.correlation[i, j] for i, j in pairs)]
        columns = {"quantity": [what for what, _ in names], "coefficient": [name for _, name in names]}
        columns |= {"estimate": np.array(middle), "lower": lower, "upper": upper}
        return frames.native(pa.table(columns), self.kind, ["quantity", "coefficient"])

    def _interval(self, level: float) -> tuple[Array, Array]:
        return self.known.interval(level)

    def to_frame(self, level: float | None = None) -> Any:
        """``table`` as the kind of table that the data were: pandas, polars or pyarrow."""
        return frames.native(self.table(level), self.kind)

    @cached_property
    def coefficients(self) -> pd.DataFrame:
        """``table`` as a pandas frame, indexed by client."""
        return self.table().to_pandas().set_index("client")

    def _checked_level(self, level: float | None) -> float:
        level = self.level if level is None else level
        if not 0 < level < 1:
            raise InvalidOption(f"level must lie between 0 and 1, not {level}: 0.9 is a 90% interval")
        return level

    # ---------------------------------------------------------------- other rows

    def predict(
        self,
        frame: Any,
        *,
        use: str = "personalised",
        interval: str | None = None,
        level: float | None = None,
    ) -> Any:
        """Expected response of each row of ``frame``; NaN where a value is missing.

        Parameters
        ----------
        frame : data frame with the client's column and those of the right-hand side
        use : "personalised": the mean of the response over the client's posterior, or over the population for
            a client that was not in the fit.  "local", "pooled": the response at the client's own estimate,
            or at the pooled one, which also stands in for a client that was not in the fit.
        interval : "confidence": where the expected response of the row lies.  "prediction": where a new
            response would, noise included.
        level : probability of the interval; that of the fit by default

        Returns
        -------
        (N,), or (N, classes) for the multinomial family, classes as in ``design.coding.classes``; with
        ``interval`` a table like ``frame`` with the columns ``mean``, ``lower`` and ``upper``
        """
        data = frames.as_pandas(frame)
        if interval is not None:
            level = self._checked_level(level)
            predictive.check_interval(interval, level, self.family)
            if use != "personalised":
                raise InvalidOption(f"use {use!r}: only personalised predictions have intervals here.")
        rows = self.design.rows(data, response=False)
        mean = _of_all(predicted(self, rows, use), rows, len(data))
        if interval is None:
            return mean
        assert level is not None
        ends = predictive.interval(
            interval,
            level,
            self.family,
            self.known,
            self.known.positions(rows.clients),
            rows.covariates,
            rows.offset,
        )
        import pyarrow as pa

        lower, upper = (_of_all(end, rows, len(data)) for end in ends)
        made = frames.native(pa.table({"mean": mean, "lower": lower, "upper": upper}), frames.kind_of(frame))
        if hasattr(frame, "index") and hasattr(made, "index"):
            made.index = frame.index
        return made

    def score(self, frame: Any) -> float:
        """Share of the loss of rows that the fit explains: 1 - loss / loss of their average response.

        At most 1, 0 for the average, below 0 for worse.  R squared for least squares; the loss of other
        families is their log-loss or deviance, that of survival the share of pairs in the wrong order.
        """
        rows = self.design.rows(frames.as_pandas(frame), response=True)
        if rows.response is None or not len(rows.response):
            raise InvalidReport("data: no row is complete, so there is nothing to score.")
        family, y = self.design.coding.family, rows.response
        mean = predicted(self, rows, "personalised")
        weight, clients = rows.weight, rows.clients
        if y.ndim == 2:  # survival: any prediction that is the same for all rows
            average = np.ones(len(y))
        elif mean.ndim == 2:
            shares = np.bincount(y.astype(int), weight, minlength=mean.shape[1]) / weight.sum()
            average = np.tile(shares, (len(y), 1))
        else:
            average = np.full(len(y), np.average(y, weights=weight))
        score = family_class(family).score
        worst = score(y, average, weight, clients)
        if worst == 0:
            raise InvalidReport("data: all responses are the same, so there is nothing to explain.")
        return 1 - score(y, mean, weight, clients) / worst

    def plot(self, coefficient: str | None = None, level: float | None = None) -> Any:
        """Caterpillar plot: estimates of all clients in their order, with intervals; a matplotlib figure.

        One panel for each coefficient that varies, or for ``coefficient`` only.
        """
        from vaneb.grouped.caterpillar import caterpillar

        if coefficient is not None and coefficient not in self.names:
            raise InvalidOption(f"coefficient {coefficient!r}: there are {', '.join(self.names)}")
        return caterpillar(self, coefficient, self._checked_level(level))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is needed to predict, as JSON without a single row; ``vaneb.grouped.load`` reads it."""
        from vaneb.files import replacing
        from vaneb.grouped.saved import write_model

        with replacing(path) as temporary:
            write_model(temporary, self)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class GroupedFit(GroupedResult):
    """What was learned from grouped rows.

    Clients are in the order of their ids, whatever the order of the rows.
    """

    rows: GroupedRows
    """Rows of the fit."""
    local: LocalModel
    model: VANEB
    posterior: Posterior
    held_out: HeldOut | None
    varying: tuple[str, ...]
    """Names of the coefficients that differ between clients."""
    places: NDArray[np.intp]
    """Position of each row of ``rows`` in the data."""
    n_data: int
    """Rows of the data."""
    read: tuple[str, ...]
    """What each column was taken for, one line each."""

    @cached_property
    def known(self) -> KnownClients:
        """Posterior of every client."""
        return KnownClients.of(self.posterior)

    @property
    def prior(self) -> Prior:
        """The population."""
        return self.model.prior_

    @cached_property
    def reports(self) -> Reports:
        """What the clients would send to a server: estimates, and precisions at them."""
        return reports_of_rows(self.rows, self.family, self.local.fits, self.names, self.family.dispersion)

    def table(self, level: float | None = None) -> pa.Table:
        """Coefficients of each client with their uncertainty, one row per client.

        ``theta_``, ``sd_``, ``lower_`` and ``upper_`` of every coefficient, ``own_`` and ``own_se_`` from the
        client's rows alone, ``shrinkage``, ``log_marginal``, ``flag``, ``n`` (rows) and ``outcome`` of the
        client's own fit.
        """
        import pyarrow as pa

        from vaneb.tables import results_table

        kind = pa.int64() if self.whole_ids else pa.string()
        table = results_table(self.posterior, self._checked_level(level), kind)
        table = table.append_column("n", pa.array(self.local.fits.n.astype(np.int64)))
        return table.append_column("outcome", pa.array(self.local.fits.outcome.tolist(), pa.string()))

    def _interval(self, level: float) -> tuple[Array, Array]:
        return self.posterior.interval(level)

    @cached_property
    def fitted(self) -> Array:
        """Expected responses of the data's rows, as ``predict`` gives them; NaN for rows not in the fit."""
        rows, at = self.rows, self.rows.client_of_row
        return self._in_place(expected_response(self.family, self.known, at, rows.design, rows.offset))

    @cached_property
    def residuals(self) -> Array:
        """Response minus ``fitted``, for each row of the data; NaN for rows not in the fit.

        The response as the family codes it: 0 or 1 for the binomial family.
        """
        if self.family.n_index > 1:
            raise InvalidOption(f"residuals: family {self.family.name} has classes, not numbers.")
        if self.family.takes == SURVIVAL:
            raise InvalidOption(f"residuals: family {self.family.name} predicts risks, not times.")
        return self._in_place(self.rows.response) - self.fitted

    def _in_place(self, values: Array) -> Array:
        out = np.full((self.n_data, *values.shape[1:]), np.nan)
        out[self.places] = values
        return out


def predicted(fit: GroupedResult, rows: DesignRows, use: str) -> Array:
    """Expected response of rows, (N,) or (N, classes)."""
    family, at = fit.family, fit.known.positions(rows.clients)
    if use == "personalised":
        return expected_response(family, fit.known, at, rows.covariates, rows.offset)
    sources = fit.estimates
    if use not in sources:
        raise InvalidOption(f"use: choose one of personalised, {', '.join(sources)}, not {use!r}")
    pooled = sources["pooled"]
    theta = np.vstack([sources["local"], pooled])[at] if use == "local" else pooled[np.zeros_like(at)]
    with np.errstate(over="ignore"):
        return family.mean(family.index(theta, rows.covariates, rows.offset))


def _of_all(values: Array, rows: DesignRows, n: int) -> Array:
    """Values of complete rows in their places among all; NaN elsewhere."""
    out = np.full((n, *values.shape[1:]), np.nan)
    out[rows.kept] = values
    return out
