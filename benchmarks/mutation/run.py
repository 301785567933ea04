"""Run the tests on each mutant of ``mutants.csv``: ``python benchmarks/mutation/run.py results.csv``.

The package and its tests are copied to a folder of their own, one line is changed, and the tests of that part
of the package run until the first fails.  Rows are written as they come; mutants that are in the file already
are not run again.  A mutant whose line is gone from the source is called ``gone`` and not counted.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: A mutant that makes the tests run longer than this many seconds is killed by the clock.
PATIENCE = 300
#: The tests of each part of the package, quick ones first.
TESTS = {
    "population/": "tests/test_estimators.py tests/test_posterior.py tests/population tests/test_robust.py",
    "fl/algorithms/": "tests/fl/test_definitions.py tests/fl/test_rivals.py"
    " tests/fl/test_vaneb_definitions.py tests/fl/test_contract.py",
    "likelihood/": "tests/npmle tests/test_posterior.py tests/likelihood tests/test_robust.py",
    "covariance/": "tests/covariance tests/likelihood/test_gaussian.py",
    "npmle/": "tests/npmle tests/test_estimators.py",
    "local/": "tests/local tests/grouped/test_families_of_rows.py",
    "": "tests/test_semidefinite.py tests/test_prior.py tests/test_posterior.py"
    " tests/decisions/test_joint_draws.py tests/test_estimators.py tests/test_robust.py",
}


def mutated(text: str, nth: int, line: str, after: str) -> str | None:
    """``text`` with the ``nth`` line that reads ``line`` changed; ``None`` if there is no such line."""
    lines = text.splitlines(keepends=True)
    places = [i for i, own in enumerate(lines) if own.strip() == line]
    if nth >= len(places):
        return None
    own = lines[places[nth]]
    lines[places[nth]] = own.replace(line, after)
    return "".join(lines)


def verdict(mutant: dict[str, str], folder: Path) -> tuple[str, str]:
    """What became of it, and the test that failed first."""
    path = folder / "src" / "vaneb" / mutant["file"]
    text, stamp = path.read_text(encoding="utf-8"), path.stat()
    changed = mutated(text, int(mutant["nth"]), mutant["line"], mutant["mutated"])
    if changed is None:
        return "gone", ""
    tests = next(tests for part, tests in TESTS.items() if mutant["file"].startswith(part)).split()
    try:
        path.write_text(changed, encoding="utf-8")
        environment = os.environ | {"PYTHONPATH": str(folder / "src")}
        if "njit" in text or "@scalar" in text:  # compiled callers in other files would keep the old function
            environment["NUMBA_CACHE_DIR"] = str(folder / "compiled")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return "killed", "time limit"
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        shutil.rmtree(folder / "compiled", ignore_errors=True)
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ("survived", "") if done.returncode == 0 else ("killed", (failed or ["at import"])[0])


def main(results: Path, wanted: set[str]) -> None:
    """Run what is in the sample and not yet in ``results``; only the mutants ``wanted``, if any are named."""
    with (HERE / "mutants.csv").open(encoding="utf-8") as file:
        sample = [row for row in csv.DictReader(file) if not wanted or row["mutant"] in wanted]
    known = set()
    if results.exists():
        with results.open(encoding="utf-8") as file:
            known = {row["mutant"] for row in csv.DictReader(file)}
    else:
        results.write_text("mutant,file,line,mutated,verdict,by,seconds\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("src", "tests", "pyproject.toml", "docs", "examples", "README.md"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        for mutant in sample:
            if mutant["mutant"] in known:
                continue
            start = time.monotonic()
            outcome, by = verdict(mutant, folder)
            with results.open("a", encoding="utf-8", newline="") as file:
                row = [mutant[key] for key in ("mutant", "file", "line", "mutated")]
                csv.writer(file, lineterminator="\n").writerow(
                    [*row, outcome, by, f"{time.monotonic() - start:.0f}"]
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(sys.argv[2:]))
