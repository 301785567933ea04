"""Which claims hold in a set of results: the paper's, and those that VANEB-LA is made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vaneb.fl.tables import Column, Panel

PAPER_METHODS = (
    "FedAvg",
    "FedAvg+FT",
    "FedBABU",
    "FedPer",
    "FedRep",
    "LG-FedAvg",
    "Per-FedAvg",
    "SCAFFOLD",
    "Ditto",
    "Local Only",
    "VANEB-FT (direct)",
    "VANEB-FT (coordinate)",
    "VANEB-Head (direct)",
    "VANEB-Head (coordinate)",
)


def claims(panels: Sequence[Panel]) -> list[str]:
    """One line per claim: in how many of the cells that can decide it does it hold."""
    balanced, matched = panels
    both = [
        _held("VANEB-FT (either) is the best of the paper's methods, balanced", [balanced], _ft_is_best),
        _held(
            "VANEB-FT (coordinate) is above FedAvg, balanced and matched",
            panels,
            _above("VANEB-FT (coordinate)", "FedAvg"),
        ),
    ]
    for kind in ("direct", "coordinate", "smooth"):
        label = f"VANEB-LA ({kind})"
        for panel in (balanced, matched):
            for rival in ("FedAvg", "FedAvg+FT", "FedAvg+FT (logit-adjusted)"):
                both.append(
                    _held(f"{label} is above {rival}, {panel.protocol}", [panel], _above(label, rival))
                )
    return both


Test = Callable[[dict[str, float]], bool | None]


def _held(text: str, panels: Sequence[Panel], test: Test) -> str:
    answers: list[tuple[Panel, Column, bool]] = []
    for panel in panels:
        for column in panel.columns:
            values = {method: row[column].value for method, row in panel.cells.items() if column in row}
            answer = test(values)
            if answer is not None:
                answers.append((panel, column, answer))
    held = sum(answer for _, _, answer in answers)
    failed = [
        f"{panel.protocol} alpha={column[1]:g} s={column[2]:g} K={column[3]}"
        for panel, column, answer in answers
        if not answer
    ]
    return f"{text}: {held} of {len(answers)} cells" + (f"; not in {', '.join(failed)}" if failed else "")


def _ft_is_best(values: dict[str, float]) -> bool | None:
    known = {name: value for name, value in values.items() if name in PAPER_METHODS}
    if len(known) < len(PAPER_METHODS):
        return None
    return max(known, key=lambda name: known[name]).startswith("VANEB-FT")


def _above(method: str, rival: str) -> Test:
    def test(values: dict[str, float]) -> bool | None:
        return None if method not in values or rival not in values else values[method] > values[rival]

    return test
