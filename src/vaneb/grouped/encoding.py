"""From the terms of a formula to the columns of a design, with factors coded so that no column is redundant.

A factor of L levels has L columns, or L - 1 (its contrasts) where earlier columns span the rest already.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.grouped.formula import ParsedFormula, Term, understand
from vaneb.grouped.functions import FACTORS, bind, factor_of, state_of, walk
from vaneb.grouped.syntax import Call, Chain, Limits, Name, Node, shown, source
from vaneb.grouped.transforms import Evaluation, State, contrasts, indicators, levels_of

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
Piece = tuple[tuple[Node, bool], ...]
"""Factors that are multiplied, and whether each is reduced to its contrasts."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """A formula with what was learned from the rows of a fit; plain data (``to_data``, ``from_data``)."""

    formula: ParsedFormula
    states: dict[str, State]
    """What was learned of each column and function, by its text."""

    @classmethod
    def learn(cls, formula: ParsedFormula, frame: pd.DataFrame) -> Self:
        """Learn from complete rows."""
        _check_work(formula, len(frame))
        states: dict[str, State] = {}
        evaluation = Evaluation(frame, states, learn=True)
        for node in _factors(formula):
            if evaluation.is_factor(node):
                evaluation.codes(node)
            elif not isinstance(node, Name):
                evaluation.block(node)
        for node in formula.offsets:
            evaluation.numbers(node)
        for node in formula.responses:
            if not isinstance(node, Name):
                evaluation.numbers(node)
        found = cls(formula, states)
        found._check_size(len(frame))
        twice = next((name for name, times in Counter(found.names).items() if times > 1), None)
        if twice is not None:
            raise InvalidReport(
                f"formula {shown(formula.text)}: two columns of the design would be called {twice!r}. "
                "Rename a column of the data."
            )
        return found

    def to_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"formula": self.formula.canonical, "states": self.states}

    @classmethod
    def from_data(cls, data: Any, *, limits: Limits | None = None) -> Self:
        """The encoding of ``to_data``; refuses anything else with ``InvalidReport`` or ``InvalidOption``."""
        if not isinstance(data, dict) or set(data) != {"formula", "states"}:
            raise InvalidReport("encoding: should hold formula and states. Save it again.")
        text, states = data["formula"], data["states"]
        if not isinstance(text, str) or not isinstance(states, dict):
            raise InvalidReport(
                "encoding: the formula should be text, and the states a table. Save it again."
            )
        formula = understand(text, allow=("random", "survival", "trials"), limits=limits)
        known = dict(_stateful(formula))
        if set(states) != set(known):
            odd = sorted(map(str, set(states) ^ set(known)))[0]
            raise InvalidReport(f"encoding: {odd!r} is missing from the states, or too much. Save it again.")
        for name, node in known.items():
            _check_state(name, node, states[name])
        found = cls(formula, states)
        found._check_size(1)
        return found

    @property
    def learned(self) -> tuple[str, ...]:
        """Expressions for which numbers were taken from the rows of the fit."""
        return tuple(name for name, state in self.states.items() if state.keys() - {"levels"})

    @property
    def levels(self) -> dict[str, tuple[str, ...]]:
        """Levels of the columns that are factors."""
        return {factor_of(f)[0]: self._levels(f) for f in _factors(self.formula) if self._is_factor(f)}

    @property
    def use_fewer(self) -> str:
        """What to do about too many columns."""
        largest = max(self.levels.items(), key=lambda item: len(item[1]), default=None)
        if largest is None:
            return "Use fewer terms."
        return (
            f"Use fewer terms. Column {largest[0]} is taken for a factor, of {len(largest[1]):,} levels: if "
            "it should be a number, look for text, dates or decimal commas in it."
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(name for piece in self._pieces for name in self._piece_names(piece))

    def matrix(self, frame: pd.DataFrame) -> Array:
        """The columns for complete rows, shape (N, p)."""
        self._check_size(len(frame))
        evaluation = Evaluation(frame, self.states)
        blocks: dict[tuple[str, bool], Array] = {}
        out = np.empty((len(frame), sum(map(self._piece_width, self._pieces))))
        start = 0
        for piece in self._pieces:
            if not self._piece_width(piece):  # a factor of one level has no contrasts
                continue
            columns = np.ones((len(frame), 1))
            for node, reduced in piece:
                key = source(node), reduced
                if key not in blocks:
                    blocks[key] = self._block(evaluation, node, reduced)
                # The first factor's columns change fastest.
                width = columns.shape[1] * blocks[key].shape[1]
                with np.errstate(all="ignore"):
                    columns = (blocks[key][:, :, None] * columns[:, None, :]).reshape(len(frame), width)
            out[:, start : start + columns.shape[1]] = columns
            start += columns.shape[1]
        return out

    def spanned_by(self, terms: Sequence[Term]) -> NDArray[np.bool_]:
        """Which columns, (p,), lie in what ``terms`` span, with all levels of their factors."""
        span: set[frozenset[str]] = set()
        for term in terms:
            span |= _spans([(node, False) for node in term], self._is_factor)
        inside: list[bool] = []
        for piece in self._pieces:
            own = _spans(piece, self._is_factor)
            if span & own and not own <= span:
                raise InvalidReport(
                    f"formula {shown(self.formula.text)}: {':'.join(source(n) for n, _ in piece)!r} differs "
                    "between groups in part only. Write the terms of the bar among the others, too."
                )
            inside += [own <= span] * self._piece_width(piece)
        return np.array(inside, dtype=bool)

    def offset(self, frame: pd.DataFrame) -> Array:
        """Sum of the formula's offsets, shape (N,)."""
        evaluation = Evaluation(frame, self.states)
        with np.errstate(all="ignore"):
            return sum((evaluation.numbers(node) for node in self.formula.offsets), np.zeros(len(frame)))

    def response(self, frame: pd.DataFrame) -> list[pd.Series]:
        """The parts of the response (``ParsedFormula.responses``) as the data have them, or as computed."""
        import pandas as pd

        def part(node: Node) -> pd.Series:
            if isinstance(node, Name):
                return frame[node.name]
            return pd.Series(evaluation.numbers(node), index=frame.index, name=source(node))

        evaluation = Evaluation(frame, self.states)
        return [part(node) for node in self.formula.responses]

    # ---------------------------------------------------------------- columns of factors and pieces

    def _is_factor(self, node: Node) -> bool:
        if isinstance(node, Name):
            return "levels" in self.states[source(node)]
        return isinstance(node, Call) and node.function in FACTORS

    def _levels(self, node: Node) -> tuple[str, ...]:
        return levels_of(node, self.states[source(node)])

    @cached_property
    def _pieces(self) -> tuple[Piece, ...]:
        return tuple(_pieces(self.formula.terms, self._is_factor, self.formula))

    def _width(self, node: Node, reduced: bool) -> int:
        if self._is_factor(node):
            return len(self._levels(node)) - reduced
        match node:
            case Call("poly"):
                return bind(node)[1].get("degree", 1)
            case Call("bs"):
                options = bind(node)[1]
                degree = options.get("degree", 3)
                return options.get("df", degree + len(options.get("knots", ())))
        return 1

    def _piece_width(self, piece: Piece) -> int:
        return math.prod(self._width(node, reduced) for node, reduced in piece)

    def _factor_names(self, node: Node, reduced: bool) -> tuple[str, ...]:
        name = node.name if isinstance(node, Name) else source(node)
        if self._is_factor(node):
            labels = contrasts(node, self.states[source(node)])[0] if reduced else self._levels(node)
            return tuple(f"{name}[{label}]" for label in labels)
        if isinstance(node, Call) and node.function in ("poly", "bs"):
            return tuple(f"{name}[{k + 1}]" for k in range(self._width(node, reduced)))
        return (name,)

    def _piece_names(self, piece: Piece) -> list[str]:
        names = [""]
        for node, reduced in piece:
            own = self._factor_names(node, reduced)
            names = [f"{before}:{after}" if before else after for after in own for before in names]
        return names if piece else ["Intercept"]

    def _block(self, evaluation: Evaluation, node: Node, reduced: bool) -> Array:
        if not self._is_factor(node):
            return evaluation.block(node)
        codes = evaluation.codes(node)
        if reduced:
            return contrasts(node, self.states[source(node)])[1](codes)
        return indicators(codes, range(len(self._levels(node))))

    def _check_size(self, rows: int) -> None:
        _check_work(self.formula, rows)
        columns, limits = sum(map(self._piece_width, self._pieces)), self.formula.limits
        if columns > limits.columns or columns * rows > limits.cells:
            raise InvalidReport(
                f"formula {shown(self.formula.text)}: asks for {columns:,} columns of {rows:,} rows; at most "
                f"{limits.columns:,} columns and {limits.cells:,} numbers are allowed. {self.use_fewer}"
            )


