"""Clients among other groups of rows, nested or crossed: the population of the clients, given the others.

    formula -> groupings -> ``crossed`` -> what each client reports -> population (VANEB) -> posterior

Rows that are not least squares are seen through Gaussian factors of their indices, as in ``choice``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from vaneb.blocks import Progress, one_blas_thread
from vaneb.errors import InvalidOption
from vaneb.estimators import VANEB
from vaneb.grouped import frames
from vaneb.grouped.choice import RowFactors, evidence, row_factors
from vaneb.grouped.crossed import Crossed, Grouping, effects_given, fit_crossed, reports_of
from vaneb.grouped.design import Design, OtherGroups
from vaneb.grouped.formula import group_name
from vaneb.grouped.mixed_model import centred_basis
from vaneb.grouped.models import LocalModel
from vaneb.grouped.population import SCATTER_ROUNDS, Flags, Structure, check_size, in_phi
from vaneb.grouped.summary import FixedEffects
from vaneb.grouped.terms import Groups
from vaneb.likelihood.base import Array
from vaneb.likelihood.gaussian import ConstantGaussian
from vaneb.local.data import GroupedRows
from vaneb.local.family.base import Family
from vaneb.population.sampler import sample_populations
from vaneb.posterior import Posterior, posterior

#: The family's numbers have settled when they change by less than this share.
SETTLED = 0.02


class Several(NamedTuple):
    """A fit of clients among other groups."""

    others: tuple[OtherGroups, ...]
    """The other groups, with their effects."""
    offset: Array
    """The rows' offsets with these effects, (N,)."""
    fixed: FixedEffects
    structure: Structure
    posterior: Posterior


def check_several(groups: Groups, family: Family, likelihood: str, settings: VANEB) -> None:
    """Refuse what several groups cannot be fitted with."""
    named = " and ".join([groups.name, *(group_name(one.group) for one in groups.others)])
    if family.n_index > 1 or not family.by_row or not family.is_likelihood:
        raise InvalidOption(
            f"formula: several groups ({named}) need a family whose rows have one index and a likelihood of "
            f"their own, such as gaussian, binomial or poisson, not {family.name}. Keep one group, or code "
            "the other one as terms."
        )
    if likelihood != "exact" or settings.kind == "discrete":
        raise InvalidOption(
            f"formula: several groups ({named}) are fitted together, with likelihood exact and a population "
            "that is not discrete."
        )


def fit_several(
    rows: GroupedRows,
    local: LocalModel,
    names: tuple[str, ...],
    may_vary: Flags,
    design: Design,
    groups: Groups,
    data: Any,
    model: VANEB,
    progress: Progress | None,
) -> Several:
    """Fit all groups together, then ``model`` to what the clients would report.

    ``data``: the table's rows in the order of ``rows``.
    """
    check_size(rows, rows.design.shape[1], int(may_vary.sum()), asked=True)
    others = [_other_group(design, one, data, rows) for one in groups.others]
    basis = centred_basis(rows.design, may_vary)[0]
    varying = np.flatnonzero(may_vary)
    columns = np.ascontiguousarray((rows.design @ basis)[:, varying])
    own = Grouping(rows.client_of_row, rows.n_clients, columns)
    groupings = [own, *(grouping for _, grouping in others)]
    if progress is not None:
        progress("fitting all groups", 0, 1)
    with one_blas_thread():
        if local.family.name == "gaussian":
            # A row of weight w has noise of variance sigma^2 / w.
            response, family, noticed = rows.response - rows.offset, local.family, ""
            crossed = _weighted(rows.design @ basis, response, rows.weight, groupings, varying)
            family, weight = family.with_dispersion(crossed.variance), rows.weight / crossed.variance
        else:
            crossed, family, noticed, (weight, n) = _through_row_factors(
                rows, local, basis, groupings, varying
            )
            response = n / weight
    back = np.linalg.inv(basis)

    def reports(spread: Array | None = None) -> ConstantGaussian:
        estimates, precision = reports_of(crossed, varying, spread)
        return ConstantGaussian(estimates @ basis.T, back.T @ precision @ back)

    clients = reports()
    prior, model.sampling_ = sample_populations(
        in_phi(clients, basis), single=model.kind == "gaussian", seed=model.seed, options=model.options,
        progress=progress, varying=may_vary,
    )  # fmt: skip
    spread = prior.covariance[np.ix_(varying, varying)]
    model.prior_, model.certificate_, model.trace_ = prior.mapped(basis, names), None, ()
    fixed = FixedEffects(names, basis @ crossed.fixed, basis @ crossed.covariance @ basis.T)
    structure = Structure(basis, may_vary, None, (), family, (noticed,) if noticed else ())
    after = posterior(reports(spread), model.prior_, ids=rows.ids, names=names)
    index = np.einsum("np,np->n", rows.design, after.mean[rows.client_of_row])
    effects = effects_given(crossed, groupings, response - index, weight)
    found = tuple(
        replace(group, effects=own, covariance=crossed.variance * root @ root.T)
        for (group, _), own, root in zip(others, effects, crossed.roots[1:], strict=True)
    )
    parts = zip(groupings[1:], effects, strict=True)
    offset = rows.offset + sum(np.sum(one.columns * own[one.codes], axis=1) for one, own in parts)
    return Several(found, offset, fixed, structure, after)


