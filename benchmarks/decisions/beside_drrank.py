"""Grades of 76 first names beside those of drrank 0.1.3, on its own example.

    python benchmarks/decisions/beside_drrank.py name_example.csv [pis.npy]

``name_example.csv`` is in the folder ``example`` of drrank's repository (ekrose/drrank).  Its grades need a
licence of Gurobi; what is compared are those of its published figure, at lambda = 0.25.  ``pis.npy`` holds
pairwise probabilities under the population that drrank estimates without one (``prior_estimate``): our
dynamic programme then cuts what drrank's integer programme cut.
"""

from __future__ import annotations

import csv
import sys
import time

import numpy as np

import vaneb
from vaneb.decisions.grading import _best_cuts, _wins, _within

#: The lower of the two grades in drrank's figure ``name_ranking.jpg``.
PUBLISHED = set(
    [
        "Tawanda",
        "Susan",
        "Leroy",
        "Lashonda",
        "Ebony",
        "Lamont",
        "Lakesha",
        "Reginald",
        "Justin",
        "Roderick",
        "Kenya",
        "Tyrone",
        "Tomeka",
        "Tamika",
        "Lakisha",
        "Geoffrey",
        "Lakeisha",
        "Maurice",
        "Latoya",
        "Lamar",
        "Lawanda",
        "Tameka",
        "Latisha",
    ]
)
LAMBDA = 0.25


def cut(wins: np.ndarray) -> np.ndarray:
    """Groups of clients in order, at LAMBDA."""
    return _best_cuts(_within(wins), _within(wins.T), 1 / (1 + LAMBDA))


def from_their_population(path: str, names: list[str]) -> None:
    pi = np.load(path)
    np.fill_diagonal(pi, 0.0)
    order = np.argsort(-pi.sum(axis=1))
    group = cut(pi[np.ix_(order, order)])
    lower = {names[k] for k, g in zip(order, group, strict=True) if g == group.max()}
    sizes = np.unique(group, return_counts=True)[1].tolist()
    same = len(names) - len(lower ^ PUBLISHED)
    print(f"from drrank's population: grades of {sizes} names; {same} as published")


def main(path: str, pis: str | None = None) -> None:
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    names = [row["firstname"] for row in rows]
    estimates, errors = ([float(row[column]) for row in rows] for column in ("thetas", "s"))
    begin = time.process_time()
    reports = vaneb.Reports(estimates, standard_errors=errors, ids=names, names=["rate"])
    model = vaneb.VANEB().fit(reports)
    post = model.personalize(reports)
    decisions = post.decide("rate")
    order = np.argsort(decisions.ranks().expected)
    block = np.empty(len(names), dtype=np.int64)
    block[order] = np.arange(len(names))
    wins = _wins(decisions.values, np.argsort(decisions.values, axis=1), block, len(names))
    wins /= len(decisions.values)
    group = cut(wins)
    seconds = time.process_time() - begin
    grade = np.unique(group, return_inverse=True)[1][block] + 1
    apart = group[:, None] < group
    lower = {name for name, g in zip(names, grade, strict=True) if g == grade.max() > 1}
    print(f"population: mean {model.prior_.mean[0]:.4f}, sd {model.prior_.typical_sd[0]:.4f}; {model.prior_}")
    wrong, pairs = wins.T[apart].sum(), len(names) * (len(names) - 1) / 2
    print(f"lambda {LAMBDA}: {grade.max()} grades of {np.bincount(grade)[1:].tolist()} names")
    shares = wrong / max(apart.sum(), 1), wrong / pairs
    print(f"in the wrong order: {shares[0]:.1%} of pairs told apart, {shares[1]:.1%} of all")
    other = sorted(lower ^ PUBLISHED)
    print(
        f"published: {[len(names) - len(PUBLISHED), len(PUBLISHED)]} names; not the same: {', '.join(other)}"
    )
    bounded = decisions.grades(0.05)
    print(f"at most 5% of the pairs told apart in the wrong order: {np.bincount(bounded.grade)[1:].tolist()}")
    print(f"{seconds:.2f} CPU seconds, fit included")
    if pis is not None:
        from_their_population(pis, names)


if __name__ == "__main__":
    main(*sys.argv[1:])
