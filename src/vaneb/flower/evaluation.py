"""Evaluation at the client: the server sends atoms, and covariance functions or rows never leave a client."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from vaneb.errors import InvalidReport
from vaneb.flower.archive import Archive, Step
from vaneb.flower.attendance import Attendance
from vaneb.flower.claims import read_names
from vaneb.flower.client_data import LocalModel
from vaneb.flower.exchange import Channel, Lost
from vaneb.flower.one_shot import FEWEST
from vaneb.flower.personalise import Fitted, run_at_clients
from vaneb.flower.settings import Settings
from vaneb.flower.wire import Tree, check_array
from vaneb.likelihood.base import Array, Likelihood
from vaneb.likelihood.starts import completed_estimates
from vaneb.npmle.pseudo_em import StepSums, em_step, own_sums, weighed_estimates
from vaneb.prior import Prior

# ---------------------------------------------------------------- at the client


def answer_evaluation(question: Tree, likelihood: Likelihood, model: LocalModel) -> dict[str, Any]:
    """What one client says of the server's atoms."""
    kind = question.get("kind")
    if kind == "describe":
        return {"names": list(model.names), "design": model.design}
    if kind == "local":
        return {
            "estimate": likelihood.local_estimates()[0],
            "precision": likelihood.local_precision()[0],
        }
    atoms = check_array(question.get("atoms"), (len(question["atoms"]), likelihood.dimension), "atoms")
    if kind == "log_likelihood":
        return {"values": likelihood.log_likelihood(atoms)[0]}
    if kind == "sums":
        weights = check_array(question.get("weights"), (len(atoms),), "weights")
        return dict(own_sums(likelihood, atoms, weights)._asdict())
    raise InvalidReport(f"question: {kind!r:.40} is not known.")


# ---------------------------------------------------------------- at the server


def run_evaluation(channel: Channel, settings: Settings, archive: Archive) -> dict[str, Any]:
    """Fit without reports, then let every client find its own posterior."""
    return run_at_clients(
        channel,
        settings,
        archive,
        lambda attendance: Fitted(fit_who_stays(channel, settings, attendance, archive)),
    )


def fit_who_stays(
    channel: Channel, settings: Settings, attendance: Attendance, archive: Archive | None = None
) -> Prior:
    """The prior; a client that is lost on the way is left out, and the fit begins again without it."""
    nodes = tuple(attendance.names)
    while len(nodes) >= FEWEST:
        try:
            return fit_remote(channel, nodes, settings, archive)
        except Lost as error:
            for node, reason in error.reasons.items():
                attendance.lose(node, reason)
            nodes = tuple(node for node in nodes if node not in error.reasons)
    raise InvalidReport(
        f"clients: {len(nodes)} left, but a population needs {FEWEST}. Start more clients, "
        "or give them more time (--wait, --timeout)."
    )


def fit_remote(
    channel: Channel, nodes: tuple[int, ...], settings: Settings, archive: Archive | None = None
) -> Prior:
    """The prior of clients behind a channel, by Algorithm 1 at one exchange a step.

    The ``archive`` knows where it stands, so that a server that was killed goes on from there.
    """
    names = described(channel, nodes, settings)
    remote = RemoteClients(channel, nodes, names)
    begun = None if archive is None else archive.step(nodes)
    keep = None if archive is None else partial(archive.keep_step, nodes)
    atoms, weights = algorithm_1(
        remote, remote.sums, settings.iterations, settings.tol, settings.seed, begun=begun, keep=keep
    )
    return Prior(atoms, weights, None, names, len(nodes))


def algorithm_1(
    clients: Any,
    sums: Callable[[Array, Array], StepSums],
    iterations: int,
    tol: float = 1e-4,
    seed: int = 0,
    *,
    begun: Step | None = None,
    keep: Callable[[int, Array, Array], None] | None = None,
) -> tuple[Array, Array]:
    """Algorithm 1 in ``iterations`` + 2 exchanges: atoms (m, d) and weights (m,).

    ``clients`` are a likelihood, here or elsewhere.  Atoms at their estimates, NPMLE weights over them, then
    steps of pseudo-EM; what ``VANEB(solver="pseudo-em")`` does in one place, without its certificate.

    It goes on from the step that was ``begun``, and each step is given to ``keep``.
    """
    if begun is None:
        rng = np.random.default_rng(seed)
        begun = 0, *weighed_estimates(clients, completed_estimates(clients), tol, rng)
    first, atoms, weights = begun
    for number in range(first, iterations):
        atoms, weights = em_step(sums(atoms, weights), atoms)
        if keep is not None:
            keep(number + 1, atoms, weights)
    return atoms, weights


