"""The engine: the same bits with any number of workers and after any kill; bad clients; shared stages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need torch: pip install 'vaneb[nn]'")

import torch

from vaneb.errors import InvalidOption
from vaneb.fl import algorithms
from vaneb.fl.code_version import code_version
from vaneb.fl.config import config_from, read_config
from vaneb.fl.engine import Stage, StageSeeds, participants
from vaneb.fl.errors import TrainingFailed
from vaneb.fl.experiment import run_experiment
from vaneb.fl.methods import METHODS, build_method, expand
from vaneb.fl.results import read_rows
from vaneb.fl.trees import load_tree

SMALL = {
    "methods": ["fedavg", "fedavg_ft", "scaffold", "vaneb_ft_direct"],
    "data": {"clients": 6, "total": 180, "test_per_client": 20},
    "model": {"options": {"channels": 4, "hidden": 8}},
    "training": {"rounds": 3, "local_epochs": 1},
    "fine_tuning": {"epochs": 2},
    "vaneb": {"atoms": 3, "iterations": 3},
}


def small(**changes):
    return config_from({**SMALL, **changes})


def _without_costs(row):
    """What a computer's load does not change."""
    return replace(row, seconds=0.0, cpu_seconds=0.0, peak_megabytes=0.0)


def bits(output: Path) -> dict[str, bytes]:
    """Every final state of the server, and the results without the times."""
    content = {
        str(path.relative_to(output)): path.read_bytes() for path in output.glob("stages/*/state-*.npz")
    }
    rows = [_without_costs(row) for row in read_rows(output)]
    return {**content, "results": repr(rows).encode()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("reference")
    run_experiment(small(), output)
    return output


def test_results_do_not_depend_on_the_number_of_workers(reference, tmp_path):
    """In this process or on two others; one worker is in ``test_a_model_and_an_algorithm_of_ones_own``."""
    run_experiment(small(), tmp_path, workers=2)
    assert bits(tmp_path) == bits(reference)


def test_a_run_says_what_it_sent(reference):
    """FedAvg sends the network to three of six clients and gets it back, three times; tuned heads stay."""
    rows = {row.method: row for row in read_rows(reference)}
    (state,) = reference.glob("stages/fedavg-*/state-*.npz")
    size = sum(value.numel() * 4 for value in load_tree(state)["params"].values()) / 1e6
    assert rows["FedAvg"].megabytes == pytest.approx(3 * 3 * 2 * size, abs=1e-3)
    assert rows["FedAvg+FT"].megabytes == pytest.approx((3 * 3 * 2 + 6) * size, abs=1e-3)
    assert rows["FedAvg+FT"].cpu_seconds >= rows["FedAvg"].cpu_seconds > 0
    assert rows["FedAvg"].peak_megabytes > 50


def test_shared_stages_are_run_once(reference):
    stages = sorted(path.name.split("-")[0] for path in (reference / "stages").iterdir())
    assert stages == ["fedavg", "fedavg_ft", "scaffold", "vaneb_ft"]


def test_a_finished_experiment_is_not_run_again(reference, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("nothing should be run")

    monkeypatch.setattr("vaneb.fl.experiment.load_images", fail)
    rows = run_experiment(small(), reference)
    assert len(rows) == 4 * 6


def test_rows_say_what_was_evaluated(reference):
    rows = {(row.method, row.protocol): row for row in read_rows(reference) if row.own}
    row = rows["VANEB-FT (direct)", "matched"]
    assert row.round == 4
    assert row.last
    assert "posterior mean head" in row.evaluated
    assert row.worst_tenth <= row.decile_1 <= row.decile_5 <= row.decile_9
    assert json.loads((reference / "configs" / f"{row.config}.json").read_text())["method"] == row.method
    with np.load(reference / "clients" / f"{row.config}-0.npz") as file:
        np.testing.assert_allclose(100 * file["matched_none"].mean(), row.mean, atol=1e-4)


KILLED = """
import sys, time
from pathlib import Path
from vaneb.fl.config import config_from
from vaneb.fl.experiment import run_experiment

def slowly(progress):
    time.sleep(0.3)

run_experiment(config_from({config!r}), Path(sys.argv[1]), workers=1, on_progress=slowly)
"""


def test_kill_9_loses_at_most_one_round(tmp_path):
    """A real kill in the middle of training; workers end too, and the resumed run has the same bits."""
    config = {**SMALL, "methods": ["scaffold"], "training": {"rounds": 8, "local_epochs": 1}}
    expected, output = tmp_path / "expected", tmp_path / "killed"
    run_experiment(config_from(config), expected, keep_client_states=True)
    process = subprocess.Popen([sys.executable, "-c", KILLED.format(config=config), str(output)])
    try:
        _wait_until(lambda: _rounds_done(output) >= 3, seconds=240)
        workers = _children(process.pid)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert 3 <= _rounds_done(output) < 8
    if workers is not None:
        assert len(workers) == 1
        _wait_until(lambda: not any(_alive(pid) for pid in workers), seconds=20)
    run_experiment(config_from(config), output, keep_client_states=True)
    assert bits(output) == bits(expected)
    (stage,) = (output / "stages").iterdir()
    assert len(json.loads((stage / "manifest.json").read_text())["history"]) == 8
    for path in (expected / "stages").glob("*/clients/*"):
        assert (output / path.relative_to(expected)).read_bytes() == path.read_bytes()


def _wait_until(true, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def _rounds_done(output: Path) -> int:
    manifests = list(output.glob("stages/*/manifest.json"))
    return len(json.loads(manifests[0].read_text())["history"]) if manifests else 0


def _children(pid: int) -> list[int] | None:
    """Child processes, where the system lists them."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()] if children.exists() else None


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# ---------------------------------------------------------------- bad clients


def diverging(who: set[int]):
    """FedAvg in which some clients return parameters that are not numbers."""

    def constructor(network, **options):
        algorithm = algorithms.fedavg(network, **options)

        def client_update(message, data, client_state, rng):
            output, _ = algorithm.client_update(message, data, client_state, rng)
            if data.client in who:
                output["params"]["fc2.bias"][0] = float("nan")
            return output, {"seen": 1}

        return replace(algorithm, client_update=client_update)

    return constructor


def test_a_diverged_client_is_left_out_and_counted(tmp_path, monkeypatch):
    monkeypatch.setitem(algorithms.ALGORITHMS, "bad", diverging({2}))
    monkeypatch.setitem(METHODS, "bad", ("Bad", lambda config: (Stage("bad", 3, 1.0, _local(config)),)))
    rows = run_experiment(small(methods=["bad"]), tmp_path, keep_client_states=True)
    assert {row.diverged for row in rows} == {3}
    (stage,) = (tmp_path / "stages").iterdir()
    manifest = json.loads((stage / "manifest.json").read_text())
    assert [entry["diverged"] for entry in manifest["history"]] == [[2]] * 3
    assert "2" not in manifest["clients"]
    assert "3" in manifest["clients"]


def test_when_everyone_diverges_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(algorithms.ALGORITHMS, "bad", diverging(set(range(6))))
    monkeypatch.setitem(METHODS, "bad", ("Bad", lambda config: (Stage("bad", 3, 1.0, _local(config)),)))
    with pytest.raises(TrainingFailed, match=r"round 1: every client diverged.*Lower the learning rate"):
        run_experiment(small(methods=["bad"]), tmp_path)


def _local(config):
    training = config.training
    return {"epochs": 1, "batch_size": training.batch_size, "learning_rate": training.learning_rate}


def test_a_huge_learning_rate_diverges_with_a_message(tmp_path):
    config = small(methods=["fedavg"], training={"rounds": 3, "learning_rate": 1e30})
    with pytest.raises(TrainingFailed, match="Lower the learning rate"):
        run_experiment(config, tmp_path)


def test_an_error_in_a_worker_reaches_the_user(tmp_path):
    config = small(methods=["ditto"], options={"ditto": {"batch_size": 0}})
    with pytest.raises(TrainingFailed, match="failed in a worker process"):
        run_experiment(config, tmp_path, workers=1)
    config = small(methods=["ditto"], options={"ditto": {"strength": -1.0}})
    with pytest.raises(InvalidOption, match="strength"):
        run_experiment(config, tmp_path, workers=1)


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    if os.name != "posix":
        pytest.skip("no advisory locks on this system")
    import fcntl

    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InvalidOption, match="another run"):
            run_experiment(small(), tmp_path)


# ---------------------------------------------------------------- the loop


def test_participants_are_a_tenth_and_vary():
    rounds = [participants(StageSeeds(0, 0), t, 100, 0.1) for t in range(20)]
    assert all(len(set(chosen)) == 10 and chosen == sorted(chosen) for chosen in rounds)
    assert len({tuple(chosen) for chosen in rounds}) == 20
    assert participants(StageSeeds(0, 0), 0, 100, 1.0) == list(range(100))
    assert len(participants(StageSeeds(0, 0), 0, 3, 0.1)) == 1
    # 0.29 * 100 is 28.999...: the share asked for counts, not its rounding error.
    assert len(participants(StageSeeds(0, 0), 0, 100, 0.29)) == 29


def test_evaluation_in_between_is_recorded(tmp_path):
    told = []
    config = small(methods=["fedavg"], evaluate_every=1)
    rows = run_experiment(config, tmp_path, on_progress=told.append)
    assert sorted({row.round for row in rows}) == [1, 2, 3]
    assert {row.round for row in rows if row.last} == {3}
    assert [progress.round for progress in told if progress.accuracy is None] == [1, 2, 3]
    assert len([progress for progress in told if progress.accuracy]) == 3
    assert told[0].seconds_left > 0


def test_client_states_are_dropped_when_done_with(tmp_path):
    config = small(methods=["ditto"])
    run_experiment(config, tmp_path)
    assert not list(tmp_path.glob("stages/*/clients/*"))
    before = read_rows(tmp_path)
    (tmp_path / "results.csv").unlink()
    # The stage is run again, to the same end.
    run_experiment(config, tmp_path)
    again = [_without_costs(row) for row in read_rows(tmp_path)]
    assert again == [_without_costs(row) for row in before]


def test_stages_and_rows_of_other_code_are_not_used(tmp_path, monkeypatch):
    config = small(methods=["fedavg"])
    (before, *_) = run_experiment(config, tmp_path)
    monkeypatch.setattr("vaneb.fl.code_version._package_version", lambda: b"changed")
    (after, *_) = run_experiment(config, tmp_path)
    assert before.code != after.code
    assert before.config != after.config
    assert len(list(tmp_path.glob("stages/*"))) == 2
    assert len({row.code for row in read_rows(tmp_path)}) == 2


def test_the_file_of_ones_own_algorithm_counts_as_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    versions = [code_version(["fedavg"])]
    for text in ("one = 1", "one = 2"):
        (tmp_path / "own_algorithm.py").write_text(text)
        versions.append(code_version(["fedavg", "own_algorithm:one"]))
    assert len(set(versions)) == 3


def test_a_large_federation_is_updated_in_blocks(tmp_path, monkeypatch):
    """Cohorts of another size agree to rounding."""
    results = []
    for size in (2, 100):
        monkeypatch.setattr("vaneb.fl.engine.COHORT", size)
        output = tmp_path / str(size)
        run_experiment(small(methods=["vaneb_ft_direct"]), output)
        (info,) = output.glob("stages/vaneb_ft-*/info.npz")
        with np.load(info) as file:
            results.append(file["tensor/reported"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-6)


def test_the_users_torch_is_left_as_it_was(tmp_path):
    torch.manual_seed(5)
    expected, threads = torch.rand(3), torch.get_num_threads()
    torch.manual_seed(5)
    run_experiment(small(methods=["fedavg"]), tmp_path)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_a_model_and_an_algorithm_of_ones_own(tmp_path):
    """Named by their modules, with batch statistics and dropout, in this process and in a worker."""
    config = small(
        methods=["fl.federations:own_algorithm", "vaneb_ft_direct"],
        model={"name": "fl.federations:OwnModel", "head": "on_top.out", "options": {"width": 5}},
        training={"rounds": 3, "participation": 1.0, "batch_size": 5},
    )
    for workers in (0, 1):
        rows = run_experiment(config, tmp_path / str(workers), workers=workers, keep_client_states=True)
        assert {row.method for row in rows} == {"fl.federations:own_algorithm", "VANEB-FT (direct)"}
    assert bits(tmp_path / "0") == bits(tmp_path / "1")
    (manifest,) = tmp_path.glob("0/stages/fl.federations.own_algorithm-*/manifest.json")
    states = json.loads(manifest.read_text())["clients"]
    assert [load_tree(manifest.parent / name) for name in states.values()] == [{"rounds": 3}] * 6
    with pytest.raises(InvalidOption, match="name its head"):
        run_experiment(small(model={"name": "fl.federations:OwnModel"}), tmp_path / "2")


# ---------------------------------------------------------------- methods


def test_every_method_runs_and_has_a_label():
    config = small()
    for name in METHODS:
        method = build_method(name, config)
        assert method.label
        for stage in method.stages:
            assert stage.algorithm in algorithms.ALGORITHMS


def test_local_only_matches_the_compute_of_federation():
    config = small(training={"rounds": 50, "participation": 0.1, "local_epochs": 2})
    (stage,) = build_method("local_only", config).stages
    assert (stage.rounds, stage.participation, stage.options["epochs"]) == (1, 1.0, 10)


def test_lg_fedavg_has_a_stage_of_100_rounds():
    first, second = build_method("lg_fedavg", small()).stages
    assert (first.algorithm, second.algorithm, second.rounds) == ("fedavg", "lg_fedavg", 100)


def test_options_of_a_method_replace_those_of_its_last_stage():
    config = small(options={"lg_fedavg": {"rounds": 7, "learning_rate": 0.5}})
    first, second = build_method("lg_fedavg", config).stages
    assert (second.rounds, second.options["learning_rate"]) == (7, 0.5)
    assert first.options["learning_rate"] == config.training.learning_rate


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"methods": 3}, "list of names"),
        ({"methods": [3]}, "not a name"),
        ({"seed": True}, "seed = True"),
        ({"evaluate_every": True}, "evaluate_every = True"),
        ({"options": 3}, r"\[options\] must be a section"),
        ({"options": {"fedavg": 3}}, r"\[options.fedavg\]"),
        ({"options": {"fedawg": {}}}, r"\[options.fedawg\]: no such method"),
        ({"options": {"vaneb_ft": {}}}, "name one of its methods, vaneb_ft_direct"),
        ({"options": {"fedavg": {"epochs": "x"}}}, r"\[options.fedavg\] epochs = 'x'"),
        ({"options": {"fedavg": {"rounds": 1.5}}}, r"\[options.fedavg\] rounds = 1.5"),
        ({"options": {"fedavg": {"rounds": 0}}}, r"\[options.fedavg\] rounds = 0: must be at least 1"),
        ({"options": {"fedavg": {"participation": 1.5}}}, r"participation = 1.5: must be a share"),
        ({"options": {"fedavg": {"learning_rate": float("nan")}}}, "learning_rate = nan"),
        ({"grid": 3}, r"\[grid\] must be a section"),
        ({"model": {"name": 3}}, r"\[model\] name = 3"),
        ({"model": {"options": 3}}, r"\[model\] options = 3"),
        ({"model": {"options": {"hidden": -3}}}, "Check its options"),
        ({"model": {"options": {"n_classes": 3}}}, "10 classes"),
        ({"model": {"name": "mnist"}}, "does not take inputs"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(tmp_path, content, said):
    with pytest.raises(InvalidOption, match=said):
        run_experiment(small(**{"methods": ["fedavg"], **content}), tmp_path)
    assert not (tmp_path / "results.csv").exists()


def test_a_folder_that_cannot_be_made_and_a_configuration_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidOption, match="cannot be made a folder"):
        run_experiment(small(), tmp_path / "file")
    with pytest.raises(InvalidOption, match="cannot be read"):
        read_config(tmp_path)


def test_a_short_run_of_vaneb_head_has_its_step_in_the_last_round():
    (stage,) = build_method("vaneb_head_direct", small(training={"rounds": 3})).stages
    assert stage.options["every"] == 3


def test_groups_are_expanded_once():
    assert expand(["vaneb_ft", "fedavg", "vaneb_ft_direct"]) == [
        "vaneb_ft_direct",
        "vaneb_ft_coordinate",
        "fedavg",
    ]
    assert len(expand(["all"])) == 31
    with pytest.raises(InvalidOption, match="not known"):
        expand(["fedsgd"])
