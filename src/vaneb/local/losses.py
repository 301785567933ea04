"""The loss of one row and its derivatives in the linear index, for arrays of (index, response) pairs.

With index eta and response y, up to a constant in eta:

    gaussian            (eta - y)^2 / 2
    binomial            log(1 + e^eta) - y eta
    poisson             e^eta - y eta
    gamma               y e^-eta + eta                                    (log link)
    negative binomial   (y + 1/a) log(1 + a e^eta) - y eta                (log link, dispersion a)
    huber               r^2 / 2 if |r| <= a, else a (|r| - a / 2);  r = eta - y
    softmax             log sum_c e^eta_c - eta_y                         (index of C entries)

The functions are compiled and work on the first ``size`` of tiles of T pairs, with the loop over pairs
innermost so that it becomes vector instructions.  ``index`` has shape (C, T) with C = 1 except
for softmax; second derivatives are packed lower triangles of C x C matrices, entry (b, c <= b) at
b (b + 1) / 2 + c.

Huber's second derivative is not continuous; its place is taken by the weight of iteratively reweighted
least squares, min(1, a / |r|), whose quadratic lies above the loss and so never overshoots.
"""

from __future__ import annotations

from math import log as scalar_log

from numba import njit

from vaneb.local.vector_math import exp, log

GAUSSIAN, BINOMIAL, POISSON, GAMMA, NEGATIVE_BINOMIAL, HUBER, SOFTMAX = range(7)

_compiled = njit(cache=True, error_model="numpy", fastmath={"contract", "nsz"})


@_compiled
def _softmax(size, index, probability, log_total):
    """probability_c = e^eta_c / sum_b e^eta_b and the logarithm of that sum, without overflow."""
    n_classes = index.shape[0]
    for i in range(size):
        log_total[i] = index[0, i]
    for c in range(1, n_classes):
        for i in range(size):
            log_total[i] = max(log_total[i], index[c, i])
    total = probability[n_classes]
    for i in range(size):
        total[i] = 0.0
    for c in range(n_classes):
        for i in range(size):
            e = exp(index[c, i] - log_total[i])
            probability[c, i] = e
            total[i] += e
    for i in range(size):
        log_total[i] += log(total[i])
        total[i] = 1.0 / total[i]
    for c in range(n_classes):
        for i in range(size):
            probability[c, i] *= total[i]


@_compiled
def values(code, a, size, y, index, loss, work):
    """Losses of a tile: ``loss`` (T,) is overwritten; ``work`` (C + 2, T) is scratch."""
    eta = index[0]
    if code == GAUSSIAN:
        for i in range(size):
            loss[i] = 0.5 * (eta[i] - y[i]) ** 2
    elif code == BINOMIAL:
        for i in range(size):
            x = eta[i]
            loss[i] = max(x, 0.0) - y[i] * x + log(1.0 + exp(-abs(x)))
    elif code == POISSON:
        for i in range(size):
            loss[i] = exp(eta[i]) - y[i] * eta[i]
    elif code == GAMMA:
        for i in range(size):
            loss[i] = y[i] * exp(-eta[i]) + eta[i]
    elif code == NEGATIVE_BINOMIAL:
        shift, trials = scalar_log(a), 1.0 / a
        for i in range(size):
            x = eta[i] + shift
            loss[i] = (y[i] + trials) * (max(x, 0.0) + log(1.0 + exp(-abs(x)))) - y[i] * eta[i]
    elif code == HUBER:
        for i in range(size):
            r = abs(eta[i] - y[i])
            inner = min(r, a)
            loss[i] = inner * (r - 0.5 * inner)
    else:
        _softmax(size, index, work, loss)
        for i in range(size):
            loss[i] -= index[int(y[i]), i]


