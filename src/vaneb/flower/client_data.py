"""At the client: from its file to its local fit.  What is learned from rows here stays here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vaneb.covariance.constant import ConstantDiagonal
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.flower.disclosure import products, weighted_columns
from vaneb.flower.settings import Settings
from vaneb.grouped.frames import as_pandas, canonical_order, client_ids, need_column
from vaneb.grouped.syntax import Name
from vaneb.likelihood.base import Likelihood
from vaneb.local.data import GroupedRows
from vaneb.local.families import Family
from vaneb.local.family.base import SURVIVAL
from vaneb.reports import Reports
from vaneb.semidefinite import standard_errors

if TYPE_CHECKING:
    import pandas as pd

#: The file in which a client finds its result.
RESULT = "result.json"
#: Beside it: a row for each client, a page to look at, and the population.
TABLE, PAGE, POPULATION = "result.csv", "result.html", "population.json"
#: Name of a column that rows are given to make them one client's.
CLIENT = "__client__"


@dataclass(frozen=True, eq=False)
class LocalModel:
    """A site's rows, coded, and their family: of one client, or of many (wards)."""

    rows: GroupedRows
    family: Family
    design: str
    """Stands for the coding of the columns: levels of factors and classes, in order."""
    levels: dict[str, NDArray[np.str_]] = field(default_factory=dict)
    """The level of each row, for each factor."""
    classes: bool = False
    """Whether the response is one of a few classes."""
    kept: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))
    """Position of each row in the file."""
    besides: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    """Columns besides the design's with which sums of products tell of a row, (N, m)."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.family.parameter_names(self.rows.names)

    @property
    def fewest_of_level(self) -> dict[str, int]:
        """Rows of the rarest level of each factor, of those that are there."""
        return {c: int(np.unique(own, return_counts=True)[1].min()) for c, own in self.levels.items()}

    @property
    def response(self) -> NDArray[np.float64]:
        """Numbers of the response that are in sums, (N, 1); (N, 0) for classes and times."""
        rows = self.rows
        if self.classes or rows.response.ndim > 1:
            return np.zeros((len(rows.design), 0))
        return (rows.response - (rows.offset if self.family.name == "gaussian" else 0.0))[:, None]

    @property
    def is_least_squares(self) -> bool:
        return self.family.name == "gaussian" and bool((self.rows.weight == self.rows.weight[0]).all())

    def columns_told(self, *places: NDArray[np.float64]) -> NDArray[np.float64]:
        """All columns with which sums are told of a row, of expansions at these places (K, d)."""
        at = [weighted_columns(self.rows, self.family, theta) for theta in places]
        return np.hstack([self.rows.design, self.response, self.besides, *at])

    def weighted(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """Columns, and residuals of numbers, times the roots of the rows' weights at ``theta`` (K, d)."""
        rows, family = self.rows, self.family
        index = family.index(theta[rows.client_of_row], rows.design, rows.offset)
        if not family.by_row:
            hazard = np.exp(index - index.max())
            return rows.design * np.sqrt(rows.weight * hazard)[:, None]
        _, slope, curvature = family.derivatives(index, rows.response)
        root = np.sqrt(rows.weight * np.abs(np.trace(curvature, axis1=1, axis2=2)))
        columns = rows.design * root[:, None]
        if not self.response.size:
            return columns
        residual = rows.weight * slope[:, 0] / np.where(root > 0, root, np.inf)
        return np.column_stack([columns, residual])

    def some(self, mask: NDArray[np.bool_]) -> LocalModel:
        """Some of the rows."""
        levels = {column: own[mask] for column, own in self.levels.items()}
        return replace(
            self,
            rows=self.rows.some_rows(mask),
            levels=levels,
            kept=self.kept[mask],
            besides=self.besides[mask] if len(self.besides) else self.besides,
        )

    def only(self, *clients: int) -> LocalModel:
        """Some of the clients."""
        return self.some(np.isin(self.rows.client_of_row, clients))


def read_client(path: Path, column: str = "", number: int = 0) -> tuple[str, pd.DataFrame]:
    """The client's rows: a whole file, or in a simulation the ``number``-th client of a table."""
    if not column:
        return "", _read(path)
    groups = _clients_of(str(path), path.stat().st_mtime_ns, column)
    if not 0 <= number < len(groups):
        raise InvalidOption(f"data: has {len(groups)} clients, there is no number {number}.")
    return groups[number]


