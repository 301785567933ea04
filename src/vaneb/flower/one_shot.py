"""One-shot personalisation at the server: ask for reports, fit, and let every site find its own posteriors.

Reports are on disk as soon as they arrive, so a server that is killed asks only those that have not answered.
With a saved prior nothing is asked or fitted: a late client is served from it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from vaneb.errors import InvalidReport
from vaneb.estimators import VANEB
from vaneb.flower.archive import Archive
from vaneb.flower.claims import Claim, consistent, read_claim
from vaneb.flower.exchange import Line
from vaneb.flower.lossless import fit_sums
from vaneb.flower.personalise import Fitted, run_at_clients
from vaneb.flower.roll import Roll
from vaneb.flower.settings import SUMS, Settings
from vaneb.flower.sums import SiteSums, beyond_belief
from vaneb.reports import ClientReport, Reports

#: Fewer reports than this are no population.
FEWEST = 2


def run_reports(line: Line, settings: Settings, archive: Archive) -> dict[str, Any]:
    """One run; returns what it did, which is in the archive too."""

    def fit(roll: Roll) -> Fitted:
        accepted = _accepted(line, settings, archive, roll)
        return _fit(line, accepted, settings, roll)

    return run_at_clients(line, settings, archive, fit)


def _accepted(line: Line, settings: Settings, archive: Archive, roll: Roll) -> dict[int, Claim]:
    """Reports that can be fitted together, by node; the others are refused by name."""
    claims = _collect(line, settings, archive, roll)
    accepted, refused = consistent(claims, _parameters(settings), _earlier(archive, roll))
    sums = {node: claim.report for node, claim in accepted.items() if isinstance(claim.report, SiteSums)}
    for node in beyond_belief(sums) if sums else ():
        del accepted[node]
        refused[node] = "report: its coefficients are a hundred million times those of the others."
    for node, reason in refused.items():
        roll.refuse(node, reason)
        archive.forget_report(node)
    clients = sum(_count(claim) for claim in accepted.values())
    if clients < FEWEST:
        raise InvalidReport(
            f"reports: {clients} usable, but a population needs {FEWEST}. Start more clients. {roll.told()}"
        )
    return accepted


def _count(claim: Claim) -> int:
    """Clients of a site."""
    return 1 if isinstance(claim.report, ClientReport) else claim.report.whole.n_clients


def _collect(line: Line, settings: Settings, archive: Archive, roll: Roll) -> dict[int, Claim]:
    """Reports that are saved already, and those of the nodes that have none, saved as they arrive."""
    claims: dict[int, Claim] = {}
    sums = settings.form == SUMS and not settings.epsilon
    for node, content in archive.reports().items():
        try:
            claims[node] = read_claim(node, roll.names.get(node, ""), content, sums=sums)
        except InvalidReport:  # saved under other rules, such as another name: ask again
            archive.forget_report(node)
    for answer in line.ask("report", {node: {} for node in roll.names if node not in claims}):
        if answer.content is None:
            (roll.lose if answer.silent else roll.refuse)(answer.node, answer.reason)
            continue
        try:
            claims[answer.node] = read_claim(answer.node, roll.names[answer.node], answer.content, sums=sums)
        except InvalidReport as error:
            roll.refuse(answer.node, str(error))
        else:
            archive.keep_report(answer.node, answer.content)
    return claims


def _earlier(archive: Archive, roll: Roll) -> dict[str, int]:
    """Names that are bound: to the node that is registered under them, or that was served before."""
    delivered = {int(path.name) for path in (archive.folder / "delivered").iterdir()}
    bound = {
        str(content["report"]["id"]): node for node, content in archive.reports().items() if node in delivered
    }
    return bound | {name: node for node, name in roll.names.items() if name}


def _parameters(settings: Settings) -> tuple[str, ...]:
    return tuple(name.strip() for name in settings.parameters.split(",")) if settings.parameters else ()


def _fit(line: Line, accepted: dict[int, Claim], settings: Settings, roll: Roll) -> Fitted:
    """The population, and what to say of the fit."""
    began = time.process_time()
    claims = sorted(accepted.values(), key=lambda claim: claim.report.id)
    model = VANEB(
        population=settings.population,
        solver=settings.solver or None,
        tol=settings.tol,
        iterations=settings.iterations,
        seed=settings.seed,
    )
    sites = {claim.node: claim.report for claim in claims if not isinstance(claim.report, ClientReport)}
    about: dict[str, Any] = {"sites": {claim.report.id: _count(claim) for claim in claims}}
    shared: dict[str, Any] = {"design": claims[0].design}
    if sites:
        here = [node for node in sites if node in roll.names]
        found = fit_sums(line, sites, here, claims[0].names, settings, model)
        about |= {"dispersion": found.dispersion, "expanded": found.expanded}
        about |= {"differs": list(found.differs), "notes": list(found.notes)}
        shared["dispersion"] = found.dispersion
    else:
        reports = [claim.report for claim in claims if isinstance(claim.report, ClientReport)]
        model.fit(Reports.from_clients(reports, claims[0].names))
    prior = replace(model.prior_, clients=sum(map(_count, claims)))
    about["fit_cpu_seconds"] = round(time.process_time() - began, 3)
    return Fitted(prior, shared, about, [node for node in accepted if node in roll.names])
