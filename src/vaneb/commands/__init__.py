"""One command of the command line per module: parse, call, write; the work is done elsewhere."""

import os

# Blocks of clients run in threads of their own, on small matrices.  BLAS threads on top of those wait
# for each other: the demonstration takes three times as long.  This must come before numpy is imported.
for _library in ("OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
