"""From a formula and a data frame to numbers: one row of covariates, response and offset per row of data.

Rows with missing values in the columns that are used are left out and counted, as R and statsmodels do.
Everything that a design learns from data (levels of factors, means of ``center(x)``, knots) it learns from
the rows of the fit, all clients together; other rows are put through the same design.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.grouped import frames
from vaneb.grouped.encoding import Encoding
from vaneb.grouped.formula import ParsedFormula, Term
from vaneb.grouped.response import ResponseCoding
from vaneb.grouped.syntax import shown
from vaneb.local.data import GroupedRows
from vaneb.local.family import family_class
from vaneb.local.family.base import Family

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class DesignRows:
    """Rows that are complete, as numbers."""

    clients: NDArray[np.object_]
    """Ids as text, shape (N,)."""
    covariates: Array
    """z, shape (N, p)."""
    response: Array | None
    """y as the family codes it, shape (N,), or (N, 3) for survival; None where it was not asked for."""
    offset: Array
    """Shape (N,)."""
    weight: Array
    """Shape (N,); for predictions without a response, ones."""
    kept: NDArray[np.intp]
    """Position of each row in the data, shape (N,)."""

    def by_client(self, names: tuple[str, ...]) -> GroupedRows:
        """The rows of a fit, those of each client together; ``names`` of the columns."""
        assert self.response is not None
        return GroupedRows.from_columns(
            self.clients, self.covariates, self.response, offset=self.offset, weight=self.weight, names=names
        )


@dataclass(frozen=True, eq=False)
class OtherGroups:
    """Groups besides the clients, whose effects a fit has estimated: they are a known part of the index."""

    columns: tuple[str, ...]
    """Columns of the data that name the group."""
    levels: dict[str, int]
    """Position of each group, by its name."""
    design_columns: tuple[int, ...]
    """Columns of the design whose coefficients differ between the groups, r of them."""
    effects: Array
    """Shape (levels, r)."""
    covariance: Array
    """Of the effects between groups, (r, r)."""

    @property
    def name(self) -> str:
        return ":".join(self.columns)

    def index(self, ids: NDArray[np.object_], covariates: Array) -> Array:
        """Their part of each row's index; nothing for groups that were not in the fit."""
        known = np.vstack([self.effects, np.zeros((1, self.effects.shape[1]))])
        at = np.array([self.levels.get(name, -1) for name in ids], dtype=np.intp)
        return np.einsum("nr,nr->n", covariates[:, list(self.design_columns)], known[at])


