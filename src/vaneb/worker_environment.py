"""The environment of worker processes."""

from __future__ import annotations

#: Arrays come and go in every step.  With these thresholds glibc keeps their memory instead of giving it back
#: to the system each time; worth 10 to 20% of the time of training.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
#: Two threads on each of two cores wait for each other; and CPU seconds are only comparable on one.
ONE_THREAD = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA", "VECLIB_MAXIMUM")
} | {"VANEB_THREADS": "1"}
WORKER = MALLOC | ONE_THREAD
