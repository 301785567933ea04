"""Evaluation at the client with only sums arriving: Flower's SecAgg+, on both sides."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("flwr")
from flwr.app import Context, RecordDict

from flower.loopback import federation
from flower.test_evaluation import central, settings_for
from vaneb import InvalidReport
from vaneb.flower.agreement import announce, digest_of
from vaneb.flower.archive import Archive
from vaneb.flower.client_app import Path
from vaneb.flower.exchange import Channel, Lost
from vaneb.flower.gaussian_steps import box_of, cover, first_population, settled
from vaneb.flower.ledger import read_ledger
from vaneb.flower.secure import (
    Scale,
    crowded,
    from_vector,
    levels_for,
    run_secure,
    secure_sum,
    shares_needed,
    to_vector,
)
from vaneb.flower.settings import Settings
from vaneb.likelihood.expansion import modes_under
from vaneb.npmle.pseudo_em import em_step, own_sums, pseudo_em

GAUSSIAN = {"lower": "-2,-1", "upper": "2,2", "population": "gaussian"}
BOX = {**GAUSSIAN, "precision_bound": 300.0, "atoms": 8, "population": "discrete"}
TWO_ATOMS = np.zeros((2, 2)), np.full(2, 0.5)


def sum_of(grid, atoms=TWO_ATOMS[0], weights=TWO_ATOMS[1]):
    """One sum over all clients, at these atoms."""
    return secure_sum(Channel(grid, 5.0), _context(), grid.settings, tuple(grid.nodes), atoms, weights, 1)


def run(grid, folder, seconds=5.0):
    """A whole run; its outcome."""
    archive = Archive.open(folder / "server", grid.settings)
    return run_secure(Channel(grid, seconds), _context(), grid.settings, archive)


@pytest.mark.parametrize("likelihood", ["exact", "covariance"])
def test_em_on_sums_is_the_solvers_pseudo_em(tmp_path, likelihood):
    settings = settings_for(likelihood, mode="secure", **BOX)
    here = central(federation(tmp_path, settings, 6), settings)
    first = cover(*box_of(settings), 6, seed=0)
    atoms, weights = first, np.full(6, 1 / 6)
    for _ in range(3):
        sums = own_sums(here, atoms, weights)
        scale = Scale.of(settings)
        # There and back by the vector, one client at a time, as it is sent.
        parts = [to_vector(own_sums(here.take(slice(k, k + 1)), atoms, weights), scale) for k in range(6)]
        assert max(np.abs(part).max() for part in parts) < 1
        again = from_vector(np.sum(parts, axis=0), *atoms.shape, scale)
        for a, b in zip(again, sums, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
        atoms, weights = em_step(sums, atoms)
    expected, shares, _ = pseudo_em(here, first, np.full(6, 1 / 6), 3)
    # Sums drop atoms that have died out; the solver keeps them until its end.
    alive = shares > 1e-8
    assert len(weights) == alive.sum()
    np.testing.assert_allclose(atoms, expected[alive], rtol=1e-7)
    np.testing.assert_allclose(weights, shares[alive], rtol=1e-7)


def _context() -> Context:
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})


def test_secure_sums_arrive_masked_and_add_up(tmp_path):
    """The protocol itself, Flower's own code on both sides, every message captured."""
    settings = settings_for("exact", mode="secure", **BOX)
    grid = federation(tmp_path, settings, 5)
    here = central(grid, settings)
    atoms, weights = cover(*box_of(settings), 4, seed=1), np.full(4, 0.25)
    scale = Scale.of(settings)
    parts = {
        node: to_vector(own_sums(here.take(slice(k, k + 1)), atoms, weights), scale)
        for k, node in enumerate(grid.nodes)
    }
    total, count, lost = sum_of(grid, atoms, weights)
    assert (count, lost) == (5, {})
    step = 2 / levels_for(5)
    np.testing.assert_allclose(total, sum(parts.values()), atol=5 * step)
    from flwr.common import bytes_to_ndarray

    levels = levels_for(5)
    seen = 0
    for way, node, message in grid.captured:
        for record in message.content.config_records.values():
            for value in record.values():
                for item in value if isinstance(value, list) else [value]:
                    if way == "up" and isinstance(item, bytes) and item[:6] == b"\x93NUMPY":
                        masked = bytes_to_ndarray(item)
                        if masked.shape == parts[node].shape:
                            seen += 1
                            plain = (parts[node] + 1) * levels / 2
                            # A masked number is anywhere in the modulus; the client's own is nowhere near.
                            assert (np.abs(masked - plain) < 2).mean() < 0.1
                            assert masked.max() > levels
        if way == "up":
            assert not any(array for part in message.content.array_records.values() for array in part)
    assert seen == 5


