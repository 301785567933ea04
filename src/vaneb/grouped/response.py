"""How a family codes its response, learned from the rows of a fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.grouped.frames import contents, is_numeric
from vaneb.local.family import FAMILIES, family_class
from vaneb.local.family.base import CLASSES, SURVIVAL

if TYPE_CHECKING:
    import pandas as pd

    from vaneb.local.family.base import Family

Array = NDArray[np.float64]

PLAIN, TRIALS, SHARES = "plain", "trials", "shares"
KINDS = (PLAIN, TRIALS, SHARES, SURVIVAL)
#: Time of entry of rows that are at risk from the beginning: no time is negative.
ALWAYS = -1.0


class Coded(NamedTuple):
    """The response of some rows as numbers."""

    response: Array
    """(N,), or (N, 3) for survival; NaN where it is missing."""
    trials: Array | None
    """Number of trials, (N,), where the response is a share of successes."""


@dataclass(frozen=True)
class ResponseCoding:
    """Turns the columns of the response into the numbers that a family takes."""

    column: str
    family: str
    classes: tuple[Any, ...] = ()
    """Classes in the order of their codes 0, 1, ...; empty for families that take numbers."""
    kind: str = PLAIN
    """"plain": one column; "shares": one, of shares of successes; "trials": ``successes | trials``;
    "survival": ``Surv(time, event)``."""
    event: int = 1
    """Survival only: the number that means an event, 1 (the other being 0) or 2 (the other being 1)."""

    @classmethod
    def learn(
        cls, column: str, family: str, parts: list[pd.Series], *, kind: str = PLAIN, weighted: bool = False
    ) -> Self:
        """The coding of a response, from its parts in the rows of a fit.

        Parameters
        ----------
        column : what the response is called
        kind : "plain", "trials" or "survival"
        weighted : rows have weights, so that a number between 0 and 1 may be a share of successes
        """
        model = family_class(family)
        _check_kind(model, kind)
        if kind == SURVIVAL:
            event = parts[-1].dropna()
            numbers = set(event.unique().tolist()) if is_numeric(event) else set()
            return cls(column, family, kind=kind, event=2 if numbers <= {1, 2} and 2 in numbers else 1)
        if model.takes != CLASSES or kind == TRIALS:
            return cls(column, family, kind=kind)
        (values,) = parts
        classes = _classes(values)
        if model.takes_trials:
            if is_numeric(values):
                odd = [c for c in classes if c not in (0, 1)]
                if odd and weighted and all(0 <= c <= 1 for c in classes):
                    return cls(column, family, kind=SHARES)
                if odd:
                    raise InvalidReport(
                        f"column {column}: {odd[0]!r} is not 0 or 1, as the {family} family needs. Recode "
                        f"it; write '{column} | trials' for successes among several trials; or use family "
                        "multinomial for classes."
                    )
                if len(classes) == 2:
                    classes = (0, 1)
            elif len(classes) > 2:
                raise InvalidReport(
                    f"column {column}: has {len(classes)} classes; the {family} family takes two. "
                    "Use family multinomial."
                )
        if len(classes) < 2:
            raise InvalidReport(
                f"column {column}: all rows of the fit are {classes[0]!r}; there is nothing to learn. "
                "Is it the right column?"
            )
        return cls(column, family, classes)

    def code(self, parts: list[pd.Series]) -> Coded:
        """The response of some rows."""
        if self.kind == SURVIVAL:
            return Coded(self._survival([self._numbers(part) for part in parts]), None)
        if self.kind == TRIALS:
            return self._shares(*(self._numbers(part) for part in parts))
        if self.classes:
            return Coded(self._class_codes(parts[0]), None)
        y, model = self._numbers(parts[0]), family_class(self.family)
        self._refuse(~model.allowed(y), y, f"{model.rule}, as the {self.family} family needs")
        return Coded(y, None)

    def _numbers(self, values: pd.Series) -> Array:
        if not is_numeric(values):
            also = "" if values.nunique() > 20 else " Or use family binomial or multinomial for classes."
            raise InvalidReport(
                f"column {values.name}: holds {contents(values)}, not numbers, as the {self.family} family "
                f"needs. Convert it.{also}"
            )
        return values.to_numpy(dtype=np.float64)

    def _refuse(self, wrong: NDArray[np.bool_], numbers: Array, rule: str) -> None:
        """Missing numbers are dealt with elsewhere."""
        bad = np.flatnonzero(wrong & ~np.isnan(numbers))
        if bad.size:
            raise InvalidReport(
                f"column {self.column}: {numbers[bad[0]]:g} is not {rule} ({bad.size} such rows)."
            )

    def _shares(self, successes: Array, trials: Array) -> Coded:
        for numbers, what in ((successes, "successes"), (trials, "trials")):
            whole = (numbers >= 0) & (numbers == np.floor(numbers)) & np.isfinite(numbers)
            self._refuse(~whole, numbers, f"a number of {what} (0, 1, 2, ...)")
        self._refuse(
            successes > trials, successes, "a number of successes among the row's trials: it has fewer"
        )
        # No trials: a row of weight 0.
        return Coded(successes / np.where(trials > 0, trials, 1.0), trials)

    def _survival(self, parts: list[Array]) -> Array:
        *times, event = parts
        stop = times[-1]
        self._refuse(np.isinf(stop), stop, "a finite time")
        if len(times) == 1:
            self._refuse(stop < 0, stop, "a time: it is negative")
            entry = np.full(len(stop), ALWAYS)
        else:
            entry = times[0]
            self._refuse(np.isinf(entry), entry, "a finite time")
            self._refuse(~(entry < stop) & ~np.isnan(entry), stop, "after the time of entry")
        other = self.event - 1
        known = (event == self.event) | (event == other)
        self._refuse(~known, event, f"{self.event} (event) or {other} (none)")
        happened = np.where(np.isnan(event), np.nan, (event == self.event).astype(np.float64))
        made = np.column_stack([entry, stop, happened])
        made[np.isnan(made).any(axis=1)] = np.nan
        return made

    def _class_codes(self, values: pd.Series) -> Array:
        # Booleans and numbers of any type are one and the same class where they are equal.
        same_kind = values.astype(float) if is_numeric(values) else values.astype(object)
        codes = same_kind.map({c: float(i) for i, c in enumerate(self.classes)})
        unknown = codes.isna() & values.notna()
        if unknown.any():
            known = ", ".join(map(str, self.classes))
            raise InvalidReport(
                f"column {self.column}: {values[unknown].iloc[0]!r} ({int(unknown.sum())} rows) is none of "
                f"the classes {known} that the rows of the fit have."
            )
        return codes.to_numpy(dtype=np.float64)


def _check_kind(model: type[Family], kind: str) -> None:
    """That the family takes what stands on the left-hand side."""
    if kind == TRIALS and not model.takes_trials:
        takes = ", ".join(name for name in FAMILIES if family_class(name).takes_trials)
        raise InvalidOption(
            f"formula: 'successes | trials' is a response of family {takes}, not {model.name}."
        )
    if (kind == SURVIVAL) != (model.takes == SURVIVAL):
        if kind == SURVIVAL:
            takes = ", ".join(name for name in FAMILIES if family_class(name).takes == SURVIVAL)
            raise InvalidOption(
                f"formula: Surv(...) is a response of family {takes}, not {model.name}. Choose that family."
            )
        raise InvalidOption(
            f"formula: family {model.name} needs {model.rule} on the left-hand side, or "
            "Surv(start, stop, event)."
        )


def _classes(values: pd.Series) -> tuple[Any, ...]:
    """Distinct values: in their declared order for a categorical column, sorted otherwise."""
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        present = set(values.dropna().unique())
        return tuple(c for c in values.cat.categories if c in present)
    return tuple(sorted(values.dropna().unique().tolist(), key=lambda v: (isinstance(v, str), v)))
