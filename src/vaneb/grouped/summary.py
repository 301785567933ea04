"""A fit in words: what users of mixed models look for, in an order they know; never a row of the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from vaneb.likelihood.base import Array
from vaneb.prior import Prior

if TYPE_CHECKING:
    from vaneb.grouped.result import GroupedResult

#: Coefficients that a summary lists.
MOST = 40


@dataclass(frozen=True, eq=False)
class PopulationSummary:
    """Mean and spread of the population, for each of the R populations drawn.

    Of groups that clients share: where groups not yet seen might be is not what is usually asked.
    """

    prior: Prior

    @cached_property
    def means(self) -> Array:
        """(R, d)"""
        return self._average(self.prior.atoms)

    @cached_property
    def covariances(self) -> Array:
        """Between components plus within, (R, d, d)."""
        prior = self.prior
        away = prior.atoms - np.repeat(self.means, np.diff(prior.starts), axis=0)
        parts = away[:, :, None] * away[:, None, :]
        if prior.covariances is not None:
            parts = parts + prior.covariances
        return self._average(parts)

    def _average(self, values: Array) -> Array:
        prior = self.prior
        shares = prior.shares_of_groups.reshape(-1, *[1] * (values.ndim - 1))
        return np.add.reduceat(shares * values, prior.starts[:-1])

    @cached_property
    def fixed(self) -> NDArray[np.bool_]:
        """Coefficients that are the same for all clients, (d,)."""
        if self.prior.covariances is None:
            return np.all(self.prior.atoms == self.prior.atoms[0], axis=0)
        return np.all(np.diagonal(self.prior.covariances, axis1=1, axis2=2) == 0, axis=0)

    @property
    def mean(self) -> Array:
        """(d,)"""
        return self.means.mean(axis=0)

    @cached_property
    def sds(self) -> Array:
        """Standard deviations among clients, (R, d)."""
        return np.sqrt(np.maximum(np.diagonal(self.covariances, axis1=1, axis2=2), 0.0))

    @property
    def sd(self) -> Array:
        """Median over the populations, (d,)."""
        return np.median(self.sds, axis=0)

    @cached_property
    def correlation(self) -> Array:
        """Median over the populations in which both differ, (d, d); NaN where there is none."""
        found = self.correlations
        return np.where(found.count(axis=0) > 0, np.ma.getdata(np.ma.median(found, axis=0)), np.nan)

    @cached_property
    def correlations(self) -> np.ma.MaskedArray:
        """(R, d, d), masked where a coefficient does not differ."""
        differs = self.sds > 1e-12 * np.abs(self.means)  # not by rounding
        both = differs[:, :, None] & differs[:, None, :]
        scale = np.where(both, self.sds[:, :, None] * self.sds[:, None, :], 1.0)
        return np.ma.masked_where(~both, self.covariances / scale)

    def interval(self, values: Array, level: float) -> tuple[Array, Array]:
        """Quantiles of ``values`` (R, d) over the populations that are not masked; NaN where there is one."""
        probabilities = [(1 - level) / 2, (1 + level) / 2]
        ends = np.full((2, values.shape[1]), np.nan)
        for i, column in enumerate(np.ma.masked_array(values).T):
            if column.count() > 1:
                ends[:, i] = np.quantile(column.compressed(), probabilities)
        return ends[0], ends[1]


class FixedEffects(NamedTuple):
    """What the coefficients are on average over clients, and how well that is known.

    Where rows are least squares and the population is Gaussian, estimates and their covariance are those of
    the mixed model, given its variances, as in lme4; else mean and covariance over the populations drawn.
    """

    names: tuple[str, ...]
    estimate: Array
    """(d,)"""
    covariance: Array
    """(d, d); NaN where one population was fitted, not many drawn."""

    @classmethod
    def of_populations(cls, names: tuple[str, ...], means: Array) -> FixedEffects:
        """From the mean of each population, (R, d)."""
        d = means.shape[1]
        covariance = np.atleast_2d(np.cov(means.T)) if len(means) > 1 else np.full((d, d), np.nan)
        return cls(names, means.mean(axis=0), covariance)

    @property
    def standard_error(self) -> Array:
        return np.sqrt(np.maximum(np.diagonal(self.covariance), 0.0))

    @property
    def z(self) -> Array:
        """Estimate over standard error; NaN where there is none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.standard_error > 0, self.estimate / self.standard_error, np.nan)

    @property
    def p_value(self) -> Array:
        """Two-sided, by the normal distribution."""
        return 2 * ndtr(-np.abs(self.z))