def test_a_secure_fit_is_the_plain_one_to_the_last_level(tmp_path):
    settings = settings_for("exact", mode="secure", **{**BOX, "iterations": 4})
    grid = federation(tmp_path, settings, 5)
    outcome = run(grid, tmp_path, 20.0)
    assert outcome["served"] == [f"c{k}" for k in range(5)]
    first = cover(*box_of(settings), 8, seed=0)
    atoms, weights, _ = pseudo_em(central(grid, settings), first, np.full(8, 1 / 8), 4)
    prior = Archive(tmp_path / "server").prior()
    atoms, weights, spread = crowded(atoms, weights, 5)
    np.testing.assert_allclose(prior.weights, weights, atol=2e-5)
    np.testing.assert_allclose(prior.atoms, atoms, atol=5e-3)
    np.testing.assert_allclose(prior.covariances[0], spread, atol=5e-3)


def test_no_atom_is_a_single_clients(tmp_path, monkeypatch):
    """After an honest run with three clients an atom was one client's estimate, to six digits."""
    settings = Settings(
        mode="secure",
        formula="y ~ x",
        dispersion=1.0,
        iterations=15,
        nodes=3,
        wait=0.1,
        **{**BOX, "atoms": 12},
    )
    grid = federation(tmp_path, settings, 3, n=60)
    for k, node in enumerate(grid.nodes.values()):
        path = Path(node.node_config["data"])
        frame = pd.read_csv(path)
        frame.assign(y=frame.y + 1.5 * (k - 1)).to_csv(path, index=False)
    estimates = central(grid, settings).local_estimates()
    seen = []
    monkeypatch.setattr("vaneb.flower.secure.crowded", lambda *a: seen.append(a) or crowded(*a))
    outcome = run(grid, tmp_path, 20.0)
    assert outcome["served"] == ["c0", "c1", "c2"]
    # The fit has come to atoms of one client each ...
    atoms, weights, clients = seen[0]
    assert np.abs(atoms[weights * clients < 1.01] - estimates[:1]).max(axis=1).min() < 0.01
    # ... and the population that clients are sent has not: it has their mean and their spread.
    prior = Archive(tmp_path / "server").prior()
    assert len(prior.weights) == 1
    assert np.abs(prior.atoms - estimates).max(axis=1).min() > 0.1
    np.testing.assert_allclose(prior.atoms[0], estimates.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(prior.covariances[0], np.cov(estimates.T, bias=True), atol=0.02)


@pytest.mark.parametrize("likelihood", ["exact", "covariance"])
def test_a_gaussian_population_from_sums_of_all_clients(tmp_path, likelihood):
    """EM on sums that all clients are in finds what EM on the clients themselves finds."""
    settings = settings_for(likelihood, mode="secure", **{**GAUSSIAN, "iterations": 30, "tol": 1e-3})
    grid = federation(tmp_path, settings, 5, atoms=False)
    outcome = run(grid, tmp_path, 20.0)
    assert outcome["served"] == [f"c{k}" for k in range(5)]
    clients, (mean, covariance) = central(grid, settings), first_population(settings)
    for _ in range(30):
        before = mean, covariance
        seen = clients.expanded(modes_under(clients, mean[0], covariance))
        inverse = np.linalg.inv(covariance)
        spread = np.linalg.inv(seen.local_precision() + inverse)
        right = np.einsum("kij,kj->ki", seen.local_precision(), seen.local_estimates()) + inverse @ mean[0]
        middle = np.einsum("kij,kj->ki", spread, right)
        mean = middle.mean(axis=0)[None]
        covariance = np.cov(middle.T, bias=True) + spread.mean(axis=0)
        if settled(before, (mean, covariance), settings):
            break
    prior = Archive(tmp_path / "server").prior()
    np.testing.assert_allclose(prior.atoms, mean, atol=1e-5)
    np.testing.assert_allclose(prior.covariances[0], covariance, atol=1e-5)


def test_a_site_adds_to_no_sum_in_which_it_could_be_alone(tmp_path):
    """Unless its policy says so: at an atom that serves one client the sum is that client's."""
    settings = settings_for("covariance", mode="secure", **{**BOX, "iterations": 1})
    grid = federation(tmp_path, settings, 4, atoms=False)
    with pytest.raises(InvalidReport, match="0 clients left"):
        run(grid, tmp_path, 20.0)
    entries = list(read_ledger(tmp_path / "c0"))
    assert "sums_at_atoms" in entries[-1]["reason"]


def test_a_crowd_at_every_atom_leaves_mean_and_covariance():
    rng = np.random.default_rng(3)
    atoms, weights = rng.normal(size=(7, 2)), rng.dirichlet(np.ones(7))
    found, shares, spread = crowded(atoms, weights, 12)
    assert (shares * 12 > 3 - 1e-5).all()
    np.testing.assert_allclose(shares @ found, weights @ atoms)
    away, apart = found - shares @ found, atoms - weights @ atoms
    total = (away * shares[:, None]).T @ away + spread
    np.testing.assert_allclose(total, (apart * weights[:, None]).T @ apart)
    assert np.linalg.eigvalsh(spread).min() > -1e-12
    # Atoms that serve nobody, of which there may be several.
    idle = crowded(np.vstack([atoms, atoms[:2] + 9]), np.append(weights, [0.0, 0.0]), 12)
    np.testing.assert_allclose(idle[1] @ idle[0], weights @ atoms)
    same = crowded(atoms[:2], np.array([0.5, 0.5]), 12)
    assert same[2] is None
    np.testing.assert_array_equal(same[0], atoms[:2])


def to_the_victim(change):
    """A server that says something else to one client than to the others."""

    def behave(message, genuine):
        change(message)
        return genuine(message)

    return behave


def other_atoms(message):
    from flwr.common import FitIns, ndarrays_to_parameters
    from flwr.compat.common import recorddict_compat as compat

    if message.content.array_records:
        wrong = compat.fitins_to_recorddict(
            FitIns(ndarrays_to_parameters([np.ones((4, 2)), np.full(4, 0.25)]), {}), keep_input=False
        )
        for key, record in wrong.array_records.items():
            message.content.array_records[key] = record


def other_name(message):
    other = settings_for("exact", mode="secure", **BOX)
    announce(message, digest_of(np.ones((4, 2)), np.full(4, 0.25), other))


def other_name_and_atoms(message):
    other_name(message)
    other_atoms(message)


def no_name(message):
    del message.content.config_records["vaneb.question"]


@pytest.mark.parametrize(
    ("change", "words", "who"),
    [
        (other_atoms, "not the one that was named", ["c0"]),
        (other_name, "another client was asked another question", ["c0", "c1", "c4"]),
        (other_name_and_atoms, "another client was asked another question", ["c0", "c1", "c4"]),
        (no_name, "does not name its question", ["c0"]),
    ],
)
def test_different_questions_to_different_clients_are_noticed(tmp_path, change, words, who):
    """Nothing of the victim's leaves, masked or not; the others stop too if the names differ."""
    settings = settings_for("exact", mode="secure", **BOX)
    grid = federation(tmp_path, settings, 5)
    grid.nodes[1000].behave = to_the_victim(change)
    question = cover(*box_of(settings), 4, seed=1), np.full(4, 0.25)
    if change is other_atoms:
        assert 1000 in sum_of(grid, *question).lost
    else:
        with pytest.raises(Lost) as lost:
            sum_of(grid, *question)
        assert (lost.value.reasons.keys() == {1000}) == (change is no_name)
    for name in who:
        assert words in (tmp_path / name / "errors.log").read_text()
        entries = [json.loads(line) for line in (tmp_path / name / "ledger.jsonl").read_text().splitlines()]
        assert [entry["event"] for entry in entries] == ["refused"]
        assert not list((tmp_path / name).glob("studies/*/release.json"))


def test_no_client_is_alone_in_its_box(tmp_path):
    """In a box far away the others' parts are known numbers, and the sum less those is the victim's part."""
    settings = settings_for("covariance", mode="secure", **GAUSSIAN)
    grid = federation(tmp_path, settings, 5, atoms=False)
    for node in (1001, 1002, 1003, 1004):
        grid.nodes[node].settings = replace(settings, lower="50,50", upper="60,60")
    with pytest.raises(Lost):
        sum_of(grid, *first_population(settings))
    for name in ("c1", "c2", "c3", "c4"):
        assert "the question is not the one that was named" in (tmp_path / name / "errors.log").read_text()
        assert not list((tmp_path / name).glob("studies/*/release.json"))


def spoiled(stage, change):
    """A client that changes its genuine part of one stage."""
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

    def behave(message, genuine):
        now = message.content.config_records.get(RECORD_KEY_CONFIGS, {}).get(Key.STAGE)
        reply = genuine(message)
        if now == stage:
            change(reply.content.config_records[RECORD_KEY_CONFIGS])
        return reply

    return behave


def huge(record):
    """A header that speaks of eight terabytes."""
    text = record["masked_params"][-1]
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }"
    record["masked_params"][-1] = (
        text[:8] + (len(header) + 1).to_bytes(2, "little") + header + b"\n" + bytes(80)
    )


