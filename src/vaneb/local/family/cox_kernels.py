"""Compiled sums of Cox's partial likelihood, one client after the other, and concordance.

Rows of a client stand by falling time of leaving.  Row j is at risk at t if entry_j < t <= time_j.  With D
the events at t, R the rows at risk, r_j = w_j e^eta_j and w the mean weight of D, Efron's loss at t is

    - sum_{i in D} w_i eta_i + w sum_{l=0}^{|D|-1} log(sum_R r_j - l / |D| sum_D r_j).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _add(share, z, s1, s2, second):
    """s1 += share z, and s2 += share z z' (lower triangle)."""
    for u in range(z.shape[0]):
        zu = share * z[u]
        s1[u] += zu
        if second:
            for v in range(u + 1):
                s2[u, v] += zu * z[v]


@njit(cache=True, nogil=True, error_model="numpy")
def cox_sums(z, entry, time, event, weight, offset, by_entry, starts, clients, theta, second):
    """Loss (K,), gradient (K, d) and Hessian (K, d, d) of ``clients`` at ``theta`` (K, d).

    ``by_entry`` has each client's rows by falling time of entry.  Without ``second`` the Hessian stays zero.
    """
    n_clients, d = theta.shape
    value, gradient, hessian = np.zeros(n_clients), np.zeros((n_clients, d)), np.zeros((n_clients, d, d))
    risk1, dead1, mean = np.empty(d), np.empty(d), np.empty(d)
    risk2, dead2 = np.empty((d, d)), np.empty((d, d))
    for k in range(n_clients):
        begin, end = starts[clients[k]], starts[clients[k] + 1]
        eta = np.empty(end - begin)
        for i in range(begin, end):
            t = offset[i]
            for u in range(d):
                t += z[i, u] * theta[k, u]
            eta[i - begin] = t
        # Sums hold e^(eta - top), top the largest index so far.
        risk0, at_risk, top = 0.0, 0, -np.inf
        risk1[:] = 0.0
        risk2[:] = 0.0
        i, leaving = begin, begin
        while i < end:
            now, n_dead, dead_weight, dead0 = time[i], 0, 0.0, 0.0
            dead1[:] = 0.0
            dead2[:] = 0.0
            while i < end and time[i] == now:
                if eta[i - begin] > top:
                    factor = math.exp(top - eta[i - begin])
                    top = eta[i - begin]
                    risk0 *= factor
                    risk1 *= factor
                    risk2 *= factor
                    dead0 *= factor
                    dead1 *= factor
                    dead2 *= factor
                share = weight[i] * math.exp(eta[i - begin] - top)
                risk0 += share
                at_risk += 1
                _add(share, z[i], risk1, risk2, second)
                if event[i] > 0.0 and weight[i] > 0.0:
                    n_dead += 1
                    dead_weight += weight[i]
                    dead0 += share
                    _add(share, z[i], dead1, dead2, second)
                    value[k] -= weight[i] * eta[i - begin]
                    for u in range(d):
                        gradient[k, u] -= weight[i] * z[i, u]
                i += 1
            while leaving < end and entry[by_entry[leaving]] >= now:
                j = by_entry[leaving]
                share = weight[j] * math.exp(eta[j - begin] - top)
                risk0 -= share
                at_risk -= 1
                _add(-share, z[j], risk1, risk2, second)
                leaving += 1
            if at_risk == 0:  # what is left is rounding
                risk0 = 0.0
                risk1[:] = 0.0
                risk2[:] = 0.0
            for tie in range(n_dead):
                gone = tie / n_dead
                # Where rows that left have taken all but rounding away, a likelihood that is next to none.
                total = max(risk0 - gone * dead0, 1e-300)
                share = dead_weight / n_dead
                value[k] += share * (math.log(total) + top)
                for u in range(d):
                    mean[u] = (risk1[u] - gone * dead1[u]) / total
                    gradient[k, u] += share * mean[u]
                if second:
                    for u in range(d):
                        for v in range(u + 1):
                            moment = (risk2[u, v] - gone * dead2[u, v]) / total
                            hessian[k, u, v] += share * (moment - mean[u] * mean[v])
        for u in range(d):
            for v in range(u):
                hessian[k, v, u] = hessian[k, u, v]
    return value, gradient, hessian


@njit(cache=True, nogil=True)
def cox_climbs(along, entry, time, event, weight, starts, clients):
    """Along a direction that changes indices by ``along``: how far the rows at risk rise above one with an
    event at most (K,), and how far they come apart at all (K,)."""
    worst, apart = np.zeros(len(clients)), np.zeros(len(clients))
    for k in range(len(clients)):
        begin, end = starts[clients[k]], starts[clients[k] + 1]
        for i in range(begin, end):
            if event[i] > 0.0 and weight[i] > 0.0:
                for j in range(begin, end):
                    if weight[j] > 0.0 and entry[j] < time[i] <= time[j]:
                        worst[k] = max(worst[k], along[j] - along[i])
                        apart[k] = max(apart[k], abs(along[j] - along[i]))
    return worst, apart


@njit(cache=True, nogil=True)
def concordant_pairs(entry, time, event, risk, starts):
    """Pairs of rows of one client that can be compared, and those of them in the right order (ties: half).

    A pair can be compared where one has an event while the other is at risk and leaves later, or at the same
    time without an event.
    """
    pairs, right = 0.0, 0.0
    for k in range(len(starts) - 1):
        for i in range(starts[k], starts[k + 1]):
            if event[i] > 0.0:
                for j in range(starts[k], starts[k + 1]):
                    later = time[j] > time[i] or (time[j] == time[i] and event[j] == 0.0)
                    if later and entry[j] < time[i]:
                        pairs += 1.0
                        if risk[i] > risk[j]:
                            right += 1.0
                        elif risk[i] == risk[j]:
                            right += 0.5
    return pairs, right
