"""Runs an experiment: every method of every setting, stage by stage, each stage once.

The output folder holds

    results.csv              one line per method, protocol and treatment of the label prior
    clients/CONFIG-SEED.npz  accuracy of every client behind those lines
    networks/CONFIG-SEED/    every client's network, if they are to be kept
    configs/CONFIG.json      what each fingerprint stands for
    stages/KEY/              checkpoints; a stage that several methods begin with is found here again
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaneb.errors import InvalidOption
from vaneb.files import locked, make_folder, write_atomically
from vaneb.fl.algorithm import Algorithm, Params
from vaneb.fl.algorithms import build_algorithm
from vaneb.fl.checkpoint import Checkpoint, StageFolder
from vaneb.fl.code_version import code_version
from vaneb.fl.config import Config, as_plain, fingerprint
from vaneb.fl.data import ImageData, load_images
from vaneb.fl.engine import Evaluation, Stage, StageSeeds, evaluate, run_stage
from vaneb.fl.federated_data import PROTOCOLS, FederatedData, federate
from vaneb.fl.methods import Method, build_method, check_options, expand
from vaneb.fl.models import MODELS, build_network
from vaneb.fl.network import Network, features, head_matrix, read_params
from vaneb.fl.own_data import OwnData, federate_own, read_own
from vaneb.fl.personal import ABOUT
from vaneb.fl.results import RESULTS, Row, append_rows, read_rows, spread
from vaneb.fl.workbench import PRIORS
from vaneb.fl.workers import WorkerPool, one_torch_thread


@dataclass(frozen=True)
class TrainingProgress:
    """Told to the progress callback after every round and every evaluation.

    Parameters
    ----------
    seconds_left : estimate for the present stage.
    accuracy : mean in percent under each protocol, if the method was just evaluated.
    """

    setting: str
    method: str
    stage: int
    stages: int
    round: int
    rounds: int
    seconds_left: float
    diverged: int
    accuracy: dict[str, float] | None = None


Source = ImageData | OwnData
OnProgress = Callable[[TrainingProgress], None]


def run_experiment(
    config: Config,
    output: Path,
    *,
    workers: int = 0,
    data_dir: Path | None = None,
    images: ImageData | None = None,
    keep_client_states: bool = False,
    keep_networks: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Row]:
    """Run what is still missing of an experiment and return the rows of all of it.

    Parameters
    ----------
    workers : processes, one thread each; 0 runs in this process.  Does not change the results.
    data_dir : folder with the files of the data set.
    images : data set to use instead of the one that ``[data] name`` stands for.
    keep_client_states : keep what methods store per client after they have been evaluated.
    keep_networks : keep every client's network, for ``load_personal``.
    """
    names = expand(config.methods)
    check_options(config)
    options = _RunOptions(output, workers, keep_client_states, keep_networks, on_progress)
    rows: list[Row] = []
    source: Source | None = images
    if config.data.path:
        source = read_own(Path(config.data.path), config.data.client, config.data.label)
        config = with_own(config, source)
    with locked(output, "another run is writing there"):
        for setting in config.settings():
            methods = [build_method(name, setting) for name in names]
            todo = [method for method in methods if not _is_done(setting, method, output, keep_networks)]
            if todo:
                source = source or load_images(setting.data.name, data_dir)
                _run_setting(setting, todo, source, options)
            for method in methods:
                rows += rows_of(setting, method, output)
    return rows


def rows_of(config: Config, method: Method, output: Path) -> list[Row]:
    """What the results file has of a method under a configuration without a grid."""
    if not (output / RESULTS).exists():
        return []
    wanted = method_fingerprint(config, method), config.seed
    return [row for row in read_rows(output) if (row.config, row.seed) == wanted]


def method_fingerprint(config: Config, method: Method) -> str:
    """What stands for a method under a configuration in this code, apart from the seed."""
    return fingerprint(_method_content(config, method))


def _method_content(config: Config, method: Method) -> dict[str, Any]:
    return {
        "data": as_plain(config.data),
        "model": as_plain(config.model),
        "method": method.label,
        "stages": [as_plain(stage) for stage in method.stages],
        "code": _code_of(config, method.stages),
    }


def _code_of(config: Config, stages: Sequence[Stage]) -> str:
    return code_version([config.model.name, *(stage.algorithm for stage in stages)])


def _is_done(config: Config, method: Method, output: Path, networks: bool) -> bool:
    """Whether all lines of the last round are there, and the clients' networks if they are asked for."""
    if networks and not (networks_folder(config, method, output) / ABOUT).exists():
        return False
    found = {(row.protocol, row.prior) for row in rows_of(config, method, output) if row.last}
    return len(found) == len(PROTOCOLS) * len(PRIORS)


