"""What runs beside the data.

Every handler is guarded: whatever goes wrong, the server is told one of a few fixed sentences, never the text
of an exception (which may quote rows).  The full text goes to ``errors.log`` in the client's own folder.

A handler answers only in runs of the modes that it belongs to: a server that has announced sums under masks
gets no answer to a question for this client's own part.  What else it answers is said by the site's
``policy``, and what leaves is in the site's ``ledger`` first.

Node config: ``data`` (file), ``client`` (name), ``folder`` (where results and ledger go), ``policy`` (file).
All of it is the site's own; nothing of it is ever taken from a run.  In a simulation an environment variable
names the data, ``partition-id`` picks the client, and there are neither policy nor ledger: all rows are one
person's.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.files import private_folder, write_atomically
from vaneb.fl.naming import known_names_only
from vaneb.flower import client_data, ledger, wire
from vaneb.flower.disclosure import Released, row_marks
from vaneb.flower.exchange import FAILED, TOKEN
from vaneb.flower.journal import rotate
from vaneb.flower.ledger import EXPANDED, Held, Study
from vaneb.flower.policy import Policy, PolicyRefused
from vaneb.flower.processes import SIMULATION
from vaneb.flower.settings import SUMS, Settings
from vaneb.flower.site_sums import Population, allowed, dispersion_of, own_halves, site_sums
from vaneb.likelihood.base import Likelihood
from vaneb.local.fit import fit_clients

app = ClientApp()

ERRORS = "errors.log"
#: All that a server is ever told of a failure at the client.
FAILURES: tuple[tuple[type[Exception], str], ...] = (
    (Held, "its answer waits for a person at the site to release it"),
    (ledger.Damaged, "it failed; its own log says why"),
    (PolicyRefused, "its policy does not allow this question; its own ledger says why"),
    (InvalidReport, "its data do not fit the model; its own log says why"),
    (InvalidOption, "the run asks for something that it cannot do; its own log says why"),
    (OSError, "its file cannot be read; its own log says why"),
    (Exception, "it failed; its own log says why"),
)


@dataclass(frozen=True)
class Site:
    """Where a site is: its name, its file, its folder, and the rules that hold there.

    ``wards`` is the column that tells its clients apart, if it has many.
    """

    settings: Settings
    client: str
    data: Path
    folder: Path
    policy: Policy | None
    column: str = ""
    number: int = 0
    wards: str = ""

    @classmethod
    def of(cls, context: Context) -> Site:
        settings = Settings.from_run_config(context.run_config)
        node = context.node_config
        if SIMULATION in os.environ:
            simulated = json.loads(os.environ[SIMULATION])
            number = int(node.get("partition-id", 0))
            own = Path(simulated["folder"]) / str(number)
            return cls(settings, "", Path(simulated["data"]), own, None, simulated["column"], number)
        for name in ("data", "folder"):
            if not node.get(name):
                raise InvalidOption(f"node config: {name} is missing. Start it with 'vaneb federate client'.")
        policy = Policy.read(Path(str(node["policy"]))) if "policy" in node else Policy()
        client, data, folder, wards = (
            str(node.get(name, "")) for name in ("client", "data", "folder", "wards")
        )
        if wards and (settings.mode != "reports" or settings.form != SUMS or settings.epsilon):
            raise InvalidOption(
                f"--client {wards}: a site with many clients answers mode reports with form {SUMS} only, "
                "without epsilon."
            )
        return cls(settings, client, Path(data), Path(folder), policy, wards=wards)

    @property
    def study(self) -> Study | None:
        """What this site has on record of this run's question."""
        return None if self.policy is None else Study(self.folder, self.settings, self.policy)

    def model(self) -> tuple[str, client_data.LocalModel]:
        """The site's name and its coded rows, of the clients of which the policy lets anything be said."""
        coded = self._coded()
        return coded.client, coded.model.only(*allowed(coded.model, self.policy))

    def whole(self) -> tuple[str, client_data.LocalModel]:
        """The same with all clients, for what stays here."""
        coded = self._coded()
        return coded.client, coded.model

    def likelihood(self, atoms: int = 0) -> tuple[str, client_data.LocalModel, Likelihood]:
        """The same, and what is evaluated at so many of the server's atoms."""
        name, model = self.model()
        if (study := self.study) is not None:
            rows = self.released(model)
            study.check_rows(rows)
            study.count(atoms)
            study.keep_rows(rows)
        return name, model, self._coded().likelihood()

    def released(self, model: client_data.LocalModel, *places: np.ndarray) -> Released:
        """The rows behind an answer, of expansions at these places (K, d); without any, at the own fit."""
        coded, rows, settings = self._coded(), model.rows, self.settings
        here = np.isin(coded.model.kept, model.kept)
        halves = settings.mode == "reports" and settings.form == SUMS
        first = own_halves(model, self.policy) if halves else np.ones(len(rows.design), dtype=bool)
        design = np.hstack([rows.design, model.response])
        if settings.epsilon:  # under noise no sum of a column leaves
            told = design = design[:, :0]
        else:
            told = model.columns_told(*places) if places else coded.told()[here]
        named = [int.from_bytes(hashlib.sha256(str(one).encode()).digest()[:8]) for one in rows.ids]
        clients = np.array(named, np.uint64)[rows.client_of_row]
        besides = told[:, design.shape[1] :]
        return Released(coded.marks[here], clients, design, first, besides)

    def _coded(self) -> Coded:
        about = self.data.stat()
        return _coded(self, about.st_mtime_ns, about.st_size)

    def keep(self, name: str, content: bytes) -> None:
        write_atomically(private_folder(self.folder) / name, content)


