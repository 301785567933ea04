"""A table of rows with a column that names the client: everything from the formula to the predictions.

rows -> design -> local fits -> likelihood of each client -> population (VANEB) -> posterior
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.estimators import VANEB
from vaneb.grouped import frames, scores
from vaneb.grouped.design import Design, DesignRows, learn_design
from vaneb.grouped.formula import ParsedFormula, parse
from vaneb.grouped.models import LocalModel, fit_local
from vaneb.grouped.population import fit_population
from vaneb.grouped.response import FAMILIES
from vaneb.grouped.result import GroupedFit, predicted
from vaneb.grouped.scores import HeldOut
from vaneb.local.data import GroupedRows
from vaneb.npmle.fit import Progress

LIKELIHOODS = ("exact", "gaussian")


def fit_groups(
    frame: Any,
    *,
    client: str,
    formula: str,
    family: str = "gaussian",
    offset: str | None = None,
    weights: str | None = None,
    test_column: str | None = None,
    likelihood: str = "exact",
    level: float = 0.9,
    population: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> GroupedFit:
    """Fit every client, learn the population, and give each client its own coefficients.

    Parameters
    ----------
    frame : pandas, polars or pyarrow table
    client : column that names the client (group) of each row
    formula : such as ``"y ~ x1 + C(x2)"``, read as data, never run as code; every coefficient may differ
        between clients
    family : "gaussian", "binomial", "poisson", "negative-binomial", "multinomial", "gamma", "huber" or "cox"
    offset : column that is added to the linear index, such as log exposure
    weights : column of what each row counts for: its log-likelihood is multiplied by it.  Numbers of trials
        where a binomial response is a share of successes; ``successes | trials`` says the same.
    test_column : column that is 1 in rows to be predicted, 0 in rows to be fitted
    likelihood : "exact" uses the rows themselves; "gaussian" only what a federation of reports would give.
        Huber's loss is no likelihood: it always uses Gaussian reports, with sandwich covariances.
    level : probability of the credible intervals
    population, seed : see ``vaneb.VANEB``
    progress : callback (what is being done, steps done, steps expected)

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> rng = np.random.default_rng(0)
    >>> school = np.repeat(np.arange(30), 5)
    >>> frame = pd.DataFrame({"school": school, "x": rng.standard_normal(150)})
    >>> frame["y"] = 2 * frame.x + rng.standard_normal(30)[school] + rng.standard_normal(150)
    >>> fit = fit_groups(frame, client="school", formula="y ~ x")
    >>> fit.coefficients.shape
    (30, 17)
    """
    _check(family, likelihood, level)
    data = frames.as_pandas(frame)
    for column, wanted_by in (
        (client, "client"),
        (offset, "offset"),
        (weights, "weights"),
        (test_column, "test_column"),
    ):
        if column is not None:
            frames.need_column(data, column, wanted_by)
    reserved = [c for c in (client, offset, weights, test_column) if c is not None]
    parsed = parse(formula, data, reserved, allow=("survival", "trials"))
    used = list(dict.fromkeys([*reserved, *parsed.columns]))
    complete = data[used].notna().all(axis=1).to_numpy()
    data, total = data[complete], len(data)
    if not len(data):
        raise InvalidReport(f"data: every row has a missing value in one of {', '.join(used)}.")
    data = data.iloc[frames.canonical_order(data, used)]
    testing = (
        np.zeros(len(data), dtype=bool)
        if test_column is None
        else frames.as_flags(data[test_column], test_column)
    )
    if testing.all():
        raise InvalidReport(f"column {test_column}: marks every row as a test row; none is left for the fit.")
    design = learn_design(data[~testing], parsed, family, client=client, offset=offset, weights=weights)
    _check_columns(design, parsed, len(data[~testing]), client, test_column)
    train = design.rows(data[~testing], response=True, new=False)
    test = design.rows(data[testing], response=True) if test_column is not None else None
    if not len(train.kept):
        raise InvalidReport(f"formula {formula!r}: its terms are missing (NaN) in every row of the fit.")
    assert train.response is not None
    kept = len(train.kept) + (0 if test is None else len(test.kept))
    rows = GroupedRows.from_columns(
        train.clients,
        train.covariates,
        train.response,
        offset=train.offset,
        weight=train.weight,
        names=design.names,
    )
    if progress is not None:
        progress("fitting every client", 0, 1)
    local = fit_local(rows, design.coding)
    names = _parameter_names(design, local)
    settings = VANEB(population=population, seed=seed)
    model, after = fit_population(rows, local, names, likelihood, settings, progress)
    notes = local.notes
    if family == "huber" and likelihood == "exact":
        notes += ("Huber's loss has no likelihood: Gaussian reports with sandwich covariances were used",)
        likelihood = "gaussian"
    fit = GroupedFit(
        design, rows, local, model, after, likelihood, level, total - kept, None,
        frames.is_whole(data[client]), notes,
    )  # fmt: skip
    if test is None or not len(test.kept):
        return fit
    return GroupedFit(**{**vars(fit), "held_out": _held_out(fit, test)})


def _check(family: str, likelihood: str, level: float) -> None:
    for option, value, known in (("family", family, FAMILIES), ("likelihood", likelihood, LIKELIHOODS)):
        if value not in known:
            raise InvalidOption(f"{option}: choose one of {', '.join(known)}, not {value!r}")
    if not 0 < level < 1:
        raise InvalidOption(f"level must lie between 0 and 1, not {level}: 0.9 is a 90% interval")


def _check_columns(
    design: Design, formula: ParsedFormula, n_rows: int, client: str, test_column: str | None
) -> None:
    """Refuse formulas that can only be a slip."""
    responses = [(c, "the response") for c in formula.response_columns]
    for column, what in [(test_column, "the test column"), *responses]:
        if column in formula.right_columns:
            raise InvalidOption(
                f"formula {formula.text!r}: {what} {column} stands on the right-hand side. Leave it out."
            )
    if client in design.levels:
        raise InvalidOption(
            f"formula {formula.text!r}: leave the client column {client} out. Every client has coefficients "
            "of its own already."
        )
    if len(design.names) >= n_rows > 0:
        raise InvalidReport(
            f"formula {formula.text!r}: {len(design.names):,} coefficients for {n_rows:,} rows. "
            f"{design.encoding.use_fewer}"
        )


def _parameter_names(design: Design, local: LocalModel) -> tuple[str, ...]:
    if local.family.n_index == 1:
        return design.names
    return tuple(f"{c}:{name}" for c in design.coding.classes[1:] for name in design.names)


def _held_out(fit: GroupedFit, test: DesignRows) -> HeldOut:
    assert test.response is not None
    family = fit.design.coding.family
    values = {
        use: scores.loss(family, test.response, predicted(fit, test, use), test.weight, test.clients)
        for use in ("local", "pooled", "personalised")
    }
    strangers = set(test.clients) - set(fit.rows.ids)
    return HeldOut(fit.local.family.score_name, values, len(test.kept), len(strangers))
