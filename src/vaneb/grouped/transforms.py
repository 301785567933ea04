"""How each function of a formula computes its columns.

Some functions learn from rows: ``center``, ``scale``, ``poly``, ``bs``, and the levels of factors.  What they
have learned is in a dictionary of states, plain numbers and texts by the text of the expression, that can be
saved as JSON.  Other rows are put through the same functions.  What the formula says itself is not repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.grouped.frames import contents, is_numeric
from vaneb.grouped.functions import FACTORS, bind, factor_of
from vaneb.grouped.syntax import Call, Chain, Name, Negative, Node, Number, Power, show_number, source

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[np.float64]
State = dict[str, Any]

ELEMENTWISE: dict[str, Callable[[Array], Array]] = {
    "I": np.positive,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "abs": np.abs,
}
ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
}


# ---------------------------------------------------------------- values


class Evaluation:
    """Computes expressions on the rows of a frame; ``learn`` to fill ``states`` from them."""

    def __init__(self, frame: pd.DataFrame, states: dict[str, State], *, learn: bool = False) -> None:
        self.frame, self.states, self.learn = frame, states, learn

    def numbers(self, node: Node) -> Array:
        """One number for each row, shape (N,); NaN where there is none."""
        with np.errstate(all="ignore"):
            return np.array(np.broadcast_to(self._value(node, source(node)), len(self.frame)))

    def block(self, node: Node) -> Array:
        """The columns of a factor that is a number or several, shape (N, width).

        Where it learns, of no rows: how many columns there will be is not checked yet.
        """
        match node:
            case Call("poly" | "bs" as function):
                first, options = bind(node)
                compute = self._poly if function == "poly" else self._spline
                with np.errstate(all="ignore"):
                    return compute(source(node), self.numbers(first), **options)
        return self.numbers(node)[:, None]

    def codes(self, node: Node) -> NDArray[np.intp]:
        """Positions of the rows' levels among those of a factor, shape (N,)."""
        column, options = factor_of(node)
        labels, positions = _labels(self.frame[column])
        state = self._state(source(node), lambda: {} if "levels" in options else {"levels": labels})
        place = {label: i for i, label in enumerate(levels_of(node, state))}
        codes = np.array([place.get(label, -1) for label in labels], dtype=np.intp)[positions]
        if (codes < 0).any():
            label = labels[positions[np.flatnonzero(codes < 0)[0]]]
            why = (
                "is not among the levels of the formula" if "levels" in options else "is in no row of the fit"
            )
            raise InvalidReport(
                f"column {column}: level {label!r} ({int((codes < 0).sum())} rows) {why}, "
                "so it has no coefficient. Leave those rows out, or merge the level with another."
            )
        return codes

    def is_factor(self, node: Node) -> bool:
        """Does the node have levels?  Learns it of a column."""
        match node:
            case Call(function):
                return function in FACTORS
            case Name(name):
                values = self.frame[name]
                state = self._state(
                    source(node), lambda: {} if _holds_numbers(values) else {"levels": _labels(values)[0]}
                )
                return "levels" in state
        return False

    def _state(self, text: str, learn: Callable[[], State]) -> State:
        """What was learned of the expression ``text``."""
        if text not in self.states:
            if not self.learn:
                raise InvalidReport(f"formula: what the fit learned of {text} is missing. Fit again.")
            self.states[text] = learn()
        return self.states[text]

    def _wanted(self, x: Array) -> Array:
        return x[:0] if self.learn else x

    def _value(self, node: Node, whole: str) -> Array:
        match node:
            case Number(value):
                return np.asarray(value, dtype=np.float64)
            case Name(name):
                return self._column(name, whole)
            case Negative(operand):
                return np.negative(self._value(operand, whole))
            case Power(base, exponent):
                return np.power(self._value(base, whole), self._value(exponent, whole))
            case Chain(parts, operators):
                total = self._value(parts[0], whole)
                for operator, part in zip(operators, parts[1:], strict=True):
                    total = ARITHMETIC[operator](total, self._value(part, whole))
                return total
            case Call("center" | "scale" as function):
                first, options = bind(node)
                scale = function == "scale" and options.get("scale", True)
                return self._scaled(source(node), self.numbers(first), options.get("center", True), scale)
            case Call(function):
                return ELEMENTWISE[function](self._value(bind(node)[0], whole))
        raise TypeError(f"{node!r} is not numeric")

    def _column(self, name: str, whole: str) -> Array:
        values = self.frame[name]
        if not _holds_numbers(values):
            raise InvalidReport(
                f"column {name}: holds {contents(values)}, not numbers, as {whole} needs. Convert it, or "
                f"make it a factor with C({source(Name(name))})."
            )
        return values.to_numpy(dtype=np.float64, na_value=np.nan)

    def _scaled(self, text: str, x: Array, center: bool, scale: bool) -> Array:
        state = self._state(text, lambda: _centre_and_spread(_finite(x, text), text, center, scale))
        return (x - state.get("mean", 0.0)) / state.get("sd", 1.0)

    def _poly(self, text: str, x: Array, degree: int = 1, raw: bool = False) -> Array:
        """Polynomials that are orthonormal over the rows of the fit, as in R; or plain powers."""
        if raw:
            return self._wanted(x)[:, None] ** np.arange(1, degree + 1)
        state = self._state(text, lambda: _recurrence(_finite(x, text), degree, text))
        return _polynomials(self._wanted(x), state)

    def _spline(
        self,
        text: str,
        x: Array,
        df: int | None = None,
        knots: tuple[float, ...] = (),
        degree: int = 3,
        lower_bound: float | None = None,
        upper_bound: float | None = None,
    ) -> Array:
        """B-splines without the first; beyond the bounds the outer polynomials go on, as in R."""
        from scipy.interpolate import BSpline

        def learn() -> State:
            seen = _finite(x, text)
            inner = np.linspace(0, 1, max((df or 0) - degree, 0) + 2)[1:-1]
            learned = {"lower": float(seen.min())} if lower_bound is None else {}
            learned |= {"upper": float(seen.max())} if upper_bound is None else {}
            return learned | ({"knots": np.quantile(seen, inner).tolist()} if inner.size else {})

        state = self._state(text, learn)
        lower = state["lower"] if lower_bound is None else lower_bound
        upper = state["upper"] if upper_bound is None else upper_bound
        between = list(state.get("knots", knots))
        if not lower < upper:
            raise InvalidReport(f"formula: {text} needs values between two bounds; there is one value only.")
        inside = between == sorted(between) and all(lower < k < upper for k in between)
        if not inside or max(Counter(between).values(), default=0) > degree:
            raise InvalidReport(
                f"formula: the knots of {text} must lie between {lower:g} and {upper:g}, and no more than "
                f"{degree} in one place. Give knots, or use a smaller df."
            )
        every = np.array([*[lower] * (degree + 1), *between, *[upper] * (degree + 1)])
        x = self._wanted(x)
        out = np.full((len(x), len(between) + degree), np.nan)
        known = np.isfinite(x)
        if known.any():
            out[known] = BSpline.design_matrix(x[known], every, degree, extrapolate=True).toarray()[:, 1:]
        return out


