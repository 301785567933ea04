"""Which coefficients differ between clients, and by which groups else rows are alike.

    y ~ x + z + (1 + x | school)       1 and x differ between schools, z is the same in all
    y ~ x + (1 | pupil) + (1 | teacher)    pupils are the clients, teachers a second group

The clients are the groups of interest: their population may have any shape.  Other groups are Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vaneb.errors import InvalidOption
from vaneb.grouped.design import Design
from vaneb.grouped.formula import ParsedFormula, RandomTerm, Term, group_name
from vaneb.grouped.syntax import shown
from vaneb.local.data import GroupedRows
from vaneb.local.family import family_class

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Groups:
    """What a formula says of groups."""

    client: tuple[str, ...]
    """Columns that name the client; each combination of their values is one."""
    effects: tuple[Term, ...] | None
    """Terms that differ between clients; ``None`` where the formula does not say: any may."""
    others: tuple[RandomTerm, ...]
    """Other groups, one random term each."""
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return group_name(self.client)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that name groups."""
        return tuple(dict.fromkeys([*self.client, *(c for one in self.others for c in one.group)]))


def groups_of(formula: ParsedFormula, client: str | None) -> Groups:
    """The groups of a formula, ``client`` or the first named being those of interest."""
    if not formula.random:
        if client is None:
            raise InvalidOption(
                "client: name the column that tells clients (groups) apart, or write it in the formula, as "
                "in (1 | school)."
            )
        return Groups((client,), None, (), ())
    found: dict[tuple[str, ...], RandomTerm] = {}
    for one in formula.random:
        before = found.get(one.group)
        effects = one.effects if before is None else tuple(dict.fromkeys([*before.effects, *one.effects]))
        found[one.group] = RandomTerm(effects, one.group, one.correlated and before is None)
    mine = _of_interest(formula, list(found), client)
    notes = []
    if not all(one.correlated for one in found.values()):
        notes.append("correlations between coefficients are learned from the data, also where || is written")
    if formula.added:
        notes.append(
            f"{formula.shown_terms(formula.added)} stands in random terms only; its average over groups is "
            "estimated as well"
        )
    others = tuple(one for group, one in found.items() if group != mine)
    return Groups(mine, found[mine].effects, others, tuple(notes))


def _of_interest(formula: ParsedFormula, known: list[tuple[str, ...]], client: str | None) -> tuple[str, ...]:
    if client is None:
        return known[0]
    for group in known:
        if client in (group_name(group), group[-1]):
            return group
    listed = ", ".join(map(group_name, known))
    raise InvalidOption(
        f"client {client!r}: formula {shown(formula.text)} has the groups {listed}. Choose one of them, or "
        "leave the client out."
    )


def constant_within(rows: GroupedRows) -> Flags:
    """Columns of the design that are the same in all rows of each client, (p,)."""
    first = rows.design[rows.starts[:-1]]
    away = np.abs(rows.design - np.repeat(first, rows.n_rows, axis=0)).max(axis=0)
    return away <= 1e-12 * np.abs(rows.design).max(axis=0)


def varying_columns(
    design: Design, groups: Groups, rows: GroupedRows, family: str
) -> tuple[Flags, tuple[str, ...]]:
    """Columns whose coefficients may differ between clients, (p,), and what to say of the others.

    A column that is constant within clients describes the client itself.  It moves the centre of the
    population, theta_k = B z_k + u_k, and its coefficient is the same for all.  Not so the intercept.
    Where a row has several indices, or clients' losses are no sums over rows, and the formula has no bars,
    such a column is left to the population: sampling what clients share mixes slowly there, and the posterior
    learns that the coefficient hardly differs.
    """
    asked = (
        np.ones(rows.design.shape[1], dtype=bool)
        if groups.effects is None
        else design.spanned_by(groups.effects)
    )
    if groups.effects is not None and not asked.any():
        raise InvalidOption(
            f"formula: family {family} has no intercept that could differ. Name a covariate before the bar, "
            f"as in (x | {groups.name})."
        )
    if groups.effects is None and (family == "multinomial" or not family_class(family).by_row):
        return asked, ()
    intercept = np.array([name == "Intercept" for name in design.names])
    of_client = constant_within(rows) & ~intercept & asked
    # Without an intercept, columns of a factor that say which clients are alike take its place.
    if not intercept.any() and not (asked & ~of_client).any():
        of_client[:] = False
    if not of_client.any():
        return asked, ()
    named = [n for n, flag in zip(design.names, of_client, strict=True) if flag]
    listed = ", ".join(named[:6]) + (", ..." if len(named) > 6 else "")
    does = "does not vary within clients: its coefficient is" if len(named) == 1 else (
        "do not vary within clients: their coefficients are"
    )  # fmt: skip
    return asked & ~of_client, (f"{listed} {does} the same for all of them",)
