"""Evaluation at the client: the server sends atoms, and covariance functions or rows never leave a client.

``RemoteLikelihood`` is the likelihood of clients that are elsewhere: every question of a solver is an
exchange, which each client answers for itself.  Solvers do not know the difference, so that any of them runs
over a network, and finds what it would find with all clients in one place.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.estimators import VANEB
from vaneb.flower.archive import Archive
from vaneb.flower.claims import check_array
from vaneb.flower.client_data import LocalModel
from vaneb.flower.exchange import Line, Lost, wait_for_nodes
from vaneb.flower.one_shot import FEWEST, results_of
from vaneb.flower.settings import Settings
from vaneb.flower.wire import Tree
from vaneb.likelihood.seam import Array, Ascent, Components, Likelihood
from vaneb.npmle.pseudo_em import MOST_ATOMS
from vaneb.npmle.support import completed_estimates, covering_subset
from vaneb.npmle.weights import npmle_weights, scaled_likelihood
from vaneb.posterior import posterior
from vaneb.prior import Prior
from vaneb.sums import Sums, em_step, own_sums

# ---------------------------------------------------------------- at the client


def answer_evaluation(question: Tree, likelihood: Likelihood, model: LocalModel) -> dict[str, Any]:
    """What one client says of the server's atoms."""
    kind = question.get("kind")
    if kind == "describe":
        return {"names": list(model.names), "design": model.design}
    part = likelihood.smoothed(question.get("spread"))
    if kind == "local":
        return {
            "estimate": likelihood.local_estimates()[0],
            "precision": likelihood.local_precision()[0],
            "peak": part.peak(),
        }
    atoms = check_array(question.get("atoms"), (len(question["atoms"]), likelihood.dimension), "atoms")
    if kind == "log_likelihood":
        return {"values": part.log_likelihood(atoms)[0]}
    if kind == "sums":
        weights = check_array(question.get("weights"), (len(atoms),), "weights")
        return dict(own_sums(part, atoms, weights)._asdict())
    if kind == "components":
        mean, covariance = part.components(atoms)
        return {"mean": mean[0], "covariance": covariance[0]}
    if kind == "ascent":
        weight = np.array([float(question["log_weight"])])
        curvature = bool(question["curvature"])
        sums = part.ascent(atoms, weight, frozen=bool(question["frozen"]), curvature=curvature)
        answer = {"value": sums.value, "gradient": sums.gradient, "information": sums.information}
        return answer | ({"outer": sums.outer} if curvature else {})
    raise InvalidReport(f"question: {kind!r:.40} is not known.")


def own_posterior(question: Tree, client: str, likelihood: Likelihood, model: LocalModel) -> dict[str, Any]:
    """This client's posterior under the server's prior, found where its data are."""
    prior = Prior.from_wire(question.get("prior"))
    found = posterior(likelihood, prior, ids=(client,), names=model.names)
    return results_of(found)[0]


# ---------------------------------------------------------------- at the server