def _centre_and_spread(x: Array, text: str, center: bool, scale: bool) -> State:
    state = {"mean": float(x.mean())} if center else {}
    if scale:
        squares = float(((x - state.get("mean", 0.0)) ** 2).sum())
        state["sd"] = math.sqrt(squares / max(len(x) - 1, 1))
        if not 0 < state["sd"] < math.inf:
            raise InvalidReport(
                f"formula: the values of {text} are all the same, without spread. Leave it out."
            )
    return state


def _recurrence(x: Array, degree: int, text: str) -> State:
    """c_k, n_k such that P_{k+1} = (x - c_k) P_k - (n_k / n_{k-1}) P_{k-1} are orthogonal over ``x``."""
    if (distinct := len(np.unique(x))) <= degree:
        raise InvalidReport(
            f"formula: {text} needs more than {degree} distinct values; there are {distinct}. "
            "Use a lower degree."
        )
    centres: list[float] = []
    before, now = np.zeros_like(x), np.ones_like(x)
    norms = [float(len(x))]
    for k in range(degree):
        centres.append(float((x * now**2).sum() / norms[k]))
        before, now = now, (x - centres[k]) * now - (norms[k] / norms[k - 1] if k else 0.0) * before
        norms.append(float((now**2).sum()))
        if not (math.isfinite(centres[k]) and 0 < norms[k + 1] < math.inf):
            raise InvalidReport(
                f"formula: the powers of {text} are too large or too small for these values. Use a lower "
                "degree, or divide the column by its size."
            )
    return {"centres": centres, "norms": norms}


def _polynomials(x: Array, state: State) -> Array:
    """The polynomials of ``_recurrence`` without the first, each of length 1 over the rows of the fit."""
    centres, norms = state["centres"], state["norms"]
    before, now = np.zeros_like(x), np.ones_like(x)
    out = np.empty((len(x), len(centres)))
    for k, centre in enumerate(centres):
        before, now = now, (x - centre) * now - (norms[k] / norms[k - 1] if k else 0.0) * before
        out[:, k] = now / math.sqrt(norms[k + 1])
    return out


