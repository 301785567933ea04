"""The language of formulas: from text to a syntax tree.

A formula is data.  It may come from a server or a file, and nothing in it is ever run as code.  The text is
cut into tokens, and the tokens make a tree of the nodes below.  Names in the tree are columns of the data, or
functions in the list of ``functions``, and nothing else.

    formula     = [bar] "~" sum
    bar         = sum [("|" | "||") sum]
    sum         = product (("+" | "-") product)*
    product     = signed (("*" | "/") signed)*
    signed      = ("-" | "+") signed | interaction
    interaction = power (":" power)*
    power       = atom [("^" | "**") exponent]
    exponent    = ("-" | "+") exponent | power
    atom        = number | text | name ["(" arguments ")"] | "[" arguments "]" | "(" bar ")" | "."

Names may have dots and underscores in them, as in R; other names stand between backticks.  A backtick or
quote within such a name or text is written twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from vaneb.errors import InvalidOption


@dataclass(frozen=True)
class Limits:
    """What a formula may ask for.  A formula from elsewhere must not fill the memory or run for hours."""

    characters: int = 20_000
    depth: int = 32
    """Parentheses, calls, signs and powers within each other."""
    terms: int = 1_000
    """Terms after ``*``, ``/`` and ``^`` are multiplied out."""
    columns: int = 10_000
    """Columns of the design."""
    cells: int = 500_000_000
    """Rows times columns; and rows times operations."""


class Mistake(Exception):
    """Something in a formula that cannot be; ``at`` is where it starts."""

    def __init__(self, at: int, message: str) -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True)
class _Placed:
    """A part of a formula, that knows where it stands."""

    at: int = field(default=0, compare=False, kw_only=True)


@dataclass(frozen=True)
class Name(_Placed):
    """A column."""

    name: str


@dataclass(frozen=True)
class Number(_Placed):
    value: float


@dataclass(frozen=True)
class Text(_Placed):
    value: str


@dataclass(frozen=True)
class Rest(_Placed):
    """``.``: all columns that are not named elsewhere."""


@dataclass(frozen=True)
class Call(_Placed):
    """A function with its arguments; ``[1, 2]`` is ``c(1, 2)``."""

    function: str
    arguments: tuple[tuple[str, Node], ...]
    """Name, empty where there is none, and value."""


@dataclass(frozen=True)
class Negative(_Placed):
    operand: Node


@dataclass(frozen=True)
class Chain(_Placed):
    """Operators of one rank, from left to right: ``+ -``, ``* /`` or ``:``."""

    parts: tuple[Node, ...]
    operators: tuple[str, ...]
    """One fewer than parts."""


@dataclass(frozen=True)
class Power(_Placed):
    base: Node
    exponent: Node


@dataclass(frozen=True)
class Bar(_Placed):
    """``effects | group`` on the right-hand side, ``successes | trials`` on the left."""

    left: Node
    right: Node
    double: bool = False
    """``||``: effects that are not correlated."""


Node = Name | Number | Text | Rest | Call | Negative | Chain | Power | Bar


# ---------------------------------------------------------------- text -> tree

TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
      | (?P<name>\.?[^\W\d][\w.]*)
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<mark>\*\*|\|\||[-+*/:^~|(),=\[\].])""",
    re.VERBOSE,
)
PLAIN_NAME = re.compile(r"\.?[^\W\d][\w.]*")


class Token(NamedTuple):
    kind: str
    """A mark itself, or "number", "name", "quoted", "text", "end"."""
    text: str
    at: int


def read(text: str, limits: Limits) -> tuple[Node, Node]:
    """The two sides of a formula.  Raises ``InvalidOption`` for whatever is not one."""
    if len(text) > limits.characters:
        raise InvalidOption(
            f"formula {shown(text)}: has {len(text):,} characters, more than the {limits.characters:,} "
            "that are read. Use fewer terms."
        )
    with mistakes_in(text):
        return _Parser(_tokens(text), limits.depth).formula()


