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
from vaneb.flower.attendance import Attendance
from vaneb.flower.claims import Claim, consistent, read_claim
from vaneb.flower.exchange import Channel
from vaneb.flower.lossless import fit_from_sums
from vaneb.flower.personalise import Fitted, run_at_clients
from vaneb.flower.settings import SUMS, Settings
from vaneb.flower.site_sums import SiteSums, beyond_belief
from vaneb.reports import ClientReport, Reports

#: Fewer reports than this are no population.
FEWEST = 2


def run_reports(channel: Channel, settings: Settings, archive: Archive) -> dict[str, Any]:
    """One run; returns what it did, which is in the archive too."""

    def fit(attendance: Attendance) -> Fitted:
        accepted = _accepted(channel, settings, archive, attendance)
        return _fit(channel, accepted, settings, attendance)

    return run_at_clients(channel, settings, archive, fit)


def _accepted(
    channel: Channel, settings: Settings, archive: Archive, attendance: Attendance
) -> dict[int, Claim]:
    """Reports that can be fitted together, by node; the others are refused by name."""
    claims = _collect(channel, settings, archive, attendance)
    accepted, refused = consistent(claims, _parameters(settings), _earlier(archive, attendance))
    sums = {node: claim.report for node, claim in accepted.items() if isinstance(claim.report, SiteSums)}
    for node in beyond_belief(sums) if sums else ():
        del accepted[node]
        refused[node] = "report: its coefficients are a hundred million times those of the others."
    for node, reason in refused.items():
        attendance.refuse(node, reason)
        archive.forget_report(node)
    clients = sum(_count(claim) for claim in accepted.values())
    if clients < FEWEST:
        raise InvalidReport(
            f"reports: {clients} usable, but a population needs {FEWEST}. Start more clients. "
            f"{attendance.in_words()}"
        )
    return accepted


def _count(claim: Claim) -> int:
    """Clients of a site."""
    return 1 if isinstance(claim.report, ClientReport) else claim.report.whole.n_clients


def _collect(
    channel: Channel, settings: Settings, archive: Archive, attendance: Attendance
) -> dict[int, Claim]:
    """Reports that are saved already, and those of the nodes that have none, saved as they arrive."""
    claims: dict[int, Claim] = {}
    sums = settings.form == SUMS and not settings.epsilon
    for node, content in archive.reports().items():
        try:
            claims[node] = read_claim(node, attendance.names.get(node, ""), content, sums=sums)
        except InvalidReport:  # saved under other rules, such as another name: ask again
            archive.forget_report(node)
    for answer in channel.ask("report", {node: {} for node in attendance.names if node not in claims}):
        if answer.content is None:
            (attendance.lose if answer.silent else attendance.refuse)(answer.node, answer.reason)
            continue
        try:
            claims[answer.node] = read_claim(
                answer.node, attendance.names[answer.node], answer.content, sums=sums
            )
        except InvalidReport as error:
            attendance.refuse(answer.node, str(error))
        else:
            archive.keep_report(answer.node, answer.content)
    return claims


def _earlier(archive: Archive, attendance: Attendance) -> dict[str, int]:
    """Names that are bound: to the node that is registered under them, or that was served before."""
    delivered = {int(path.name) for path in (archive.folder / "delivered").iterdir()}
    bound = {
        str(content["report"]["id"]): node for node, content in archive.reports().items() if node in delivered
    }
    return bound | {name: node for node, name in attendance.names.items() if name}


def _parameters(settings: Settings) -> tuple[str, ...]:
    return tuple(name.strip() for name in settings.parameters.split(",")) if settings.parameters else ()


def _fit(channel: Channel, accepted: dict[int, Claim], settings: Settings, attendance: Attendance) -> Fitted:
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
        here = [node for node in sites if node in attendance.names]
        found = fit_from_sums(channel, sites, here, claims[0].names, settings, model)
        about |= {"dispersion": found.dispersion, "expanded": found.expanded}
        about |= {"differs": list(found.differs), "notes": list(found.notes)}
        shared["dispersion"] = found.dispersion
    else:
        reports = [claim.report for claim in claims if isinstance(claim.report, ClientReport)]
        model.fit(Reports.from_clients(reports, claims[0].names))
    prior = replace(model.prior_, clients=sum(map(_count, claims)))
    about["fit_cpu_seconds"] = round(time.process_time() - began, 3)
    return Fitted(prior, shared, about, [node for node in accepted if node in attendance.names])