def _other_group(design: Design, one: Any, data: Any, rows: GroupedRows) -> tuple[OtherGroups, Grouping]:
    """A group besides the clients, its effects not known yet."""
    names, codes = np.unique(frames.group_ids(data, one.group).astype(str), return_inverse=True)
    columns = np.flatnonzero(design.spanned_by(one.effects))
    nothing = np.zeros((len(names), len(columns)))
    levels = {str(name): i for i, name in enumerate(names)}
    group = OtherGroups(one.group, levels, tuple(columns.tolist()), nothing, nothing.T @ nothing)
    return group, Grouping(codes, len(names), np.ascontiguousarray(rows.design[:, columns]))


def _weighted(
    design: Array,
    response: Array,
    weight: Array,
    groupings: list[Grouping],
    varying: NDArray[np.intp],
    **options: Any,
) -> Crossed:
    root = np.sqrt(weight)
    scaled = [replace(one, columns=one.columns * root[:, None]) for one in groupings]
    return fit_crossed(design * root[:, None], response * root, scaled, varying, **options)


def _through_row_factors(
    rows: GroupedRows, local: LocalModel, basis: Array, groupings: list[Grouping], varying: NDArray[np.intp]
) -> tuple[Crossed, Family, str, tuple[Array, Array]]:
    """The fit of rows that are not least squares, the family with what it needs, what was noticed, and the
    rows' factors t and n.

    Scatter is that about all groups: other groups' differences are not the clients' noise.
    """
    design, family, noticed = rows.design @ basis, local.family, ""
    index, sites = rows.design @ local.pooled.theta[0], None
    crossed: Crossed | None = None

    def look(t: Array, n: Array) -> tuple[Array, Array]:
        nonlocal crossed
        crossed = _weighted(design, n / t, t, groupings, varying, known=True, last=crossed)
        return crossed.index / np.sqrt(t), crossed.index_variance / t

    for _ in range(SCATTER_ROUNDS):
        seen = row_factors(rows, family, index, look, sites)
        assert crossed is not None
        index, sites, before = seen.at, seen.sites, (family.parameter, family.dispersion)
        family, noticed = _about(rows, family, seen)
        if np.allclose((family.parameter, family.dispersion), before, rtol=SETTLED):
            break
    assert crossed is not None
    assert sites is not None
    return crossed, family, noticed, sites


def _about(rows: GroupedRows, family: Family, seen: RowFactors) -> tuple[Family, str]:
    """The family with its dispersion and whatever else it needs, given all groups."""
    index, left = seen.at + rows.offset, len(rows.response) - seen.freedom
    if family.has_dispersion:
        mean = family.mean(index)
        squares = rows.weight * (rows.response - mean) ** 2 / family.variance(mean)
        return family.with_dispersion(max(float(squares.sum()) / left, 1e-12)), ""
    if family.bounds is not None:
        make = type(family).restored
        found = minimize_scalar(
            lambda x: -evidence(rows, make(np.exp(x)), seen), bounds=np.log(family.bounds), method="bounded"
        )
        return make(float(np.exp(found.x))), ""
    ratio, noticed = family.scatter(rows, index, left)
    return family.with_dispersion(ratio), noticed