def local_model(frame: pd.DataFrame, settings: Settings, column: str = "") -> LocalModel:
    """Code the rows as the formula says; ``column`` tells the clients of a site apart, if it has many."""
    from vaneb.grouped.design import learn_design
    from vaneb.grouped.formula import parse
    from vaneb.local.family import family_class

    offset, own = settings.offset or None, column or CLIENT
    data = frame if column else frame.assign(**{CLIENT: "client"})
    if column:
        need_column(data, column, "--client")
    reserved = [own, *([offset] if offset else [])]
    formula = parse(settings.formula, data, reserved, allow=("survival", "trials"))
    if formula.kind == SURVIVAL and not all(isinstance(node, Name) for node in formula.responses):
        raise InvalidOption(
            "formula: Surv(...) takes columns of the data here, not numbers made of them: by a time of entry "
            "just before the time a server would choose which rows are at risk together."
        )
    if column in formula.columns:
        raise InvalidOption(f"formula: leave out {column}, which tells the clients of this site apart.")
    # Results do not depend on how rows came; nor does which of them make up a half.
    order = canonical_order(data, dict.fromkeys([*reserved, *formula.columns]))
    data = data.iloc[order]
    design = learn_design(data, formula, settings.family, client=own, offset=offset)
    if learned := design.encoding.learned:
        raise InvalidOption(
            f"formula: {learned[0]} takes numbers from the client's own rows, so that its coefficient would "
            "not mean the same at every client. Write the numbers out."
        )
    coded = design.rows(data, response=True, new=False)
    if coded.response is None or not len(coded.response):
        raise InvalidReport("data: no row is complete.")
    rows = GroupedRows.from_columns(
        coded.clients,
        coded.covariates,
        coded.response,
        offset=coded.offset,
        weight=coded.weight,
        names=design.names,
    )
    family = family_class(settings.family).for_rows(rows, len(design.coding.classes))
    if settings.dispersion > 0:
        family = family.with_dispersion(settings.dispersion)
    levels = {column: sorted(map(str, known)) for column, known in design.levels.items()}
    coding = json.dumps([levels, [str(c) for c in design.coding.classes]], sort_keys=True)
    used = data.iloc[coded.kept]
    model = LocalModel(
        rows,
        family,
        hashlib.sha256(coding.encode()).hexdigest()[:16],
        {factor: used[factor].astype(str).to_numpy() for factor in design.levels},
        bool(design.coding.classes),
        order[coded.kept],
    )
    return replace(model, besides=products(design, used, np.hstack([rows.design, model.response])))


def local_report(model: LocalModel, settings: Settings) -> Reports:
    """The client's report (one client)."""
    from vaneb.local.report import report

    dispersion = settings.dispersion if settings.dispersion > 0 else None
    form = "moments" if settings.form == "moments" else "constant"
    found = report(model.rows, model.family, form=form, dispersion=dispersion)
    return _with_variances_only(found) if settings.form == "diagonal" else found


def _with_variances_only(reports: Reports) -> Reports:
    """The same with the diagonal of each covariance (of the inverse, not the inverse of the diagonal)."""
    unit = reports.covariance.precision(reports.estimate[:, None])[:, 0]
    errors = standard_errors(reports.n[:, None, None] * unit)
    variances = ConstantDiagonal(1 / (reports.n[:, None] * errors**2))
    return Reports(
        reports.estimate,
        reports.n,
        variances,
        ids=reports.ids,
        names=reports.names,
        status=list(reports.status),
    )


def local_likelihood(model: LocalModel, settings: Settings) -> Likelihood:
    """What is evaluated at atoms: the client's covariance function, or its exact likelihood."""
    if settings.likelihood == "covariance":
        return local_report(model, settings).likelihood()
    return own_likelihood(model, settings.dispersion)


def own_likelihood(model: LocalModel, dispersion: float = 0.0) -> Likelihood:
    """The exact likelihood of the rows; a ``dispersion`` that is not given is estimated from them."""
    from vaneb.likelihood.exact import exact_likelihood
    from vaneb.local.fit import common_dispersion, fit_clients

    family = model.family
    if family.has_dispersion and not dispersion > 0:
        dispersion = common_dispersion(model.rows, family, fit_clients(model.rows, family))
    return exact_likelihood(model.rows, family.with_dispersion(dispersion) if dispersion > 0 else family)


def _read(path: Path) -> pd.DataFrame:
    from vaneb.sources import open_table

    return open_table(path).inferred().to_pandas()


@lru_cache(maxsize=2)
def _clients_of(path: str, changed: int, column: str) -> list[tuple[str, Any]]:
    """Ids and rows of the clients in a table, in order of their first rows."""
    frame = as_pandas(_read(Path(path)))
    need_column(frame, column, "the simulation")
    ids = client_ids(frame[column])
    return [(str(key), part) for key, part in frame.groupby(ids, sort=False)]


def count_clients(path: Path, column: str) -> int:
    """Clients in a table."""
    return len(_clients_of(str(path), path.stat().st_mtime_ns, column))