@dataclass(frozen=True)
class RemoteLikelihood:
    """K clients behind a line, as a solver sees them.

    Parameters
    ----------
    nodes : where the clients are.
    names : of the d parameters.
    spread : Gamma, or None.
    local : estimate, precision and peak of each client, asked for once and shared with parts.
    """

    line: Line
    nodes: tuple[int, ...]
    names: tuple[str, ...]
    spread: Array | None = None
    local: dict[str, dict[int, Tree]] = field(default_factory=dict)

    @property
    def cheap(self) -> bool:
        """Never: a pair of client and atom is a message."""
        return False

    @property
    def n_clients(self) -> int:
        return len(self.nodes)

    @property
    def dimension(self) -> int:
        return len(self.names)

    def log_likelihood(self, atoms: Array) -> Array:
        answers = self._ask({"kind": "log_likelihood", "atoms": atoms})
        return self._stack(answers, "values", (len(atoms),))

    def ascent(
        self, atoms: Array, log_weights: Array, *, frozen: bool = False, curvature: bool = True
    ) -> Ascent:
        question = {"kind": "ascent", "atoms": atoms, "frozen": frozen, "curvature": curvature}
        own = {node: {"log_weight": float(log_weights[k])} for k, node in enumerate(self.nodes)}
        answers = self._ask(question, own)
        m, d = atoms.shape
        diagonal = _shape(answers, "information") == (m, d)
        information = self._stack(answers, "information", (m, d) if diagonal else (m, d, d))
        outer = self._stack(answers, "outer", (m, d, d)).sum(axis=0) if curvature else None
        value = self._stack(answers, "value", (m,)).sum(axis=0)
        return Ascent(
            value, self._stack(answers, "gradient", (m, d)).sum(axis=0), outer, information.sum(axis=0)
        )

    def sums(self, atoms: Array, weights: Array) -> Sums:
        """What a step of pseudo-EM needs, in one exchange."""
        m, d = atoms.shape
        answers = self._ask({"kind": "sums", "atoms": atoms, "weights": weights})
        shapes: dict[str, tuple[int, ...]] = {"share": (m,), "gradient": (m, d), "information": (m, d, d)}
        total = {key: self._stack(answers, key, shape).sum(axis=0) for key, shape in shapes.items()}
        return Sums(float(self._stack(answers, "log_density", ()).sum()), **total)

    def components(self, atoms: Array) -> Components:
        m, d = atoms.shape
        if self.spread is None:
            return Components(atoms[None], np.zeros((1, 1, d, d)))
        answers = self._ask({"kind": "components", "atoms": atoms})
        mean = self._stack(answers, "mean", (m, d))
        shared = _shape(answers, "covariance")[:1] == (1,)
        return Components(mean, self._stack(answers, "covariance", (1 if shared else m, d, d)))

    def take(self, rows: NDArray[np.intp] | slice) -> RemoteLikelihood:
        return replace(self, nodes=tuple(np.asarray(self.nodes, dtype=np.uint64)[rows].tolist()))

    def smoothed(self, spread: Array | None) -> RemoteLikelihood:
        return replace(self, spread=None if spread is None or not spread.any() else spread)

    def peak(self) -> Array:
        return self._stack(self._local(), "peak", (1,))[:, 0]

    def local_estimates(self) -> Array:
        return self._stack(self._local(), "estimate", (self.dimension,))

    def local_precision(self) -> Array:
        d = self.dimension
        answers = self._local()
        diagonal = _shape(answers, "precision") == (d,)
        return self._stack(answers, "precision", (d,) if diagonal else (d, d))

    def _local(self) -> dict[int, Tree]:
        """Each client's own point, its precision and its peak under the present spread."""
        key = "" if self.spread is None else self.spread.tobytes().hex()
        known = self.local.setdefault(key, {})
        missing = tuple(node for node in self.nodes if node not in known)
        if missing:
            known.update(replace(self, nodes=missing)._ask({"kind": "local"}))
        return {node: known[node] for node in self.nodes}

    def _ask(
        self, question: Mapping[str, Any], own: Mapping[int, Mapping[str, Any]] | None = None
    ) -> dict[int, Tree]:
        with_spread = {**question, **({} if self.spread is None else {"spread": self.spread})}
        return self.line.ask_all(
            "evaluate", {node: {**with_spread, **(own or {}).get(node, {})} for node in self.nodes}
        )

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
    """The shape that the first of the answers has."""
    return np.asarray(next(iter(answers.values())).get(key)).shape


def run_evaluation(line: Line, settings: Settings, archive: Archive) -> dict[str, Any]:
    """Fit without reports, then let every client find its own posterior.

    A client that is lost on the way is left out and the fit begins again without it.
    """
    registered = wait_for_nodes(line.grid, settings.nodes, settings.wait)
    troubles: dict[int, dict[str, str]] = {}
    prior = None if settings.refit else archive.prior()
    fitted, began = prior is None, time.process_time()
    nodes = tuple(registered)
    while prior is None:
        if len(nodes) < FEWEST:
            raise InvalidReport(f"clients: {len(nodes)} left, but a population needs {FEWEST}.")
        try:
            prior = fit_remote(line, nodes, settings)
        except Lost as error:
            for node, reason in error.reasons.items():
                troubles[node] = {"client": registered[node] or str(node), "lost": reason}
            nodes = tuple(node for node in nodes if node not in error.reasons)
        else:
            archive.keep_prior(prior)
    seconds = time.process_time() - began
    served = personalise_all(line, archive, prior, registered, troubles)
    return archive.keep_outcome(
        settings.mode,
        served,
        troubles,
        line.traffic.summary(),
        fitted=fitted,
        clients=prior.clients,
        atoms=len(prior.weights),
        fit_cpu_seconds=round(seconds, 3),
    )


