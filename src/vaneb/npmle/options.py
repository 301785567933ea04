"""All numbers that steer a fit of atoms, in one value that can be passed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How atoms are found and how hard their gap is looked for.  The defaults are meant for everybody.

    Parameters
    ----------
    rounds : of climbing and solving for weights, at most.
    first_clients : clients that first looks are taken at, where there are more than twice as many.
    first_atoms : estimates, at most, that the first weights are solved over.
    estimates : that Algorithm 1 starts from at most.
    most_atoms, entries : limits of the atoms, and of the matrix of likelihoods (clients times atoms).
    double_entries : entries of that matrix up to which it is kept in double precision.
    looked_at, climbed : points at which a search evaluates the gap, and how many of the best it climbs from.
    steps : of a climb, at most.
    thorough : how many times as far the search looks that a certificate rests on.
    same : standard errors of the clients that matter there within which two maxima are one.
    proof_pairs : pairs of client and cell that a proof may take.
    """

    rounds: int = 60
    first_clients: int = 20_000
    first_atoms: int = 400
    estimates: int = 5_000
    most_atoms: int = 3_000
    entries: float = 5.5e8
    double_entries: float = 2e7
    looked_at: int = 400
    climbed: int = 40
    steps: int = 20
    thorough: float = 3.0
    same: float = 0.02
    proof_pairs: float = 1e8


DEFAULT = Options()