def _check_work(formula: ParsedFormula, rows: int) -> None:
    """That the arithmetic on all rows is not endless."""
    nodes = sum(map(_operations, (*_factors(formula), *formula.offsets, *formula.responses)))
    if nodes * rows > formula.limits.cells:
        raise InvalidReport(
            f"formula {shown(formula.text)}: asks for {nodes:,} operations on each of {rows:,} rows; at most "
            f"{formula.limits.cells:,} in all are allowed. Use fewer terms, or make columns of them first."
        )


def _operations(node: Node) -> int:
    return sum(len(part.parts) if isinstance(part, Chain) else 1 for part in walk(node))


def _factors(formula: ParsedFormula) -> list[Node]:
    return list({source(node): node for term in formula.terms for node in term}.values())


def _pieces(
    terms: Sequence[Term], is_factor: Callable[[Node], bool], formula: ParsedFormula
) -> Iterator[Piece]:
    """Split terms into pieces that together span what the terms span, without redundant columns.

    A term spans the products of its numbers with the contrasts of every subset of its factors.  What earlier
    terms span is left out.
    """
    spanned: set[frozenset[str]] = set()
    for term in terms:
        with_levels = [source(node) for node in term if is_factor(node)]
        if 2 ** len(with_levels) > formula.limits.terms:
            raise InvalidReport(
                f"formula {shown(formula.text)}: {shown(':'.join(map(source, term)))} has {len(with_levels)} "
                "factors. Use fewer."
            )
        numbers = frozenset(source(node) for node in term) - set(with_levels)
        sizes = range(len(with_levels) + 1)
        subsets = [frozenset(s) for size in sizes for s in combinations(with_levels, size)]
        new = [s for s in subsets if numbers | s not in spanned]
        spanned |= {numbers | s for s in subsets}
        for piece in _merged([frozenset((name, True) for name in s) for s in new]):
            reduced = dict(piece)
            yield tuple(
                (node, reduced.get(source(node), False))
                for node in term
                if source(node) in numbers or source(node) in reduced
            )


