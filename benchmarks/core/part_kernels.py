"""The (client, atom) kernels against the arithmetic limit of the machine.

Nanoseconds for a pair of ``log_likelihood`` and of ``ascent`` (with curvature), one thread, 20,000 clients
and 200 atoms.  All atoms are near all clients, so that no
pair is skipped and the number of operations is known; a second measurement on the five-cluster population
of ``part_growth``, atoms at clients' estimates, shows what skipping saves.

Operations are counted from the formulas, one for each addition, subtraction, multiplication and
division; an exponential counts 34 and a logarithm 31, the operations of the polynomials in
``vaneb.vector_math``.  The limit is what one thread of the BLAS reaches in a matrix product, which is
nothing but fused multiply-adds on registers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import measure
import numpy as np
import part_growth
from measure import Row

CLIENTS, ATOMS, REPEATS, PRODUCT = 20_000, 200, 5, 1536
EXP, LOG = 34, 31


def triangle(d: int) -> int:
    return d * (d + 1) // 2


def diagonal_constant_operations(d: int) -> tuple[int, int]:
    """l = c - sum_i h_i (x_i - a_i)^2; then exp, and sums of r, r s, r P, r s s'."""
    return 4 * d, 5 * d + EXP + 1 + 4 * d + 3 * triangle(d)


def diagonal_function_operations(d: int) -> tuple[int, int]:
    """l = c_k + b_j - n_k / 2 sum_i h_ij (x_i - a_i)^2, b and h known per atom; then the exact score

    s_i = P_i e_i + (P_i e_i^2 - 1) V_i' / (2 V_i) with P_i = n h_i, exp, and sums of r, r s, r P, r s s'.
    """
    return 4 * d + 3, 5 * d + 3 * d + EXP + 1 + 4 * d + 3 * triangle(d)


def full_constant_operations(d: int) -> tuple[int, int]:
    """l = c - e'Pe / 2 over the triangle; then exp, s = Pe, and sums of r, r s, r P, r s s'."""
    form = d + 2 * d * d + 2 * d
    return d + 3 * triangle(d), form + EXP + 1 + 2 * d + 2 * triangle(d) + 3 * triangle(d)


def poisson_moment_operations(d: int) -> tuple[int, int]:
    """P = n e^c (S + v v'), v = mu + S a, Cholesky factor, quadratic form; then score and information.

    The derivative of P is e^c [v_r (S + v v') + S_.r v' + v S_r.]: 6 operations for each of d triangles,
    and as many again for its trace with P^{-1}, its quadratic form and the expected information.
    """
    density = 2 * d * d + 3 * d + EXP + d + 3 * triangle(d) + d**3 // 3 + 2 * d * d + 2 * d + d * LOG
    score = 6 * d * triangle(d) + 2 * d**3 + 4 * d * triangle(d) + 2 * triangle(d) * triangle(d)
    return density, density + EXP + 1 + score + 2 * d + 2 * triangle(d) + 3 * triangle(d)


def diagonal_function(n_clients: int, rng: np.random.Generator):
    return part_growth.diagonal_function(n_clients, rng)[0].likelihood()


def diagonal_constant(n_clients: int, rng: np.random.Generator):
    return part_growth.diagonal_constant(n_clients, rng)[0].likelihood()


def full_function(n_clients: int, rng: np.random.Generator):
    return part_growth.full_function(n_clients, rng)[0].likelihood()


def full_constant(n_clients: int, rng: np.random.Generator):
    """The same clients with their precisions fixed at their estimates."""
    from vaneb.estimators import fixed_covariance

    return fixed_covariance(full_function(n_clients, rng))


CASES: dict[str, tuple[Callable, Callable[[int], tuple[int, int]]]] = {
    "diagonal-constant": (diagonal_constant, diagonal_constant_operations),
    "diagonal-function": (diagonal_function, diagonal_function_operations),
    "full-constant": (full_constant, full_constant_operations),
    "full-function": (full_function, poisson_moment_operations),
}


def run(options) -> Iterator[Row]:
    limit = peak_gigaflops()
    yield {"what": "matrix product", "gigaflops": limit}
    for case, (make, operations) in CASES.items():
        likelihood = make(CLIENTS, np.random.default_rng(0))
        d = likelihood.dimension
        spread_out = likelihood.local_estimates()[:ATOMS]
        centre = likelihood.local_estimates().mean(axis=0)
        nearby = centre + 0.01 * np.random.default_rng(1).standard_normal((ATOMS, d))
        for kernel, count in zip(("log_likelihood", "ascent"), operations(d), strict=True):
            none_skipped = nanoseconds(likelihood, kernel, nearby)
            gigaflops = count / none_skipped
            yield {
                "what": case,
                "kernel": kernel,
                "dimension": d,
                "nanoseconds": none_skipped,
                "operations": count,
                "gigaflops": gigaflops,
                "of_limit": gigaflops / limit,
                "nanoseconds_population": nanoseconds(likelihood, kernel, spread_out),
            }


def nanoseconds(likelihood, kernel: str, atoms) -> float:
    """CPU nanoseconds for a (client, atom) pair."""
    if kernel == "log_likelihood":
        work = functools.partial(likelihood.log_likelihood, atoms)
    else:
        # Weights 1 / (K f_k) with f_k the average over these atoms, as in a fit.
        terms = likelihood.log_likelihood(atoms)
        top = terms.max(axis=1)
        density = np.log(np.exp(terms - top[:, None]).mean(axis=1)) + top
        log_weights = -density - np.log(len(density))
        work = functools.partial(likelihood.ascent, atoms, log_weights)
    work()
    _, cpu = measure.fastest(work, REPEATS)
    return 1e9 * cpu / (likelihood.n_clients * len(atoms))


def peak_gigaflops() -> float:
    """2 n^3 operations of a product of n x n matrices of doubles, over the fastest time."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, PRODUCT, PRODUCT))
    _, cpu = measure.fastest(lambda: a @ b, REPEATS)
    return 2 * PRODUCT**3 / cpu / 1e9
