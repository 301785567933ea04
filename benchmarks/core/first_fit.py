"""What a newcomer's first fit compiles: CPU seconds, and seconds by compiled function.

    python benchmarks/core/first_fit.py readme       # the first example of README.md
    python benchmarks/core/first_fit.py personalize  # `vaneb personalize` on 60 reports with standard errors

It runs twice with a cache of its own, empty at first.  Functions are told without those that they call.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def run(what: str, folder: Path) -> None:
    if what == "readme":
        found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
        assert found is not None
        exec(compile(found.group(1), "README.md", "exec"), {})
        return
    rng = np.random.default_rng(0)
    rows = [f"c{k},{rng.normal():.4f},{rng.uniform(0.3, 1):.4f}" for k in range(60)]
    (folder / "reports.csv").write_text("client,estimate,se\n" + "\n".join(rows) + "\n")
    from vaneb.cli import main

    sys.argv = ["vaneb", "personalize", str(folder / "reports.csv"), "-o", str(folder / "out.csv")]
    with suppress(SystemExit):
        main()


def watched(what: str, folder: Path) -> None:
    from numba.core import event

    own, open_calls = defaultdict(float), []

    class Listener(event.Listener):
        def on_start(self, event) -> None:  # type: ignore[no-untyped-def]
            open_calls.append([event.data["dispatcher"].py_func, time.process_time(), 0.0])

        def on_end(self, event) -> None:  # type: ignore[no-untyped-def]
            function, start, inside = open_calls.pop()
            took = time.process_time() - start
            if open_calls:
                open_calls[-1][2] += took
            own[f"{function.__module__}.{function.__qualname__}"] += took - inside

    event.register("numba:compile", Listener())
    start = time.process_time()
    run(what, folder)
    print(f"{time.process_time() - start:7.1f} CPU s in all, {sum(own.values()):.1f} of them compilation")
    for name, seconds in sorted(own.items(), key=lambda item: -item[1])[:25]:
        print(f"{seconds:7.2f} {name}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(2):
                environment = os.environ | {"NUMBA_CACHE_DIR": folder}
                subprocess.run([sys.executable, __file__, sys.argv[1], folder], env=environment, check=True)
    else:
        watched(sys.argv[1], Path(sys.argv[2]))
