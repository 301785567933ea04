"""A newcomer's walk: from a fresh clone to the first result on the person's own file, step by step and timed.

    python benchmarks/walk/walk.py REPOSITORY [--commit COMMIT] > walk.md

The clone, the environment and the home are new, in a temporary folder.  The file is a German Excel CSV:
semicolons, decimal commas, Latin-1.  A step that fails is shown with its message, and the walk goes on.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOSPITALS = """Klinik;effect;se
Köln;0,31;0,12
Düsseldorf;-0,05;0,20
Aachen;0,12;0,15
Münster;0,40;0,25
Bonn;0,22;0,10
Essen;-0,11;0,18
Siegen;0,55;0,30
Hagen;0,09;0,14
"""
OLD = "env/bin/vaneb personalize {} -o out.csv --report page.html"
#: What the person had to do by hand before this file could be read.
BY_HAND = (
    ("iconv -f latin1 -t utf-8 kliniken.csv > 1.csv; " + OLD.format("1.csv"), "saved as UTF-8"),
    ("sed 's/,/./g; s/;/,/g' 1.csv > 2.csv; " + OLD.format("2.csv"), "commas and points"),
    ("sed '1s/.*/client,theta_effect,se_effect/' 2.csv > 3.csv; " + OLD.format("3.csv"), "columns renamed"),
)
STEPS = (
    ("git clone --quiet {repository} vaneb", "a fresh clone"),
    ("python3 -m venv env", "a new environment"),
    ("env/bin/pip install --quiet --disable-pip-version-check -c vaneb/constraints.txt ./vaneb", "installed"),
    ("env/bin/vaneb --version", "first command"),
    ("env/bin/vaneb check kliniken.csv", "what would be read"),
    ("env/bin/vaneb personalize kliniken.csv -o out.csv --report page.html", "the first result"),
    ("cat out.csv", "the table"),
    ("env/bin/vaneb personalize kliniken.csv -o out.csv --report page.html", "the same again"),
    ("ls -s page.html", "the page (1,024 bytes each)"),
    ("env/bin/vaneb demo --quiet", "the demonstration, as of make demo"),
)


def cpu() -> float:
    """Seconds that all commands so far have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repository", type=Path)
    parser.add_argument("--commit", help="check this commit out instead of the newest")
    asked = parser.parse_args()
    steps = [step for step in STEPS if not (asked.commit and ("page.html" in step[0] or "demo" in step[0]))]
    if asked.commit:
        steps[4:] = [(OLD.format("kliniken.csv"), "the first result"), *BY_HAND, STEPS[6]]
        steps.insert(1, (f"git -C vaneb checkout --quiet {asked.commit}", "an older commit"))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kliniken.csv").write_text(HOSPITALS, encoding="latin-1")
        # A home of its own: nothing compiled or configured before is found.
        surroundings = {"PATH": os.environ["PATH"], "HOME": folder, "LANG": "C.UTF-8", "COLUMNS": "110"}
        begin = time.perf_counter()
        for command, what in steps:
            started, used = time.perf_counter(), cpu()
            done = subprocess.run(
                command.format(repository=asked.repository.resolve()),
                shell=True, cwd=folder, env=surroundings, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            spent = f"{time.perf_counter() - started:.1f} s, {cpu() - used:.1f} of them CPU"
            failed = "" if done.returncode == 0 else f", exit code {done.returncode}"
            shown = command.replace("{repository}", "REPOSITORY")
            said = done.stdout.replace(folder, ".").strip()
            sys.stdout.write(f"{what} ({spent}{failed}):\n\n")
            sys.stdout.write(f"```text\n$ {shown}\n{said}\n```\n\n" if said else f"    {shown}\n\n")
            sys.stdout.flush()
        sys.stdout.write(f"In all {time.perf_counter() - begin:.0f} s.\n")


if __name__ == "__main__":
    main()
