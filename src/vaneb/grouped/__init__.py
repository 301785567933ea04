"""One table with a grouping column: local fits, the population, and each group's own coefficients.

fit = vaneb.grouped.fit_groups(frame, client="school", formula="y ~ x", family="gaussian")
print(fit)                # a summary
fit.to_frame()            # one row for each school
fit.predict(new_rows, interval="prediction")
fit.save("model.json")    # and vaneb.grouped.load("model.json")
"""

from vaneb.grouped.analysis import fit_groups
from vaneb.grouped.result import GroupedFit, GroupedResult
from vaneb.grouped.saved import LoadedFit, load

__all__ = ["GroupedFit", "GroupedResult", "LoadedFit", "fit_groups", "load"]