@dataclass(frozen=True)
class Block:
    """A small table under a heading."""

    heading: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Summary:
    """What ``print(fit)`` prints, and what a notebook shows."""

    lines: tuple[str, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        parts = ["\n".join(self.lines)]
        for block in self.blocks:
            table = [block.header, *block.rows]
            widths = [max(len(row[i]) for row in table) for i in range(len(block.header))]
            lines = [
                "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in table
            ]
            parts.append("\n".join([block.heading, *(f"  {line}".rstrip() for line in lines)]))
        if self.notes:
            parts.append("\n".join(f"note: {note}" for note in self.notes))
        return "\n\n".join(parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        html = "".join(f"<p>{escape(line)}</p>" for line in self.lines)
        for block in self.blocks:
            head = "".join(f"<th>{escape(cell)}</th>" for cell in block.header)
            rows = "".join(
                f'<tr><th style="text-align:left">{escape(row[0])}</th>'
                + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
                + "</tr>"
                for row in block.rows
            )
            html += f"<p><b>{escape(block.heading)}</b></p><table><tr>{head}</tr>{rows}</table>"
        return html + "".join(f"<p>note: {escape(note)}</p>" for note in self.notes)


def summarise(fit: GroupedResult) -> Summary:
    """The summary of a fit."""
    found, names, design = fit.population, fit.names, fit.design
    low, high = fit.group_sizes
    sizes = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    lines = (
        f"{design.formula.text}, by {design.client}",
        f"family {fit.family.name}, {fit.likelihood} likelihood",
        f"{fit.n_rows:,} rows in {len(fit.known.ids):,} groups ({sizes} rows each)"
        + (f"; {fit.dropped:,} rows left out (missing values)" if fit.dropped else ""),
        f"population: {fit.prior}",
    )
    scale = residual_scale(fit)
    blocks, rows = [], list[tuple[str, ...]]()
    varying = np.flatnonzero(~found.fixed)
    if varying.size:
        lower, upper = found.interval(found.sds, fit.level)
        rows = [
            (
                names[i],
                _digits(found.sd[i]),
                _digits(lower[i]),
                _digits(upper[i]),
                " ".join(f"{found.correlation[i, j]:.2f}" for j in varying[: min(at, 6)]),
            )
            for at, i in enumerate(varying[:MOST])
        ]
        rows += [(what, _digits(value), "", "", "") for what, value in scale]
        ends = _percent(fit.level)
        blocks.append(Block("Between groups (random effects)", ("", "sd", *ends, "correlation"), tuple(rows)))
    fixed = fit.fixed
    rows = [
        (names[i], _digits(fixed.estimate[i]), _digits(fixed.standard_error[i]), _fixed(fixed.z[i]),
         _p_value(fixed.p_value[i]), "same for all" if found.fixed[i] else "varies")
        for i in range(min(len(names), MOST))
    ]  # fmt: skip
    if not varying.size:
        rows += [(what, _digits(value), "", "", "", "") for what, value in scale]
    blocks.append(
        Block(
            "Averages over groups (fixed effects)",
            ("", "estimate", "se", "z", "p", ""),
            tuple(rows),
        )
    )
    notes = list(fit.notes)
    if len(names) > MOST:
        notes.append(f"{len(names) - MOST} more coefficients are in fit.fixef")
    if found.prior.populations == 1:
        notes.append("one population was fitted, not drawn from many: there is no standard error of its mean")
    return Summary(lines, tuple(blocks), tuple(notes))


def residual_scale(fit: GroupedResult) -> list[tuple[str, float]]:
    """What the family says of the scatter of responses, by name."""
    family = fit.family
    if family.name == "gaussian":
        return [("Residual", float(np.sqrt(family.dispersion)))]
    if family.name == "gamma":
        return [("Residual (coefficient of variation)", float(np.sqrt(family.dispersion)))]
    return []


def _percent(level: float) -> tuple[str, str]:
    return f"{50 * (1 - level):.3g}%", f"{50 * (1 + level):.3g}%"


def _digits(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.4g}"


def _fixed(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.2f}"


def _p_value(value: float) -> str:
    if np.isnan(value):
        return ""
    return "<1e-16" if value < 1e-16 else f"{value:.3g}"
