"""What the compiled sums over clients' rows share (``_glm_kernels``, ``_softmax_kernels``).

Each kernel writes, for client k and point j, the symmetric tensor

    T = (1/n_k) sum_i w_i  v_i (x) v_i            (order 2: the information)
    T = (1/n_k) sum_i w'_i v_i (x) v_i (x) v_i    (order 3: its derivative)

each distinct entry once.  ``tuples`` (T, order) lists the coordinates of the distinct entries and
``scatter`` (d**order,) says which of them stands at each place of the flattened tensor.

Client k holds rows[starts[k]:stops[k]].  A client that follows itself (a solver asks for pairs of
client and point, sorted by client) is not prepared twice.

Inner loops run over rows (those of an information: and points) and hold no branches, so that they become
vector instructions; the exponential is written out for the same reason (the library's is called row by row).
"""

from __future__ import annotations

from numba import njit

#: Linear predictors are clipped to [-EXPONENT_LIMIT_LOW, EXPONENT_LIMIT] before they are exponentiated:
#: e^200 is 7e86, so that a precision, its square and its determinant stay finite.
EXPONENT_LIMIT = 200.0
EXPONENT_LIMIT_LOW = 700.0

#: Points that are taken together where loops run over points.
AT_ONCE = 64

#: Reordering of sums is allowed, assumptions about NaN and infinity are not.
FAST = {"reassoc", "contract", "nsz", "arcp"}
#: Loops over points reorder no sum; a zero divided by makes no error, whose test would keep a loop scalar.
by_points = njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
