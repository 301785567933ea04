"""One table with a grouping column: local fits, the population, and each group's own coefficients.

fit = vaneb.grouped.fit_groups(frame, client="school", formula="y ~ x", family="gaussian")
print(fit)                # a summary
fit.to_frame()            # one row for each school
fit.predict(new_rows, interval="prediction")
fit.save("model.json")    # and vaneb.grouped.load("model.json")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vaneb.grouped.analysis import fit_groups
from vaneb.grouped.result import GroupedFit, GroupedResult
from vaneb.grouped.saved import LoadedFit, load

if TYPE_CHECKING:
    from vaneb.grouped.pipeline import GroupedClassifier, GroupedRegressor

__all__ = [
    "GroupedClassifier",
    "GroupedFit",
    "GroupedRegressor",
    "GroupedResult",
    "LoadedFit",
    "fit_groups",
    "load",
]


def __getattr__(name: str) -> Any:
    # Only these need scikit-learn.
    if name in ("GroupedClassifier", "GroupedRegressor"):
        from vaneb.grouped import pipeline

        return getattr(pipeline, name)
    raise AttributeError(f"module 'vaneb.grouped' has no attribute {name!r}")
