"""The Hessian of the weights where rows are sparse: a compiled loop over the entries that matter."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def sparse_gram(columns, scale, root, gram, total):
    """Add B'B to ``gram`` (m, m), lower triangle, and B'r to ``total`` (m,) for B_kj = L_kj c_k.

    ``columns`` is L (K, m), ``scale`` c (K,), ``root`` r (K,).  Entries of B up to 1e-9 r_k are left out of
    B'B only.
    """
    n_rows, m = columns.shape
    where, value = np.empty(m, dtype=np.int64), np.empty(m)
    for k in range(n_rows):
        row, factor_k, smallest = columns[k], scale[k], 1e-9 * root[k]
        count = 0
        for j in range(m):
            entry = row[j] * factor_k
            total[j] += entry * root[k]
            if entry > smallest:
                where[count], value[count] = j, entry
                count += 1
        for a in range(count):
            target, factor = gram[where[a]], value[a]
            for b in range(a + 1):
                target[where[b]] += factor * value[b]