class Coded(NamedTuple):
    """A site's rows, found once for a file as it is: a process that is asked again need not fit again."""

    client: str
    model: client_data.LocalModel
    marks: np.ndarray
    likelihood: Callable[[], Likelihood]
    told: Callable[[], np.ndarray]
    """Columns with which sums are told at the clients' own fits."""


# At a site settings that change no answer must not fill the memory; a simulation has many clients.
@functools.lru_cache(maxsize=4096 if SIMULATION in os.environ else 8)
def _coded(site: Site, changed: int, size: int) -> Coded:
    name, frame = client_data.read_client(site.data, site.column, site.number)
    agreed = frame if site.policy is None else site.policy.agreed(frame, site.settings, site.wards)
    model = client_data.local_model(agreed, site.settings, site.wards)
    return Coded(
        site.client or name,
        model,
        row_marks(frame.iloc[model.kept]),
        functools.cache(lambda: client_data.local_likelihood(model, site.settings)),
        functools.cache(lambda: model.columns_told(fit_clients(model.rows, model.family).theta)),
    )


Handler = Callable[[wire.Tree, Site], dict[str, Any]]


def sentence_for(error: Exception) -> str:
    """The fixed sentence that stands for a failure."""
    return next(text for kind, text in FAILURES if isinstance(error, kind))


def write_error(context: Context) -> None:
    """Append the exception being handled to the client's own log."""
    folder = str(context.node_config.get("folder", ""))
    if not folder:
        return
    rotate(Path(folder) / ERRORS)  # a server may ask without end what is refused
    with open(private_folder(Path(folder)) / ERRORS, "a", encoding="utf-8") as log:
        log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}\n{traceback.format_exc()}\n")


def write_refusal(context: Context, question: str, error: Exception) -> None:
    """Enter what was not answered in the ledger; exceptions that may quote rows only by their sentence."""
    folder = str(context.node_config.get("folder", ""))
    # Whatever goes wrong here, a full disk or a damaged ledger: Flower would tell the server its text.
    with contextlib.suppress(Exception):
        write_error(context)
    with contextlib.suppress(Exception):
        if folder and SIMULATION not in os.environ:
            reason = str(error) if isinstance(error, InvalidOption) else sentence_for(error)
            event = "held" if isinstance(error, Held) else "refused"
            asked = {key: str(value)[:200] for key, value in sorted(context.run_config.items()) if value}
            ledger.enter_refusal(Path(folder), event, question=question, reason=reason[:500], asked=asked)


