"""What a formula ``y ~ x1 + x2`` says: its response, its terms multiplied out, the columns it uses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vaneb.errors import InvalidOption
from vaneb.grouped.frames import need_column
from vaneb.grouped.functions import check_factor, check_numeric, columns_of, walk
from vaneb.grouped.syntax import (
    Bar,
    Call,
    Chain,
    Limits,
    Mistake,
    Name,
    Negative,
    Node,
    Number,
    Power,
    Rest,
    mistakes_in,
    read,
    shown,
    source,
)

if TYPE_CHECKING:
    import pandas as pd

Term = tuple[Node, ...]
"""Factors that are multiplied; the intercept has none."""

#: What some models can use and others cannot, and what to do instead.
SPECIAL = {
    "random": "leave out terms such as (1 | group) here. The client column is named on its own.",
    "survival": "Surv(time, event) is not supported here. Give one response, as in 'time ~ x'.",
    "trials": "successes | trials is not supported here. Give one row for each trial, with a response of "
    "0 or 1.",
}


@dataclass(frozen=True)
class RandomTerm:
    """Effects that differ between groups: ``(effects | group)``."""

    effects: tuple[Term, ...]
    group: tuple[str, ...]
    """Columns; each combination of their values is one group."""
    correlated: bool


@dataclass(frozen=True, eq=False)
class ParsedFormula:
    """What a formula says."""

    text: str
    left: Node
    terms: tuple[Term, ...]
    """Terms of the right-hand side by the number of their factors, those of random terms among them."""
    offsets: tuple[Node, ...]
    random: tuple[RandomTerm, ...]
    limits: Limits
    added: tuple[Term, ...] = ()
    """Terms that stand within random terms only: what differs between groups has an average, too."""

    @property
    def response(self) -> str:
        """The response: a column, or an expression."""
        return self.left.name if isinstance(self.left, Name) else source(self.left)

    @property
    def kind(self) -> str:
        """ "plain", "survival" for ``Surv(...)`` or "trials" for ``successes | trials``."""
        return _check_left(self.left)

    @property
    def responses(self) -> tuple[Node, ...]:
        """What the response is made of: itself; time and event of ``Surv``; ``successes | trials``."""
        return _left_parts(self.left)

    @property
    def response_columns(self) -> tuple[str, ...]:
        """Columns that the response uses."""
        return _left_columns(self.left)

    @property
    def right_columns(self) -> tuple[str, ...]:
        """Columns that the right-hand side uses."""
        effects = [term for random in self.random for term in random.effects]
        nodes = [*(f for term in (*self.terms, *effects) for f in term), *self.offsets]
        groups = [column for random in self.random for column in random.group]
        return tuple(dict.fromkeys([*columns_of(*nodes), *groups]))

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the data that either side uses, the response's first."""
        return tuple(dict.fromkeys([*_left_columns(self.left), *self.right_columns]))

    @property
    def canonical(self) -> str:
        """The formula multiplied out, as text that means the same whatever other columns there are."""
        random = [
            f"({_listed(r.effects)} {'|' if r.correlated else '||'} "
            f"{':'.join(source(Name(column)) for column in r.group)})"
            for r in self.random
        ]
        offsets = [f"offset({source(node)})" for node in self.offsets]
        return f"{source(self.left)} ~ {' + '.join([_listed(self.terms), *offsets, *random])}"

    def shown_terms(self, terms: Sequence[Term]) -> str:
        """Some terms as text, the intercept as 1."""
        return " + ".join(":".join(source(f) for f in term) or "1" for term in terms)


def _listed(terms: Sequence[Term]) -> str:
    start = [] if () in terms else ["0"]
    return " + ".join([*start, *(":".join(source(f) for f in term) or "1" for term in terms)])


def group_name(columns: Sequence[str]) -> str:
    """What a group of a random term is called: its column, or several joined."""
    return ":".join(columns)


def understand(
    text: str,
    free: Sequence[str] | None = None,
    *,
    allow: Collection[str] = (),
    limits: Limits | None = None,
) -> ParsedFormula:
    """Parse ``text`` without looking at data.

    Parameters
    ----------
    free : columns that the ``.`` of ``y ~ .`` stands for; None leaves it out
    allow : what the caller can use, of the keys of ``SPECIAL``; anything else there is refused
    """
    limits = limits or Limits()
    left, right = read(text, limits)
    with mistakes_in(text):
        kind = _check_left(left)
        used = {*_left_columns(left), *_groups_in(right)}
        rest = [column for column in free or () if column not in used]
        side = _Expansion(limits, rest)
        fixed = side.expand(right)
        random = tuple(one for bar in list(side.bars) for one in side.random(bar))
        terms, added = _with_effects(fixed, random)
    for special, found in ((kind, True), ("random", bool(random))):
        if special in SPECIAL and found and special not in allow:
            raise InvalidOption(f"formula {shown(text)}: {SPECIAL[special]}")
    return ParsedFormula(text, left, terms, tuple(side.offsets), random, limits, added)


