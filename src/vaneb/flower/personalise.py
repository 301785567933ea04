"""The last step of a run: the server sends the population, and every site finds its own posteriors.

From its own rows, exactly: what it has sent, rounded, noisy or an approximation, matters for the population
only.  The server is told that the result is kept, and nothing of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vaneb.errors import InvalidReport
from vaneb.estimators import VANEB
from vaneb.files import private_folder, write_atomically
from vaneb.flower.archive import Archive
from vaneb.flower.attendance import Attendance, wait_for_nodes
from vaneb.flower.client_data import PAGE, POPULATION, RESULT, TABLE, LocalModel
from vaneb.flower.exchange import Channel
from vaneb.flower.ledger import plain
from vaneb.flower.policy import PolicyRefused
from vaneb.flower.settings import Settings
from vaneb.flower.wire import Tree
from vaneb.likelihood.base import Likelihood
from vaneb.posterior import Posterior, posterior
from vaneb.prior import Prior

#: Of the intervals that clients are given.
LEVEL = 0.9


# ---------------------------------------------------------------- at the site


def own_posterior(
    question: Tree,
    model: LocalModel,
    likelihood: Likelihood,
    most: int,
    ids: tuple[str, ...] = (),
    *,
    private: bool = False,
) -> Posterior:
    """Posterior of this site's clients under the server's prior, of at ``most`` so many atoms.

    A ``private`` population has not seen the client's rows, so they say which of the populations drawn are
    likely: all of them are one mixture.
    """
    prior = Prior.from_wire(question.get("prior"))
    if len(prior.weights) > most:
        raise PolicyRefused(f"atoms: a population of {len(prior.weights)}; this site takes {most}.")
    if prior.names != model.names or question.get("design", "") not in ("", model.design):
        raise InvalidReport(
            f"data: their parameters are {', '.join(model.names[:6])}, those of the population "
            f"{', '.join(prior.names[:6])}; or their factor levels or classes differ."
        )
    if private:
        prior = replace(prior, draw=None, clients=None)
    return posterior(likelihood, prior, ids=ids or tuple(map(str, model.rows.ids)), names=model.names)


def keep_results(folder: Path, site: str, found: Posterior, *, many: bool) -> None:
    """Write the population, a table and a page, and last ``result.json``, which says that all is there."""
    from vaneb.report import fit_content, write_page
    from vaneb.tables import results_table, rounded, write_table

    private_folder(folder)
    found.prior.save(folder / POPULATION)
    write_table(folder / TABLE, rounded(results_table(found, LEVEL), found.names))
    write_page(folder / PAGE, fit_content(VANEB.from_prior(found.prior), found, title=f"Results of {site}"))
    results = results_of(found)
    content = {"client": site, "clients": results} if many else results[0]
    write_atomically(folder / RESULT, (json.dumps(plain(content), indent=1) + "\n").encode())


def results_of(found: Posterior) -> list[dict[str, Any]]:
    """Each client's posterior as plain values."""
    lower, upper = found.interval(LEVEL)
    return [
        {
            "client": str(client),
            "names": list(found.names),
            "mean": found.mean[k],
            "covariance": found.covariance[k],
            "lower": lower[k],
            "upper": upper[k],
            "level": LEVEL,
            "shrinkage": float(found.shrinkage[k]),
            "flag": found.flag[k],
        }
        for k, client in enumerate(found.ids)
    ]


# ---------------------------------------------------------------- at the server


class Fitted(NamedTuple):
    """A population, what else clients share, what to say of the fit, and who is served (by default all)."""

    prior: Prior
    shared: Mapping[str, Any] = {}
    about: Mapping[str, Any] = {}
    nodes: Iterable[int] | None = None


def run_at_clients(
    channel: Channel, settings: Settings, archive: Archive, fit: Callable[[Attendance], Fitted]
) -> dict[str, Any]:
    """The saved prior, or the one that ``fit`` finds; then every client finds its own posterior.

    Returns what was done, which is in the archive too.
    """
    attendance = wait_for_nodes(channel.grid, settings.nodes, settings.wait, archive.registered())
    prior = None if settings.refit else archive.prior()
    about, nodes, fitted = dict[str, Any](), None, prior is None
    if prior is None:
        began = time.process_time()
        prior, shared, more, nodes = fit(attendance)
        archive.keep_prior(prior, **shared)
        about = {"fit_cpu_seconds": round(time.process_time() - began, 3), **more}
    for node, content in archive.reports().items():
        if attendance.names.get(node) == "":  # not authenticated: called as it calls itself
            attendance.names[node] = str(content["report"]["id"])
    served = personalise_all(channel, archive, prior, attendance, nodes)
    return archive.keep_outcome(
        settings.mode,
        served,
        attendance.troubles,
        channel.traffic.summary(),
        absent=list(attendance.absent),
        fitted=fitted,
        clients=prior.clients,
        atoms=len(prior.weights),
        population=str(prior),
        **about,
    )


def personalise_all(
    channel: Channel,
    archive: Archive,
    prior: Prior,
    attendance: Attendance,
    nodes: Iterable[int] | None = None,
) -> list[str]:
    """Send the prior to ``nodes`` (all that are there by default); returns who has a result."""
    done, wanted = archive.delivered(prior), tuple(attendance.names if nodes is None else nodes)
    content = prior.to_wire()
    for name in ("atoms", "weights", "covariances", "draw"):  # once, not for every client
        content[name] = None if content[name] is None else np.asarray(content[name])
    question = {"prior": content, **archive.shared()}
    for answer in channel.ask("personalise", {node: question for node in wanted if node not in done}):
        if answer.content is not None:
            archive.mark_delivered(answer.node, prior)
        elif answer.node not in attendance.troubles:
            attendance.lose(answer.node, f"result not delivered: {answer.reason}")
    delivered = archive.delivered(prior)
    return sorted(attendance.name(node) for node in wanted if node in delivered)
