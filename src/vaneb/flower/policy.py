"""What a site answers: its own file, ``policy.toml``, which no server can read or change.

It is read again at every question and holds before an answer is made.  A file that cannot be read answers
nothing.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from vaneb.errors import InvalidOption
from vaneb.flower.disclosure import (
    Released,
    compared,
    jointly,
    largest_leverage,
    leverage_together,
    part_in_last_digits,
)
from vaneb.flower.settings import FAMILIES, LIKELIHOODS, MODES, Settings

if TYPE_CHECKING:
    import pandas as pd

    from vaneb.flower.client_data import LocalModel


#: Of sums that tell of a row only those who know the others, this much more is told.
KNOWING = 10.0
#: A few rows have all of such a sum, whoever the others are.
ALL_OF_IT = 1 - 1e-4


class PolicyRefused(InvalidOption):
    """A question that this site does not answer."""


@dataclass(frozen=True)
class Policy:
    """A site's rules; the defaults hold where the file is silent.

    Parameters
    ----------
    modes : kinds of runs that are answered.
    families : kinds of models that are answered.
    likelihoods : what is evaluated at a server's atoms: "covariance", that of an estimate, or "exact",
        the likelihood of the rows, which at atoms far away is that of a few of them.
    formulas : formulas that are answered, letter by letter but for spaces; all, if none is listed.
    columns : columns that a formula or an offset may use; all, if none is listed.
    fewest_rows : fewest complete rows from which anything is said.
    rows_per_level : fewest rows of a level of a factor, of a class of the response, and that columns of the
        models, alone or together, set apart from all others.
    rows_per_coefficient : fewest rows for each coefficient, of one model and of all that are answered.
    largest_leverage : largest leverage of a row among columns and response, in one model and in all that
        are answered; at 1 its numbers could be read off.
    farthest : how far from its own estimate, in standard errors, a client's loss is expanded; far away it
        is that of a few rows.
    digits : significant digits of the numbers that leave; 0 is all of them.
    changed_rows : fewest rows by which two releases differ, unless they rest on the same rows.
    studies : most studies that are answered; many models of the same rows tell of single ones.
    refusals : most studies that are looked at and refused; that one is refused tells of the rows, too.
    exchanges : most questions that are answered in one study.
    atoms : most atoms that are answered for in one study.
    epsilon : largest epsilon of a release, and no exact answer at all; 0 lets exact answers leave.
    total_epsilon : largest epsilon that all private releases may spend together; 0 is no limit.
    delta : delta at which both are counted.
    sums_at_atoms : whether sums under masks may be taken at single atoms, of which one may come to serve
        this client alone; if not, only for a Gaussian population, of which all clients are equal parts.
    review : whether nothing leaves until a person has said 'vaneb federate release STUDY'.
    """

    modes: tuple[str, ...] = MODES
    families: tuple[str, ...] = FAMILIES
    likelihoods: tuple[str, ...] = ("covariance",)
    formulas: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    fewest_rows: int = 10
    rows_per_level: int = 5
    rows_per_coefficient: float = 3.0
    largest_leverage: float = 0.8
    farthest: float = 3.0
    digits: int = 0
    changed_rows: int = 5
    studies: int = 20
    refusals: int = 20
    exchanges: int = 300
    atoms: int = 50_000
    epsilon: float = 0.0
    total_epsilon: float = 0.0
    delta: float = 1e-5
    sums_at_atoms: bool = False
    review: bool = False

    @classmethod
    def read(cls, path: Path) -> Self:
        """The policy in a file."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidOption(
                f"{path}: there is no such policy. 'vaneb federate client' writes one."
            ) from None
        except (OSError, ValueError) as error:
            raise InvalidOption(
                f"{path}: cannot be read ({error}). Nothing is answered until it can."
            ) from None
        return cls.from_content(content, str(path))

    @classmethod
    def from_content(cls, content: Mapping[str, Any], source: str = "policy") -> Self:
        values: dict[str, Any] = {}
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in content.items():
            if name not in fields:
                raise InvalidOption(f"{source}: {name!r} is not known. Use {', '.join(fields)}.")
            values[name] = _read_value(f"{source}: {name}", fields[name].default, value)
        found = cls(**values)
        lists = (("modes", MODES), ("families", FAMILIES), ("likelihoods", LIKELIHOODS))
        for name, known in lists:
            if strange := set(getattr(found, name)) - set(known):
                raise InvalidOption(
                    f"{source}: {name}: {sorted(strange)[0]!r} is not one of {', '.join(known)}."
                )
        return found

    def check_settings(self, settings: Settings) -> None:
        """Refuse a run by what it says of itself."""
        if settings.mode not in self.modes:
            raise PolicyRefused(f"mode {settings.mode}: this site answers {', '.join(self.modes)} only.")
        if self.epsilon and not 0 < settings.epsilon <= self.epsilon:
            raise PolicyRefused(
                f"epsilon {settings.epsilon:g}: this site lets nothing leave but private releases with an "
                f"epsilon of at most {self.epsilon:g}."
            )
        if settings.epsilon and settings.delta > self.delta:
            raise PolicyRefused(f"delta {settings.delta:g}: this site accepts at most {self.delta:g}.")
        if settings.mode == "network":
            return
        if settings.family not in self.families:
            raise PolicyRefused(
                f"family {settings.family}: this site answers {', '.join(self.families)} only."
            )
        if settings.mode in ("evaluate", "secure") and settings.likelihood not in self.likelihoods:
            raise PolicyRefused(
                f"likelihood {settings.likelihood}: this site answers {', '.join(self.likelihoods)} only."
            )
        if self.formulas and squeezed(settings.formula) not in map(squeezed, self.formulas):
            raise PolicyRefused(f"formula {settings.formula!r:.80}: not one of those that this site answers.")

    def agreed(self, frame: pd.DataFrame, settings: Settings, wards: str = "") -> pd.DataFrame:
        """The columns that a formula may use: to a model the others are not there.

        The column that tells a site's own clients apart is there, whatever the list says; no formula may
        have it.
        """
        if not self.columns:
            return frame
        for column in frame.columns:
            named = re.search(rf"(?<!\w){re.escape(str(column))}(?!\w)", settings.formula)
            if column not in self.columns and (named or settings.offset == column):
                raise PolicyRefused(f"column {column}: not one of those that this site has agreed on.")
        return frame[[column for column in frame.columns if column in (*self.columns, wards)]]

    def check_model(self, model: LocalModel) -> None:
        """Refuse a model from which rows could be read."""
        design, response = model.rows.design, model.rows.response
        n = len(design)
        self.check_size(n)
        if n < self.rows_per_coefficient * len(model.names):
            raise PolicyRefused(
                f"formula: {len(model.names)} coefficients for {n} rows; this site wants "
                f"{self.rows_per_coefficient:g} rows for each."
            )
        few = self.rows_per_level
        for name, column in zip(model.rows.names, design.T, strict=True):
            apart = n - int(np.unique(column, return_counts=True)[1].max())
            if 0 < apart < few:
                raise PolicyRefused(f"{name}: sets {apart} rows apart; this site wants {few}.")
        for name, count in model.fewest_of_level.items():
            if count < few:
                raise PolicyRefused(f"{name}: a level has {count} rows; this site wants {few}.")
        if model.classes:
            _, counts = np.unique(response, return_counts=True)
            if counts.min() < few:
                raise PolicyRefused(f"response: a class has {counts.min()} rows; this site wants {few}.")
        if response.ndim == 2:
            events, rows = compared(response)
            if events < few or rows < self.fewest_rows:
                raise PolicyRefused(
                    f"response: {events} events with others at risk, and {rows} rows; this site wants "
                    f"{few} and {self.fewest_rows}."
                )
        if leverage := self.shows(model):
            raise PolicyRefused(
                f"formula: a row has a leverage of {leverage:.2f}, so that its numbers show in the fit; "
                f"this site accepts {self.largest_leverage:g}."
            )
        if part_in_last_digits(np.hstack([design, model.response])):
            raise PolicyRefused(
                "formula: columns part in their last digits only. Centre them, or leave one out."
            )

    def shows(self, model: LocalModel, *places: np.ndarray) -> float:
        """Leverage of a row that shows in sums at the own fit and at these places (K, d); 0 if none does.

        An offset, a number of trials, or a place far away makes one row all of a weighted sum.
        """
        from vaneb.local.fit import fit_clients

        columns, at = [np.hstack([model.rows.design, model.response])], places
        if not model.is_least_squares:
            at = (fit_clients(model.rows, model.family).theta, *places)
            columns.append(model.weighted(at[-1]))
        if (leverage := max(map(largest_leverage, columns))) > self.largest_leverage:
            return leverage
        few, told = self.rows_per_level - 1, model.columns_told(*at)
        for leverage, most in (
            (leverage_together(columns[0], few), self.largest_told),
            (largest_leverage(told), self.largest_told),
            (leverage_together(told, few), ALL_OF_IT),
        ):
            if leverage > most:
                return leverage
        return 0.0

    @property
    def largest_told(self) -> float:
        """Largest leverage among all columns with which sums are told.

        Closer to 1 than among the model's own: unless it is 1, one has to know the other rows to use them.
        """
        return 1 - (1 - self.largest_leverage) / KNOWING

    def check_together(self, releases: Sequence[Released], *, again: bool = False) -> None:
        """Refuse the first of these releases if rows could be read from all of them.

        If it answers ``again``, about another place, its columns were looked at, and only weights are new.
        """
        for joint in () if again else jointly(releases, lambda one: one.columns):
            self._check_shown(largest_leverage(joint), self.largest_leverage)
        for joint in () if again else jointly(releases, lambda one: one.design):
            self._check_shown(leverage_together(joint, self.rows_per_level - 1), self.largest_told)
            if part_in_last_digits(joint):
                raise PolicyRefused(
                    "formula: columns part from those of what has left before in their last digits only."
                )
            if len(joint) < self.rows_per_coefficient * (rank := int(np.linalg.matrix_rank(joint))):
                raise PolicyRefused(
                    f"formula: with what has left before, {rank} coefficients for {len(joint)} rows; this "
                    f"site wants {self.rows_per_coefficient:g} rows for each."
                )
        if releases[0].besides.size or not again:
            for joint in jointly(releases, lambda one: one.told):
                self._check_shown(largest_leverage(joint), self.largest_told)
                self._check_shown(leverage_together(joint, self.rows_per_level - 1), ALL_OF_IT)

    def _check_shown(self, leverage: float, most: float) -> None:
        if leverage > most:
            raise PolicyRefused(
                f"formula: with what has left before, a row has a leverage of {leverage:.2f}, or a few rows "
                f"together; this site accepts {self.largest_leverage:g}."
            )

    def rounded(self, answer: Any) -> Any:
        """An answer with no more digits than may leave."""
        if not self.digits:
            return answer
        if isinstance(answer, Mapping):
            return {key: self.rounded(value) for key, value in answer.items()}
        if isinstance(answer, list | tuple):
            return [self.rounded(value) for value in answer]
        if isinstance(answer, np.ndarray) and answer.dtype.kind == "f":
            size = np.floor(np.log10(np.maximum(np.abs(answer), 1e-300)))
            unit = 10.0 ** (size - (self.digits - 1))
            return np.where(np.isfinite(answer), np.round(answer / unit) * unit, answer)
        return float(f"{answer:.{self.digits}g}") if isinstance(answer, float) else answer

    def check_size(self, rows: int) -> None:
        if rows < self.fewest_rows:
            raise PolicyRefused(f"data: {rows} rows; this site answers from {self.fewest_rows} on.")

    def text(self) -> str:
        """As a file to start from, each line with its meaning."""
        about = _meanings(type(self).__doc__ or "")
        lines = ["# What this site answers.  Read again at every question; see docs/federation.md."]
        for field in dataclasses.fields(self):
            lines += [
                f"\n# {about.get(field.name, '')}",
                f"{field.name} = {_toml(getattr(self, field.name))}",
            ]
        return "\n".join(lines) + "\n"


def squeezed(formula: str) -> str:
    """Without spaces, which mean something in quoted names only."""
    return formula.strip() if set(formula) & set("`'\"") else "".join(formula.split())


def _read_value(place: str, default: Any, value: Any) -> Any:
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InvalidOption(f'{place}: give a list of names, such as ["a", "b"].')
        return tuple(value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidOption(f"{place} = {value!r}: must be true or false.")
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf or (isinstance(default, int) and value != int(value)):
        kind = "a whole number" if isinstance(default, int) else "a number"
        raise InvalidOption(f"{place} = {value!r}: must be {kind}, not negative.")
    return type(default)(value)


def _meanings(text: str) -> dict[str, str]:
    """What the docstring says of each field, in one line."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in text.split("----------")[-1].splitlines():
        head, colon, rest = line.partition(" : ")
        if colon and not line.startswith(" " * 8):
            names = [name.strip() for name in head.split(",")]
            found |= dict.fromkeys(names, rest)
        elif line.strip():
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return f"{value!r}"
