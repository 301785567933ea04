"""Evaluation at the client with secure aggregation: the server sees sums over clients and nothing else.

By default the population is one Gaussian, whose sums all clients are equal parts of (``gaussian_steps``).
With ``population=discrete``, where the sites' policies allow it, it has atoms: one pseudo-EM step needs, for
atoms a_j and weights w_j, only

    sum_k log f_k,   sum_k r_kj,   sum_k r_kj s_k(a_j),   sum_k r_kj I_k(a_j),

and since a client knows the atoms and the weights it finds its own r_kj.  Flower's SecAgg+ adds the clients'
vectors under masks that cancel in the sum (``SecAggPlusWorkflow`` at the server, ``secaggplus_mod`` at the
client; no cryptography is made here).  It counts in whole numbers: a client scales each number by a *public*
bound, clips it to [-1, 1] and rounds it at random to one of 2^b levels, which is where the result differs
from that of plain sums.

Atoms start as an even cover of a public box, and a Gaussian as wide as it, since no client tells its
estimate.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ConfigRecord, Context, Message
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.supercore.primitives.asymmetric import bytes_to_public_key
from numpy.typing import NDArray

from vaneb.errors import InvalidOption, InvalidReport
from vaneb.flower.agreement import announce, digest_of
from vaneb.flower.archive import Archive
from vaneb.flower.attendance import Attendance
from vaneb.flower.evaluation import described
from vaneb.flower.exchange import Channel, Lost, error_of
from vaneb.flower.gaussian_steps import box_of, cover, first_population, next_population, own_total, settled
from vaneb.flower.personalise import Fitted, run_at_clients
from vaneb.flower.policy import Policy, PolicyRefused
from vaneb.flower.settings import Settings
from vaneb.flower.wire import check_array
from vaneb.likelihood.base import Array, Likelihood
from vaneb.npmle.pseudo_em import StepSums, em_step, own_sums
from vaneb.prior import Prior

#: Of |log f_k| / n_parameters' worth of density; a client beyond it is clipped, which the fit survives.
LARGEST_LOG_DENSITY = 1e3
#: Bits of the whole numbers that are added; those of one client's number are what K clients leave of them.
MODULUS_BITS = 32
#: Share of the clients that must stay to the end, so that the masks of the others can be lifted.
THRESHOLD = 0.67
#: A sum over two tells each of them the other's part.
SMALLEST_SUM = 3


class Scale(NamedTuple):
    """Public bounds by which a client's numbers are divided before they are masked."""

    information: float
    gradient: float

    @classmethod
    def of(cls, settings: Settings) -> Scale:
        lower, upper = box_of(settings)
        reach = float(np.linalg.norm(upper - lower))
        return cls(settings.precision_bound, settings.precision_bound * reach)


def to_vector(sums: StepSums, scale: Scale) -> NDArray[np.float64]:
    """Numbers in [-1, 1], all that a client adds; the upper triangle of a symmetric matrix is enough."""
    upper = np.triu_indices(sums.gradient.shape[1])
    parts: list[Array] = [
        np.array([sums.log_density / LARGEST_LOG_DENSITY]),
        sums.share,
        (sums.gradient / scale.gradient).ravel(),
        (sums.information[:, upper[0], upper[1]] / scale.information).ravel(),
    ]
    return np.clip(np.concatenate(parts), -1.0, 1.0)


def from_vector(total: NDArray[np.float64], m: int, d: int, scale: Scale) -> StepSums:
    """Inverse of ``to_vector``, for a sum of them."""
    upper = np.triu_indices(d)
    edges = np.cumsum([1, m, m * d])
    log_density, share, gradient, information = np.split(total, edges)
    matrices = np.zeros((m, d, d))
    matrices[:, upper[0], upper[1]] = information.reshape(m, -1) * scale.information
    matrices = matrices + np.swapaxes(np.triu(matrices, 1), 1, 2)
    return StepSums(
        float(log_density[0] * LARGEST_LOG_DENSITY),
        share,
        gradient.reshape(m, d) * scale.gradient,
        matrices,
    )