@_compiled
def derivatives(code, a, size, y, index, loss, first, second, work):
    """Losses (T,), first derivatives (C, T) and second derivatives (C (C + 1) / 2, T) of a tile."""
    eta, slope, curvature = index[0], first[0], second[0]
    if code == GAUSSIAN:
        for i in range(size):
            r = eta[i] - y[i]
            loss[i] = 0.5 * r * r
            slope[i] = r
            curvature[i] = 1.0
    elif code == BINOMIAL:
        for i in range(size):
            x = eta[i]
            e = exp(-abs(x))
            q = 1.0 / (1.0 + e)
            loss[i] = max(x, 0.0) - y[i] * x + log(1.0 + e)
            slope[i] = (q if x >= 0.0 else e * q) - y[i]
            curvature[i] = e * q * q
    elif code == POISSON:
        for i in range(size):
            mean = exp(eta[i])
            loss[i] = mean - y[i] * eta[i]
            slope[i] = mean - y[i]
            curvature[i] = mean
    elif code == GAMMA:
        for i in range(size):
            ratio = y[i] * exp(-eta[i])
            loss[i] = ratio + eta[i]
            slope[i] = 1.0 - ratio
            curvature[i] = ratio
    elif code == NEGATIVE_BINOMIAL:
        shift, trials = scalar_log(a), 1.0 / a
        for i in range(size):
            x = eta[i] + shift
            e = exp(-abs(x))
            q = 1.0 / (1.0 + e)
            share = q if x >= 0.0 else e * q
            n = y[i] + trials
            loss[i] = n * (max(x, 0.0) + log(1.0 + e)) - y[i] * eta[i]
            slope[i] = n * share - y[i]
            curvature[i] = n * e * q * q
    elif code == HUBER:
        for i in range(size):
            r = eta[i] - y[i]
            inner = min(abs(r), a)
            loss[i] = inner * (abs(r) - 0.5 * inner)
            slope[i] = max(-a, min(a, r))
            curvature[i] = a / max(abs(r), a)
    else:
        _softmax(size, index, work, loss)
        n_classes = index.shape[0]
        for i in range(size):
            loss[i] -= index[int(y[i]), i]
        at = 0
        for b in range(n_classes):
            for i in range(size):
                first[b, i] = work[b, i]
            for c in range(b):
                for i in range(size):
                    second[at, i] = -work[b, i] * work[c, i]
                at += 1
            for i in range(size):
                second[at, i] = work[b, i] * (1.0 - work[b, i])
            at += 1
        for i in range(size):
            first[int(y[i]), i] -= 1.0


@_compiled
def third_derivatives(code, a, size, y, index, against, third, work):
    """third_c = d/d eta_c of trace(W(eta) N), W the second derivatives and N = ``against`` given.

    ``against`` is packed like the second derivatives, shape (C (C + 1) / 2, T); ``third`` is (C, T).
    """
    eta, weight, out = index[0], against[0], third[0]
    if code in (GAUSSIAN, HUBER):
        for i in range(size):
            out[i] = 0.0
    elif code == POISSON:
        for i in range(size):
            out[i] = exp(eta[i]) * weight[i]
    elif code == GAMMA:
        for i in range(size):
            out[i] = -y[i] * exp(-eta[i]) * weight[i]
    elif code in (BINOMIAL, NEGATIVE_BINOMIAL):
        shift = scalar_log(a) if code == NEGATIVE_BINOMIAL else 0.0
        for i in range(size):
            x = eta[i] + shift
            e = exp(-abs(x))
            q = 1.0 / (1.0 + e)
            n = y[i] + 1.0 / a if code == NEGATIVE_BINOMIAL else 1.0
            # sigma (1 - sigma) (1 - 2 sigma) is odd in x.
            t = n * e * q * q * (1.0 - e) * q * weight[i]
            out[i] = -t if x >= 0.0 else t
    else:
        # trace(W N) = sum_c p_c q_c with q_c = (e_c - p)' N (e_c - p), so third_c = p_c (q_c - mean q).
        n_classes = index.shape[0]
        _softmax(size, index, work, work[n_classes + 1])
        mean = work[n_classes]
        for c in range(n_classes):
            for i in range(size):
                third[c, i] = 0.0
        at = 0
        for b in range(n_classes):
            for c in range(b):
                for i in range(size):
                    third[b, i] += against[at, i] * work[c, i]
                    third[c, i] += against[at, i] * work[b, i]
                at += 1
            for i in range(size):
                third[b, i] += against[at, i] * work[b, i]
            at += 1
        # third_c = (N p)_c for now; q_c = N_cc - 2 (N p)_c + p'Np, and p'Np cancels in q_c - mean q.
        for i in range(size):
            mean[i] = 0.0
        for c in range(n_classes):
            at = c * (c + 1) // 2 + c
            for i in range(size):
                third[c, i] = against[at, i] - 2.0 * third[c, i]
                mean[i] += work[c, i] * third[c, i]
        for c in range(n_classes):
            for i in range(size):
                third[c, i] = work[c, i] * (third[c, i] - mean[i])
