"""Sweeps: the same numbers however they are come by, and nothing lost or done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from vaneb.commands.study import study
from vaneb.errors import InvalidOption
from vaneb.growing_tables import appending, read_rows
from vaneb.study import tables
from vaneb.study.rates import Slope, run_rates, slopes, slopes_as_markdown
from vaneb.study.statements import Comparison, examine
from vaneb.study.sweep import COLUMNS, Cell, cells, generator, measure, replicate_rows, run_sweep
from vaneb.study.theory_study import THEORY
from vaneb.study.workers import run_jobs
from vaneb.worker_processes import WorkerLost

CELLS = [Cell("quadratic", 12, 5), Cell("poisson", 8, 5)]
CHEAP = ("oracle", "npeb", "local")


def numbers(path: Path) -> list[tuple[str, ...]]:
    """Everything but the CPU seconds, in an order of its own."""
    return sorted(tuple(v for name, v in row.items() if name != "cpu_seconds") for row in read_rows(path))


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("study") / "replicates.csv"
    run_sweep(path, CELLS, replicates=2, estimators=CHEAP, seed=3, workers=1)
    return path


# ---------------------------------------------------------------- cells and seeds


def test_cells_of_the_paper():
    found = cells(["poisson"], "both")
    assert [c[1:] for c in found] == [
        (50, 40),
        (200, 40),
        (800, 40),
        (3200, 40),
        (3200, 5),
        (3200, 10),
        (3200, 20),
    ]
    assert len(cells(["quadratic", "logistic", "poisson"], "K")) == 12
    assert cells(["poisson"], "n", clients=(7,), n_min=(3,)) == [Cell("poisson", 7, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sweep": "m"}, "sweep must be one of"),
        ({"clients": (1,)}, "clients: numbers of at least 2"),
        ({"n_min": ()}, "n_min: numbers of at least 2"),
        ({"scenarios": ["normal"]}, "'normal' is unknown"),
    ],
)
def test_impossible_cells(options, message):
    with pytest.raises(InvalidOption, match=message):
        cells(**{"scenarios": ["poisson"], "sweep": "K", **options})


def test_every_replicate_has_a_generator_of_its_own():
    places = [(Cell(s, k, n), r, seed) for s in ("poisson", "logistic") for k in (5, 6) for n in (5, 6)
              for r in (0, 1) for seed in (0, 1)]  # fmt: skip
    draws = {generator(*place).random() for place in places}
    assert len(draws) == len(places)
    assert generator(*places[0]).random() == generator(*places[0]).random()


# ---------------------------------------------------------------- the loop


def test_two_workers_give_the_numbers_of_one(complete, tmp_path):
    path = tmp_path / "replicates.csv"
    run_sweep(path, CELLS[::-1], replicates=2, estimators=CHEAP[::-1], seed=3, workers=2)
    assert numbers(path) == numbers(complete)
    assert len(read_rows(path)) == 2 * 2 * len(CHEAP)


def test_rows_are_what_one_replicate_gives(complete):
    job = {**CELLS[0]._asdict(), "replicate": 1, "seed": 3, "paper": False, "estimators": ["local"]}
    (row,) = replicate_rows(job)
    found = [r for r in read_rows(complete) if r["estimator"] == "local" and r["scenario"] == "quadratic"]
    assert float(found[1]["rmse"]) == row["rmse"]
    assert 0 <= float(found[1]["coverage"]) <= 1
    assert found[1]["status"] == "ok"


@pytest.mark.parametrize("cut", [1, 200])
def test_a_cut_file_is_completed(complete, tmp_path, cut):
    path = tmp_path / "replicates.csv"
    path.write_bytes(complete.read_bytes()[:-cut])
    before = len(read_rows(path))
    assert before < 12
    run_sweep(path, CELLS, replicates=2, estimators=CHEAP, seed=3)
    assert numbers(path) == numbers(complete)


def test_what_is_there_is_not_done_again(complete, tmp_path):
    path = tmp_path / "replicates.csv"
    path.write_bytes(complete.read_bytes())
    told = []
    run_sweep(path, CELLS, replicates=2, estimators=CHEAP, seed=3, progress=lambda *a: told.append(a))
    assert told == []
    assert path.read_bytes() == complete.read_bytes()
    run_sweep(path, CELLS, replicates=3, estimators=["local"], seed=3, progress=lambda *a: told.append(a))
    assert len(read_rows(path)) == 14
    assert [(done, expected) for _, done, expected in told] == [(12, 20), (20, 20)]  # clients


def test_other_seeds_and_other_files_are_refused(complete, tmp_path):
    with pytest.raises(InvalidOption, match="holds results of seed 3, not 4"):
        run_sweep(complete, CELLS, replicates=2, estimators=CHEAP, seed=4)
    other = tmp_path / "replicates.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidOption, match="other columns"):
        run_sweep(other, CELLS, replicates=1, estimators=CHEAP)
    other.write_text(",".join(COLUMNS) + "\npoisson,3\n")
    with pytest.raises(InvalidOption, match="line 2: not as many values"):
        read_rows(other)
    other.write_bytes(b"\xff\xfe\n")
    with pytest.raises(InvalidOption, match="not a table of results"):
        read_rows(other)


def test_two_runs_do_not_write_to_one_file(tmp_path):
    path = tmp_path / "replicates.csv"
    with (
        appending(path, COLUMNS),
        pytest.raises(InvalidOption, match="another run is writing"),
        appending(path, COLUMNS),
    ):
        pass


def test_a_failure_is_a_row():
    from vaneb.study import estimators
    from vaneb.study.scenarios import simulate

    def breaks(clients):
        raise np.linalg.LinAlgError("Singular\nmatrix")

    clients = estimators.Clients(simulate("quadratic", 5, 5, np.random.default_rng(0)))
    row = measure(breaks, clients)
    assert row["rmse"] is None
    assert row["status"] == "failed: LinAlgError: Singular matrix"
    assert measure(estimators.ESTIMATORS["local"], clients)["status"] == "ok"


def test_a_worker_that_ends_is_reported():
    job = {"kind": "replicate", "scenario": "nothing", "clients": 5, "n_min": 5, "replicate": 0, "seed": 0}
    with pytest.raises(WorkerLost, match="the same command resumes"):
        list(run_jobs([{**job, "estimators": ["local"]}], 1))
    with pytest.raises(InvalidOption, match="workers"):
        list(run_jobs([job], 0))


# ---------------------------------------------------------------- tables


def row(estimator: str, replicate: int, rmse: float | str, **other: str) -> dict[str, str]:
    place = {"scenario": "poisson", "clients": "50", "n_min": "40", "cpu_seconds": "1.5", "coverage": ""}
    return {**place, "estimator": estimator, "replicate": str(replicate), "rmse": str(rmse), **other}


def test_summary_of_known_rows():
    rows = [row("oracle", r, v) for r, v in enumerate((1.0, 1.0, 2.0))]
    rows += [row("npeb", 0, 2.0), row("npeb", 1, 4.0), row("npeb", 2, "")]
    rows += [row("local", 0, 5.0, coverage="0.8"), row("local", 1, 5.0, coverage="0.9")]
    oracle, npeb, local = tables.summarise(rows)
    assert (npeb.replicates, npeb.failed, npeb.rmse, npeb.error) == (2, 1, 3.0, pytest.approx(1.0))
    assert npeb.ratio == 3.0  # on the two replicates that both have
    assert npeb.best
    assert not oracle.best
    assert not local.best
    assert local.coverage == pytest.approx(0.85)
    found = examine(rows, Comparison(oracle.cell, "npeb", "local"))
    assert (found.difference, found.error, found.replicates) == (-2.0, pytest.approx(1.0), 2)
    assert "| **npeb** |" in tables.as_table(rows, "markdown")
    assert (
        tables.as_table(rows, "csv")
        .splitlines()[2]
        .startswith("poisson,50,40,npeb,2,1,3.0000,1.0000,3.0000,3.000")
    )
    assert tables.as_table(rows).splitlines()[2].endswith("*")
    with pytest.raises(InvalidOption, match="form"):
        tables.as_table(rows, "html")


# ---------------------------------------------------------------- theory


def test_slopes_of_known_powers():
    rows = []
    for replicate, factor in enumerate((1.0, 3.0)):
        for k in (10, 100, 1000):
            common = {
                "prior": "points",
                "sweep": "K",
                "clients": str(k),
                "n": "5",
                "replicate": str(replicate),
            }
            rows.append(
                {**common, "estimator": "vaneb", "excess": str(factor / k), "hellinger": str(k**-0.5)}
            )
            rows.append({**common, "estimator": "local", "excess": "0.5", "hellinger": ""})
    found = {(s.measure, s.estimator): s for s in slopes(THEORY, rows)}
    assert found["excess", "vaneb"].value == pytest.approx(-1)
    assert found["excess", "vaneb"].error == pytest.approx(0, abs=1e-12)
    assert found["excess", "local"].value == pytest.approx(0, abs=1e-12)
    assert found["hellinger", "vaneb"].value == pytest.approx(-0.5)
    assert "| points | excess | vaneb | K | -1.00 |" in slopes_as_markdown(list(found.values()))


def test_theory_runs_and_resumes(tmp_path):
    path = tmp_path / "theory.csv"
    run_rates(THEORY, path, replicates=1, clients=(8, 16), n=(5, 6))
    rows = read_rows(path)
    assert len(rows) == 2 * 4 * 2  # priors, places, estimators
    for each in rows:
        assert float(each["excess"]) >= 0
        if each["estimator"] == "vaneb":
            assert 0 <= float(each["hellinger"]) <= 1
    before = path.read_bytes()
    run_rates(THEORY, path, replicates=1, clients=(8, 16), n=(5, 6))
    assert path.read_bytes() == before
    assert all(isinstance(s, Slope) for s in slopes(THEORY, rows))
    with pytest.raises(InvalidOption, match="two values or more"):
        run_rates(THEORY, path, replicates=1, clients=(10,))


# ---------------------------------------------------------------- the command

app = typer.Typer(add_completion=False)
app.command("study")(study)
app.callback()(lambda: None)


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["study", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("poisson", "--clients", "50;200"), "whole numbers separated by commas"),
        (("poisson", "--estimators", "magic"), "'magic' is unknown"),
        (("theory", "--estimators", "vaneb"), "does not go with theory"),
        (("quadratic", "--format", "bmp"), "png, svg or pdf"),
        (("quadratic", "--n-min", "1"), "n_min: numbers of at least 2"),
    ],
)
def test_bad_options_end_with_one_line_and_code_2(tmp_path, arguments, message):
    result = command(*arguments, "-o", tmp_path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_interrupt_leaves_complete_rows_and_the_same_command_goes_on(tmp_path):
    out = tmp_path / "out"
    script = (
        "import typer; from vaneb.commands.study import study; app = typer.Typer();"
        "app.command('study')(study); app.callback()(lambda: None); app()"
    )
    options = [
        "study",
        "quadratic",
        "--sweep",
        "K",
        "--clients",
        "12",
        "--n-min",
        "5",
        "--replicates",
        "9000",
    ]
    options += ["--estimators", "oracle,local", "--workers", "2", "-o", str(out), "-q"]
    process = subprocess.Popen([sys.executable, "-c", script, *options], stderr=subprocess.PIPE, text=True)
    until(lambda: len(read_rows(out / "replicates.csv")) >= 6)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130, said
    rows = read_rows(out / "replicates.csv")
    assert f"interrupted: {len(rows)} rows are saved in" in said
    assert 6 <= len(rows) < 18_000
    path = out / "replicates.csv"
    run_sweep(path, [Cell("quadratic", 12, 5)], replicates=4, estimators=("oracle", "local"))
    kept = [(r["replicate"], r["estimator"]) for r in read_rows(path)]
    assert len(kept) == len(set(kept))
    assert {(str(r), name) for r in range(4) for name in ("oracle", "local")} <= set(kept)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")
def test_after_a_kill_no_worker_is_left_and_the_file_can_be_taken_up(tmp_path):
    path = tmp_path / "replicates.csv"
    cell = "Cell('quadratic', 400, 5)"
    script = (
        "from pathlib import Path; from vaneb.study.sweep import *\n"
        f"run_sweep(Path({str(path)!r}), [{cell}], replicates=50, estimators=['local', 'vaneb'])"
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    until(lambda: len(read_rows(path)) >= 1)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(workers) == 1
    process.kill()
    process.wait()
    until(lambda: not Path(f"/proc/{workers[0]}").exists())
    run_sweep(path, [Cell("quadratic", 400, 5)], replicates=1, estimators=["local", "oracle"])
    kept = [(r["replicate"], r["estimator"]) for r in read_rows(path)]
    assert len(kept) == len(set(kept))
    assert ("0", "oracle") in kept
