"""Draws of vectors, matrices and numbers, compiled.

Plain loops over contiguous arrays, also where numpy has a word for it: matrix products, LAPACK and most
methods of a generator each take the compiler longer than all that is here, and are no faster at these sizes.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

compiled = njit(cache=True, error_model="numpy")


@compiled
def root_of(matrix, more, out):
    """The lower triangular root, whatever the units; ``more``, relative, keeps rounding from its diagonal."""
    d = len(matrix)
    scale = np.empty(d)
    for i in range(d):
        scale[i] = math.sqrt(max(matrix[i, i], 1e-300))
        for a in range(d):
            out[i, a] = 0.0
        for a in range(i + 1):
            t = 0.5 * (matrix[i, a] + matrix[a, i]) / (scale[i] * scale[a]) if a < i else 1.0 + more
            for c in range(a):
                t -= out[i, c] * out[a, c]
            out[i, a] = t / out[a, a] if a < i else math.sqrt(max(t, 1e-16))
    for i in range(d):
        for a in range(i + 1):
            out[i, a] *= scale[i]


@compiled
def lower_inverse(root, out):
    """Of a lower triangular matrix."""
    d = len(root)
    for a in range(d):
        for i in range(d):
            t = 1.0 if i == a else 0.0
            for c in range(a, i):
                t -= root[i, c] * out[c, a]
            out[i, a] = t / root[i, i] if i >= a else 0.0


@compiled
def gram(matrix, out):
    """A'A"""
    d = len(matrix)
    for i in range(d):
        for a in range(d):
            out[i, a] = 0.0
        for c in range(d):
            for a in range(d):
                out[i, a] += matrix[c, i] * matrix[c, a]


@compiled
def inverse(matrix, out):
    """Of a positive definite matrix."""
    root, back = np.empty(matrix.shape), np.empty(matrix.shape)
    root_of(matrix, 0.0, root)
    lower_inverse(root, back)
    gram(back, out)


@compiled
def inverse_square(root, out):
    """(R R')^{-1} of a root that need not be triangular."""
    d = len(root)
    square = np.empty((d, d))
    for i in range(d):
        for a in range(d):
            square[i, a] = 0.0
            for c in range(d):
                square[i, a] += root[i, c] * root[a, c]
    inverse(square, out)


@compiled
def gaussian(normal, information, right, out):
    """A draw from N(A^{-1} right, A^{-1}), A = information, from standard ``normal`` numbers."""
    d = len(right)
    covariance, root = np.empty((d, d)), np.empty((d, d))
    inverse(information, covariance)
    root_of(covariance, 1e-10, root)
    for i in range(d):
        out[i] = 0.0
        for a in range(d):
            out[i] += covariance[i, a] * right[a] + root[i, a] * normal[a]


@compiled
def bartlett(rng, freedom, z):
    """Lower triangular Z with Z Z' ~ Wishart(freedom, I)."""
    for i in range(len(z)):
        for a in range(i):
            z[i, a] = rng.standard_normal()
        z[i, i] = math.sqrt(2.0 * rng.standard_gamma(0.5 * (freedom - i)))


@compiled
def wishart_root(z, scale, out):
    """R with R R' ~ inverse Wishart(freedom, scale), where Z Z' ~ Wishart(freedom, I): uses up ``z``."""
    d = len(z)
    root, back = np.empty((d, d)), np.empty((d, d))
    root_of(scale, 1e-10, root)
    lower_inverse(z, back)
    for i in range(d):
        for a in range(d):
            out[i, a] = 0.0
            for c in range((i if i < a else a) + 1):
                out[i, a] += root[i, c] * back[a, c]


@compiled
def make_lower(root):
    """The lower triangular root of R R', with a positive diagonal, in the place of R (Gram and Schmidt)."""
    d = len(root)
    rows = root.copy()
    for i in range(d):
        for a in range(d):
            root[i, a] = 0.0
        for a in range(i + 1):
            t = 0.0
            for c in range(d):
                t += rows[a, c] * rows[i, c]
            if a == i:
                t = math.sqrt(t)
            root[i, a] = t
            for c in range(d):
                rows[i, c] = rows[i, c] - t * rows[a, c] if a < i else rows[i, c] / t


@compiled
def scale_of_group(rng, shape, rate, least):
    """A draw from the gamma distribution, between ``least`` and 1; ``shape`` is above 1."""
    end = 1.0 if shape - 1 > rate else least
    slope = (shape - 1) / end - rate
    outside = slope > 0 if end == 1 else slope < 0
    while True:
        c = rng.standard_gamma(shape) / rate
        if least <= c <= 1:
            return c
        if outside:  # The density's logarithm is concave: its tangent at the nearer end lies above it.
            c = end - rng.standard_exponential() / slope
            log_ratio = (shape - 1) * (c / end - 1 - math.log(c / end)) if least <= c <= 1 else np.inf
            if log_ratio < np.inf and rng.standard_exponential() > log_ratio:
                return c


@compiled
def _log_density(t, power, own, coupling, force, information):
    s = math.exp(t)
    return power * t - (0.5 * own / s + coupling) / s + (force - 0.5 * information * s) * s


@compiled
def _end(limit, height, power, own, coupling, force, information):
    """Where the log density of ``log_stretch`` falls below ``height`` on the way from 0 to ``limit``."""
    inside, outside = 0.0, math.copysign(0.01, limit)
    while abs(outside) < abs(limit):
        if _log_density(outside, power, own, coupling, force, information) < height:
            break
        inside, outside = outside, 2 * outside
    if abs(outside) >= abs(limit):
        if _log_density(limit, power, own, coupling, force, information) >= height:
            return limit
        outside = limit
    for _ in range(44):
        middle = 0.5 * (inside + outside)
        if _log_density(middle, power, own, coupling, force, information) >= height:
            inside = middle
        else:
            outside = middle
    return inside


@compiled
def log_stretch(exponential, uniform, power, own, coupling, force, information, low, high):
    """The next t, between ``low`` and ``high``; the last one was 0.  Its log density is

        power t - own e^{-2t} / 2 - coupling e^{-t} + force e^t - information e^{2t} / 2.

    By slice sampling (Neal 2003), from the whole slice around the last one: two chains with the same random
    numbers then draw near each other, and rounding stays rounding.
    """
    height = _log_density(0.0, power, own, coupling, force, information) - exponential
    low = _end(low, height, power, own, coupling, force, information)
    return low + (_end(high, height, power, own, coupling, force, information) - low) * uniform