def guarded(*modes: str, tells: bool = True) -> Callable[[Handler], Callable[[Message, Context], Message]]:
    """Make of a handler one that never raises, and that answers in runs of these modes only.

    Nothing leaves that the policy does not allow, or before it is in the ledger.  A handler that does not
    ``tell`` says only that it has kept what it was given.
    """

    def make(handler: Handler) -> Callable[[Message, Context], Message]:
        @functools.wraps(handler)
        def run(message: Message, context: Context) -> Message:
            token = ""
            try:
                question = wire.from_record(message.content)
                token = str(question.pop(TOKEN, ""))
                site = Site.of(context)
                if site.settings.mode not in modes:
                    raise InvalidOption(f"{handler.__name__}: not a question of mode {site.settings.mode}.")
                study = site.study
                with known_names_only():
                    if study is not None:
                        study.begin()
                    answer = handler(question, site)
                if study is not None and tells:
                    answer = study.policy.rounded(answer)
                    study.release(handler.__name__, answer)
            except Exception as error:
                answer = {FAILED: sentence_for(error)}
                write_refusal(context, handler.__name__, error)
            return Message(wire.to_record({**answer, TOKEN: token}), reply_to=message)

        return run

    return make


@app.query("report")
@guarded("reports")
def report(question: wire.Tree, site: Site) -> dict[str, Any]:
    """Fit locally and answer with a report in the wire form; asked again, with the one that has left."""
    mechanism, study = site.settings.privacy(), site.study
    kept = None if study is None else study.kept()
    # Noise that is drawn twice protects half as much.
    if mechanism is not None and kept is not None:
        return kept
    client, model = site.model()
    if study is not None and mechanism is not None:
        if model.fewest_of_level or model.classes:
            raise PolicyRefused("formula: levels and classes have names, which no noise protects.")
        study.check_budget()
    answer: dict[str, Any] = {"names": list(model.names), "design": model.design}
    places = []
    if mechanism is None and site.settings.form == SUMS:
        sums = site_sums(client, model, site.policy)
        places.append(sums.parts[0].point)
        answer["report"] = sums.to_wire()
    else:
        one = client_data.local_report(model, site.settings)[0]
        if mechanism is not None:
            one = mechanism.release(one, np.random.default_rng())
            answer["design"] = ""
        answer["report"] = {**one.to_wire(), "id": client}
    rows = site.released(model, *places)
    if study is not None and not study.check_rows(rows) and kept is not None:
        return kept
    if study is not None:
        study.count()
        study.keep_rows(rows)
        study.keep(answer)
    return answer


@app.query("expand")
@guarded("reports")
def expand(question: wire.Tree, site: Site) -> dict[str, Any]:
    """The report once more, about where the server's first population puts this client.

    Once in a study: asked again, with the answer that has left, whatever the server's population is then.
    """
    settings, study = site.settings, site.study
    if settings.form != SUMS or settings.epsilon or settings.family == "gaussian":
        raise InvalidOption("expand: not a question of this run.")
    if study is not None and (kept := study.kept(EXPANDED)) is not None:
        return kept
    client, model = site.model()
    answer: dict[str, Any] = {"names": list(model.names), "design": model.design}
    population = Population.of(question, len(model.names), (site.policy or Policy()).farthest)
    sums = site_sums(client, model, site.policy, population)
    answer["report"] = sums.to_wire()
    if study is not None:
        rows = site.released(model, sums.parts[0].point)
        if study.kept() is None or not study.check_rows(rows, EXPANDED):
            raise PolicyRefused("expand: no report of these rows has left.")
        study.count()
        study.keep_rows(rows, EXPANDED)
        study.keep(answer, EXPANDED)
    return answer


