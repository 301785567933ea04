"""Eight schools by vaneb, for the page beside metafor (metafor's own column comes from eight_schools.R).

python benchmarks/beside/eight_schools.py
"""

from __future__ import annotations

import sys

import vaneb

EFFECT = [28.0, 8, -3, 7, -1, 1, 18, 12]
ERROR = [15.0, 10, 16, 11, 9, 11, 10, 18]

reports = vaneb.Reports(EFFECT, standard_errors=ERROR, ids=list("ABCDEFGH"), names=["effect"])
post = vaneb.VANEB().fit(reports).personalize(reports)
lower, upper = post.interval(0.9)
for k, school in enumerate("ABCDEFGH"):
    found = f"{post.mean[k, 0]:.1f} ({lower[k, 0]:.1f}, {upper[k, 0]:.1f})"
    sys.stdout.write(f"| {school} | {EFFECT[k]:.0f} ± {ERROR[k]:.0f} | {found} |\n")