def _spans(piece: Sequence[tuple[Node, bool]], is_factor: Callable[[Node], bool]) -> set[frozenset[str]]:
    """Products of numbers with contrasts that a piece spans."""
    always = frozenset(source(node) for node, reduced in piece if reduced or not is_factor(node))
    free = [source(node) for node, reduced in piece if not reduced and is_factor(node)]
    sizes = range(len(free) + 1)
    return {always | frozenset(s) for size in sizes for s in combinations(free, size)}


def _merged(pieces: list[frozenset[tuple[str, bool]]]) -> list[frozenset[tuple[str, bool]]]:
    """Write (anything) + (anything):(contrasts) as (anything):(all levels) wherever both are there."""
    while True:
        place = {piece: i for i, piece in enumerate(pieces)}
        for piece in pieces:
            found = [(place[piece - {f}], f) for f in piece if f[1] and piece - {f} in place]
            if found:
                break
        else:
            return pieces
        narrow, factor = min(found)
        whole = (piece - {factor}) | {(factor[0], False)}
        before = [p for p in pieces[: place[piece]] if p != pieces[narrow]]
        pieces = [*sorted([*before, whole], key=len), *pieces[place[piece] + 1 :]]


# ---------------------------------------------------------------- states from elsewhere


def _stateful(formula: ParsedFormula) -> Iterator[tuple[str, Node]]:
    """Expressions that have a state, by their text."""
    yield from ((source(node), node) for node in _factors(formula) if isinstance(node, Name))
    for node in (*_factors(formula), *formula.offsets, *formula.responses):
        for part in walk(node):
            if isinstance(part, Call) and state_of(part) is not None:
                yield source(part), part


def _check_state(name: str, node: Node, state: Any) -> None:
    """That a state is what its expression would have learned."""
    expected = state_of(node) or {}
    if isinstance(node, Name) and state == {}:
        return
    if not isinstance(state, dict) or set(state) != set(expected):
        raise InvalidReport(
            f"encoding: the state of {name!r} should hold {', '.join(expected) or 'nothing'}."
        )
    for key, size in expected.items():
        values = state[key] if size is not None else [state[key]]
        if not isinstance(values, list) or (size and len(values) != size):
            raise InvalidReport(f"encoding: {key} of {name!r} should be a list of {size or 'some'} values.")
        if key == "levels":
            good = (
                bool(values) and all(isinstance(v, str) for v in values) and len(set(values)) == len(values)
            )
        else:
            good = all(type(v) in (int, float) and abs(v) <= sys.float_info.max for v in values)
        if not good or (key in ("sd", "norms") and min(values) <= 0):
            raise InvalidReport(f"encoding: {key} of {name!r} has a value that cannot be. Save it again.")