def shares_needed(clients: int) -> int:
    """Clients that must stay to the end, which clients check too: a smaller sum is never unmasked."""
    return max(SMALLEST_SUM, round(THRESHOLD * clients))


def levels_for(clients: int) -> int:
    """2^b levels of one client's number, so that the sum of ``clients`` of them does not overflow."""
    return 1 << (MODULUS_BITS - 1 - int(np.ceil(np.log2(clients + 1))))


@dataclass(frozen=True)
class WatchedGrid:
    """What Flower's workflow sends through: counted by stage, and whoever does not answer is noted."""

    channel: Channel
    question: str
    lost: dict[int, str] = field(default_factory=dict)
    first: dict[int, str] = field(default_factory=dict)
    """Those who were lost before anybody else: the others may have failed for want of them."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Replies that are no errors; the time is that of the channel."""
        questions = list(messages)
        for message in questions:
            announce(message, self.question)
        stage = questions[0].content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        replies = []
        for node, reply in self.channel.exchange(f"secure {stage!s}", questions):
            if isinstance(reply, str):
                self.lost[node] = reply
            elif reply.has_error():
                self.lost[node] = error_of(reply)
            elif reply.metadata.src_node_id != node or not well_formed(stage, reply.content):
                self.lost[node] = "its part of the sum is not in the form that was asked for"
            else:
                replies.append(reply)
        # Parts of different lengths cannot be added; one client must not decide for the others.
        shapes = {reply.metadata.src_node_id: _shapes(stage, reply.content) for reply in replies}
        common = Counter(shapes.values()).most_common(1)
        for node, shape in shapes.items():
            if shape != common[0][0]:
                self.lost[node] = "its part of the sum is not of the others' length"
        if not self.first:
            self.first.update(self.lost)
        return [reply for reply in replies if reply.metadata.src_node_id not in self.lost]


def well_formed(stage: Any, content: Any) -> bool:
    """Whether a client's reply is one that Flower's workflow can read; it does not look itself."""

    def lists(record: Any, numbers: str, texts: str) -> bool:
        first, second = record[numbers], record[texts]
        kinds = all(type(n) is int for n in first) and all(type(text) is bytes for text in second)
        return isinstance(first, list) and isinstance(second, list) and kinds and len(first) == len(second)

    try:
        record = content.config_records[RECORD_KEY_CONFIGS]
        if stage == Stage.SETUP:
            for name in (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2):
                bytes_to_public_key(record[name])
            return True
        if stage == Stage.SHARE_KEYS:
            return lists(record, Key.DESTINATION_LIST, Key.CIPHERTEXT_LIST)
        if stage == Stage.UNMASK:
            return lists(record, Key.NODE_ID_LIST, Key.SHARE_LIST)
        _shapes(stage, content)
        compat.recorddict_to_fitres(content, True)
    except Exception:  # from outside: any of a dozen kinds of error
        return False
    return True