@app.query("evaluate")
@guarded("evaluate", "secure")
def evaluate(question: wire.Tree, site: Site) -> dict[str, Any]:
    """Evaluate this client's likelihood at the server's atoms."""
    from vaneb.flower.evaluation import answer_evaluation

    if site.settings.mode == "secure" and question.get("kind") != "describe":
        raise InvalidOption("evaluate: in mode secure a client gives its part only under a mask.")
    atoms = question.get("atoms")
    client, model, likelihood = site.likelihood(len(atoms) if isinstance(atoms, np.ndarray | list) else 0)
    return {"client": client, **answer_evaluation(question, likelihood, model)}


@app.query("personalise")
@guarded("reports", "evaluate", "secure", tells=False)
def personalise(question: wire.Tree, site: Site) -> dict[str, Any]:
    """Find the posterior of each of this site's clients from the prior; nothing of it is told."""
    from vaneb.flower.personalise import keep_results, own_posterior

    if site.settings.mode == "reports":
        # Whether there is a posterior is an answer, too: not for every model, nor without end.
        site.model()
        if (study := site.study) is not None:
            study.count()
        client, model = site.whole()
        likelihood = client_data.own_likelihood(model, dispersion_of(question, site.settings))
    else:
        client, model, likelihood = site.likelihood()
    most = (site.policy or Policy()).atoms
    private = site.settings.epsilon > 0
    ids = () if site.wards else (client,)
    found = own_posterior(question, model, likelihood, most, ids, private=private)
    keep_results(site.folder, client, found, many=bool(site.wards))
    return {"kept": True}


class Failed(Exception):
    """A failure that may be told; raised without the exception behind it."""


def in_a_crowd(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    """Refuse a protocol that would unmask the sum of too few; the server proposes, the client checks."""
    from vaneb.flower.secure import check_crowd

    def check() -> None:
        site = Site.of(context)
        if site.settings.mode != "secure":
            raise InvalidOption(f"secure: not a question of mode {site.settings.mode}.")
        if (study := site.study) is not None:
            study.begin()
        check_crowd(message.content)

    _or_failed(check, context)
    return call_next(message, context)


def in_agreement(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
    """Add only to a sum whose other parts answer the same question: clients tell each other which it is."""
    from vaneb.flower.agreement import opened, remembered, sealed

    stage = _or_failed(lambda: remembered(message, context), context)
    _or_failed(lambda: opened(message, context, stage), context)
    reply = call_next(message, context)
    return reply if reply.has_error() else _or_failed(lambda: sealed(reply, context, stage), context)


def _or_failed(part: Callable[[], Any], context: Context) -> Any:
    """What ``part`` returns; ``Failed`` with nothing but a fixed sentence if it raises."""
    try:
        return part()
    except Exception as error:
        write_refusal(context, "secure", error)
        sentence = sentence_for(error)
    # Out of the block, so that nothing of the first exception hangs on to this one.
    raise Failed(sentence)


@app.train(mods=[in_a_crowd, in_agreement, secaggplus_mod])
def secure(message: Message, context: Context) -> Message:
    """This client's part of a sum, which Flower masks before it leaves."""
    from vaneb.flower.secure import as_answer, own_vector, question_of

    def part() -> Any:
        site = Site.of(context)
        atoms, weights = question_of(message.content)
        _, _, likelihood = site.likelihood(len(atoms))
        vector = own_vector(atoms, weights, likelihood, site.settings, site.policy)
        if (study := site.study) is not None:
            study.release("secure", {"under a mask": vector})
        return as_answer(vector)

    return Message(_or_failed(part, context), reply_to=message)


@app.query("network")
@guarded("network")
def network(question: wire.Tree, site: Site) -> dict[str, Any]:
    """One of the engine's tasks, on this client's data and with its own state."""
    from vaneb.flower.network_client import count_images, run_task

    if site.policy is not None and (study := site.study) is not None:
        site.policy.check_size(count_images(site.data))
        study.count()
    return run_task(question, site.settings, site.data, site.folder, site.client)