@dataclass(frozen=True, eq=False)
class Design:
    """What was learned from the rows of a fit; turns any rows into numbers."""

    encoding: Encoding
    coding: ResponseCoding
    client: str
    """What clients are called: the column that names them, or several joined by colons."""
    offset: str | None
    """Column that is added to the offsets of the formula."""
    weights: str | None = None
    """Column of the rows' weights."""
    client_columns: tuple[str, ...] = ()
    """Columns that name the client, where it is not ``client`` alone."""
    others: tuple[OtherGroups, ...] = ()

    @property
    def formula(self) -> ParsedFormula:
        return self.encoding.formula

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the p columns."""
        return tuple(np.array(self.encoding.names, dtype=object)[self._used])

    def parameter_names(self, family: Family) -> tuple[str, ...]:
        """Names of the d coefficients: those of the columns, once for each class but the first."""
        if family.n_index == 1:
            return self.names
        return tuple(f"{c}:{name}" for c in self.coding.classes[1:] for name in self.names)

    @cached_property
    def _used(self) -> NDArray[np.bool_]:
        """Columns of the encoding that the family has coefficients of: all, or all but the intercept."""
        every = np.array([name != "Intercept" for name in self.encoding.names], dtype=bool)
        return every | family_class(self.coding.family).has_intercept

    def spanned_by(self, terms: Sequence[Term]) -> NDArray[np.bool_]:
        """Columns that these terms have, (p,)."""
        return self.encoding.spanned_by(terms)[self._used]

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Values, as text, of each column that is a factor."""
        return self.encoding.levels

    @property
    def who(self) -> tuple[str, ...]:
        """Columns that name the client."""
        return self.client_columns or (self.client,)

    def rows(self, frame: pd.DataFrame, *, response: bool, new: bool = True) -> DesignRows:
        """The complete rows of ``frame``; ``new`` if they are not the rows of the fit."""
        columns = self.formula.columns if response else self.formula.right_columns
        weights = [self.weights] if self.weights and response else []
        wanted = [*self.who, *columns, *([self.offset] if self.offset else []), *weights]
        for column in dict.fromkeys(wanted):
            frames.need_column(frame, column, "the fit" if new else "the formula")
        complete = np.flatnonzero(frame[list(dict.fromkeys(wanted))].notna().all(axis=1))
        part = frame.iloc[complete]
        if not len(part):
            none = np.zeros(0)
            return DesignRows(
                none.astype(object),
                np.zeros((0, len(self.names))),
                none if response else None,
                none,
                none,
                complete,
            )
        covariates = np.ascontiguousarray(self.encoding.matrix(part)[:, self._used])
        y, weight = None, np.ones(len(part))
        if response:
            y, trials = self.coding.code(self.encoding.response(part))
            weight = weight if trials is None else trials
            for column in weights:
                weight = weight * _weights(part, column)
        shift = self.encoding.offset(part)
        if self.offset:
            shift += _numbers(part, self.offset, "the offset")
        for one in self.others:
            shift += one.index(frames.group_ids(part, one.columns), np.nan_to_num(covariates))
        # log(x) of a negative x is missing too.
        defined = ~(np.isnan(covariates).any(axis=1) | np.isnan(shift))
        if y is not None:
            defined &= ~np.isnan(y.reshape(len(y), -1)).any(axis=1) & (weight > 0)
        return DesignRows(
            frames.group_ids(part, self.who)[defined],
            covariates[defined],
            None if y is None else y[defined],
            shift[defined],
            weight[defined],
            complete[defined],
        )


def learn_design(
    frame: pd.DataFrame,
    formula: ParsedFormula,
    family: str,
    *,
    client: str,
    offset: str | None,
    weights: str | None = None,
    client_columns: tuple[str, ...] = (),
) -> Design:
    """Learn a design from the rows of a fit."""
    who = client_columns or (client,)
    others = [column for column in (offset, weights) if column]
    used = list(dict.fromkeys([*who, *formula.columns, *others]))
    complete = frame[frame[used].notna().all(axis=1)]
    if not len(complete):
        raise InvalidReport(
            f"data: no row is complete in {', '.join(used)}. Fill in missing values, or use fewer columns."
        )
    if not formula.terms:
        raise InvalidReport(
            f"formula {shown(formula.text)}: its right-hand side is empty. Write 'y ~ 1' at least."
        )
    encoding = Encoding.learn(formula, complete)
    coding = ResponseCoding.learn(
        formula.response,
        family,
        encoding.response(complete),
        kind=formula.kind,
        weighted=weights is not None,
    )
    design = Design(encoding, coding, client, offset, weights, client_columns)
    if not design.names:
        raise InvalidReport(
            f"formula {shown(formula.text)}: the {family} family has no intercept, and there is no other "
            "term. Name a covariate."
        )
    return design


def _weights(frame: pd.DataFrame, column: str) -> Array:
    weight = _numbers(frame, column, "a weight")
    bad = np.flatnonzero(~((weight >= 0) & np.isfinite(weight)))
    if bad.size:
        raise InvalidReport(
            f"column {column}: {weight[bad[0]]:g} is no weight. Weights are finite and not negative; 0 "
            "leaves a row out."
        )
    return weight


def _numbers(frame: pd.DataFrame, column: str, what: str) -> Array:
    if not frames.is_numeric(frame[column]):
        raise InvalidReport(f"column {column}: holds {frame[column].dtype}, not numbers, as {what} needs.")
    return frame[column].to_numpy(dtype=np.float64)