def fit_remote(line: Line, nodes: tuple[int, ...], settings: Settings) -> Prior:
    """The prior of clients behind a line.

    Algorithm 1 by default, at one exchange a step.  Another solver is asked for by name: it runs on the same
    clients, with as many exchanges as it has questions.
    """
    names = described(line, nodes, settings)
    remote = RemoteLikelihood(line, nodes, names)
    if settings.solver in ("", "pseudo-em"):
        atoms, weights = algorithm_1(remote, remote.sums, settings.iterations, settings.tol, settings.seed)
        return Prior(atoms, weights, None, names, len(nodes))
    model = VANEB(
        solver=settings.solver,
        smooth=settings.smooth,
        tol=settings.tol,
        iterations=settings.iterations,
        seed=settings.seed,
    )
    return model.fit(remote).prior_


def algorithm_1(
    likelihood: Likelihood,
    sums: Callable[[Array, Array], Sums],
    iterations: int,
    tol: float = 1e-4,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Algorithm 1 in ``iterations`` + 2 exchanges: atoms (m, d) and weights (m,).

    Atoms at the clients' estimates, NPMLE weights over them, then steps of pseudo-EM; what
    ``VANEB(solver="pseudo-em", smooth="off")`` does with clients in one place, without its certificate.
    """
    candidates = completed_estimates(likelihood)
    atoms = candidates[covering_subset(candidates, MOST_ATOMS, np.random.default_rng(seed))]
    matrix, _ = scaled_likelihood(likelihood.log_likelihood(atoms))
    weights = npmle_weights(matrix, tol=0.1 * tol).weights
    atoms, weights = atoms[weights > 0], weights[weights > 0]
    for _ in range(iterations):
        atoms, weights = em_step(sums(atoms, weights), atoms)
    return atoms, weights


def described(line: Line, nodes: tuple[int, ...], settings: Settings) -> tuple[str, ...]:
    """Names of the parameters, which all clients must share; ``Lost`` names those that have others."""
    answers = line.ask_all("evaluate", {node: {"kind": "describe"} for node in nodes})
    kinds = {node: (tuple(map(str, a.get("names", ()))), str(a.get("design"))) for node, a in answers.items()}
    given = tuple(name.strip() for name in settings.parameters.split(",")) if settings.parameters else ()
    counts = [kind for kind in kinds.values() if not given or kind[0] == given]
    if not counts:
        raise InvalidReport(f"parameters: no client has {', '.join(given)}.")
    common = max(sorted(set(counts)), key=counts.count)
    strange = {n: "its parameters are not those of the others" for n, k in kinds.items() if k != common}
    if strange:
        raise Lost(strange)
    return common[0]


def personalise_all(
    line: Line,
    archive: Archive,
    prior: Prior,
    registered: dict[int, str],
    troubles: dict[int, dict[str, str]],
) -> list[str]:
    """Send the prior; every client keeps its own posterior and tells only that it has."""
    done = archive.delivered(prior)
    content = prior.to_wire()
    for answer in line.ask("personalise", {n: {"prior": content} for n in registered if n not in done}):
        if answer.content is None:
            trouble = {"client": registered[answer.node] or str(answer.node), "lost": answer.reason}
            troubles.setdefault(answer.node, trouble)
        else:
            archive.mark_delivered(answer.node, prior)
    return sorted(registered[node] or str(node) for node in archive.delivered(prior) if node in registered)
