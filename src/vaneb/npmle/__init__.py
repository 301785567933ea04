"""Nonparametric maximum likelihood: one solver idea per file, and their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vaneb.npmle.fit import Fit

#: Name that a user gives -> module of this package, and function.
SOLVERS = {
    "certified": ("certified", "certified"),
    "pseudo-em": ("pseudo_em", "algorithm_1"),
    "grid": ("grid", "grid_npmle"),
}


def solver(name: str) -> Callable[..., Fit]:
    """The function behind a name: of a likelihood, ``tol``, ``rng`` and ``progress``."""
    from importlib import import_module

    module, function = SOLVERS[name]
    found: Callable[..., Fit] = getattr(import_module(f"{__name__}.{module}"), function)
    return found
