"""Evaluation at the client with secure aggregation: the server sees sums over clients and nothing else.

One pseudo-EM step needs, for atoms a_j and weights w_j, only

    sum_k log f_k,   sum_k r_kj,   sum_k r_kj s_k(a_j),   sum_k r_kj I_k(a_j),

and since a client knows the atoms and the weights it finds its own r_kj.  Flower's SecAgg+ adds the clients'
vectors under masks that cancel in the sum (``SecAggPlusWorkflow`` at the server, ``secaggplus_mod`` at the
client; no cryptography is made here).  It counts in whole numbers: a client scales each number by a *public*
bound, clips it to [-1, 1] and rounds it at random to one of 2^b levels, which is where the result differs
from that of plain sums.

Atoms start as an even cover of a public box, since no client tells its estimate.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidReport
from vaneb.flower.archive import Archive
from vaneb.flower.evaluation import described, personalise_all
from vaneb.flower.exchange import Line, Lost, wait_for_nodes
from vaneb.flower.one_shot import FEWEST
from vaneb.flower.settings import Settings
from vaneb.flower.start import box_of, cover
from vaneb.likelihood.seam import Array, Likelihood
from vaneb.prior import Prior
from vaneb.sums import Sums, em_step, own_sums

if TYPE_CHECKING:
    from flwr.app import Context

#: Of |log f_k| / n_parameters' worth of density; a client beyond it is clipped, which the fit survives.
LARGEST_LOG_DENSITY = 1e3
#: Bits of the whole numbers that are added; those of one client's number are what K clients leave of them.
MODULUS_BITS = 32
#: Shares of a client's secret that suffice to lift its mask when it is lost.
THRESHOLD = 0.67


class Scale(NamedTuple):
    """Public bounds by which a client's numbers are divided before they are masked."""

    information: float
    gradient: float

    @classmethod
    def of(cls, settings: Settings) -> Scale:
        lower, upper = box_of(settings)
        reach = float(np.linalg.norm(upper - lower))
        return cls(settings.precision_bound, settings.precision_bound * reach)


def to_vector(sums: Sums, scale: Scale) -> NDArray[np.float64]:
    """Numbers in [-1, 1], all that a client adds; the upper triangle of a symmetric matrix is enough."""
    upper = np.triu_indices(sums.gradient.shape[1])
    parts: list[Array] = [
        np.array([sums.log_density / LARGEST_LOG_DENSITY]),
        sums.share,
        (sums.gradient / scale.gradient).ravel(),
        (sums.information[:, upper[0], upper[1]] / scale.information).ravel(),
    ]
    return np.clip(np.concatenate(parts), -1.0, 1.0)


def from_vector(total: NDArray[np.float64], m: int, d: int, scale: Scale) -> Sums:
    """Inverse of ``to_vector``, for a sum of them."""
    upper = np.triu_indices(d)
    edges = np.cumsum([1, m, m * d])
    log_density, share, gradient, information = np.split(total, edges)
    matrices = np.zeros((m, d, d))
    matrices[:, upper[0], upper[1]] = information.reshape(m, -1) * scale.information
    matrices = matrices + np.swapaxes(np.triu(matrices, 1), 1, 2)
    return Sums(
        float(log_density[0] * LARGEST_LOG_DENSITY),
        share,
        gradient.reshape(m, d) * scale.gradient,
        matrices,
    )


def levels_for(clients: int) -> int:
    """2^b levels of one client's number, so that the sum of ``clients`` of them does not overflow."""
    return 1 << (MODULUS_BITS - 1 - int(np.ceil(np.log2(clients + 1))))


def secure_sum(
    line: Line, context: Context, nodes: tuple[int, ...], atoms: Array, weights: Array, number: int
) -> tuple[NDArray[np.float64], int]:
    """Sum of the clients' vectors by SecAgg+, and how many clients are in it."""
    from flwr.app import ConfigRecord
    from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server.compat.grid_client_proxy import GridClientProxy
    from flwr.server.compat.legacy_context import LegacyContext
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

    found: list[tuple[NDArray[np.float64], int]] = []
    question = ndarrays_to_parameters([atoms, weights])

    class Collect(FedAvg):
        """Asks all nodes the same question and takes the sum."""

        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
            run = line.grid.run.run_id
            return [(GridClientProxy(node, line.grid, run), FitIns(question, {})) for node in nodes]

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if results:
                (average,) = parameters_to_ndarrays(results[0][1].parameters)
                found.append((average * len(results), len(results)))
            return None, {}

    legacy = LegacyContext(context=context, strategy=Collect())
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: number})
    legacy.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(question, True)
    began = time.monotonic()
    SecAggPlusWorkflow(
        num_shares=1.0,
        reconstruction_threshold=THRESHOLD,
        max_weight=1.0,
        clipping_range=1.0,
        quantization_range=levels_for(len(nodes)),
        modulus_range=1 << MODULUS_BITS,
        timeout=line.timeout,
    )(line.grid, legacy)
    line.traffic.exchanges += 4
    line.traffic.messages += 8 * len(nodes)
    line.traffic.seconds.append(time.monotonic() - began)
    if not found:
        raise InvalidReport(
            "secure aggregation: too few clients took part to the end. A lost client's mask can be lifted "
            f"only while {THRESHOLD:.0%} of the others are there."
        )
    return found[0]


def answer_secure(content: Any, likelihood: Likelihood, settings: Settings) -> Any:
    """At the client: the vector that Flower masks before it leaves."""
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat as compat

    instructions = compat.recorddict_to_fitins(content, keep_input=True)
    atoms, weights = parameters_to_ndarrays(instructions.parameters)
    vector = to_vector(own_sums(likelihood, atoms, weights), Scale.of(settings))
    # One "example" each: the plain sum, and no word of how many rows a client has.
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 1, {})
    return compat.fitres_to_recorddict(result, keep_input=False)


def run_secure(line: Line, context: Context, settings: Settings, archive: Archive) -> dict[str, Any]:
    """Pseudo-EM on sums; then every client finds its own posterior."""
    registered = wait_for_nodes(line.grid, settings.nodes, settings.wait)
    troubles: dict[int, dict[str, str]] = {}
    prior = None if settings.refit else archive.prior()
    fitted, began = prior is None, time.process_time()
    if prior is None:
        prior = _fit(line, context, settings, tuple(registered), registered, troubles)
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


def _fit(
    line: Line,
    context: Context,
    settings: Settings,
    nodes: tuple[int, ...],
    registered: dict[int, str],
    troubles: dict[int, dict[str, str]],
) -> Prior:
    try:
        names = described(line, nodes, settings)
    except Lost as error:
        for node, reason in error.reasons.items():
            troubles[node] = {"client": registered[node] or str(node), "lost": reason}
        nodes = tuple(node for node in nodes if node not in error.reasons)
        names = described(line, nodes, settings)
    # A sum over two tells each of them the other's part.
    if len(nodes) < FEWEST + 1:
        raise InvalidReport(f"clients: {len(nodes)}, but a sum over fewer than three hides nobody.")
    lower, upper = box_of(settings)
    if len(lower) != len(names):
        raise InvalidReport(f"lower, upper: {len(lower)} numbers for {len(names)} parameters.")
    scale, atoms = Scale.of(settings), cover(lower, upper, settings.atoms, settings.seed)
    weights = np.full(len(atoms), 1 / len(atoms))
    for number in range(settings.iterations):
        total, _ = secure_sum(line, context, nodes, atoms, weights, number + 1)
        m, d = atoms.shape
        atoms, weights = em_step(from_vector(total, m, d, scale), atoms)
    return Prior(atoms, weights, None, names, len(nodes))
