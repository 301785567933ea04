"""At the server: the population from sites' sums, as if their rows were in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from vaneb.errors import InvalidReport
from vaneb.estimators import VANEB
from vaneb.flower.exchange import Channel
from vaneb.flower.settings import Settings
from vaneb.flower.site_sums import SiteSums, beyond_belief, stacked
from vaneb.grouped.from_sums import ClientSums, find_structure_of_sums, fit_population_of_sums
from vaneb.grouped.population import Structure
from vaneb.likelihood.loss_sums import Columns
from vaneb.local import families
from vaneb.local.families import Family
from vaneb.local.family import family_class
from vaneb.population.options import QUICK

#: A site's noise is not that of the others if its variance is so many times larger or smaller, and that is no
#: chance; with fewer sites nobody knows whose is the usual one.  All are left as they are where such sites
#: change everybody's variance by less than a factor.
ANOTHER_ORDER, RARE, FEWEST_SITES, MATERIAL = 10.0, 1e-6, 3, 2.0
#: A first population, from clients that know nothing of each other, is too narrow.  What is the same for all
#: in it may differ by so much where a covariate differs by its standard deviation.
WIDER, LITTLE = 2.0, 0.1


class SumsFit(NamedTuple):
    """What was found besides the population, which the model holds."""

    dispersion: float
    expanded: int
    """Sites that answered the second question."""
    differs: tuple[str, ...]
    """Coefficients that differ between clients."""
    notes: tuple[str, ...]


def fit_from_sums(
    channel: Channel,
    sites: Mapping[int, SiteSums],
    here: Sequence[int],
    names: tuple[str, ...],
    settings: Settings,
    model: VANEB,
) -> SumsFit:
    """Fit ``model`` to the clients of all sites (by node); those ``here`` can be asked once more.

    A site that does not answer the second question is in the fit as its first answer has it.
    """
    odd = dict[int, SiteSums]()
    if settings.family == "gaussian" and not settings.dispersion > 0:
        sites = {node: site.with_own_squares() for node, site in sites.items()}
        odd = with_usual_noise(sites)
        sites = {**sites, **odd}
    everyone = stacked(list(sites.values()))
    columns = Columns.pooled(everyone.whole.n, everyone.mean, everyone.scale)
    family, known = _family(settings, everyone, columns)

    def fit(everyone: SiteSums, model: VANEB) -> Structure:
        sums = client_sums(everyone, columns)
        found = find_structure_of_sums(sums, family, known=known, asked=model.kind == "discrete")
        fit_population_of_sums(sums, found, names, model)
        return found

    expanded = dict[int, SiteSums]()
    if settings.family != "gaussian" and settings.exchanges > 1:
        first = VANEB("gaussian", seed=settings.seed, options=QUICK)
        basis = LITTLE * fit(everyone, first).basis
        covariance = WIDER * first.prior_.covariance + basis @ basis.T
        question = {"mean": first.prior_.mean, "covariance": covariance, "dispersion": family.dispersion}
        for answer in channel.ask("expand", dict.fromkeys(here, question)):
            if answer.content is not None and (again := _again(answer.content, sites[answer.node])):
                expanded[answer.node] = again
        for node in beyond_belief({**sites, **expanded}):
            expanded.pop(node, None)
        everyone = stacked([expanded.get(node, site) for node, site in sites.items()])
    structure = fit(everyone, model)
    reached = np.abs(structure.basis[:, structure.varying]).max(axis=1, initial=0.0) > 0
    differs = tuple(name for name, flag in zip(names, reached, strict=True) if flag)
    notes = tuple(
        f"{site.id}: its noise is of another order than that of most sites, and was not taken for everybody's"
        for site in odd.values()
    )
    return SumsFit(structure.family.dispersion, len(expanded), differs, structure.notes + notes)


def with_usual_noise(sites: Mapping[int, SiteSums]) -> dict[int, SiteSums]:
    """Sites whose noise is of another order than that of most, as if theirs were the usual one.

    All sites share one variance, so that one of them could make it anything for all.  Rows with more noise
    have less weight; less noise than usual is not believed.
    """
    known = {node: site for node, site in sites.items() if site.freedom.sum() > 0}
    freedom = np.array([site.freedom.sum() for site in known.values()])
    squares = np.array([site.squares.sum() for site in known.values()])
    usual = float(np.median(squares / chi2.median(freedom))) if len(known) >= FEWEST_SITES else 0.0
    if not usual > 0:
        return {}
    ratio = squares / freedom / usual
    rare = np.minimum(chi2.cdf(squares / usual, freedom), chi2.sf(squares / usual, freedom)) < RARE
    odd = rare & ((ratio > ANOTHER_ORDER) | (ratio < 1 / ANOTHER_ORDER))
    with_them, without = (squares[some].sum() / freedom[some].sum() for some in (ratio >= 0, ~odd))
    if without / MATERIAL < with_them < without * MATERIAL:
        return {}
    return {
        node: site.weighed(without / usual / one) if one > 1 else site.with_squares(without * site.freedom)
        for (node, site), one, is_odd in zip(known.items(), ratio, odd, strict=True)
        if is_odd
    }


def _family(settings: Settings, everyone: SiteSums, columns: Columns) -> tuple[Family, bool]:
    """The family with the dispersion that all clients share, and whether that is known before the fit."""
    if settings.family == "multinomial":
        return families.multinomial(1 + everyone.dimension // len(columns.mean), len(columns.mean)), True
    family = family_class(settings.family)()
    if settings.family not in ("gaussian", "gamma"):
        return family, True
    if settings.dispersion > 0:
        return family.with_dispersion(settings.dispersion), True
    if settings.family == "gaussian":
        return family, False
    if not everyone.freedom.sum() > 0:
        raise InvalidReport(
            "dispersion: no client has more rows than coefficients. Give it (--set dispersion=NUMBER)."
        )
    some = everyone.freedom > 0
    dispersion = max(everyone.squares[some].sum() / everyone.freedom[some].sum(), 1e-12)
    return family.with_dispersion(dispersion), True


def _again(content: Mapping[str, object], before: SiteSums) -> SiteSums | None:
    """A second answer, if it is of the clients of the first."""
    try:
        found = SiteSums.from_wire(content.get("report"))
    except InvalidReport:
        return None
    same = found.id == before.id and found.dimension == before.dimension
    return found if same and np.array_equal(found.whole.n, before.whole.n) else None


def client_sums(everyone: SiteSums, columns: Columns) -> ClientSums:
    """With the halves of the clients whose sites let halves leave."""
    first, second = everyone.parts[:2]
    apart = np.flatnonzero(second.n > 0)
    of_client = everyone.scale.max(axis=0) <= 1e-12 * np.abs(everyone.mean).max(axis=0)
    return ClientSums(everyone.whole, (first.take(apart), second.take(apart)), columns, of_client)