def with_own(config: Config, source: OwnData) -> Config:
    """The same, and [data] says how many clients there are and, in place of a name, what they hold."""
    total = hashlib.sha256(repr((source.names, source.classes.tolist(), config.data.test_share)).encode())
    for x, y in (*source.train.values(), *source.test.values()):
        total.update(f"{x.shape} {x.dtype}".encode() + np.ascontiguousarray(x).tobytes() + y.tobytes())
    data = replace(config.data, clients=len(source.names), name=total.hexdigest()[:12])
    return replace(config, data=data)


def federate_setting(config: Config, images: Source) -> FederatedData:
    """Divide a data set as ``[data]`` says; data of one's own are divided already."""
    data = config.data
    if isinstance(images, OwnData):
        return federate_own(images, data.test_share, config.seed)
    with one_torch_thread():
        return federate(
            images,
            n_clients=data.clients,
            alpha=data.alpha,
            total=data.total,
            shift_strength=data.shift,
            test_per_client=data.test_per_client,
            seed=config.seed,
            size_ratio=data.size_ratio,
            label_groups=data.label_groups,
        )


def model_of(config: Config) -> dict[str, Any]:
    """Arguments of ``build_network`` for a configuration; initial parameters depend on its seed."""
    if config.data.path and not config.model.name:
        raise InvalidOption(
            "[model] name: data of your own need a network of your own, name = 'module:constructor', and "
            "the name of its last linear layer, head = '...'."
        )
    name = config.model.name or config.data.name
    if name not in MODELS and ":" not in name:
        raise InvalidOption(f"[model] name = {name!r} is not known. Use one of {', '.join(MODELS)}.")
    return {**vars(config.model), "name": name, "seed": config.seed}


# ---------------------------------------------------------------- one setting


@dataclass(frozen=True)
class _RunOptions:
    """What a run was asked for besides its configuration."""

    output: Path
    workers: int
    keep_client_states: bool
    keep_networks: bool
    on_progress: OnProgress | None


@dataclass(frozen=True)
class _Setting:
    """What all methods of a setting share while they run."""

    config: Config
    options: _RunOptions
    network: Network
    start: Params
    digest: str
    pool: WorkerPool
    names: Sequence[str]
    classes: Sequence[Any]

    @property
    def title(self) -> str:
        data = self.config.data
        if data.path:
            return f"{data.title}, {data.clients} clients"
        return f"{data.title}, {data.clients} clients, alpha {data.alpha:g}, shift {data.shift:g}"


@dataclass(frozen=True)
class _StageRun:
    """One stage of one method in a setting."""

    setting: _Setting
    method: Method
    index: int
    folder: StageFolder
    algorithm: Algorithm
    before: tuple[dict[str, Any], ...]
    """The rounds of the stages before it, as checkpoints have them."""

    @property
    def stage(self) -> Stage:
        return self.method.stages[self.index]

    @property
    def is_last(self) -> bool:
        return self.index == len(self.method.stages) - 1

    @property
    def seeds(self) -> StageSeeds:
        return StageSeeds(self.setting.config.seed, self.index)

    def round_of_method(self, checkpoint: Checkpoint) -> int:
        """Rounds over all stages."""
        return sum(stage.rounds for stage in self.method.stages[: self.index]) + checkpoint.state.round