@contextmanager
def mistakes_in(text: str) -> Iterator[None]:
    """Turn a ``Mistake`` into an ``InvalidOption`` that names its place in the formula."""
    try:
        yield
    except Mistake as mistake:
        token = TOKEN.match(text, mistake.at)
        about = token.group() if token else text[mistake.at : mistake.at + 1]
        place = f"character {mistake.at + 1} ({shown(about, 30)})" if about else "the end"
        raise InvalidOption(f"formula {shown(text)}: at {place}: {printable(str(mistake))}") from None


def printable(text: str) -> str:
    """The text with escapes for what would act on a terminal: messages may quote others' formulas."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(text: str, most: int = 120) -> str:
    """A text in quotes, cut short where it is long."""
    return repr(text if len(text) <= most else text[: most - 3] + "...")


def _tokens(text: str) -> list[Token]:
    tokens, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            if text[at] in "`'\"":
                raise Mistake(at, "cannot be read: this quote is empty or not closed.")
            raise Mistake(at, f"cannot be read: {text[at]!r} is no part of a formula. {REMEDY}")
        kind = str(match.lastgroup)
        if kind != "space":
            tokens.append(Token(match.group() if kind == "mark" else kind, match.group(), at))
        at = match.end()
    return [*tokens, Token("end", "", len(text))]


REMEDY = "Write terms as in 'y ~ x + log(z)', and odd names between backticks."


class _Parser:
    """Recursive descent: one method for each line of the grammar."""

    def __init__(self, tokens: list[Token], depth: int) -> None:
        self.tokens, self.position = tokens, 0
        self.depth, self.deepest = 0, depth

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    def take(self, *kinds: str) -> Token | None:
        """The next token if it is one of ``kinds``."""
        token = self.next
        if token.kind not in kinds:
            return None
        self.position += 1
        return token

    def need(self, kind: str, message: str) -> None:
        if not self.take(kind):
            raise Mistake(self.next.at, f"cannot be read: {message}")

    @contextmanager
    def deeper(self, at: int) -> Iterator[None]:
        self.depth += 1
        if self.depth > self.deepest:
            raise Mistake(at, f"is nested more than {self.deepest} deep. Write it more simply.")
        yield
        self.depth -= 1

    def formula(self) -> tuple[Node, Node]:
        sides = "needs one response and one right-hand side, as in 'y ~ x'."
        if self.next.kind == "~" or not any(token.kind == "~" for token in self.tokens):
            raise Mistake(self.next.at, sides)
        left = self.bar()
        self.need("~", f"there should be an operator or ~ here. {REMEDY}")
        if self.next.kind == "end":
            raise Mistake(self.next.at, sides)
        right = self.sum()
        if self.next.kind in ("|", "||"):
            raise Mistake(self.next.at, "put random terms in parentheses, as in (1 | group).")
        if self.next.kind == "~":
            raise Mistake(self.next.at, sides)
        self.need("end", f"there should be an operator here. {REMEDY}")
        return left, right

    def bar(self) -> Node:
        left = self.sum()
        if not (token := self.take("|", "||")):
            return left
        right = self.sum()
        if self.next.kind in ("|", "||"):
            raise Mistake(self.next.at, "has more than one bar. Write one term for each group.")
        return Bar(left, right, token.kind == "||", at=token.at)

    def sum(self) -> Node:
        return self.chain(self.product, "+", "-")

    def product(self) -> Node:
        return self.chain(self.signed, "*", "/")

    def signed(self) -> Node:
        return self.sign(self.signed) or self.chain(self.power, ":")

    def power(self) -> Node:
        base = self.atom()
        if not (token := self.take("^", "**")):
            return base
        with self.deeper(token.at):
            return Power(base, self.exponent(), at=token.at)

    def exponent(self) -> Node:
        return self.sign(self.exponent) or self.power()

    def sign(self, operand: Callable[[], Node]) -> Node | None:
        if not (token := self.take("-", "+")):
            return None
        with self.deeper(token.at):
            node = operand()
        return Negative(node, at=token.at) if token.kind == "-" else node

    def chain(self, part: Callable[[], Node], *operators: str) -> Node:
        first = part()
        if self.next.kind not in operators:
            return first
        at, parts, found = self.next.at, [first], []
        if isinstance(first, Chain) and first.operators[0] in operators:  # (a + b) + c is a + b + c
            parts, found = list(first.parts), list(first.operators)
        while token := self.take(*operators):
            found.append(token.kind)
            parts.append(part())
        return Chain(tuple(parts), tuple(found), at=at)

    def atom(self) -> Node:
        token = self.next
        self.position += 1
        match token.kind:
            case "number":
                value = float(token.text)
                if not math.isfinite(value):
                    raise Mistake(token.at, "is too large a number.")
                return Number(value, at=token.at)
            case "text":
                return Text(_unquoted(token.text), at=token.at)
            case "quoted":
                return Name(_unquoted(token.text), at=token.at)
            case "name":
                if not self.take("("):
                    return Name(token.text, at=token.at)
                with self.deeper(token.at):
                    return Call(token.text, self.arguments(")"), at=token.at)
            case "[":
                with self.deeper(token.at):
                    return Call("c", self.arguments("]"), at=token.at)
            case "(":
                with self.deeper(token.at):
                    node = self.bar()
                    self.need(")", f"there should be an operator or ) here. {REMEDY}")
                    return node
            case ".":
                return Rest(at=token.at)
        self.position -= 1
        raise Mistake(token.at, f"cannot be read: a term is missing here. {REMEDY}")

    def arguments(self, end: str) -> tuple[tuple[str, Node], ...]:
        found: list[tuple[str, Node]] = []
        while not self.take(end):
            if found:
                self.need(",", f"there should be an operator, a comma or {end} here. {REMEDY}")
            name = ""
            if self.next.kind == "name" and self.tokens[self.position + 1].kind == "=":
                name = self.next.text
                self.position += 2
            found.append((name, self.sum()))
        return tuple(found)


def _unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])


# ---------------------------------------------------------------- tree -> text

#: How tightly a node holds together: what holds less tightly needs parentheses within it.
_SUM, _PRODUCT, _SIGNED, _INTERACTION, _POWER, _ATOM = range(1, 7)
_RANK = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, ":": _INTERACTION}


def source(node: Node) -> str:
    """The node as text, always laid out in the same way; ``read`` makes the same of it again."""
    return _source(node)[0]


def _source(node: Node) -> tuple[str, int]:
    match node:
        case Name(name):
            return (name if PLAIN_NAME.fullmatch(name) else quoted(name, "`")), _ATOM
        case Number(value):
            return show_number(value), _ATOM
        case Text(value):
            return quoted(value, '"' if "'" in value and '"' not in value else "'"), _ATOM
        case Rest():
            return ".", _ATOM
        case Call(function, arguments):
            shown = ", ".join(f"{name}={source(v)}" if name else source(v) for name, v in arguments)
            return (f"[{shown}]" if function == "c" else f"{function}({shown})"), _ATOM
        case Negative(operand):
            return "-" + _within(operand, _SIGNED), _SIGNED
        case Chain(parts, operators):
            rank = _RANK[operators[0]]
            text = _within(parts[0], rank)
            for operator, part in zip(operators, parts[1:], strict=True):
                text += operator if rank == _INTERACTION else f" {operator} "
                text += _within(part, rank + 1)
            return text, rank
        case Power(base, exponent):
            return f"{_within(base, _ATOM)} ** {_within(exponent, _POWER)}", _POWER
        case Bar(left, right, double):
            return f"{source(left)} {'||' if double else '|'} {source(right)}", 0
    raise TypeError(f"{node!r} is no node")


def _within(node: Node, rank: int) -> str:
    text, own = _source(node)
    return text if own >= rank else f"({text})"


def quoted(text: str, mark: str) -> str:
    """``text`` between quotes."""
    return mark + text.replace(mark, mark * 2) + mark


def show_number(value: float) -> str:
    """A number as short as it can be: 2 for 2.0."""
    return str(int(value)) if abs(value) < 1e15 and value == int(value) else repr(float(value))