def described(channel: Channel, nodes: tuple[int, ...], settings: Settings) -> tuple[str, ...]:
    """Names of the parameters, which all clients must share; ``Lost`` names those that have others."""
    questions = {node: {"kind": "describe"} for node in nodes}
    answers = channel.ask_all("evaluate", questions, about="describe")
    kinds = {node: (read_names(a.get("names")), str(a.get("design"))[:100]) for node, a in answers.items()}
    if unreadable := {node: "names: expected a list of text" for node, kind in kinds.items() if not kind[0]}:
        raise Lost(unreadable)
    given = tuple(name.strip() for name in settings.parameters.split(",")) if settings.parameters else ()
    counts = [kind for kind in kinds.values() if not given or kind[0] == given]
    if not counts:
        raise InvalidReport(f"parameters: no client has {', '.join(given)}.")
    common = max(sorted(set(counts)), key=counts.count)
    strange = {n: "its parameters are not those of the others" for n, k in kinds.items() if k != common}
    if strange:
        raise Lost(strange)
    return common[0]


@dataclass(frozen=True)
class RemoteClients:
    """K clients behind a channel, as Algorithm 1 sees them: each of its questions is an exchange.

    Parameters
    ----------
    nodes : where the clients are.
    names : of the d parameters.
    """

    channel: Channel
    nodes: tuple[int, ...]
    names: tuple[str, ...]

    def log_likelihood(self, atoms: Array) -> Array:
        answers = self._ask({"kind": "log_likelihood", "atoms": atoms})
        return self._stack(answers, "values", (len(atoms),))

    def sums(self, atoms: Array, weights: Array) -> StepSums:
        """What a step of pseudo-EM needs, in one exchange."""
        m, d = atoms.shape
        answers = self._ask({"kind": "sums", "atoms": atoms, "weights": weights})
        shapes: dict[str, tuple[int, ...]] = {"share": (m,), "gradient": (m, d), "information": (m, d, d)}
        total = {key: self._stack(answers, key, shape).sum(axis=0) for key, shape in shapes.items()}
        return StepSums(float(self._stack(answers, "log_density", ()).sum()), **total)

    def local_estimates(self) -> Array:
        return self._stack(self._local, "estimate", (len(self.names),))

    def local_precision(self) -> Array:
        d = len(self.names)
        diagonal = _shape(self._local, "precision") == (d,)
        return self._stack(self._local, "precision", (d,) if diagonal else (d, d))

    @cached_property
    def _local(self) -> dict[int, Tree]:
        """Each client's own point and its precision."""
        return self._ask({"kind": "local"})

    def _ask(self, question: Mapping[str, Any]) -> dict[int, Tree]:
        return self.channel.ask_all("evaluate", dict.fromkeys(self.nodes, question), about=question["kind"])

    def _stack(self, answers: dict[int, Tree], key: str, shape: tuple[int, ...]) -> Array:
        """(K, *shape) in the order of ``nodes``; ``Lost`` names clients that sent something else."""
        parts, bad = [], {}
        for node in self.nodes:
            try:
                parts.append(check_array(answers[node].get(key), shape, key))
            except InvalidReport as error:
                bad[node] = str(error)
        if bad:
            raise Lost(bad)
        return np.stack(parts)


def _shape(answers: dict[int, Tree], key: str) -> tuple[int, ...]:
    """The shape that most of the answers have: one client must not decide for the others."""
    shapes: Counter[tuple[int, ...]] = Counter()
    for answer in answers.values():
        value = answer.get(key)
        if isinstance(value, np.ndarray):
            shapes[value.shape] += 1
        elif isinstance(value, list):
            shapes[(len(value),)] += 1
    return shapes.most_common(1)[0][0] if shapes else ()