def _shapes(stage: Any, content: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of the arrays of a masked part, from their headers: nothing is made room for yet."""
    if stage != Stage.COLLECT_MASKED_VECTORS:
        return ()
    shapes = []
    for part in content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]:
        file = io.BytesIO(part)
        if np.lib.format.read_magic(file) != (1, 0):
            raise InvalidReport("part: not an array.")
        shape, _, kind = np.lib.format.read_array_header_1_0(file)
        if kind.kind not in "iuf" or math.prod(shape) * kind.itemsize != len(part) - file.tell():
            raise InvalidReport("part: not an array of numbers.")
        shapes.append(shape)
    return tuple(shapes)


class SecureSum(NamedTuple):
    """The sum of the clients' vectors, how many are in it, and who was lost on the way."""

    total: NDArray[np.float64]
    clients: int
    lost: dict[int, str]


def secure_sum(
    channel: Channel,
    context: Context,
    settings: Settings,
    nodes: tuple[int, ...],
    atoms: Array,
    weights: Array,
    number: int,
) -> SecureSum:
    """The sum by SecAgg+, in four exchanges; ``Lost`` if too few clients are left at the end."""
    found: list[tuple[NDArray[np.float64], int]] = []
    question = ndarrays_to_parameters([atoms, weights])

    class Collect(FedAvg):
        """Asks all nodes the same question and takes the sum."""

        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
            run = channel.grid.run.run_id
            return [(GridClientProxy(node, channel.grid, run), FitIns(question, {})) for node in nodes]

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if results:
                (average,) = parameters_to_ndarrays(results[0][1].parameters)
                found.append((average * len(results), len(results)))
            return None, {}

    legacy = LegacyContext(context=context, strategy=Collect())
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: number})
    legacy.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(question, True)
    watched = WatchedGrid(channel, digest_of(atoms, weights, settings))
    workflow = SecAggPlusWorkflow(
        num_shares=1.0,
        reconstruction_threshold=shares_needed(len(nodes)),
        max_weight=1.0,
        clipping_range=1.0,
        quantization_range=levels_for(len(nodes)),
        modulus_range=1 << MODULUS_BITS,
        timeout=channel.timeout,
    )
    try:
        workflow(watched, legacy)  # type: ignore[arg-type]
    except Exception as error:
        raise InvalidReport(
            "secure aggregation: a sum could not be unmasked, since some client's shares are wrong "
            f"({type(error).__name__}). Which client's cannot be told."
        ) from error
    if not found:
        raise Lost(watched.first)
    return SecureSum(*found[0], watched.lost)


def check_crowd(content: Any) -> None:
    """At the client: refuse a message by which the server could unmask too few.

    Without a set-up of its own no other stage is answered (Flower sees to their order), and there every
    client must need the shares of at least three and of more than half: two halves could be told different
    stories of who has dropped out, and lift both masks of one client.
    """
    record = content.config_records.get(RECORD_KEY_CONFIGS, {})
    stage = record.get(Key.STAGE)
    if stage == Stage.SETUP:
        needed, shares = record.get(Key.THRESHOLD, 0), record.get(Key.SHARE_NUMBER, 0)
        if not (needed >= SMALLEST_SUM and 2 * needed > shares):
            raise InvalidOption(
                f"secure: the server could unmask a sum of fewer than {SMALLEST_SUM} clients, or of fewer "
                "than half of them."
            )
    if stage == Stage.UNMASK:
        active, gone = (record.get(key, []) for key in (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST))
        if set(active) & set(gone) or len(set(active)) < SMALLEST_SUM:
            raise InvalidOption(
                "secure: the server asks for both masks of a client, or for a sum of too few."
            )


def question_of(content: Any) -> tuple[Array, Array]:
    """At the client: the atoms (m, d) and weights (m,) of a question, or a mean (1, d) and a covariance."""
    instructions = compat.recorddict_to_fitins(content, keep_input=True)
    atoms, weights = parameters_to_ndarrays(instructions.parameters)
    if atoms.ndim != 2:
        raise InvalidReport("atoms: expected a matrix.")
    if weights.ndim == 2:
        d = atoms.shape[1]
        mean, covariance = check_array(atoms, (1, d), "mean"), check_array(weights, (d, d), "covariance")
        if not np.allclose(covariance, covariance.T) or not np.linalg.eigvalsh(covariance)[0] > 0:
            raise InvalidReport("covariance: expected a positive definite matrix.")
        return mean, covariance
    return check_array(atoms, atoms.shape, "atoms"), check_array(weights, (len(atoms),), "weights")


def own_vector(
    atoms: Array, weights: Array, likelihood: Likelihood, settings: Settings, policy: Policy | None = None
) -> Array:
    """At the client: what it adds to the sum."""
    if weights.ndim == 2:
        return own_total(atoms, weights, likelihood, settings)
    if policy is not None and not policy.sums_at_atoms:
        raise PolicyRefused(
            "sums_at_atoms: an atom may come to serve one client alone; this site adds only to sums for a "
            "Gaussian population, of which all clients are equal parts."
        )
    return to_vector(own_sums(likelihood, atoms, weights), Scale.of(settings))


