"""Compiled Gaussian quadrature of softmax weights: the hot loop of ``moments``."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from vaneb.vector_math import exponentials

#: The trapezoid rule with step h is wrong by about exp(-2 pi^2 / h^2) for the Gaussian factor and by
#: exp(-2 pi^2 / (h rate)) for the softmax, whose poles lie pi / rate off the real axis when one unit
#: moves a logit difference by ``rate``; both times a polynomial of the order of pole and moment.
#: By number of axes: largest step, largest step * rate, standard deviations that the nodes reach, most
#: nodes on a side.  One axis is cheap and gets relative errors near 1e-9; with more it is 1e-6, in the
#: gradient 2e-5.
RULES = {1: (0.6, 0.6, 8.0, 240), 2: (0.9, 1.0, 6.0, 120), 3: (0.9, 1.0, 6.0, 120)}
#: More than three axes would need more nodes than anyone waits for.
MOST_AXES = len(RULES)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"})
def softmax_quadrature(mean, loading, step, nodes, reach, classes, monomials, out):
    """out[p] = E[ kappa(t) m(t) ] over t ~ N(0, I_r), for every class tuple and monomial.

    The logits, relative to the last class, are mean + loading t.  kappa is the joint cumulant, of
    order 2 or 3, of the indicators of the classes in a tuple; m(t) is the product of the entries of
    (1, t_1, ..., t_r) that a monomial lists.

    Parameters
    ----------
    mean : array (N, C - 1)
    loading : array (N, C - 1, 3)
    step, nodes : array (N, 3)
        Node q of an axis stands at t = q * step for |q| <= nodes; an axis with nodes = 0 is not
        integrated over.
    reach : float
        Nodes farther from the origin than this are left out.
    classes : array (Tc, order)
    monomials : array (Tm, order)
    out : array (N, Tc, Tm)
    """
    n_logits = mean.shape[1]
    n_classes, order = classes.shape
    most = 2 * nodes.max() + 1
    share = np.empty((n_logits + 1, most))
    exponent, scratch, top, total = np.empty(most), np.empty(most), np.empty(most), np.empty(most)
    t0, weight0, kappa = np.empty(most), np.empty(most), np.empty(most)
    powers = np.empty(order + 1)
    t = np.empty(4)
    for p in range(mean.shape[0]):
        out[p] = 0.0
        for q1 in range(-nodes[p, 1], nodes[p, 1] + 1):
            for q2 in range(-nodes[p, 2], nodes[p, 2] + 1):
                t[0], t[2], t[3] = 1.0, q1 * step[p, 1], q2 * step[p, 2]
                outer_weight = _weight(t[2], step[p, 1], nodes[p, 1]) * _weight(t[3], step[p, 2], nodes[p, 2])
                # a ball of nodes, not a cube: the corners weigh nothing
                radius = math.sqrt(max(reach**2 - t[2] ** 2 - t[3] ** 2, 0.0))
                inside = min(nodes[p, 0], math.ceil(radius / step[p, 0]))
                n0 = 2 * inside + 1
                for i in range(n0):
                    t0[i] = (i - inside) * step[p, 0]
                    exponent[i] = -0.5 * t0[i] * t0[i]
                exponentials(exponent, n0, weight0)
                if nodes[p, 0] > 0:
                    outer_weight *= step[p, 0] / math.sqrt(2.0 * math.pi)
                top[:n0] = 0.0
                for c in range(n_logits):
                    base = mean[p, c] + loading[p, c, 1] * t[2] + loading[p, c, 2] * t[3]
                    slope = loading[p, c, 0]
                    for i in range(n0):
                        share[c, i] = base + slope * t0[i]
                    for i in range(n0):
                        top[i] = max(top[i], share[c, i])
                share[n_logits, :n0] = 0.0
                total[:n0] = 0.0
                for c in range(n_logits + 1):
                    for i in range(n0):
                        exponent[i] = max(share[c, i] - top[i], -700.0)
                    exponentials(exponent, n0, share[c])
                    for i in range(n0):
                        total[i] += share[c, i]
                for c in range(n_logits + 1):
                    for i in range(n0):
                        share[c, i] /= total[i]
                for s in range(n_classes):
                    _cumulant(share, classes[s], order, n0, scratch, kappa)
                    for i in range(n0):
                        kappa[i] *= weight0[i]
                    for o in range(order + 1):
                        value = 0.0
                        for i in range(n0):
                            value += kappa[i]
                        powers[o] = value * outer_weight
                        for i in range(n0):
                            kappa[i] *= t0[i]
                    for e in range(monomials.shape[0]):
                        inner = 0
                        factor = 1.0
                        for o in range(order):
                            if monomials[e, o] == 1:
                                inner += 1
                            else:
                                factor *= t[monomials[e, o]]
                        out[p, s, e] += powers[inner] * factor


@njit(cache=True, nogil=True)
def _weight(t, step, nodes):
    """Weight of a node of the trapezoid rule for the standard normal density."""
    return step * math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi) if nodes > 0 else 1.0


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"})
def _cumulant(share, classes, order, n, rest, out):
    """Joint cumulant of class indicators, free of the cancellation in 1 - p.

    Order 2: p_c (1 - p_c) or -p_c p_b.  Order 3: p_c (1 - p_c)(1 - 2 p_c), -p_c p_e (1 - 2 p_c) where
    c stands twice, or 2 p_c p_b p_e.  ``classes`` is sorted.
    """
    first, last = classes[0], classes[order - 1]
    if first == last:
        rest[:n] = 0.0
        for b in range(share.shape[0]):
            if b != first:
                for i in range(n):
                    rest[i] += share[b, i]
        for i in range(n):
            out[i] = share[first, i] * rest[i]
        if order == 3:
            for i in range(n):
                out[i] *= rest[i] - share[first, i]
    elif order == 2:
        for i in range(n):
            out[i] = -share[first, i] * share[last, i]
    elif classes[1] != first and classes[1] != last:
        middle = classes[1]
        for i in range(n):
            out[i] = 2.0 * share[first, i] * share[middle, i] * share[last, i]
    else:
        twice = classes[1]
        for i in range(n):
            out[i] = -share[first, i] * share[last, i] * (1.0 - 2.0 * share[twice, i])
