"""A table of rows with a column that names the client: everything from the formula to the predictions.

rows -> design -> local fits -> likelihood of each client -> population (VANEB) -> posterior
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb.blocks import Progress
from vaneb.errors import InvalidOption, InvalidReport
from vaneb.estimators import VANEB, notes_of_few
from vaneb.grouped import frames
from vaneb.grouped.design import Design, DesignRows, learn_design
from vaneb.grouped.fit import fit_population
from vaneb.grouped.formula import ParsedFormula, parse
from vaneb.grouped.models import fit_local
from vaneb.grouped.population import Structure, find_structure
from vaneb.grouped.reading import read_columns
from vaneb.grouped.result import GroupedFit, HeldOut, predicted
from vaneb.grouped.several import check_several, fit_several
from vaneb.grouped.summary import FixedEffects
from vaneb.grouped.terms import groups_of, varying_columns
from vaneb.local.data import GroupedRows
from vaneb.local.family import FAMILIES
from vaneb.population.options import Options

Array = NDArray[np.float64]
LIKELIHOODS = ("exact", "gaussian")


def fit_groups(
    frame: Any,
    *,
    formula: str,
    client: str | None = None,
    family: str = "gaussian",
    offset: str | None = None,
    weights: str | None = None,
    test_column: str | None = None,
    likelihood: str = "exact",
    level: float = 0.9,
    population: str = "auto",
    seed: int = 0,
    options: Options | None = None,
    factors: Sequence[str] = (),
    na: Sequence[str] = (),
    told: Callable[[str], None] | None = None,
    progress: Progress | None = None,
) -> GroupedFit:
    """Fit every client, learn the population, and give each client its own coefficients.

    Parameters
    ----------
    frame : pandas, polars or pyarrow table
    formula : such as ``"y ~ x1 + C(x2)"``, read as data, never run as code; every coefficient may differ
        between clients.  ``"y ~ x1 + x2 + (1 + x1 | school)"`` says what differs, and names the clients.
    client : column that names the client (group) of each row; with several groups in the formula, the one of
        interest, which is the first unless told
    family : "gaussian", "binomial", "poisson", "negative-binomial", "multinomial", "gamma", "huber", "cox" or
        "cox-shared"
    offset : column that is added to the linear index, such as log exposure
    weights : column of what each row counts for: its log-likelihood is multiplied by it.  Numbers of trials
        where a binomial response is a share of successes; ``successes | trials`` says the same.
    test_column : column that is 1 in rows to be predicted, 0 in rows to be fitted
    likelihood : "exact" uses the rows themselves; "gaussian" only what a federation of reports would give.
        Huber's loss is no likelihood: it always uses Gaussian reports, with sandwich covariances.
    level : probability of the credible intervals
    population, seed, options : see ``vaneb.VANEB``
    factors : columns that are factors, whatever they hold
    na : texts that stand for a missing value
    told : callback, called before fitting with a line for each column: what it was taken for
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
    for column, wanted_by in ((offset, "offset"), (weights, "weights"), (test_column, "test_column")):
        if column is not None:
            frames.need_column(data, column, wanted_by)
    reserved = [c for c in (client, offset, weights, test_column) if c is not None]
    parsed = parse(formula, data, reserved, allow=("random", "survival", "trials"))
    groups = groups_of(parsed, client)
    for column in groups.columns:
        frames.need_column(data, column, "client")
    others = [c for c in (offset, weights, test_column) if c is not None and c in data]
    data, reading = read_columns(data, parsed, list(groups.columns), others, factors=factors, na=na)
    if told is not None:
        for line in reading.columns:
            told(line)
    used = list(dict.fromkeys([*groups.columns, *(c for c in reserved if c in data), *parsed.columns]))
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
    design = learn_design(
        data[~testing],
        parsed,
        family,
        client=groups.name,
        offset=offset,
        weights=weights,
        client_columns=groups.client,
    )
    _check_columns(design, parsed, len(data[~testing]), test_column)
    train = design.rows(data[~testing], response=True, new=False)
    if not len(train.kept):
        raise InvalidReport(f"formula {formula!r}: its terms are missing (NaN) in every row of the fit.")
    rows = train.by_client(design.names)
    if progress is not None:
        progress("fitting every client", 0, 1)
    may_vary, notes = varying_columns(design, groups, rows, family)
    settings = VANEB(population=population, seed=seed, options=options)
    settings.check()
    asked = groups.effects is not None
    if settings.kind == "discrete" and asked:
        raise InvalidOption(
            "population discrete: atoms differ in all coefficients. Write the formula without bars, or "
            "choose another population."
        )
    local = fit_local(rows, design.coding)
    names = design.parameter_names(local.family)
    fixed: FixedEffects | None
    if groups.others:
        check_several(groups, local.family, likelihood, settings)
        part = data[~testing].iloc[train.kept[_order(train, rows)]]
        several = fit_several(rows, local, names, may_vary, design, groups, part, settings, progress)
        model, fixed, structure, after = settings, several.fixed, several.structure, several.posterior
        design = replace(design, others=several.others)
        rows = replace(rows, offset=several.offset)
        local = fit_local(rows, design.coding)
    else:
        structure = find_structure(rows, local, may_vary, asked=asked or settings.kind == "discrete")
        local = replace(local, family=structure.family)
        model, after = fit_population(rows, local, structure, names, likelihood, settings, progress)
        fixed = structure.fixed_effects(names) if model.prior_.kind == "gaussian" else None
    local = replace(local, family=structure.family)
    test = design.rows(data[testing], response=True) if test_column is not None else None
    kept = len(train.kept) + (0 if test is None else len(test.kept))
    notes = (*groups.notes, *notes, *notes_of_few(rows.n_clients), *local.notes, *structure.notes)
    if family == "huber" and likelihood == "exact":
        notes += ("Huber's loss has no likelihood: Gaussian reports with sandwich covariances were used",)
        likelihood = "gaussian"
    places = data[~testing].index.to_numpy()[train.kept][_order(train, rows)]
    outcomes, counts = np.unique(local.fits.outcome, return_counts=True)
    often = np.argsort(-counts, kind="stable")
    fit = GroupedFit(
        design=design,
        family=local.family,
        estimates={"local": local.fits.theta, "pooled": local.pooled.theta},
        n_rows=len(rows.response),
        group_sizes=(int(rows.n_rows.min()), int(rows.n_rows.max())),
        outcomes={str(outcomes[i]): int(counts[i]) for i in often},
        likelihood=likelihood,
        level=level,
        dropped=total - kept,
        whole_ids=len(groups.client) == 1 and frames.is_whole(data[groups.name]),
        kind=frames.kind_of(frame),
        notes=(*reading.notes, *notes),
        mixed_model=fixed,
        rows=rows,
        local=local,
        model=model,
        posterior=after,
        held_out=None,
        varying=_varying_names(structure, names),
        places=places,
        n_data=total,
        read=reading.columns,
    )
    if test is None or not len(test.kept):
        return fit
    return replace(fit, held_out=_held_out(fit, test))


