"""One table with a grouping column: local fits, the population, and each group's own coefficients.

fit = vaneb.grouped.fit_groups(frame, client="school", formula="y ~ x", family="gaussian")
fit.coefficients          # a data frame: one row for each school
fit.predict(new_rows)
"""

from vaneb.grouped.analysis import fit_groups
from vaneb.grouped.result import GroupedFit

__all__ = ["GroupedFit", "fit_groups"]
