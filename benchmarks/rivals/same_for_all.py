"""Standard errors of coefficients that do not differ from group to group, beside lme4's.

    python benchmarks/rivals/same_for_all.py

`Days` of sleepstudy and the periods of cbpp (one row for each animal), with a random intercept.  Needs R with
lme4, which has the data.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd

from vaneb.grouped import fit_groups

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    script = Path(__file__).with_suffix(".R")
    said = subprocess.run(["Rscript", str(script), name], check=True, capture_output=True, text=True).stdout
    theirs = [float(line) for line in (folder / "errors.txt").read_text().split()]
    sleepstudy = pd.read_csv(folder / "sleepstudy.csv")
    cbpp = pd.read_csv(folder / "cbpp.csv").astype({"period": str})
fits = (
    fit_groups(sleepstudy, client="Subject", formula="Reaction ~ Days + (1 | Subject)"),
    fit_groups(cbpp, client="herd", formula="y ~ period + (1 | herd)", family="binomial"),
)
ours = pd.concat([fit.fixef.iloc[1:] for fit in fits])
sys.stdout.write(f"{said}| coefficient | lme4 | vaneb | ratio |\n|---|---:|---:|---:|\n")
for (coefficient, row), their in zip(ours.iterrows(), theirs, strict=True):
    sys.stdout.write(f"| {coefficient} | {their:.4f} | {row['se']:.4f} | {row['se'] / their:.3f} |\n")