def _run_setting(config: Config, methods: list[Method], images: Source, options: _RunOptions) -> None:
    model = model_of(config)
    network = build_network(**model)
    start = read_params(network)
    data = federate_setting(config, images)
    _check_fits(network, data, model["name"])
    folder = options.output / "data" / fingerprint([as_plain(config.data), config.seed])
    data.save(folder)
    try:
        with WorkerPool(options.workers, model, folder) as pool:
            names = _names_of(images, data)
            setting = _Setting(config, options, network, start, data.digest(), pool, *names)
            for method in methods:
                _run_method(setting, method)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _names_of(images: Source, data: FederatedData) -> tuple[Sequence[str], Sequence[Any]]:
    """Clients and classes by the names that they have, or by number."""
    if isinstance(images, OwnData):
        return images.names, images.classes.tolist()
    return [str(k) for k in range(data.n_clients)], list(range(data.n_classes))


def _check_fits(network: Network, data: FederatedData, name: str) -> None:
    """Refuse a network that cannot take the inputs, or whose scores are not those of its head."""
    what, rows = f"[model] name = {name!r}", data.examples()
    try:
        with one_torch_thread(), torch.inference_mode():
            network.module.eval()
            scores = network.module(rows.to(network.device))
    except Exception as error:  # whatever the code of a user says
        raise InvalidOption(
            f"{what} does not take inputs of shape {tuple(rows.shape[1:])} with numbers from {rows.min():g} "
            f"to {rows.max():g} ({type(error).__name__}: {error}). Use a network made for them; the channels "
            "of images come first."
        ) from None
    if not isinstance(scores, torch.Tensor):
        raise InvalidOption(
            f"{what} returns a {type(scores).__name__}. It must return scores alone, as one tensor "
            "(rows, classes)."
        )
    if scores.shape != (len(rows), data.n_classes):
        raise InvalidOption(
            f"{what} gives scores of shape {tuple(scores.shape[1:])} for one input, and there are "
            f"{data.n_classes} classes. Check its options."
        )
    own = features(network, rows) @ head_matrix(network, read_params(network)).T
    if not torch.allclose(own, scores.cpu(), rtol=1e-3, atol=1e-3):
        raise InvalidOption(
            f"{what} changes what its head gives: its scores must be those of the head, which comes last. "
            "Leave a softmax out; the loss has it."
        )


def _run_method(setting: _Setting, method: Method) -> None:
    params, key = setting.start, ""
    before: tuple[dict[str, Any], ...] = ()
    for index, stage in enumerate(method.stages):
        key = _stage_key(setting, key, stage, index)
        algorithm = build_algorithm(stage.algorithm, setting.network, stage.options)
        folder = StageFolder(setting.options.output / "stages" / key)
        run = _StageRun(setting, method, index, folder, algorithm, before)
        about = {"title": f"{method.label}, {setting.title}", "seed": setting.config.seed, **as_plain(stage)}
        write_atomically(folder.folder / "stage.json", json.dumps(about, indent=1).encode())
        checkpoint = run_stage(
            stage,
            algorithm,
            setting.pool,
            folder,
            params,
            setting.config.data.clients,
            run.seeds,
            on_round=_round_callback(run),
        )
        params = checkpoint.state.params
        before += checkpoint.history
        if run.is_last:
            _evaluate(run, checkpoint)
            if not setting.options.keep_client_states:
                folder.drop_client_states()


def _stage_key(setting: _Setting, before: str, stage: Stage, index: int) -> str:
    """Names everything that a stage's result depends on; ``before`` is the key of the stage before it."""
    content = [before, as_plain(stage), index, _code_of(setting.config, [stage])]
    if not before:
        content += [setting.digest, as_plain(setting.config.model), setting.config.seed]
    return f"{stage.algorithm.replace(':', '.')}-{fingerprint(content)}"


def _round_callback(run: _StageRun) -> Callable[[Checkpoint], None]:
    """Tells the progress of a stage, and evaluates it in between if that is asked for."""
    began, rounds_run = time.perf_counter(), 0
    config, rounds = run.setting.config, run.stage.rounds

    def on_round(checkpoint: Checkpoint) -> None:
        nonlocal rounds_run
        rounds_run += 1
        number = checkpoint.state.round
        _tell(run, checkpoint, (time.perf_counter() - began) / rounds_run * (rounds - number))
        every = config.evaluate_every
        if run.is_last and every and number % every == 0 and number < rounds:
            known = {row.round for row in rows_of(config, run.method, run.setting.options.output)}
            if run.round_of_method(checkpoint) not in known:
                _evaluate(run, checkpoint)

    return on_round


