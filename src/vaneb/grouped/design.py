"""From a formula and a data frame to numbers: one row of covariates, response and offset per row of data.

Rows with missing values in the columns that are used are left out and counted, as R and statsmodels do.
Everything that a design learns from data (levels of factors, means of ``center(x)``, knots) it learns from
the rows of the fit, all clients together; other rows are put through the same design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.grouped import frames
from vaneb.grouped.encoding import Encoding
from vaneb.grouped.formula import ParsedFormula
from vaneb.grouped.response import ResponseCoding
from vaneb.grouped.syntax import shown

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
    """y as the family codes it, shape (N,); None where it was not asked for."""
    offset: Array
    """Shape (N,)."""
    kept: NDArray[np.intp]
    """Position of each row in the data, shape (N,)."""


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
    client_columns: tuple[str, ...] = ()
    """Columns that name the client, where it is not ``client`` alone."""
    others: tuple[OtherGroups, ...] = ()

    @property
    def formula(self) -> ParsedFormula:
        return self.encoding.formula

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the p columns."""
        return self.encoding.names

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
        wanted = [*self.who, *columns, *([self.offset] if self.offset else [])]
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
                complete,
            )
        covariates = self.encoding.matrix(part)
        y = self.coding.code(self.encoding.response(part)) if response else None
        shift = self.encoding.offset(part)
        if self.offset:
            shift += _numbers(part, self.offset, "the offset")
        for one in self.others:
            shift += one.index(frames.group_ids(part, one.columns), np.nan_to_num(covariates))
        # log(x) of a negative x is missing too.
        defined = ~(np.isnan(covariates).any(axis=1) | np.isnan(shift))
        if y is not None:
            defined &= ~np.isnan(y)
        return DesignRows(
            frames.group_ids(part, self.who)[defined],
            covariates[defined],
            None if y is None else y[defined],
            shift[defined],
            complete[defined],
        )


def learn_design(
    frame: pd.DataFrame,
    formula: ParsedFormula,
    family: str,
    *,
    client: str,
    offset: str | None,
    client_columns: tuple[str, ...] = (),
) -> Design:
    """Learn a design from the rows of a fit."""
    who = client_columns or (client,)
    used = list(dict.fromkeys([*who, *formula.columns, *([offset] if offset else [])]))
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
    coding = ResponseCoding.learn(formula.response, family, encoding.response(complete))
    return Design(encoding, coding, client, offset, client_columns)


def _numbers(frame: pd.DataFrame, column: str, what: str) -> Array:
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(frame[column].dtype):
        raise InvalidReport(f"column {column}: holds {frame[column].dtype}, not numbers, as {what} needs.")
    return frame[column].to_numpy(dtype=np.float64)