def _check(family: str, likelihood: str, level: float) -> None:
    for option, value, known in (("family", family, FAMILIES), ("likelihood", likelihood, LIKELIHOODS)):
        if value not in known:
            raise InvalidOption(f"{option}: choose one of {', '.join(known)}, not {value!r}")
    if not 0 < level < 1:
        raise InvalidOption(f"level must lie between 0 and 1, not {level}: 0.9 is a 90% interval")


def _check_columns(design: Design, formula: ParsedFormula, n_rows: int, test_column: str | None) -> None:
    """Refuse formulas that can only be a slip."""
    responses = [(c, "the response") for c in formula.response_columns]
    for column, what in [(test_column, "the test column"), *responses]:
        if column in formula.right_columns:
            raise InvalidOption(
                f"formula {formula.text!r}: {what} {column} stands on the right-hand side. Leave it out."
            )
    if len(design.names) >= n_rows > 0:
        raise InvalidReport(
            f"formula {formula.text!r}: {len(design.names):,} coefficients for {n_rows:,} rows. "
            f"{design.encoding.use_fewer}"
        )


def _varying_names(structure: Structure, names: tuple[str, ...]) -> tuple[str, ...]:
    """Coefficients that differ between clients."""
    reached = np.abs(structure.basis[:, structure.varying]).max(axis=1, initial=0.0) > 0
    return tuple(name for name, flag in zip(names, reached, strict=True) if flag)


def _order(train: DesignRows, rows: GroupedRows) -> NDArray[np.intp]:
    """Which row of ``train`` each row of ``rows`` is, (N,)."""
    rank = {name: k for k, name in enumerate(rows.ids)}
    return np.argsort([rank[name] for name in train.clients], kind="stable")


def _held_out(fit: GroupedFit, test: DesignRows) -> HeldOut:
    assert test.response is not None
    family = fit.family
    values = {
        use: family.score(test.response, predicted(fit, test, use), test.weight, test.clients)
        for use in ("local", "pooled", "personalised")
    }
    strangers = set(test.clients) - set(fit.rows.ids)
    return HeldOut(family.score_name, values, len(test.kept), len(strangers))