def short(record):
    from flwr.common import bytes_to_ndarray, ndarray_to_bytes

    record["masked_params"][-1] = ndarray_to_bytes(bytes_to_ndarray(record["masked_params"][-1])[:3])


@pytest.mark.parametrize(
    ("stage", "change"),
    [
        ("setup", lambda record: record.clear()),
        ("setup", lambda record: record.update({"pk1": b"no key"})),
        ("share_keys", lambda record: record.update({"dsts": [1]})),
        ("share_keys", lambda record: record.update({"ctxts": "x"})),
        ("collect_masked_vectors", lambda record: record.update({"masked_params": [b"x"]})),
        ("collect_masked_vectors", huge),
        ("collect_masked_vectors", short),
        ("unmask", lambda record: record.update({"shares": []})),
    ],
)
def test_a_part_that_cannot_be_read_is_its_clients_trouble(tmp_path, stage, change):
    settings = settings_for("exact", mode="secure", **{**BOX, "iterations": 1})
    grid = federation(tmp_path, settings, 5)
    grid.nodes[1000].behave = spoiled(stage, change)
    outcome = run(grid, tmp_path, 20.0)
    assert [trouble["client"] for trouble in outcome["troubles"]] == ["c0"]
    assert "its part of the sum" in outcome["troubles"][0]["lost"]
    assert set(outcome["served"]) >= {"c1", "c2", "c3", "c4"}


