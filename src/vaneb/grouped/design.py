"""From a formula and a data frame to numbers: one row of covariates, response and offset per row of data.

Rows with missing values in the columns that are used are left out and counted, as R and statsmodels do.
Everything that a design learns from data (levels of factors, means of ``center(x)``, knots) it learns from
the rows of the fit, all clients together; other rows are put through the same design.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.grouped import frames
from vaneb.grouped.formula import ParsedFormula, context, evaluation_error
from vaneb.grouped.response import ResponseCoding

if TYPE_CHECKING:
    import pandas as pd
    from formulaic import ModelSpec

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
class Design:
    """What was learned from the rows of a fit; turns any rows into numbers."""

    formula: ParsedFormula
    spec: ModelSpec
    coding: ResponseCoding
    client: str
    offset: str | None
    levels: dict[str, frozenset[Any]]
    """Values that each factor's column had."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the p columns."""
        return tuple(self.spec.column_names)

    def rows(self, frame: pd.DataFrame, *, response: bool, new: bool = True) -> DesignRows:
        """The complete rows of ``frame``; ``new`` if they may hold levels that the fit has not seen."""
        columns = self.formula.columns if response else self.formula.right_columns
        wanted = [self.client, *columns, *([self.offset] if self.offset else [])]
        for column in dict.fromkeys(wanted):
            frames.need_column(frame, column, "the fit" if new else "the formula")
        complete = np.flatnonzero(frame[list(dict.fromkeys(wanted))].notna().all(axis=1))
        part = frame.iloc[complete]
        if new:
            self._check_levels(part)
        covariates = _matrix(self.spec, part, self.formula.text)[0] if len(part) else self._no_rows()
        y = None
        if response:
            y = self.coding.code(_response_values(self.formula, part)) if len(part) else np.zeros(0)
        shift = _numbers(part, self.offset, "the offset") if self.offset else np.zeros(len(part))
        # log(x) of a negative x is missing too.
        defined = ~np.isnan(covariates).any(axis=1)
        if y is not None:
            defined &= ~np.isnan(y)
        return DesignRows(
            frames.client_ids(part[self.client])[defined],
            covariates[defined],
            None if y is None else y[defined],
            shift[defined],
            complete[defined],
        )

    def _no_rows(self) -> Array:
        return np.zeros((0, len(self.names)))

    def _check_levels(self, part: pd.DataFrame) -> None:
        for column, known in self.levels.items():
            strange = ~part[column].isin(list(known))
            if strange.any():
                level = part[column][strange].iloc[0]
                raise InvalidReport(
                    f"column {column}: level {level!r} ({int(strange.sum())} rows) is in no row of the fit, "
                    "so it has no coefficient. Leave those rows out, or merge the level with another."
                )


def learn_design(
    frame: pd.DataFrame, formula: ParsedFormula, family: str, *, client: str, offset: str | None
) -> Design:
    """Learn a design from the rows of a fit."""
    used = list(dict.fromkeys([client, *formula.columns, *([offset] if offset else [])]))
    complete = frame[frame[used].notna().all(axis=1)]
    if not len(complete):
        raise InvalidReport(
            f"data: no row is complete in {', '.join(used)}. Fill in missing values, or use fewer columns."
        )
    complete = _without_unused_levels(complete, formula)
    coding = ResponseCoding.learn(formula.response, family, _response_values(formula, complete))
    _, spec = _matrix(_blank_spec(formula), complete, formula.text)
    if not spec.column_names:
        raise InvalidReport(
            f"formula {formula.text!r}: its right-hand side is empty. Write 'y ~ 1' at least."
        )
    levels = {
        formula.factor_columns[factor]: frozenset(complete[formula.factor_columns[factor]].unique())
        for factor, (kind, _) in spec.encoder_state.items()
        if kind.value == "categorical" and factor in formula.factor_columns
    }
    return Design(formula, spec, coding, client, offset, levels)


def _blank_spec(formula: ParsedFormula) -> ModelSpec:
    from formulaic import ModelSpec

    return ModelSpec(formula=formula.terms, na_action="ignore", output="numpy")


def _matrix(spec: ModelSpec, frame: pd.DataFrame, text: str) -> tuple[Array, ModelSpec]:
    """Columns of the design for complete rows, and the spec with what it learned from them."""
    from formulaic.errors import DataMismatchWarning

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", DataMismatchWarning)
        try:
            matrix = spec.get_model_matrix(frame, context=context())
            numbers = np.asarray(matrix, dtype=np.float64)
        except Exception as error:  # whatever the user's own expression raises
            raise evaluation_error(text, error) from None
    return numbers.reshape(len(frame), -1), matrix.model_spec


def _response_values(formula: ParsedFormula, frame: pd.DataFrame) -> pd.Series:
    """The response as the data have it, or as its expression computes it."""
    import pandas as pd

    if formula.response in frame.columns:
        return frame[formula.response]
    from formulaic import Formula, ModelSpec

    spec = ModelSpec(formula=Formula(f"0 + {formula.response}"), na_action="ignore", output="numpy")
    values, _ = _matrix(spec, frame, formula.text)
    if values.shape[1] != 1:
        raise InvalidReport(f"formula {formula.text!r}: the response {formula.response!r} is not one number.")
    return pd.Series(values[:, 0], index=frame.index, name=formula.response)


def _without_unused_levels(frame: pd.DataFrame, formula: ParsedFormula) -> pd.DataFrame:
    """Declared levels that no row has would be columns of zeros; R drops them too."""
    import pandas as pd

    declared = [c for c in formula.columns if isinstance(frame[c].dtype, pd.CategoricalDtype)]
    return frame.assign(**{c: frame[c].cat.remove_unused_categories() for c in declared})


def _numbers(frame: pd.DataFrame, column: str, what: str) -> Array:
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(frame[column].dtype):
        raise InvalidReport(f"column {column}: holds {frame[column].dtype}, not numbers, as {what} needs.")
    return frame[column].to_numpy(dtype=np.float64)