def _with_effects(
    fixed: tuple[Term, ...], random: Sequence[RandomTerm]
) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """All terms that have a column of the design, and those of them that random terms alone name."""

    def key(term: Term) -> frozenset[str]:
        return frozenset(source(node) for node in term)

    known = {key(term) for term in fixed}
    effects = {key(term): term for one in random for term in one.effects}
    added = tuple(term for name, term in effects.items() if name not in known)
    return tuple(sorted((*fixed, *added), key=len)), added


def _groups_in(node: Node) -> set[str]:
    """Columns that random terms are grouped by: ``.`` does not stand for them."""
    return {column for bar in walk(node) if isinstance(bar, Bar) for column in columns_of(bar.right)}


def parse(
    text: str,
    frame: pd.DataFrame,
    reserved: Sequence[str],
    *,
    allow: Collection[str] = (),
    limits: Limits | None = None,
) -> ParsedFormula:
    """Parse ``text`` for the columns of ``frame``; for ``allow`` see ``understand``.

    ``reserved`` columns (client, offset, test column) are not meant by the ``.`` of ``y ~ .``.
    """
    free = [column for column in frame.columns if column not in reserved]
    try:
        formula = understand(text, free, allow=allow, limits=limits)
    except InvalidOption as error:
        spaced = next((c for c in free if " " in c), None)
        if spaced is None or "cannot be read" not in str(error):
            raise
        raise InvalidOption(f"{error} Names with spaces are quoted, as in `{spaced}`.") from None
    for column in formula.columns:
        need_column(frame, column, f"the formula {shown(text)}")
    return formula


def _check_left(left: Node) -> str:
    """Which kind of response the left-hand side is."""
    match left:
        case Call("Surv", ((("", _), ("", _)) | (("", _), ("", _), ("", _)))):
            kind = "survival"
        case Call("Surv"):
            raise Mistake(
                left.at,
                "Surv takes two or three columns, as in Surv(time, event) or Surv(start, stop, event).",
            )
        case Bar(_, _, double):
            if double:
                raise Mistake(left.at, "write one bar, as in successes | trials.")
            kind = "trials"
        case Chain() | Power() | Negative():
            raise Mistake(
                left.at,
                "the left-hand side must be one response, not several terms. Arithmetic goes into I(...), as "
                "in I(y1 + y2).",
            )
        case Call("poly" | "bs" | "C" | "factor"):
            raise Mistake(
                left.at, "the response is one column or a function of numbers. Name the column itself."
            )
        case _:
            kind = "plain"
    for part in _left_parts(left):
        check_numeric(part)
    if not _left_columns(left):
        raise Mistake(left.at, f"the response {source(left)!r} is not a column of the data.")
    return kind


def _left_parts(left: Node) -> tuple[Node, ...]:
    match left:
        case Bar(successes, trials):
            return successes, trials
        case Call("Surv", arguments):
            return tuple(part for _, part in arguments)
    return (left,)


def _left_columns(left: Node) -> tuple[str, ...]:
    return columns_of(*_left_parts(left))


#: Factors of each term by their texts; terms by the set of these: a:b is b:a, and a:a is a.
_Terms = dict[frozenset[str], dict[str, Node]]
_INTERCEPT: _Terms = {frozenset(): {}}
#: Steps for each term that is allowed: many products are the same term, and make none.
_STEPS = 100


