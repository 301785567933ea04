"""A fingerprint of the code that decides results, so that stages of other code are never used again."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable
from functools import cache
from pathlib import Path

#: What algorithms and engine are made of: parts of this package, folders or modules.
PARTS = (
    "fl",
    "covariance",
    "likelihood",
    "npmle",
    "population",
    "posterior.py",
    "prior.py",
    "semidefinite.py",
)


def code_version(named: Iterable[str] = ()) -> str:
    """Twelve hexadecimal digits; of ``named`` algorithms and models, each "module:name" adds its file."""
    total = hashlib.sha256(_package_version())
    for module in sorted({name.partition(":")[0] for name in named if ":" in name}):
        try:
            found = importlib.util.find_spec(module)
        except (ImportError, ValueError):  # not there, or made by hand: a notebook has no file
            found = None
        if found is not None and found.origin is not None:
            total.update(f"{module} ".encode() + Path(found.origin).read_bytes())
    return total.hexdigest()[:12]


@cache
def _package_version() -> bytes:
    root = Path(__file__).parents[1]
    files = [
        path for part in PARTS for path in ((root / part).rglob("*.py") if "." not in part else [root / part])
    ]
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path.relative_to(root).as_posix()} ".encode() + path.read_bytes())
    return total.digest()