def test_two_halves_cannot_be_told_different_stories(tmp_path):
    """With a threshold of half or less, one half gives one mask of a client and the other half the other."""
    settings = settings_for("exact", mode="secure", **BOX)
    grid = federation(tmp_path, settings, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaneb.flower.secure.shares_needed", lambda clients: 4)
        with pytest.raises(Lost):
            sum_of(grid)
    assert len(grid.errors) == 8


def test_both_masks_of_a_client_are_never_given(tmp_path):
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

    def both(message):
        record = message.content.config_records[RECORD_KEY_CONFIGS]
        if record[Key.STAGE] == "unmask":
            record[Key.DEAD_NODE_ID_LIST] = [1003]

    settings = settings_for("exact", mode="secure", **BOX)
    grid = federation(tmp_path, settings, 4)
    for node in grid.nodes.values():
        node.behave = to_the_victim(both)
    with pytest.raises(Lost):
        sum_of(grid)
    assert "both masks of a client" in (tmp_path / "c1" / "errors.log").read_text()


def test_a_sum_of_fewer_than_three_is_never_unmasked(tmp_path):
    settings = settings_for("exact", mode="secure", **BOX)
    assert [shares_needed(k) for k in (3, 4, 5, 10)] == [3, 3, 3, 7]
    with pytest.raises(InvalidReport, match="hides nobody"):
        run(federation(tmp_path, settings, 2), tmp_path)
    # A server that proposes it is refused by every client.
    grid = federation(tmp_path, settings, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vaneb.flower.secure.shares_needed", lambda clients: 2)
        with pytest.raises(Lost):
            sum_of(grid)
    assert len(grid.errors) == 3


def test_a_client_lost_in_a_sum_is_named_and_the_fit_goes_on(tmp_path):
    settings = settings_for("exact", mode="secure", **{**BOX, "iterations": 2})
    grid = federation(tmp_path, settings, 5)
    asked = 0

    def falls_silent(message, genuine):
        nonlocal asked
        asked += 1
        return genuine(message) if asked < 4 else None

    grid.nodes[1004].behave = falls_silent
    outcome = run(grid, tmp_path, 1.0)
    assert outcome["served"] == ["c0", "c1", "c2", "c3"]
    assert [trouble["client"] for trouble in outcome["troubles"]] == ["c4"]
    assert outcome["clients"] == 4


def test_in_mode_secure_nobody_gives_its_own_part_unmasked(tmp_path):
    settings = settings_for("exact", mode="secure", **BOX)
    grid = federation(tmp_path, settings, 3)
    question = {"kind": "sums", "atoms": np.zeros((2, 2)), "weights": np.full(2, 0.5)}
    for kind in ("evaluate", "report", "network"):
        answers = list(Channel(grid, 5.0).ask(kind, {node: question for node in grid.nodes}))
        assert [answer.content for answer in answers] == [None, None, None]
        assert all("cannot do" in answer.reason for answer in answers)
    assert "only under a mask" in (tmp_path / "c0" / "errors.log").read_text()


def test_a_failure_under_secure_aggregation_tells_nothing(tmp_path):
    settings = settings_for("exact", mode="secure", **BOX)
    grid = federation(tmp_path, settings, 5)
    path = Path(grid.nodes[1000].node_config["data"])
    path.write_text(path.read_text() + "0.5,-31415.9265\n")
    total, count, lost = sum_of(grid)
    # The others' masks are lifted without it.
    assert count == 4
    assert lost == {1000: "its client app raised an error that it did not handle"}
    assert np.isfinite(total).all()
    assert "31415" in (tmp_path / "c0" / "errors.log").read_text()
    for reply in grid.errors:
        assert "31415" not in reply.error.reason
    assert grid.errors
