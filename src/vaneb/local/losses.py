"""The loss of one row and its derivatives in the linear index, for arrays of (index, response) pairs.

With index eta and response y, up to a constant in eta:

    gaussian            (eta - y)^2 / 2
    binomial            log(1 + e^eta) - y eta
    poisson             e^eta - y eta
    gamma               y e^-eta + eta                                    (log link)
    negative binomial   (y + 1/a) log(1 + a e^eta) - y eta                (log link, dispersion a)
    huber               r^2 / 2 if |r| <= a, else a (|r| - a / 2);  r = eta - y
    softmax             log(1 + sum_c e^eta_c) - eta_y                    (eta_0 = 0)

The functions are compiled and work on the first ``size`` of tiles of T pairs, with the loop over pairs
innermost so that it becomes vector instructions.  ``index`` has shape (C, T); C = 1 except for softmax,
where it holds the scores of classes 1 to C relative to class 0.  Second derivatives are packed lower
triangles of C x C matrices, entry (b, c <= b) at b (b + 1) / 2 + c.

Huber's second derivative is not continuous; its place is taken by the weight of iteratively reweighted
least squares, min(1, a / |r|), whose quadratic lies above the loss and so never overshoots.

The functions are compiled into their callers in other files, and the compiler's cache does not see that:
after a change here remove the ``__pycache__`` folders.
"""

from __future__ import annotations

from math import log as scalar_log

from numba import njit

from vaneb.vector_math import exp, log

GAUSSIAN, BINOMIAL, POISSON, GAMMA, NEGATIVE_BINOMIAL, HUBER, SOFTMAX = range(7)

_compiled = njit(cache=True, error_model="numpy", fastmath={"contract", "nsz"})


@_compiled
def _softmax(size, index, probability, log_total):
    """Probabilities e^eta_c / (1 + sum_b e^eta_b) and the logarithm of that sum, without overflow.

    ``probability`` is (C + 1 or more, T): rows 0 to C - 1 are those of the entries of the index.
    """
    n_index = index.shape[0]
    total = probability[n_index]
    _log_sum(size, index, probability, total, log_total)
    for i in range(size):
        total[i] = 1.0 / total[i]
    for c in range(n_index):
        own = probability[c]
        for i in range(size):
            own[i] *= total[i]


@_compiled
def _log_sum(size, index, terms, total, log_total):
    """log(1 + sum_c e^eta_c), with e^(eta_c - largest) and their sum (of at least 1) left over."""
    eta = index[0]
    for i in range(size):
        log_total[i] = max(eta[i], 0.0)
    for c in range(1, index.shape[0]):
        eta = index[c]
        for i in range(size):
            log_total[i] = max(log_total[i], eta[i])
    for i in range(size):
        total[i] = exp(-log_total[i])
    for c in range(index.shape[0]):
        eta, term = index[c], terms[c]
        for i in range(size):
            e = exp(eta[i] - log_total[i])
            term[i] = e
            total[i] += e
    for i in range(size):
        log_total[i] += log(total[i])


@_compiled
def _subtract_own(size, y, index, loss):
    """loss -= eta_y, with eta_0 = 0."""
    for c in range(index.shape[0]):
        eta = index[c]
        for i in range(size):
            loss[i] -= eta[i] if y[i] == c + 1.0 else 0.0


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
        _log_sum(size, index, work, work[index.shape[0]], loss)
        _subtract_own(size, y, index, loss)


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
        n_index = index.shape[0]
        _subtract_own(size, y, index, loss)
        at = 0
        for b in range(n_index):
            p, slope = work[b], first[b]
            for i in range(size):
                slope[i] = p[i] - (1.0 if y[i] == b + 1.0 else 0.0)
            for c in range(b):
                other, entry = work[c], second[at]
                for i in range(size):
                    entry[i] = -p[i] * other[i]
                at += 1
            entry = second[at]
            for i in range(size):
                entry[i] = p[i] * (1.0 - p[i])
            at += 1


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
        n_index = index.shape[0]
        _softmax(size, index, work, work[n_index + 1])
        mean = work[n_index]
        for c in range(n_index):
            own = third[c]
            for i in range(size):
                own[i] = 0.0
        at = 0
        for b in range(n_index):
            p, own = work[b], third[b]
            for c in range(b):
                entry, p_other, other = against[at], work[c], third[c]
                for i in range(size):
                    own[i] += entry[i] * p_other[i]
                    other[i] += entry[i] * p[i]
                at += 1
            entry = against[at]
            for i in range(size):
                own[i] += entry[i] * p[i]
            at += 1
        # third_c = (N p)_c for now; q_c = N_cc - 2 (N p)_c + p'Np, and p'Np cancels in q_c - mean q.
        for i in range(size):
            mean[i] = 0.0
        for c in range(n_index):
            entry, p, own = against[c * (c + 1) // 2 + c], work[c], third[c]
            for i in range(size):
                own[i] = entry[i] - 2.0 * own[i]
                mean[i] += p[i] * own[i]
        for c in range(n_index):
            p, own = work[c], third[c]
            for i in range(size):
                own[i] = p[i] * (own[i] - mean[i])