def as_answer(vector: Array) -> Any:
    """The vector in the form in which Flower masks it before it leaves."""
    # One "example" each: the plain sum, and no word of how many rows a client has.
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 1, {})
    return compat.fitres_to_recorddict(result, keep_input=False)


def run_secure(channel: Channel, context: Context, settings: Settings, archive: Archive) -> dict[str, Any]:
    """Pseudo-EM on sums; then every client finds its own posterior."""
    return run_at_clients(
        channel,
        settings,
        archive,
        lambda attendance: Fitted(fit_under_masks(channel, context, settings, attendance, archive)),
    )


def fit_under_masks(
    channel: Channel, context: Context, settings: Settings, attendance: Attendance, archive: Archive
) -> Prior:
    """The prior from sums; a client that is lost on the way is named, and the fit goes on without it."""
    nodes = tuple(attendance.names)

    def left_of(lost: dict[int, str]) -> tuple[int, ...]:
        for node, reason in lost.items():
            attendance.lose(node, reason)
        left = tuple(node for node in nodes if node not in lost)
        if len(left) < SMALLEST_SUM:
            raise InvalidReport(
                f"secure aggregation: {len(left)} clients left, but a sum over fewer than {SMALLEST_SUM} "
                f"hides nobody. Start more clients. {attendance.in_words()}"
            )
        return left

    nodes = left_of({})
    try:
        names = described(channel, nodes, settings)
    except Lost as error:
        nodes = left_of(error.reasons)
        names = described(channel, nodes, settings)
    lower, upper = box_of(settings)
    if len(lower) != len(names):
        raise InvalidReport(
            f"lower, upper: {len(lower)} numbers for {len(names)} parameters ({', '.join(names[:6])})."
        )
    gaussian, question = settings.population != "discrete", first_population(settings)
    if not gaussian:
        atoms = cover(lower, upper, settings.atoms, settings.seed)
        question = atoms, np.full(len(atoms), 1 / len(atoms))
    number, first = 0, nodes
    if (begun := archive.step(first)) is not None:
        number, question = begun[0], begun[1:]
    while number < settings.iterations:
        try:
            found = secure_sum(channel, context, settings, nodes, *question, number + 1)
        except Lost as error:
            # Too few for the masks that were shared out: once more, among those that are left.
            nodes = left_of(error.reasons)
            continue
        nodes, before = left_of(found.lost), question
        if gaussian:
            question = next_population(found.total, found.clients, settings)
        else:
            m, d = before[0].shape
            question = em_step(from_vector(found.total, m, d, Scale.of(settings)), before[0])
        number += 1
        archive.keep_step(first, number, *question)
        if gaussian and settled(before, question, settings):
            break
    if gaussian:
        mean, covariance = question
        return Prior(mean, np.ones(1), covariance, names, len(nodes))
    return Prior(*crowded(*question, len(nodes)), names, len(nodes))


def crowded(atoms: Array, weights: Array, clients: int) -> tuple[Array, Array, Array | None]:
    """Atoms, weights and spread of a population in which every atom stands for at least three clients.

    An atom that has come to serve a single client is that client's estimate.  So the lightest atom joins its
    nearest until each has a crowd, and what they were apart becomes a spread around all of them: mean and
    covariance of the population stay what they were.
    """
    middles, shares = [np.array(atom) for atom in atoms], [float(weight) for weight in weights]
    while len(shares) > 1 and min(shares) * clients < SMALLEST_SUM * (1 - 1e-6):
        k = int(np.argmin(shares))
        middle, share = middles.pop(k), shares.pop(k)
        near = int(np.argmin([((other - middle) ** 2).sum() for other in middles]))
        shares[near] += share
        if share > 0:  # one that serves nobody leaves no trace
            middles[near] += share / shares[near] * (middle - middles[near])
    found, weight = np.array(middles), np.array(shares)
    spread = _covariance(atoms, weights) - _covariance(found, weight)
    return found, weight / weight.sum(), spread if len(found) < len(atoms) else None


def _covariance(atoms: Array, weights: Array) -> Array:
    shares = weights / weights.sum()
    away = atoms - shares @ atoms
    covariance: Array = (away * shares[:, None]).T @ away
    return covariance