class _Expansion:
    """Multiplies the terms of a right-hand side out."""

    def __init__(self, limits: Limits, rest: list[str]) -> None:
        self.limits = limits
        self.rest: _Terms = {frozenset({source(Name(c))}): {source(Name(c)): Name(c)} for c in rest}
        self.offsets: list[Node] = []
        self.bars: list[Bar] = []
        self.steps = 0

    def expand(self, node: Node, *, intercept: bool = True) -> tuple[Term, ...]:
        terms: _Terms = dict(_INTERCEPT) if intercept else {}
        self.add(node, terms)
        return tuple(tuple(term.values()) for term in sorted(terms.values(), key=len))

    def add(self, node: Node, terms: _Terms) -> None:
        """Add what stands in a sum, and take away what has a minus."""
        match node:
            case Chain(parts, ("+" | "-", *_) as operators):
                for operator, part in zip(("+", *operators), parts, strict=True):
                    self.add(part if operator == "+" else Negative(part, at=part.at), terms)
            case Negative(Negative(operand)):
                self.add(operand, terms)
            case Number(0) | Negative(Number(1)):
                terms.pop(frozenset(), None)
            case Negative(Number(0)):
                terms |= _INTERCEPT
            case Negative(operand):
                for key in self.product(operand):
                    terms.pop(key, None)
            case Bar():
                self.bars.append(node)
            case Call("offset", arguments):
                if len(arguments) != 1 or arguments[0][0]:
                    raise Mistake(node.at, "offset takes one expression, as in offset(log(exposure)).")
                check_numeric(arguments[0][1])
                self.offsets.append(arguments[0][1])
            case _:
                found = self.product(node)
                self.count(node, len(found))
                for key, term in found.items():
                    terms.setdefault(key, term)
                self.check_size(node, len(terms))

    def product(self, node: Node) -> _Terms:
        """Terms of a node that does not stand in the sum itself."""
        match node:
            case Chain(_, ("+" | "-", *_)):
                terms: _Terms = {}
                others = len(self.bars) + len(self.offsets)
                self.add(node, terms)
                if len(self.bars) + len(self.offsets) > others:
                    raise Mistake(node.at, _ONLY_ADDED)
                return terms
            case Chain(parts, operators):
                left = self.product(parts[0])
                for operator, part in zip(operators, parts[1:], strict=True):
                    left = self.joined(operator, left, self.product(part), part)
                return left
            case Power(base, exponent):
                return self.power(base, exponent)
            case Rest():
                self.check_size(node, len(self.rest))
                return self.rest
            case Number(1):
                return _INTERCEPT
            case Number():
                raise Mistake(
                    node.at, "among terms, numbers are 0 and 1 only. Multiply in I(...), as in I(2 * x)."
                )
            case Negative():
                raise Mistake(node.at, "a minus takes a term away; it stands before a term only. Use I(-x).")
            case Bar() | Call("offset"):
                raise Mistake(node.at, _ONLY_ADDED)
        check_factor(node)
        return {frozenset({source(node)}): {source(node): node}}

    def joined(self, operator: str, left: _Terms, right: _Terms, node: Node) -> _Terms:
        self.count(node, len(left))
        if operator == "/":  # a + a:b, where a has all factors of the left
            all_of_it = {text: factor for term in left.values() for text, factor in term.items()}
            return left | self.crossed({frozenset(all_of_it): all_of_it}, right, node)
        crossed = self.crossed(left, right, node)
        return crossed if operator == ":" else left | right | crossed

    def crossed(self, left: _Terms, right: _Terms, node: Node) -> _Terms:
        self.count(node, len(left) * len(right))
        found: _Terms = {}
        for first, a in left.items():
            for second, b in right.items():
                found.setdefault(first | second, {**a, **b})
            self.check_size(node, len(found))
        return found

    def power(self, base: Node, exponent: Node) -> _Terms:
        """(a + b)^2 is a + b + a:b: all products of that many terms."""
        if not isinstance(exponent, Number) or exponent.value < 1 or exponent.value != int(exponent.value):
            raise Mistake(exponent.at, "among terms, a power is a whole number. Other powers go into I(...).")
        once = self.product(base)
        if exponent.value > 1 and len(once) == 1:
            raise Mistake(
                exponent.at,
                "among terms, a power of one term is the term itself. Write "
                f"I({source(Power(base, exponent))}) for the number.",
            )
        terms = dict(once)
        for _ in range(min(int(exponent.value), len(once)) - 1):
            terms |= {k: t for k, t in self.crossed(terms, once, base).items() if k not in terms}
        return terms

    def random(self, bar: Bar) -> list[RandomTerm]:
        """``(effects | a / b)`` is one random term for each of a and a:b."""
        others = len(self.bars) + len(self.offsets)
        effects = self.expand(bar.left)
        groups = [term for term in self.expand(bar.right, intercept=False) if term]
        if len(self.bars) + len(self.offsets) > others:
            raise Mistake(
                bar.at, "random terms hold neither random terms nor offsets. Write them side by side."
            )
        if not effects:
            raise Mistake(bar.at, "there is nothing that differs between groups. Write (1 | group) at least.")
        if not groups or not all(isinstance(node, Name) for term in groups for node in term):
            raise Mistake(
                bar.at, "a group is a column, or columns between : or /, as in (1 | district/school)."
            )
        self.count(bar, len(effects) * len(groups))
        names = [tuple(node.name for node in term if isinstance(node, Name)) for term in groups]
        return [RandomTerm(effects, group, not bar.double) for group in names]

    def count(self, node: Node, steps: int) -> None:
        self.steps += steps
        if self.steps > _STEPS * self.limits.terms:
            raise Mistake(node.at, "takes too long to multiply out. Use fewer terms.")

    def check_size(self, node: Node, size: int) -> None:
        if size > self.limits.terms:
            raise Mistake(
                node.at,
                f"makes {size:,} terms, more than the {self.limits.terms:,} that are allowed. Use fewer.",
            )


_ONLY_ADDED = "random terms and offsets are added to the others, not multiplied or taken away."
