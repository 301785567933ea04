"""One-shot personalisation at the server: ask for reports, fit, give every client its own posterior.

Reports are on disk as soon as they arrive, so a server that is killed asks only those that have not answered.
With a saved prior nothing is fitted: a late client reports, and is served from it.
"""

from __future__ import annotations

import time
from typing import Any

from vaneb.errors import InvalidReport
from vaneb.estimators import VANEB
from vaneb.flower.archive import Archive
from vaneb.flower.claims import Claim, consistent, read_claim
from vaneb.flower.exchange import Line
from vaneb.flower.roll import Roll, call_roll
from vaneb.flower.settings import Settings
from vaneb.posterior import Posterior
from vaneb.prior import Prior
from vaneb.reports import Reports

#: Fewer reports than this are no population.
FEWEST = 2
#: Of the intervals that clients are given.
LEVEL = 0.9
#: Entries of posterior covariances that are held at once.
ENTRIES = 20_000_000


def run_reports(line: Line, settings: Settings, archive: Archive) -> dict[str, Any]:
    """One run; returns what it did, which is in the archive too."""
    roll = call_roll(line.grid, settings.nodes, settings.wait, archive.registered())
    prior = None if settings.refit else archive.prior()
    claims = _collect(line, archive, roll)
    accepted, refused = consistent(claims, _parameters(settings, prior), _earlier(archive, roll))
    for node, reason in refused.items():
        roll.refuse(node, reason)
        archive.forget_report(node)
    began, fitted = time.process_time(), False
    if prior is None:
        prior, fitted = _fit(accepted, settings, roll), True
        archive.keep_prior(prior)
    fit_seconds = time.process_time() - began
    served = _deliver(line, archive, prior, accepted, roll)
    return archive.keep_outcome(
        settings.mode,
        served,
        roll.troubles,
        line.traffic.summary(),
        absent=list(roll.absent),
        fitted=fitted,
        clients=len(accepted),
        atoms=len(prior.weights),
        fit_cpu_seconds=round(fit_seconds, 3),
    )


def _collect(line: Line, archive: Archive, roll: Roll) -> dict[int, Claim]:
    """Reports that are saved already, and those of the nodes that have none, saved as they arrive."""
    claims: dict[int, Claim] = {}
    for node, content in archive.reports().items():
        try:
            claims[node] = read_claim(node, roll.names.get(node, ""), content)
        except InvalidReport:  # saved under other rules, such as another name: ask again
            archive.forget_report(node)
    for answer in line.ask("report", {node: {} for node in roll.names if node not in claims}):
        if answer.content is None:
            (roll.lose if answer.silent else roll.refuse)(answer.node, answer.reason)
            continue
        try:
            claims[answer.node] = read_claim(answer.node, roll.names[answer.node], answer.content)
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


def _parameters(settings: Settings, prior: Prior | None) -> tuple[str, ...]:
    if prior is not None:
        return prior.names
    return tuple(name.strip() for name in settings.parameters.split(",")) if settings.parameters else ()


def _fit(accepted: dict[int, Claim], settings: Settings, roll: Roll) -> Prior:
    if len(accepted) < FEWEST:
        raise InvalidReport(
            f"reports: {len(accepted)} usable, but a population needs {FEWEST}. Start more clients. "
            f"{roll.told()}"
        )
    model = VANEB(
        population=settings.population,
        solver=settings.solver or None,
        tol=settings.tol,
        iterations=settings.iterations,
        seed=settings.seed,
    )
    return model.fit(_stacked(accepted)).prior_


def _stacked(accepted: dict[int, Claim]) -> Reports:
    claims = sorted(accepted.values(), key=lambda claim: claim.report.id)
    return Reports.from_clients([claim.report for claim in claims], claims[0].names)


def _deliver(line: Line, archive: Archive, prior: Prior, accepted: dict[int, Claim], roll: Roll) -> list[str]:
    """Send every client that is there its own posterior; returns the ids of all that have it."""
    done = archive.delivered(prior)
    served = [claim.report.id for node, claim in accepted.items() if node in done]
    pending = [node for node in accepted if node in roll.names and node not in done]
    if not pending:
        return served
    claims = [accepted[node] for node in pending]
    size = max(1, ENTRIES // len(claims[0].names) ** 2)
    results: dict[int, dict[str, Any]] = {}
    for first in range(0, len(pending), size):
        part = [claim.report for claim in claims[first : first + size]]
        posterior = VANEB.from_prior(prior).personalize(Reports.from_clients(part, claims[0].names))
        results |= dict(zip(pending[first : first + size], results_of(posterior), strict=True))
    for answer in line.ask("deliver", results):
        client = accepted[answer.node].report.id
        if answer.content is None:
            roll.lose(answer.node, f"result not delivered: {answer.reason}", client=client)
        else:
            archive.mark_delivered(answer.node, prior)
            served.append(client)
    return served


def results_of(posterior: Posterior) -> list[dict[str, Any]]:
    """What each client is given: its own posterior and nobody else's."""
    lower, upper = posterior.interval(LEVEL)
    return [
        {
            "client": str(client),
            "names": list(posterior.names),
            "mean": posterior.mean[k],
            "covariance": posterior.covariance[k],
            "lower": lower[k],
            "upper": upper[k],
            "level": LEVEL,
            "shrinkage": float(posterior.shrinkage[k]),
            "flag": posterior.flag[k],
        }
        for k, client in enumerate(posterior.ids)
    ]