def _tell(
    run: _StageRun, checkpoint: Checkpoint, seconds_left: float, accuracy: dict[str, float] | None = None
) -> None:
    if run.setting.options.on_progress is None:
        return
    progress = TrainingProgress(
        setting=run.setting.title,
        method=run.method.label,
        stage=run.index + 1,
        stages=len(run.method.stages),
        round=checkpoint.state.round,
        rounds=run.stage.rounds,
        seconds_left=seconds_left,
        diverged=checkpoint.diverged,
        accuracy=accuracy,
    )
    run.setting.options.on_progress(progress)


def _evaluate(run: _StageRun, checkpoint: Checkpoint) -> None:
    """Evaluate every client and write what was found."""
    setting = run.setting
    clients = setting.config.data.clients
    networks = None
    if setting.options.keep_networks and checkpoint.state.round == run.stage.rounds:
        networks = networks_folder(setting.config, run.method, setting.options.output)
        make_folder(networks)
    found = evaluate(
        run.stage, run.algorithm, setting.pool, run.folder, checkpoint, clients, run.seeds, networks=networks
    )
    if networks is not None:
        _write_about(run, networks)
    rows = _rows(run, checkpoint, found)
    _write_record(run, rows[0].config, found)
    append_rows(setting.options.output / RESULTS, rows)
    _tell(run, checkpoint, 0.0, {row.protocol: row.mean for row in rows if row.own})


def _rows(run: _StageRun, checkpoint: Checkpoint, found: Evaluation) -> list[Row]:
    config, algorithm = run.setting.config, run.algorithm
    own = {"balanced": "none", "matched": "added" if algorithm.adds_label_prior else "none"}
    history = (*run.before, *checkpoint.history)
    rows = []
    for (protocol, prior), accuracy in found.accuracy.items():
        rows.append(
            Row(
                data=config.data.title,
                clients=config.data.clients,
                alpha=0.0 if config.data.path else config.data.alpha,
                shift=0.0 if config.data.path else config.data.shift,
                method=run.method.label,
                evaluated=algorithm.evaluated,
                round=run.round_of_method(checkpoint),
                last=checkpoint.state.round == run.stage.rounds,
                protocol=protocol,
                prior=prior,
                own=own[protocol] == prior,
                seed=config.seed,
                config=method_fingerprint(config, run.method),
                code=_code_of(config, run.method.stages),
                **spread(accuracy),
                diverged=checkpoint.diverged + found.not_finite,
                seconds=round(sum(entry["seconds"] for entry in checkpoint.history), 2),
                cpu_seconds=round(sum(entry["cpu_seconds"] for entry in history), 2),
                megabytes=round(sum(entry["bytes"] for entry in history) / 1e6, 3),
                peak_megabytes=max((entry["peak_megabytes"] for entry in history), default=0.0),
            )
        )
    return rows


def networks_folder(config: Config, method: Method, output: Path) -> Path:
    """Where the networks of a method's clients are kept."""
    return output / "networks" / f"{method_fingerprint(config, method)}-{config.seed}"


def _write_about(run: _StageRun, folder: Path) -> None:
    """What ``load_personal`` has to know of the networks in a folder."""
    about = {
        "method": run.method.name,
        "seed": run.setting.config.seed,
        "model": model_of(run.setting.config) | {"device": "cpu"},
        "clients": list(run.setting.names),
        "classes": list(run.setting.classes),
        "predicts_otherwise": run.algorithm.predict is not None,
    }
    write_atomically(folder / ABOUT, json.dumps(about, indent=1).encode())


def _write_record(run: _StageRun, config: str, found: Evaluation) -> None:
    """Beside the results file: what the fingerprint stands for, and the accuracy of every client."""
    output = run.setting.options.output
    for folder in ("configs", "clients"):
        (output / folder).mkdir(exist_ok=True)
    text = json.dumps(_method_content(run.setting.config, run.method), indent=1)
    write_atomically(output / "configs" / f"{config}.json", f"{text}\n".encode())
    accuracies = {f"{protocol}_{prior}": value for (protocol, prior), value in found.accuracy.items()}
    seed = run.setting.config.seed
    np.savez(output / "clients" / f"{config}-{seed}.npz", **accuracies)  # type: ignore[arg-type]
