"""How a family codes its response, learned from the rows of a fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption, InvalidReport

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]

FAMILIES = ("gaussian", "binomial", "poisson", "multinomial", "gamma", "huber")
CLASSES = ("binomial", "multinomial")

#: What a response must be, and the numbers that are not; missing numbers are dealt with elsewhere.
RULES: dict[str, tuple[str, Callable[[Array], NDArray[np.bool_]]]] = {
    "gaussian": ("a finite number", lambda y: np.isinf(y)),
    "huber": ("a finite number", lambda y: np.isinf(y)),
    "poisson": ("a count (0, 1, 2, ...)", lambda y: (y < 0) | (y != np.floor(y)) | np.isinf(y)),
    "gamma": ("a positive number", lambda y: (y <= 0) | np.isinf(y)),
}


@dataclass(frozen=True)
class ResponseCoding:
    """Turns the response's column into the numbers that a family takes."""

    column: str
    family: str
    classes: tuple[Any, ...] = ()
    """Classes in the order of their codes 0, 1, ...; empty for families that take numbers."""

    @classmethod
    def learn(cls, column: str, family: str, values: pd.Series) -> Self:
        """The coding of a response, from its values in the rows of a fit."""
        if family not in FAMILIES:
            raise InvalidOption(f"family: choose one of {', '.join(FAMILIES)}, not {family!r}")
        if family not in CLASSES:
            return cls(column, family)
        classes = _classes(values)
        if family == "binomial":
            if _is_numeric(values):
                odd = [c for c in classes if c not in (0, 1)]
                if odd:
                    raise InvalidReport(
                        f"column {column}: {odd[0]!r} is not 0 or 1, as the binomial family needs. "
                        "Recode it, or use family multinomial for classes."
                    )
                if len(classes) == 2:
                    classes = (0, 1)
            elif len(classes) > 2:
                raise InvalidReport(
                    f"column {column}: has {len(classes)} classes; the binomial family takes two. "
                    "Use family multinomial."
                )
        if len(classes) < 2:
            raise InvalidReport(
                f"column {column}: all rows of the fit are {classes[0]!r}; there is nothing to learn. "
                "Is it the right column?"
            )
        return cls(column, family, classes)

    def code(self, values: pd.Series) -> Array:
        """The response of some rows, shape (N,)."""
        if self.classes:
            return self._class_codes(values)
        if not _is_numeric(values):
            also = "" if values.nunique() > 20 else " Or use family binomial or multinomial for classes."
            raise InvalidReport(
                f"column {self.column}: holds {_kind(values)}, not numbers, as the {self.family} family "
                f"needs. Convert it.{also}"
            )
        y = values.to_numpy(dtype=np.float64)
        rule, wrong = RULES[self.family]
        bad = np.flatnonzero(wrong(y))
        if bad.size:
            raise InvalidReport(
                f"column {self.column}: {y[bad[0]]:g} is not {rule}, as the {self.family} family needs "
                f"({bad.size} such rows)."
            )
        return y

    def _class_codes(self, values: pd.Series) -> Array:
        # Booleans and numbers of any type are one and the same class where they are equal.
        same_kind = values.astype(float) if _is_numeric(values) else values.astype(object)
        codes = same_kind.map({c: float(i) for i, c in enumerate(self.classes)})
        unknown = codes.isna() & values.notna()
        if unknown.any():
            known = ", ".join(map(str, self.classes))
            raise InvalidReport(
                f"column {self.column}: {values[unknown].iloc[0]!r} ({int(unknown.sum())} rows) is none of "
                f"the classes {known} that the rows of the fit have."
            )
        return codes.to_numpy(dtype=np.float64)


def _classes(values: pd.Series) -> tuple[Any, ...]:
    """Distinct values: in their declared order for a categorical column, sorted otherwise."""
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        present = set(values.dropna().unique())
        return tuple(c for c in values.cat.categories if c in present)
    return tuple(sorted(values.dropna().unique().tolist(), key=lambda v: (isinstance(v, str), v)))


def _is_numeric(values: pd.Series) -> bool:
    import pandas as pd

    return pd.api.types.is_numeric_dtype(values.dtype)


def _kind(values: pd.Series) -> str:
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        return "classes"
    return "text" if pd.api.types.is_string_dtype(values.dtype) else str(values.dtype)