def _finite(x: Array, text: str) -> Array:
    seen = x[np.isfinite(x)]
    if not seen.size:
        raise InvalidReport(f"formula: {text} has no value in any row of the fit.")
    return seen


# ---------------------------------------------------------------- factors


def levels_of(node: Node, state: State) -> tuple[str, ...]:
    """Levels of a factor in their order."""
    return tuple(factor_of(node)[1].get("levels") or state["levels"])


def contrasts(node: Node, state: State) -> tuple[tuple[str, ...], Callable[[NDArray[np.intp]], Array]]:
    """Columns of a factor beside an intercept: their names, and their values (N, columns) from codes."""
    levels = levels_of(node, state)
    coding, reference = factor_of(node)[1].get("contrasts", ("treatment", None))
    n = len(levels)
    after = np.arange(1, n)
    place, j = np.arange(n)[:, None], after[None]
    match coding:
        case "sum":
            values = np.vstack([np.eye(n - 1), -np.ones((1, n - 1))])
            return tuple(f"S.{v}" for v in levels[:-1]), values.__getitem__
        case "helmert":
            values = np.where(place < j, -1.0, np.where(place == j, j, 0.0))
            return tuple(f"H.{v}" for v in levels[1:]), values.__getitem__
        case "diff":
            values = np.where(place < j, j / n - 1, j / n)
            return tuple(f"D.{v}" for v in levels[1:]), values.__getitem__
        case "poly":
            steps = np.arange(1.0, n + 1)
            values = _polynomials(steps, _recurrence(steps, n - 1, source(node)))
            short = (".L", ".Q", ".C")
            names = tuple(short[k - 1] if k < 4 else f"^{k}" for k in after)
            return names, values.__getitem__
    base = n - 1 if coding == "sas" else 0
    if reference is not None:
        if reference not in levels:
            raise InvalidReport(
                f"column {factor_of(node)[0]}: has no level {reference!r}, which should be the reference. "
                f"There are {', '.join(levels[:12])}{', ...' if n > 12 else ''}."
            )
        base = levels.index(reference)
    kept = [i for i in range(n) if i != base]
    return tuple(f"T.{levels[i]}" for i in kept), lambda codes: indicators(codes, kept)


def indicators(codes: NDArray[np.intp], kept: Sequence[int]) -> Array:
    """1 where a row has the level of the column, 0 elsewhere, shape (N, kept)."""
    return (codes[:, None] == np.asarray(kept, dtype=np.intp)).astype(np.float64)


def _labels(values: pd.Series) -> tuple[list[str], NDArray[np.intp]]:
    """Distinct values as text, in order, and where each row's is among them.

    Numbers of any type are the same text where they are equal, so that levels are the same in all files.
    """
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        values = values.cat.remove_unused_categories()
        found, positions = list(values.cat.categories), values.cat.codes.to_numpy(dtype=np.intp)
    else:
        try:
            codes, uniques = pd.factorize(values)
        except TypeError:  # lists, tables
            raise InvalidReport(
                f"column {values.name}: holds neither numbers nor text. Make a number or a text of it."
            ) from None
        found = uniques.tolist()
        order = sorted(range(len(found)), key=lambda i: _sort_key(found[i]))
        rank = np.empty(len(found), dtype=np.intp)
        rank[order] = np.arange(len(found))
        found, positions = [found[i] for i in order], rank[codes]
    texts = [_label(v) for v in found]
    labels = list(dict.fromkeys(texts))
    place = {label: i for i, label in enumerate(labels)}
    return labels, np.array([place[text] for text in texts], dtype=np.intp)[positions]


def _label(value: Any) -> str:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    # Beyond 2^53 different whole numbers are the same float.
    return show_number(float(value)) if is_number and abs(float(value)) < 2**53 else str(value)


def _sort_key(value: Any) -> tuple[bool, Any]:
    """Numbers before texts."""
    is_number = isinstance(value, int | float | np.number)
    return not is_number, value if is_number else str(value)


def _holds_numbers(values: pd.Series) -> bool:
    """Are they numbers, or true and false?  Refuses what is neither numbers nor text."""
    import pandas as pd

    kind = values.dtype
    if is_numeric(values) and not pd.api.types.is_complex_dtype(kind):
        return True
    if (
        isinstance(kind, pd.CategoricalDtype)
        or pd.api.types.is_object_dtype(kind)
        or pd.api.types.is_string_dtype(kind)
    ):
        return False
    raise InvalidReport(
        f"column {values.name}: holds {contents(values)}, neither numbers nor text. Make a number of it, "
        "such as days since the first, or a text."
    )
